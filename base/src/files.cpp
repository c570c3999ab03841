#include "freeride/base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "freeride/base/fd.hpp"

namespace freeride {

Result<std::string> read_file(const std::filesystem::path& file, size_t limit) {
  const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return errno_error("cannot read " + file.string(), errno);
  return read_file(fd.get(), file.string(), limit);
}

Result<std::string> read_file(int fd, const std::string& name, size_t limit) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_error("cannot read " + name, errno);
  if (!S_ISREG(info.st_mode)) return Error{Code::kInvalidArgument, name + " is not a file", {}};
  std::string bytes;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("cannot read " + name, errno);
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<size_t>(n) > limit) {
      return Error{Code::kExhausted, name + " is larger than " + std::to_string(limit >> 20) + " MiB", {}};
    }
    bytes.append(buffer.data(), static_cast<size_t>(n));
  }
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace freeride
