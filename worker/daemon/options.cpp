#include "daemon/options.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "freeride/base/utf8.hpp"

namespace freeride::worker {
namespace {

bool number(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value < CPU_SETSIZE;
}

}  // namespace

Result<std::vector<int>> parse_cores(const std::string& text) {
  std::vector<int> cores;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t dash = part.find('-');
    int first = 0, last = 0;
    const bool good = dash == std::string::npos
                          ? number(part, first) && number(part, last)
                          : number(part.substr(0, dash), first) && number(part.substr(dash + 1), last) && first <= last;
    if (!good)
      return Error{Code::kInvalidArgument, "'" + text + "' is no list of cores", "write for example --cores 0,2-3"};
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) {
    for (const int core : cores) {
      if (CPU_ISSET(static_cast<size_t>(core), &usable)) continue;
      return Error{Code::kInvalidArgument, "this process may not use core " + std::to_string(core),
                   "see the cores there are with nproc and taskset -p $$"};
    }
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

Status check_process_on(pid_t pid, const std::vector<int>& cores) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool told = sched_getaffinity(pid, sizeof(allowed), &allowed) == 0;
  const auto may = [&](int core) { return CPU_ISSET(static_cast<size_t>(core), &allowed); };
  if (told && (cores.empty() || std::any_of(cores.begin(), cores.end(), may))) return {};
  return Error{Code::kPermission, "process " + std::to_string(pid) + " may not run on the cores of this device",
               "start the training on those cores, or set FREERIDE_DEVICE"};
}

Status check_device(const std::string& device) {
  const bool good = !device.empty() && device.size() < 64 && std::all_of(device.begin(), device.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  });
  if (good) return {};
  return Error{Code::kInvalidArgument, in_quotes(device) + " is no device", "write cpu-N, or a GPU's UUID (GPU-...)"};
}

Result<std::string> find_runner(const std::string& given) {
  if (!given.empty()) {
    if (access(given.c_str(), X_OK) == 0) return std::filesystem::absolute(given).string();
    return Error{Code::kNotFound, "there is no program " + given, "correct --runner"};
  }
  for (const auto& file : {find_beside("freeride-runner"), find_on_path("freeride-runner")}) {
    if (!file.empty()) return std::filesystem::absolute(file).string();
  }
  return Error{Code::kNotFound, "freeride-runner is neither beside freeride-worker nor on the PATH",
               "name it with --runner"};
}

Result<std::string> find_shim(const std::string& given) {
  constexpr const char* kName = "libfreeride_shim.so";
  if (!given.empty()) {
    if (access(given.c_str(), R_OK) == 0) return std::filesystem::absolute(given).string();
    return Error{Code::kNotFound, "there is no library " + given, "correct --shim"};
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const auto& file : {program.parent_path() / kName, program.parent_path().parent_path() / "lib" / kName,
                           program.parent_path().parent_path() / "lib/freeride" / kName}) {
    if (std::filesystem::exists(file, error)) return file.string();
  }
  return std::string();
}

std::vector<std::string> find_drivers(const std::vector<std::string>& folders) {
  std::vector<std::string> all{
      "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
      "/usr/local/cuda/lib64",     "/usr/local/cuda/compat"};
  all.insert(all.end(), folders.begin(), folders.end());
  std::vector<std::string> found;
  for (const std::string& folder : all) {
    std::error_code error;
    const std::string file = std::filesystem::canonical(folder + "/libcuda.so.1", error).string();
    if (!error && std::find(found.begin(), found.end(), file) == found.end()) found.push_back(file);
  }
  return found;
}

}  // namespace freeride::worker
