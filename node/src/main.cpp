// freeride-node: what runs on each host: a worker for every device, and the way to a manager elsewhere.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "control_groups.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/bus/relay.hpp"
#include "freeride/bus/sockets.hpp"
#include "kept_worker.hpp"

namespace {

using namespace freeride;
using node::KeptWorker;

constexpr int kFailed = 1, kWrongUsage = 2;
constexpr int64_t kLookNs = kNsPerSec;
constexpr useconds_t kFailedPollUs = 100'000;

struct Options {
  std::string manager, key, group, worker, run_dir, state_dir;
  LogOptions log;
  std::vector<std::string> devices, cores, worker_flags;
};

int fail(const Error& error, int code = kFailed) {
  spdlog::error("{}", error.text());
  return code;
}

void declare(CLI::App& app, Options& o) {
  app.add_option("--manager", o.manager, "where the manager listens, tcp://HOST:PORT; default: it runs on this host");
  app.add_option("--key", o.key, "this node's key file (freeride-ctl keys make NAME --role node --host HOST)");
  app.add_option("--device", o.devices, "a device that gets a worker, repeatable; default: this host's GPUs")
      ->delimiter(':')
      ->allow_extra_args(false);
  app.add_option("--cores", o.cores, "cores of a CPU device, e.g. 0,2-3; repeatable, in the order of the CPU devices")
      ->delimiter(':')
      ->allow_extra_args(false);
  app.add_option("--worker", o.worker, "the program freeride-worker; default: beside this one, else on the PATH");
  app.add_option("--run-dir", o.run_dir, "folder of the sockets")->default_str(Paths::defaults().run_dir.string());
  app.add_option("--state-dir", o.state_dir, "state folder: plugins, logs and what tasks leave")
      ->default_str(Paths::defaults().state_dir.string());
  app.add_option(
      "--group", o.group,
      "group that may command and read events here; none: only this user; default: freeride, where root runs this");
  add_log_options(app, o.log);
  app.add_option("worker-flags", o.worker_flags, "after --: further flags of every worker");
}

Result<std::string> find_worker(const std::string& given) {
  if (!given.empty()) {
    if (access(given.c_str(), X_OK) == 0) return given;
    return Error{Code::kNotFound, "there is no program " + given, "correct --worker"};
  }
  for (const auto& file : {find_beside("freeride-worker"), find_on_path("freeride-worker")}) {
    if (!file.empty()) return file.string();
  }
  return Error{Code::kNotFound, "freeride-worker is neither beside freeride-node nor on the PATH",
               "name it with --worker"};
}

// The worker's program knows the driver.
Result<std::vector<std::string>> find_gpus(const std::string& worker) {
  const Error none{Code::kNotFound, "no GPU is found on this host", "name a device with --device, e.g. --device cpu-0"};
  std::string command = "'";
  for (const char c : worker) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
  FILE* out = popen((command + "' --list-devices").c_str(), "re");
  if (out == nullptr) return errno_error("cannot start " + worker, errno);
  std::string text;
  char bytes[256];
  while (const size_t n = fread(bytes, 1, sizeof bytes, out)) text.append(bytes, n);
  if (pclose(out) != 0) return none;  // it has said why
  std::vector<std::string> devices;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) devices.push_back(line);
  if (devices.empty()) return none;
  return devices;
}

Result<std::vector<KeptWorker>> keep_workers(const Options& o, const Paths& paths, const std::string& host,
                                             const node::Beginning& beginning) {
  const auto program = find_worker(o.worker);
  if (!program) return program.error();
  std::vector<std::string> devices = o.devices;
  if (devices.empty()) {
    if (auto found = take(devices, find_gpus(*program)); !found) return found.error();
  }
  std::vector<KeptWorker> workers;
  auto cores = o.cores.begin();
  for (const std::string& device : devices) {
    if (std::any_of(workers.begin(), workers.end(), [&](const auto& w) { return w.device() == device; }))
      return Error{Code::kInvalidArgument, "the device " + device + " is named twice", "correct --device"};
    std::vector<std::string> words = {
        *program, "--device", device, "--run-dir", paths.run_dir.string(), "--state-dir", paths.state_dir.string()};
    if (!host.empty()) words.insert(words.end(), {"--host-id", host});
    if (device.rfind("cpu-", 0) == 0 && cores != o.cores.end()) words.insert(words.end(), {"--cores", *cores++});
    words.insert(words.end(), o.worker_flags.begin(), o.worker_flags.end());
    workers.emplace_back(device, std::move(words), paths.worker_socket(device), beginning);
  }
  if (cores != o.cores.end())
    return Error{Code::kInvalidArgument, "--cores is given more often than there are CPU devices", "correct --cores"};
  return workers;
}

Result<KeyFile> read_key(const Options& o) {
  if (o.key.empty())
    return Error{Code::kInvalidArgument, "a node comes in at " + o.manager + " with a key",
                 "name its file with --key; the manager's operator makes it with freeride-ctl keys make"};
  auto key = read_secret_key(o.key);
  if (!key) return key;
  if (key->role != "node" || key->manager_key.empty())
    return Error{Code::kInvalidArgument, o.key + " is no key of a node (its role is '" + key->role + "')",
                 "have one made: freeride-ctl keys make NAME --role node --host HOST"};
  if (!is_host_id(key->host))
    return Error{Code::kInvalidArgument, "the host '" + key->host + "' of " + o.key + " can be none",
                 "have a key made for a shorter one"};
  return key;
}

// This host's end of the bus, where the manager is elsewhere.
struct Ends {
  std::unique_ptr<bus::Broker> broker;
  std::unique_ptr<bus::Relay> relay;
};

Status open_ends(zmq::context_t& context, const bus::RelayConfig& config, Ends& ends) {
  // Their threads stand back; workers, which this process starts, are not to.
  Status opened;
  std::thread([&] {
    if (auto s = stand_behind_training(); !s.ok()) spdlog::warn("{}", s.error().text());
    opened =
        take(ends.broker, bus::Broker::start(context, config.publish_endpoint, config.events_endpoint, config.group));
    if (opened.ok()) opened = take(ends.relay, bus::Relay::start(context, config));
  }).join();
  return opened;
}

int serve(std::vector<KeptWorker>& workers, Ends& ends, int signal_fd) {
  int64_t next_look_ns = 0;
  for (;;) {
    const int64_t now = SteadyClock::now();
    if (ends.relay && now >= next_look_ns) {
      ends.relay->keep_listening();
      ends.broker->keep_listening();
      next_look_ns = now + kLookNs;
    }
    int64_t wake_ns = ends.relay ? next_look_ns : INT64_MAX;
    std::vector<pollfd> fds = {{signal_fd, POLLIN, 0}};
    for (KeptWorker& worker : workers) {
      worker.look(now);
      if (worker.next_look_ns() != 0) wake_ns = std::min(wake_ns, worker.next_look_ns());
      if (worker.fd() >= 0) fds.push_back({worker.fd(), POLLIN, 0});
    }
    if (std::all_of(workers.begin(), workers.end(), [](const auto& w) { return w.ended(); })) return 0;
    const int64_t left_ms = wake_ns == INT64_MAX ? -1 : std::clamp<int64_t>((wake_ns - now) / kNsPerMs + 1, 0, 60'000);
    if (poll(fds.data(), fds.size(), static_cast<int>(left_ms)) < 0 && errno != EINTR) {
      // Without memory for it: what is there is found all the same, a little later, a signal to end among it.
      usleep(kFailedPollUs);
      fds[0].revents = POLLIN;
    }
    signalfd_siginfo info{};
    if ((fds[0].revents & POLLIN) == 0 || read(signal_fd, &info, sizeof info) != sizeof info) continue;
    spdlog::info("ending on signal {}, with the workers of this host", info.ssi_signo);
    for (KeptWorker& worker : workers) worker.end();
  }
}

int run(const Options& o) {
  Paths paths = Paths::defaults();
  if (!o.run_dir.empty()) paths.run_dir = o.run_dir;
  if (!o.state_dir.empty()) paths.state_dir = o.state_dir;
  bus::RelayConfig config;
  std::string host;
  if (!o.manager.empty()) {
    const auto key = read_key(o);
    if (!key) return fail(key.error(), key.error().code == Code::kInvalidArgument ? kWrongUsage : kFailed);
    host = key->host;
    config.manager = o.manager;
    config.key = {key->public_key, key->secret_key, key->manager_key, o.key};
  }
  node::Beginning beginning = node::Beginning::now();
  beginning.groups = node::ControlGroups::prepare();
  auto workers = keep_workers(o, paths, host, beginning);
  if (!workers) return fail(workers.error(), workers.error().code == Code::kInvalidArgument ? kWrongUsage : kFailed);

  for (const char* ours : {"FREERIDE_DEVICE", "FREERIDE_CORES"}) unsetenv(ours);  // a worker is told its own
  const sigset_t set = block_end_signals();                                       // before any thread is made
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value)
  const Fd signal_fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd.valid()) return fail(errno_error("cannot wait for signals", errno), kFailed);
  (void)raise_descriptor_limit();  // each connection takes one
  zmq::context_t context(2);       // I/O threads; the second is the network's
  Ends ends;
  if (!o.manager.empty()) {
    if (auto s = leave_memory_to_training(kServiceMemoryBytes); !s.ok()) spdlog::warn("{}", s.error().text());
    if (auto s = take(config.group, operators_group(o.group)); !s.ok()) return fail(s.error());
    config.commands_endpoint = paths.commands_endpoint();
    config.publish_endpoint = paths.publish_endpoint();
    config.events_endpoint = paths.events_endpoint();
    if (auto s = open_ends(context, config, ends); !s.ok())
      return fail(s.error(), s.error().code == Code::kInvalidArgument ? kWrongUsage : kFailed);
    spdlog::info("ready: host {}, manager {}, commands at {}", host, o.manager, config.commands_endpoint);
  } else {
    spdlog::info("ready: the manager is this host's, in {}", paths.run_dir.string());
  }
  return serve(*workers, ends, signal_fd.get());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Keeps a worker running for each device of this host, and connects the host to a manager elsewhere",
               "freeride-node"};
  Options options;
  declare(app, options);
  if (const auto end = parse_options(app, "freeride-node", "node", argc, argv)) return *end;
  init_log("freeride-node", options.log);
  return run(options);
}
