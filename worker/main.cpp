// freeride-worker: opens leases for side tasks on one device.
#include <sched.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <tuple>

#include "daemon/options.hpp"
#include "daemon/worker.hpp"
#include "doctor/doctor.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/utf8.hpp"
#include "gpu/gpu.hpp"
#include "gpu/probe_program.hpp"

namespace {

using freeride::Error;

constexpr int kFailed = 1, kWrongUsage = 2;

const std::map<std::string, freeride::policy::LeaseOrder> kLeaseOrders{
    {"round-robin", freeride::policy::LeaseOrder::kRoundRobin}, {"best-fit", freeride::policy::LeaseOrder::kBestFit}};

int fail(const Error& error, int code) {
  spdlog::error("{}", error.text());
  return code;
}

void block_signals() {
  freeride::block_end_signals();
  signal(SIGPIPE, SIG_IGN);
  signal(SIGIO, SIG_IGN);  // sent when somebody writes to a file that the drop folder looks at
}

void keep_to_cores(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) spdlog::warn("cannot keep to the cores given");
}

// A tree that carries its own C++ runtime (make dist) carries what its plugins need, too.
void see_carried_libraries(std::vector<std::string>& library_dirs) {
  std::error_code error;
  const auto folder = std::filesystem::weakly_canonical(freeride::program_folder() / "../lib", error);
  if (error || !std::filesystem::exists(folder / "libstdc++.so.6", error)) return;
  if (folder.string().rfind("/usr/", 0) == 0 || folder == "/lib") return;  // every sandbox sees those
  if (std::find(library_dirs.begin(), library_dirs.end(), folder.string()) == library_dirs.end())
    library_dirs.push_back(folder.string());
}

int list_gpus() {
  freeride::init_log("freeride-worker", {});
  const auto uuids = freeride::worker::gpu_uuids();
  if (!uuids.ok()) return fail(uuids.error(), kFailed);
  for (const std::string& uuid : *uuids) std::cout << uuid << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  freeride::worker::Options options;
  CLI::App app{"Runs side tasks in the bubbles of the training on one device.", "freeride-worker"};
  std::string cores, lease_order = "round-robin";
  freeride::LogOptions log;
  std::string run_dir = options.paths.run_dir.string(), state_dir = options.paths.state_dir.string();
  app.option_defaults()->always_capture_default();
  app.add_option("--device", options.device, "the worker's device: cpu-N or a GPU's UUID; required without --check");
  app.add_option("--host-id", options.host_id,
                 "this host's name among others; default: hostname and digits of the machine id")
      ->default_str("");
  app.add_option("--cores", cores, "cores of a CPU device, e.g. 0,2-3; default: all");
  app.add_option("--run-dir", run_dir, "folder of the sockets");
  app.add_option("--state-dir", state_dir, "state folder: plugins, logs and what tasks leave");
  app.add_option("--drop-dir", options.drop_dir,
                 "drop folder, whose plugins every worker knows by name; default: plugins in the state folder");
  app.add_option("--grace-ms", options.grace_ms,
                 "grace period: a task that executes longer than this past its lease is killed")
      ->check(CLI::Range(1, 60'000));
  app.add_option("--hang-ms", options.hang_ms, "a task that has not paused for so long past its lease is killed")
      ->check(CLI::Range(10, 600'000));
  app.add_option("--create-ms", options.create_ms, "limit for loading a plugin and CreateSideTask")
      ->check(CLI::Range(10, 3'600'000));
  app.add_option("--init-ms", options.init_ms,
                 "length of init and save leases: the limit for InitSideTask and SaveState")
      ->check(CLI::Range(10, 3'600'000));
  app.add_option("--profile-ms", options.profile_ms,
                 "length of a profile lease; beside a training, the longest a profile waits for bubbles")
      ->check(CLI::Range(10, 3'600'000));
  app.add_option("--settle-ms", options.settle_ms,
                 "after its start, how long the worker waits for trainings to attach before it uses the device as idle")
      ->check(CLI::Range(0, 600'000));
  app.add_option("--stop-ms", options.stop_ms, "limit for a task to stop in good order")
      ->check(CLI::Range(10, 600'000));
  app.add_option("--lease-order", lease_order,
                 "which of several tasks gets a lease: in turn, or the one whose step fits best")
      ->check(CLI::IsMember(kLeaseOrders));
  app.add_option("--memory-bytes", options.memory_bytes,
                 "memory that side tasks may have in all; default: what the host has free")
      ->check(freeride::whole(0, INT64_MAX))
      ->default_str("");
  app.add_option("--reserve-bytes", options.reserve_bytes,
                 "GPU memory kept free for training to grow into; default: 5 % of the GPU, at least 2 GiB")
      ->check(freeride::whole(0, INT64_MAX))
      ->default_str("");
  app.add_option("--thread-pct", options.thread_pct, "percent of a GPU's multiprocessors that one side task may use")
      ->check(CLI::Range(1, 100));
  app.add_option("--keep-days", options.keep_days,
                 "how many days the scratch folder and logs of an ended task are kept")
      ->check(CLI::Range(0, 36'500));
  app.add_option("--keep-bytes", options.keep_bytes,
                 "how many bytes of them are kept in all; the oldest are removed first")
      ->check(freeride::whole(0, INT64_MAX));
  app.add_option("--mps-control", options.mps_control,
                 "the program nvidia-cuda-mps-control, for GPUs; default: the one on the PATH");
  auto& sandbox = options.sandbox;
  app.add_option("--sandbox", sandbox.name, "sandbox of side tasks: bubblewrap, or none (for development only)");
  app.add_option("--bwrap", sandbox.bwrap, "the program bwrap; default: on the PATH, else beside this program");
  app.add_option("--scratch-bytes", sandbox.scratch_bytes,
                 "size of a task's scratch folder, which counts as its memory");
  app.add_option("--task-pids", sandbox.pids, "the most threads of a task");
  app.add_option("--task-cpus", sandbox.cpus, "the most cores that a task may use; default: all that it has")
      ->default_str("");
  app.add_option("--host-memory-bytes", options.host_memory_bytes, "the most host memory of a GPU's task")
      ->check(freeride::whole(1, INT64_MAX));
  app.add_option("--first-task-uid", sandbox.first_uid,
                 "first of the user numbers that tasks get from a worker that is root")
      ->check(CLI::Range(int64_t{1}, int64_t{4'294'000'000}));
  for (const auto& [option, folders, what] :
       {std::tuple("--library-dir", &sandbox.library_dirs,
                   "folder of libraries that every task may read, beside the system's"),
        std::tuple("--data", &sandbox.data_dirs,
                   "folder below which a task may be given files (load --read, --write) that its submitter may use")}) {
    app.add_option(option, *folders, std::string(what) + "; repeatable, or several with ':' between them")
        ->delimiter(':')
        ->allow_extra_args(false)
        ->default_str("");
  }
  app.add_flag("--no-task-network", sandbox.no_network, "refuse tasks that are loaded with --network");
  app.add_flag("--users-of-all-hosts", sandbox.users_of_all_hosts,
               "user numbers mean the same on all hosts, so files are given to users of other hosts, too, but not to "
               "their root");
  app.add_option("--shim", options.shim,
                 "of a GPU: the library libfreeride_shim.so, which keeps programs within their leases; default: beside "
                 "this program, or in the lib folder next to it");
  app.add_option("--runner", sandbox.runner, "the program freeride-runner; default: beside this one, else on the PATH");
  freeride::add_log_options(app, log);
  app.add_option("--probe-one-in", options.probe_one_in,
                 "one in so many bubbles of a GPU is probed for work without a lease; 0: none")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  int probe_fd = -1;
  app.add_option("--probe", probe_fd)->group("");  // what this program calls itself with, to probe the GPU
  bool check = false;
  std::string format = "table";
  app.add_flag("--check", check, "say what this host lacks for a worker, and end: 0 nothing, 1 something");
  app.add_option("--format", format, "form of --check's answer: table or json")
      ->check(CLI::IsMember({"table", "json"}));
  bool list_devices = false;
  app.add_flag("--list-devices", list_devices, "print the UUIDs of this host's GPUs, one on each line, and end");
  if (const auto end = freeride::parse_options(app, "freeride-worker", "worker", argc, argv)) return *end;
  if (list_devices) return list_gpus();
  if (probe_fd >= 0) return freeride::worker::run_probe(probe_fd);
  freeride::init_log("freeride-worker", log, options.device);
  options.paths.run_dir = run_dir;
  options.lease_order = kLeaseOrders.at(lease_order);
  options.paths.state_dir = state_dir;
  if (!cores.empty()) {
    auto parsed = freeride::worker::parse_cores(cores);
    if (!parsed.ok()) return fail(parsed.error(), kWrongUsage);
    options.cores = *parsed;
  }
  if (options.device.empty()) {
    if (!check)
      return fail(
          Error{freeride::Code::kInvalidArgument, "--device is required", "write cpu-N, or a GPU's UUID (GPU-...)"},
          kWrongUsage);
    options.device = "cpu-0";
  }
  if (auto device = freeride::worker::check_device(options.device); !device.ok())
    return fail(device.error(), kWrongUsage);
  if (!options.host_id.empty() && !freeride::is_host_id(options.host_id))
    return fail(Error{freeride::Code::kInvalidArgument, freeride::in_quotes(options.host_id) + " is no host id",
                      "use at most 56 letters, digits, '.', '_' and '-', no '.' first"},
                kWrongUsage);
  see_carried_libraries(sandbox.library_dirs);
  if (auto checked = freeride::worker::check_options(options.sandbox); !checked.ok())
    return fail(checked.error(), kWrongUsage);
  if (check) return freeride::worker::report(freeride::worker::diagnose(options), format == "json", std::cout);

  block_signals();
  keep_to_cores(options.cores);
  auto worker = freeride::worker::Worker::create(options);
  if (!worker.ok())
    return fail(worker.error(), worker.error().code == freeride::Code::kInvalidArgument ? kWrongUsage : kFailed);
  (*worker)->run();
  spdlog::info("stopped");
  return 0;
}
