#include "daemon/store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "freeride/base/fd.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/sha256.hpp"

namespace freeride::worker {
namespace {

Status write_all(int fd, std::string_view bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno_error("cannot write " + name, errno, "free space in the state folder");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

void sync_folder(const std::filesystem::path& folder) {
  const Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) fsync(fd.get());
}

}  // namespace

bool is_sha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<std::string> PluginStore::put(std::string_view bytes) {
  const std::string sha256 = sha256_hex(bytes);
  if (get(sha256).ok()) return sha256;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) {
    return errno_error("cannot make the plugin store " + folder_.string(), error.value(),
                       "give this user the state folder (--state-dir)");
  }
  const std::filesystem::path target = folder_ / (sha256 + plugin_extension(bytes));
  // A name that nobody has: workers in containers share the folder, and their pids are alike.
  std::string temporary = (folder_ / ("." + sha256 + ".XXXXXX")).string();
  Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return errno_error("cannot write into the plugin store " + folder_.string(), errno,
                       "give this user the state folder (--state-dir)");
  }
  Status done = write_all(fd.get(), bytes, temporary);
  if (done.ok() && fchmod(fd.get(), 0444) != 0) done = errno_error("cannot set the mode of " + temporary, errno);
  if (done.ok() && fsync(fd.get()) != 0) done = errno_error("cannot write " + temporary, errno);
  if (done.ok() && rename(temporary.c_str(), target.c_str()) != 0) {
    done = errno_error("cannot name " + target.string(), errno);
  }
  if (!done.ok()) {
    unlink(temporary.c_str());
    return done.error();
  }
  sync_folder(folder_);
  return sha256;
}

Result<std::filesystem::path> PluginStore::get(const std::string& sha256) {
  if (!is_sha256(sha256)) return Error{Code::kInvalidArgument, "'" + sha256.substr(0, 80) + "' is no SHA-256", ""};
  std::filesystem::path file = folder_ / (sha256 + ".so");
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) file.replace_extension(".py");
  auto found = sha256_hex_of_file(file);
  if (!found.ok()) return found.error();
  if (*found != sha256) {
    unlink(file.c_str());
    return Error{Code::kNotFound, file.string() + " was damaged and has been removed", "load the plugin again"};
  }
  return file;
}

void PluginStore::remove(const std::string& sha256) {
  if (!is_sha256(sha256)) return;
  for (const char* extension : {".so", ".py"}) unlink((folder_ / (sha256 + extension)).c_str());
}

}  // namespace freeride::worker
