#include "sandbox/sandbox.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>

#include "freeride/base/log.hpp"
#include "sandbox/sandbox_child.hpp"

namespace freeride::worker {
namespace {

// Address space that is not memory: libraries, thread stacks and allocator arenas that are reserved and hardly used.
[[maybe_unused]] constexpr int64_t kAddressSlackBytes = 4ll << 30;

// Ceilings in which no task could do anything are mistakes.
constexpr int64_t kLeastScratchBytes = 64ll << 10;
constexpr int64_t kLeastPids = 4;
constexpr double kLeastCpus = 0.01;

class NoHold final : public Hold {
 public:
  explicit NoHold(int64_t memory_limit_bytes) : memory_limit_bytes_(memory_limit_bytes) {}
  std::string describe() const override {
    if (memory_limit_bytes_ <= 0) return "none: NOT isolated from this host";
    return "none: NOT isolated from this host (rlimit data " + std::to_string(memory_limit_bytes_ >> 20) + " MiB)";
  }
  void explain(policy::Verdict&, const std::string&) const override {}
  Status end_scratch(int, bool) override { return {}; }

 private:
  int64_t memory_limit_bytes_;
};

// Development only: a process with resource limits, and nothing between it and the host.
class NoSandbox final : public Sandbox {
 public:
  explicit NoSandbox(SandboxOptions options) : options_(std::move(options)) {}
  const char* name() const override { return "none"; }

  Status check() override {
    spdlog::warn(
        "sandbox none: side tasks run as uid {} with NO isolation from this host; for development and trusted plugins "
        "only",
        geteuid());
    return {};
  }

  TaskIdentity identity(uint64_t) override { return {geteuid(), getegid()}; }
  bool takes_rights() const override { return false; }
  void forget(uint64_t) override {}
  InsidePaths inside(const std::string& plugin, const std::string& scratch) const override { return {plugin, scratch}; }

  Result<Child> start(const SandboxRequest& request) override {
    if (access(options_.runner.c_str(), X_OK) != 0) {
      return errno_error("cannot start " + options_.runner, errno, "name the installed freeride-runner with --runner");
    }
    ChildPlan plan;
    plan.output_fd = request.output_fd;
    plan.keep_fds = request.keep_fds;
    plan.cores = request.cores;
    plan.priority = request.priority;
    if (request.priority == CpuPriority::kIdle)
      limit_memory(plan, request.memory_limit_bytes);  // a GPU's driver reserves far more than it uses
    plan.working_dir = request.grants.working_dir.empty() ? request.scratch : request.grants.working_dir;
    for (const GrantedFile& file : request.grants.data) {
      if (file.empty || (file.target == file.source && access(file.source.c_str(), file.write ? W_OK : R_OK) == 0))
        continue;
      return Error{Code::kInvalidArgument, file.source + " cannot be given at " + file.target + " without a sandbox",
                   "leave out :DST, or start the worker with --sandbox bubblewrap"};
    }
    plan.program = options_.runner;
    plan.argv = {options_.runner};
    plan.argv.insert(plan.argv.end(), request.args.begin(), request.args.end());
    std::map<std::string, std::string> set = request.grants.own_env;
    for (const auto& [key, value] : request.grants.env) set[key] = value;
    if (const ShimGrant& shim = request.grants.shim; !shim.library.empty()) {
      // Nothing is mounted here: a folder that is searched before the system's has the library under the driver's name.
      const std::string folder = shim.shim_page + ".lib", link = folder + "/libcuda.so.1";
      std::error_code error;
      std::filesystem::create_directories(folder, error);
      std::filesystem::remove(link, error);
      std::filesystem::create_symlink(shim.library, link, error);
      if (error) return errno_error("cannot make " + link, error.value());
      const char* before = std::getenv("LD_LIBRARY_PATH");  // NOLINT(concurrency-mt-unsafe): nobody sets any
      set["LD_LIBRARY_PATH"] = folder + (before == nullptr ? "" : std::string(":") + before);
      set["FREERIDE_SHIM_REAL"] = shim.drivers.front();
      set["FREERIDE_SHIM_DRIVER"] = link;
      set["FREERIDE_LEASE_PAGE"] = shim.lease_page;
      set["FREERIDE_SHIM_PAGE"] = shim.shim_page;
    }
    if (!set.empty()) {
      plan.own_env = true;
      for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        if (set.count(text.substr(0, text.find('='))) == 0) plan.env.push_back(text);
      }
      for (const auto& [key, value] : set) plan.env.push_back(std::string(key).append("=").append(value));
    }
    auto child = spawn(plan);
    if (child.ok()) child->hold = std::make_unique<NoHold>(request.memory_limit_bytes);
    return child;
  }

 private:
  SandboxOptions options_;
};

}  // namespace

void limit_memory(ChildPlan& plan, int64_t bytes) {
#ifdef FREERIDE_SANITIZED  // a sanitizer's shadow memory counts as memory
  (void)plan, (void)bytes;
#else
  if (bytes <= 0) return;
  plan.data_limit_bytes = bytes;
  plan.address_limit_bytes = bytes + kAddressSlackBytes;
#endif
}

int64_t default_pids() {
  constexpr int64_t kLeast = 256, kPerCore = 16;
  return std::max<int64_t>(kLeast, kPerCore * std::thread::hardware_concurrency());
}

Status check_options(const SandboxOptions& options) {
  if (options.name != "none" && options.name != "bubblewrap") {
    return Error{Code::kInvalidArgument, "there is no sandbox called '" + options.name + "'",
                 "--sandbox knows: bubblewrap, none"};
  }
  if (options.scratch_bytes < kLeastScratchBytes) {
    return Error{Code::kInvalidArgument,
                 "a scratch folder of " + std::to_string(options.scratch_bytes) + " bytes holds nothing",
                 "--scratch-bytes takes " + std::to_string(kLeastScratchBytes) + " or more"};
  }
  if (options.pids < kLeastPids) {
    return Error{Code::kInvalidArgument, "no task runs in " + std::to_string(options.pids) + " processes and threads",
                 "--task-pids takes " + std::to_string(kLeastPids) + " or more"};
  }
  if (options.cpus != 0 && !(options.cpus >= kLeastCpus)) {
    return Error{Code::kInvalidArgument, "no task runs in that share of a core",
                 "--task-cpus takes 0.01 or more; 0: no limit"};
  }
  const auto check_folders = [](const std::vector<std::string>& folders, const std::string& option) -> Status {
    for (const std::string& folder : folders) {
      std::error_code ignored;
      if (!folder.empty() && folder[0] == '/' && std::filesystem::is_directory(folder, ignored)) continue;
      return Error{Code::kInvalidArgument, "'" + folder + "' is no folder", option + " takes absolute paths"};
    }
    return {};
  };
  if (auto s = check_folders(options.library_dirs, "--library-dir"); !s.ok()) return s;
  if (auto s = check_folders(options.data_dirs, "--data"); !s.ok()) return s;
  return {};
}

Result<std::unique_ptr<Sandbox>> make_sandbox(const SandboxOptions& options) {
  if (auto checked = check_options(options); !checked.ok()) return checked.error();
  if (options.name == "none") return std::unique_ptr<Sandbox>(std::make_unique<NoSandbox>(options));
  return make_bubblewrap(options);
}

}  // namespace freeride::worker
