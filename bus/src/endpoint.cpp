#include "endpoint.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace freeride::bus {
namespace {

constexpr const char* kScheme = "ipc://";

Status prepare_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  if (!std::filesystem::exists(folder, failed)) {
    std::filesystem::create_directories(folder, failed);
    if (failed) return errno_error("cannot make the run directory " + folder.string(), failed.value(), "set --run-dir");
    ::chmod(folder.c_str(), 0755);  // NOLINT: best effort; others need it only to read events
  }
  struct stat info = {};
  if (::stat(folder.c_str(), &info) != 0) {
    return errno_error("cannot look at the run directory " + folder.string(), errno, "set --run-dir");
  }
  if (!S_ISDIR(info.st_mode)) {
    return Error{Code::kInvalidArgument, "the run directory " + folder.string() + " is no directory", "set --run-dir"};
  }
  const bool anybody_may_replace = (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0;
  if (anybody_may_replace || (info.st_uid != ::geteuid() && info.st_uid != 0)) {
    return Error{Code::kPermission, "the run directory " + folder.string() + " can be changed by other users",
                 "make it with mode 0755 and your own uid, or set --run-dir"};
  }
  return {};
}

std::string owner_of(int lock_fd) {
  char text[32] = {};
  const ssize_t size = ::pread(lock_fd, text, sizeof text - 1, 0);
  const long pid = size > 0 ? std::strtol(text, nullptr, 10) : 0;
  return pid > 0 ? "process " + std::to_string(pid) : "another process";
}

// Somebody who does not know our lock may listen there.
bool answers(const sockaddr_un& address) {
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return false;
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  return errno == EAGAIN;  // its backlog is full
}

}  // namespace

EndpointLock& EndpointLock::operator=(EndpointLock&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::exchange(other.path_, {});
    lock_ = std::move(other.lock_);
  }
  return *this;
}

EndpointLock::~EndpointLock() {
  release();
}

void EndpointLock::release() {
  if (lock_.valid() && !path_.empty()) ::unlink(path_.c_str());
  // The lock file stays: removing it would let two processes lock two files of one name.
  lock_.reset();
}

Result<EndpointLock> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint, mode_t mode) {
  if (endpoint.rfind(kScheme, 0) != 0 || endpoint.size() == std::strlen(kScheme)) {
    return Error{Code::kInvalidArgument, "endpoint " + endpoint + " is not of the form ipc://<path>", "set --run-dir"};
  }
  const std::string path = endpoint.substr(std::strlen(kScheme));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Error{
        Code::kInvalidArgument,
        "the socket's path " + path + " is longer than " + std::to_string(sizeof address.sun_path - 1) + " bytes",
        "choose a shorter --run-dir"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto folder = std::filesystem::path(path).parent_path();
  if (Status prepared = prepare_folder(folder.empty() ? "." : folder); !prepared) return prepared.error();

  EndpointLock held;
  const std::string lock_path = path + ".lock";
  held.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!held.lock_.valid()) return errno_error("cannot open " + lock_path, errno, "check who owns the run directory");
  if (::flock(held.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{Code::kAlreadyExists, endpoint + " is served by " + owner_of(held.lock_.get()),
                 "stop it, or choose another --run-dir"};
  }
  if (answers(address)) {
    return Error{Code::kAlreadyExists, endpoint + " is served by another program",
                 "stop it, or choose another --run-dir"};
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(held.lock_.get(), 0) != 0 || ::pwrite(held.lock_.get(), pid.data(), pid.size(), 0) < 0) {
    return errno_error("cannot write " + lock_path, errno, "free some space in the run directory");
  }

  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return errno_error("cannot replace the old socket " + path, errno);
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return errno_error("cannot make a socket for " + endpoint, errno);
  // Linux gives the socket's file the mode of its descriptor less the umask: so it is never open wider than `mode`, not
  // even between bind and chmod. The chmod after it only puts back what the umask took.
  if (::fchmod(listener.get(), mode) != 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("cannot bind " + endpoint, errno, "check who owns the run directory");
  }
  held.path_ = path;
  if (::chmod(path.c_str(), mode) != 0 || ::listen(listener.get(), 128) != 0)
    return errno_error("cannot bind " + endpoint, errno);
  try {
    socket.set(zmq::sockopt::use_fd, listener.get());
    socket.bind(endpoint);
    (void)listener.release();  // libzmq closes it
    socket.set(zmq::sockopt::use_fd, -1);
  } catch (const zmq::error_t& error) {
    return Error{Code::kInternal, "cannot bind " + endpoint + ": " + error.what(), ""};
  }
  return held;
}

}  // namespace freeride::bus
