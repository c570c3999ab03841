#include "freeride/base/plugin_store.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <mutex>

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

// Changed by whoever writes into the file or puts another in its place.
using Stamp = std::array<int64_t, 5>;

Stamp stamp_of(const std::filesystem::path& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) return {};
  return {static_cast<int64_t>(info.st_dev), static_cast<int64_t>(info.st_ino), info.st_size, info.st_ctim.tv_sec,
          info.st_ctim.tv_nsec};
}

}  // namespace

// Files that were what their names say.
struct PluginStore::Hashed {
  bool contains(const std::filesystem::path& file, const Stamp& stamp) {
    const std::lock_guard lock(mutex);
    const auto found = stamps.find(file);
    return found != stamps.end() && found->second == stamp;
  }
  void add(const std::filesystem::path& file, const Stamp& stamp) {
    const std::lock_guard lock(mutex);
    stamps[file] = stamp;
  }
  void remove(const std::filesystem::path& file) {
    const std::lock_guard lock(mutex);
    stamps.erase(file);
  }

 private:
  std::mutex mutex;
  std::map<std::filesystem::path, Stamp> stamps;
};

PluginStore::PluginStore(std::filesystem::path folder)
    : folder_(std::move(folder)), hashed_(std::make_shared<Hashed>()) {}

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
    const Stamp stamp = stamp_of(file);  // before: who writes meanwhile leaves another
    Result<std::string> found = bytes == nullptr ? sha256_hex_of_file(file) : read_file(file, kMaxPluginBytes);
    if (found.ok() && bytes != nullptr) {
      *bytes = std::move(*found);
      found = sha256_hex(*bytes);
    }
    if (found.ok() && *found == sha256) {
      hashed_->add(file, stamp);
      return file;
    }
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
  if (!is_sha256(sha256)) return Error{Code::kInvalidArgument, in_quotes(sha256) + " is no SHA-256", {}};
  for (const char* extension : kExtensions) {
    const std::string file = (folder_ / (sha256 + extension)).string();
    if (offset == 0 && has(sha256) && !hashed_->contains(file, stamp_of(file))) {
      auto found = get(sha256);
      if (!found.ok()) return found.error();
      if (*found != file) continue;
    }
    const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.valid()) continue;
    struct stat info {};
    if (fstat(fd.get(), &info) != 0) return errno_error("cannot read " + file, errno);
    const auto there = static_cast<uint64_t>(info.st_size) - std::min<uint64_t>(info.st_size, offset);
    std::string piece(std::min<uint64_t>({most, there, kMaxPluginBytes}), '\0');
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
  for (const char* extension : kExtensions) {
    const std::filesystem::path file = folder_ / (sha256 + extension);
    hashed_->remove(file);
    unlink(file.c_str());
  }
}

}  // namespace freeride
