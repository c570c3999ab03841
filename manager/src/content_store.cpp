#include "content_store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/sha256.hpp"

namespace freeride::manager {
namespace {

Status write_all(int fd, std::string_view bytes, const std::string& file) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot write " + file, errno, "free space or choose another --state-dir");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (fsync(fd) != 0 || fchmod(fd, 0444) != 0) return errno_error("cannot write " + file, errno);
  return {};
}

}  // namespace

bool ContentStore::is_sha256(const std::string& text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::filesystem::path ContentStore::file_of(const std::string& sha256) const {
  const std::filesystem::path script = folder_ / (sha256 + ".py");
  std::error_code ec;
  return std::filesystem::exists(script, ec) ? script : folder_ / (sha256 + ".so");
}

bool ContentStore::has(const std::string& sha256) const {
  std::error_code ec;
  return is_sha256(sha256) && std::filesystem::is_regular_file(file_of(sha256), ec);
}

Result<std::string> ContentStore::put(std::string_view bytes, const std::string& name) {
  if (auto checked = check_plugin_file(bytes, name); !checked) return checked.error();
  std::string sha256 = sha256_hex(bytes);
  if (has(sha256)) return sha256;
  std::error_code ec;
  std::filesystem::create_directories(folder_, ec);
  if (ec)
    return errno_error("cannot make the plugin store " + folder_.string(), ec.value(), "choose another --state-dir");
  std::string temporary = (folder_ / ".manager-XXXXXX").string();
  const Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid())
    return errno_error("cannot write into the plugin store " + folder_.string(), errno, "choose another --state-dir");
  if (auto written = write_all(fd.get(), bytes, temporary); !written) {
    unlink(temporary.c_str());
    return written.error();
  }
  const std::filesystem::path file = folder_ / (sha256 + plugin_extension(bytes));
  if (rename(temporary.c_str(), file.c_str()) != 0) {
    const int err = errno;
    unlink(temporary.c_str());
    return errno_error("cannot write " + file.string(), err);
  }
  const Fd folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) fsync(folder.get());
  return sha256;
}

Result<std::string> ContentStore::get(const std::string& sha256) const {
  if (!is_sha256(sha256)) return Error{Code::kInvalidArgument, "'" + sha256.substr(0, 80) + "' is not a SHA-256", {}};
  auto bytes = read_file(file_of(sha256), kMaxPluginBytes);
  if (!bytes && bytes.error().code == Code::kNotFound) {
    return Error{Code::kNotFound, "no plugin with SHA-256 " + sha256 + " is in the store", "load it from a path"};
  }
  if (bytes && sha256_hex(*bytes) != sha256) {
    return Error{Code::kInternal, file_of(sha256).string() + " has been changed",
                 "delete it and load the plugin from a path"};
  }
  return bytes;
}

void ContentStore::remove(const std::string& sha256) const {
  if (is_sha256(sha256)) unlink(file_of(sha256).c_str());
}

std::vector<std::string> ContentStore::list() const {
  std::vector<std::string> contents;
  std::error_code ec;
  for (auto it = std::filesystem::directory_iterator(folder_, ec); !ec && it != std::filesystem::directory_iterator();
       it.increment(ec)) {
    const std::string name = it->path().stem().string();
    const auto extension = it->path().extension();
    if ((extension == ".so" || extension == ".py") && is_sha256(name)) contents.push_back(name);
  }
  return contents;
}

Result<std::string> read_file(const std::filesystem::path& file, size_t limit) {
  // Non-blocking, so that a FIFO dropped where a plugin belongs holds nobody up.
  const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errno_error("cannot read " + file.string(), errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return errno_error("cannot read " + file.string(), errno);
  if (!S_ISREG(info.st_mode)) return Error{Code::kInvalidArgument, file.string() + " is not a regular file", {}};
  std::string bytes;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot read " + file.string(), errno);
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<size_t>(n) > limit) {
      return Error{Code::kExhausted, file.string() + " is larger than " + std::to_string(limit >> 20) + " MiB", {}};
    }
    bytes.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace freeride::manager
