#include "driver_watch.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"

namespace freeride::runner {
namespace {

constexpr std::string_view kDriver = "libcuda.so", kDeleted = " (deleted)";
// What CUDA opens and NVML does not: the device of unified memory.
constexpr std::string_view kComputes = "/dev/nvidia-uvm";
constexpr size_t kMostMaps = 16u << 20;  // more than the kernel's usual 65530 mappings take
constexpr int64_t kFirstLookNs = 100 * kNsPerMs, kLastIntervalNs = 60 * kNsPerSec;

/// "/a/libcuda.so", "/a/libcuda.so.1", and no libcudart.so.
bool is_driver(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.substr(0, kDriver.size()) == kDriver && (name.size() == kDriver.size() || name[kDriver.size()] == '.');
}

std::string read_all(const std::string& path) {
  std::string text;
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 16384> part;
  ssize_t length = 0;
  while (fd.valid() && text.size() < kMostMaps && (length = read(fd.get(), part.data(), part.size())) > 0)
    text.append(part.data(), static_cast<size_t>(length));
  return text;
}

std::vector<std::string> descriptors_of(pid_t pid) {
  std::vector<std::string> links;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return links;
  while (const dirent* entry = readdir(entries)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    std::array<char, PATH_MAX> target;
    const ssize_t length = readlink((folder + entry->d_name).c_str(), target.data(), target.size());
    if (length > 0) links.emplace_back(target.data(), static_cast<size_t>(length));
  }
  closedir(entries);
  return links;
}

std::pair<dev_t, ino_t> file_id(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? std::pair(info.st_dev, info.st_ino) : std::pair(dev_t{0}, ino_t{0});
}

}  // namespace

std::vector<std::string> mapped_drivers(std::string_view maps) {
  std::vector<std::string> found;
  while (!maps.empty()) {
    const size_t end = std::min(maps.find('\n'), maps.size());
    const std::string_view line = maps.substr(0, end);
    maps.remove_prefix(std::min(end + 1, maps.size()));
    const size_t path_at = line.find('/');  // the first five fields have none
    if (path_at == std::string_view::npos) continue;
    const std::string_view path = line.substr(path_at);
    const bool deleted = path.size() > kDeleted.size() && path.substr(path.size() - kDeleted.size()) == kDeleted;
    if (deleted || !is_driver(path)) continue;
    if (std::find(found.begin(), found.end(), path) == found.end()) found.emplace_back(path);
  }
  return found;
}

bool computes_on_gpu(const std::vector<std::string>& links) {
  return std::find(links.begin(), links.end(), kComputes) != links.end();
}

std::optional<std::string> DriverWatch::judge(pid_t pid) const {
  const auto none = std::pair(dev_t{0}, ino_t{0});
  const auto shim = file_id(shim_), real = file_id(real_);
  if (shim == none || real == none) return std::nullopt;  // then nothing can be said
  bool has_shim = false, has_real = false;
  for (const std::string& path : mapped_drivers(read_all("/proc/" + std::to_string(pid) + "/maps"))) {
    const auto id = file_id(path);
    has_shim |= id == shim;
    has_real |= id == real;
    if (id == shim || id == real || id == none) continue;
    return "it uses another libcuda, " + path +
           ", whose work cannot be held back between leases; make it use the system's: unset LD_LIBRARY_PATH, or "
           "remove the package (conda's cuda-compat)";
  }
  if (!has_shim && (has_real || computes_on_gpu(descriptors_of(pid))))
    return "it uses the GPU without the system's libcuda.so.1, so its work cannot be held back between leases; only "
           "programs that load that library by its name can run on a GPU";
  return std::nullopt;
}

std::optional<std::string> DriverWatch::look(const std::vector<pid_t>& processes, int64_t now_ns) {
  std::erase_if(looks_, [&](const auto& one) {
    return std::find(processes.begin(), processes.end(), one.first) == processes.end();
  });
  for (const pid_t pid : processes) {
    Looks& looks = looks_.try_emplace(pid, Looks{now_ns + kFirstLookNs, kFirstLookNs}).first->second;
    if (now_ns < looks.next_ns) continue;
    looks.interval_ns = std::min(2 * looks.interval_ns, kLastIntervalNs);
    looks.next_ns = now_ns + looks.interval_ns;
    return judge(pid);  // one at a time: who looks also has a task to watch
  }
  return std::nullopt;
}

}  // namespace freeride::runner
