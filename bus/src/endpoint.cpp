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

#include "freeride/base/access.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/random.hpp"
#include "gate.hpp"
#include "message.hpp"

namespace freeride::bus {
namespace {

constexpr uint64_t kHostThread = 1;  // the first of libzmq's I/O threads; a second is the network's (tcp.hpp)
constexpr const char* kScheme = "ipc://";

Error too_long(const std::string& path) {
  return Error{
      Code::kInvalidArgument,
      "the socket's path " + path + " is longer than " + std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes",
      "choose a shorter --run-dir"};
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

// Under a name of its own until it has its group and mode and listens: who finds it under the real one can use it.
Status listen_there(zmq::socket_t& socket, const std::string& path, std::optional<gid_t> group) {
  const std::string endpoint = kScheme + path;
  const mode_t mode = group ? 0660 : 0600;
  const auto folder = std::filesystem::path(path).parent_path();
  const std::string fresh = (folder / ("." + random_hex().substr(0, 8))).string();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (fresh.size() >= sizeof address.sun_path) return too_long(fresh);
  std::memcpy(address.sun_path, fresh.c_str(), fresh.size() + 1);
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return errno_error("cannot make a socket for " + endpoint, errno);
  // Linux gives the socket's file the mode of its descriptor less the umask: so it is never open wider than `mode`. The
  // chmod after it only puts back what the umask took.
  if (::fchmod(listener.get(), mode) != 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_error("cannot bind " + endpoint, errno, "check who owns the run folder");
  }
  if (group && ::chown(fresh.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return errno_error("cannot give " + path + " to group " + std::to_string(*group), why, "set --group");
  }
  if (::chmod(fresh.c_str(), mode) != 0 || ::listen(listener.get(), 128) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return errno_error("cannot bind " + endpoint, why, "check who owns the run folder");
  }
  try {
    socket.set(zmq::sockopt::affinity, kHostThread);
    hand_over(socket, std::move(listener), endpoint);
  } catch (const zmq::error_t& error) {
    ::unlink(path.c_str());  // nobody would listen behind it
    return Error{Code::kInternal, "cannot bind " + endpoint + ": " + error.what(), ""};
  }
  return {};
}

}  // namespace

void hand_over(zmq::socket_t& socket, Fd listener, const std::string& endpoint) {
  detail::Gate::instance().guard(listener.get(), endpoint);
  try {
    socket.set(zmq::sockopt::use_fd, listener.get());
    socket.bind(endpoint);
    (void)listener.release();  // libzmq closes it
    socket.set(zmq::sockopt::use_fd, -1);
  } catch (const zmq::error_t&) {
    detail::Gate::instance().forget(listener.get());
    const int none = -1;
    (void)zmq_setsockopt(socket.handle(), ZMQ_USE_FD, &none, sizeof none);
    throw;
  }
}

EndpointLock& EndpointLock::operator=(EndpointLock&& other) noexcept {
  if (this != &other) {
    release();
    path_ = std::exchange(other.path_, {});
    group_ = other.group_;
    lock_ = std::move(other.lock_);
  }
  return *this;
}

EndpointLock::~EndpointLock() {
  release();
}

void EndpointLock::release() {
  if (lock_.valid() && !path_.empty()) {
    detail::Gate::instance().forget(kScheme + path_);
    ::unlink(path_.c_str());
  }
  // The lock file stays: removing it would let two processes lock two files of one name.
  lock_.reset();
}

bool EndpointLock::named() const {
  struct stat info {};
  return path_.empty() || ::lstat(path_.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

// The file of the lock, which is in the folder whose name `path_` begins with now.
Status EndpointLock::take_lock() {
  const std::string file = path_ + ".lock";
  Fd lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return errno_error("cannot open " + file, errno, "check who owns the run folder");
  struct stat there {
  }, held{};
  if (lock_.valid() && ::fstat(lock.get(), &there) == 0 && ::fstat(lock_.get(), &held) == 0 &&
      there.st_ino == held.st_ino && there.st_dev == held.st_dev)
    return {};
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error{Code::kAlreadyExists, kScheme + path_ + " is served by " + owner_of(lock.get()),
                 "stop it, or choose another --run-dir"};
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0)
    return errno_error("cannot write " + file, errno, "free some space in the run folder");
  lock_ = std::move(lock);
  return {};
}

Status EndpointLock::name_again(zmq::socket_t& socket) {
  const auto folder = std::filesystem::path(path_).parent_path();
  if (Status made = make_run_folder(folder.empty() ? "." : folder); !made) return made;
  if (Status locked = take_lock(); !locked) return locked;
  // What listened stays, for nobody: libzmq would end every connection that has come through it.
  return listen_there(socket, path_, group_);
}

void EndpointLock::keep_named(zmq::socket_t& socket) {
  if (named()) return;
  if (Status bound = name_again(socket); !bound) {
    if (std::exchange(failure_said_, true)) return;
    return spdlog::error("the socket {} was removed and cannot be made again yet: {}", path_, bound.error().text());
  }
  failure_said_ = false;
  spdlog::warn("the socket {} was removed and is made again", path_);
}

Result<EndpointLock> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint, std::optional<gid_t> group) {
  if (endpoint.rfind(kScheme, 0) != 0 || endpoint.size() == std::strlen(kScheme)) {
    return Error{Code::kInvalidArgument, "endpoint " + endpoint + " is not of the form ipc://<path>", "set --run-dir"};
  }
  const std::string path = endpoint.substr(std::strlen(kScheme));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return too_long(path);
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto folder = std::filesystem::path(path).parent_path();
  if (Status prepared = make_run_folder(folder.empty() ? "." : folder); !prepared) return prepared.error();

  EndpointLock lock;
  lock.path_ = path;
  lock.group_ = group;
  if (Status locked = lock.take_lock(); !locked) return locked.error();
  if (answers(address)) {
    lock.path_.clear();  // the socket is not ours to remove
    return Error{Code::kAlreadyExists, endpoint + " is served by another program",
                 "stop it, or choose another --run-dir"};
  }
  if (Status bound = listen_there(socket, path, group); !bound) return bound.error();
  return lock;
}

void connect_endpoint(zmq::socket_t& socket, const std::string& endpoint) {
  if (endpoint.rfind(kScheme, 0) == 0) {
    detail::Gate::instance().check(endpoint.substr(std::strlen(kScheme)));
    socket.set(zmq::sockopt::affinity, kHostThread);
  }
  socket.connect(endpoint);
}

Status why_unreachable(const std::string& endpoint) {
  if (endpoint.rfind(kScheme, 0) != 0) return {};
  const std::string path = endpoint.substr(std::strlen(kScheme));
  if (auto open = check_socket(path); !open) return open;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return errno_error("cannot make a socket for " + endpoint, errno);
  if (detail::connect_unchecked(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return {};
  return check_listener(probe.get(), path);
}

}  // namespace freeride::bus
