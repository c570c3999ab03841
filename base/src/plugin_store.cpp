#include "freeride/base/plugin_store.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride {
namespace {

constexpr const char* kExtensions[] = {".so", ".py"};
constexpr const char* kHint = "give this user the state folder (--state-dir)";

void sync_folder(const std::filesystem::path& folder) {
  const Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) fsync(fd.get());
}

Status write_whole(int fd, std::string_view bytes, const std::string& name) {
  if (!write_all(fd, bytes) || fchmod(fd, 0444) != 0 || fsync(fd) != 0) {
    return errno_error("cannot write " + name, errno, "free space in the state folder");
  }
  return {};
}

}  // namespace

bool is_sha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<std::string> PluginStore::put(std::string_view bytes) {
  return put(bytes, std::string("the content") + plugin_extension(bytes));
}

Result<std::string> PluginStore::put(std::string_view bytes, const std::string& name, const std::atomic<bool>* ends) {
  const auto is_over = [&] { return ends != nullptr && *ends; };
  const Error over{Code::kUnavailable, name + " was not looked at to its end", "drop it again"};
  if (auto checked = check_plugin_file(bytes, name); !checked.ok()) return checked.error();
  if (is_over()) return over;
  const std::string sha256 = sha256_hex(bytes);
  if (is_over()) return over;
  if (get(sha256).ok()) return sha256;
  if (is_over()) return over;
  std::error_code error;
  // Whatever the umask: a side task's own uid opens its plugin by name.
  if (std::filesystem::create_directories(folder_, error))
    std::filesystem::permissions(folder_, std::filesystem::perms{0711}, error);
  if (error) return errno_error("cannot make the plugin store " + folder_.string(), error.value(), kHint);
  // A name that nobody has: workers in containers share the folder, and their pids are alike.
  std::string temporary = (folder_ / ("." + sha256 + ".XXXXXX")).string();
  const Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot write into the plugin store " + folder_.string(), errno, kHint);
  const std::filesystem::path target = folder_ / (sha256 + plugin_extension(bytes));
  Status done = write_whole(fd.get(), bytes, temporary);
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

// Into `bytes`, where there is such.
Result<std::filesystem::path> PluginStore::find(const std::string& sha256, std::string* bytes) const {
  if (!is_sha256(sha256)) return Error{Code::kInvalidArgument, in_quotes(sha256) + " is no SHA-256", {}};
  Error error{Code::kNotFound, "no plugin with SHA-256 " + sha256 + " is in the store", "load it from a path"};
  for (const char* extension : kExtensions) {
    const std::filesystem::path file = folder_ / (sha256 + extension);
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) continue;
    Result<std::string> found = bytes == nullptr ? sha256_hex_of_file(file) : read_file(file, kMaxPluginBytes);
    if (found.ok() && bytes != nullptr) {
      *bytes = std::move(*found);
      found = sha256_hex(*bytes);
    }
    if (found.ok() && *found == sha256) return file;
    if (!found.ok()) {
      error = found.error();
      continue;
    }
    unlink(file.c_str());
    error = {Code::kNotFound, file.string() + " was damaged and has been removed", "load the plugin again"};
    spdlog::warn("{}", error.text());
  }
  return error;
}

Result<std::filesystem::path> PluginStore::get(const std::string& sha256) const {
  return find(sha256, nullptr);
}

Result<std::string> PluginStore::read(const std::string& sha256) const {
  std::string bytes;
  if (auto found = find(sha256, &bytes); !found.ok()) return found.error();
  return bytes;
}

Result<std::string> PluginStore::read_piece(const std::string& sha256, uint64_t offset, uint64_t most) const {
  if (offset == 0 || !is_sha256(sha256)) {
    auto bytes = read(sha256);
    if (bytes.ok()) bytes->resize(std::min<uint64_t>(bytes->size(), most));
    return bytes;
  }
  for (const char* extension : kExtensions) {
    const std::string file = (folder_ / (sha256 + extension)).string();
    const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) continue;
    std::string piece(std::min<uint64_t>(most, kMaxPluginBytes), '\0');
    size_t size = 0;
    while (size < piece.size()) {
      const ssize_t n = pread(fd.get(), piece.data() + size, piece.size() - size, static_cast<off_t>(offset + size));
      if (n < 0) return errno_error("cannot read " + file, errno);
      if (n == 0) break;
      size += static_cast<size_t>(n);
    }
    piece.resize(size);
    return piece;
  }
  return Error{Code::kNotFound, "no plugin with SHA-256 " + sha256 + " is in the store", "load it from a path"};
}

bool PluginStore::has(const std::string& sha256) const {
  return is_sha256(sha256) && std::any_of(std::begin(kExtensions), std::end(kExtensions), [&](const char* extension) {
           std::error_code ignored;
           return std::filesystem::is_regular_file(folder_ / (sha256 + extension), ignored);
         });
}

std::vector<std::string> PluginStore::list() const {
  std::vector<std::string> contents;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder_, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().stem().string();
    const auto extension = it->path().extension();
    const bool ours = std::find(std::begin(kExtensions), std::end(kExtensions), extension) != std::end(kExtensions);
    if (ours && is_sha256(name)) contents.push_back(name);
  }
  return contents;
}

void PluginStore::remove(const std::string& sha256) const {
  if (!is_sha256(sha256)) return;
  for (const char* extension : kExtensions) unlink((folder_ / (sha256 + extension)).c_str());
}

}  // namespace freeride
