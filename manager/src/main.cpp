// freeride-manager: the bus's broker, the command socket and the core, in one process.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>

#include "audit_log.hpp"
#include "core.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/priority.hpp"
#include "link.hpp"

namespace {

using namespace freeride;

constexpr const char* kVersion = FREERIDE_VERSION;
constexpr size_t kBatch = 256;  // messages between two looks at the clock

const std::map<std::string, policy::QueueOrder> kQueueOrders{{"submission", policy::QueueOrder::kSubmission},
                                                             {"fair", policy::QueueOrder::kFairShare}};

struct Options {
  std::string run_dir, state_dir, group, audit_log, log_level = "info";
  std::string publish_endpoint, events_endpoint, commands_endpoint;
  bool no_broker = false;
  std::string budget_pct = "1", queue = "submission";
  int64_t holdout_block_ms = 3000, default_memory_mib = 2048, worker_timeout_ms = 5000, profile_timeout_ms = 180'000;
  int64_t restart_interval_s = 600;
  manager::CoreConfig core;  // what else is given in the core's own units
};

void declare(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("--run-dir", o.run_dir, "folder of the sockets");
  app.add_option("--state-dir", o.state_dir, "folder of what survives a restart");
  app.add_option(
      "--group", o.group,
      "group that may command and read events; none: only this user (default: freeride, where root runs this)");
  app.add_option("--audit-log", o.audit_log, "who changed what, a line each; default: audit.jsonl in the state dir");
  app.add_option("--log-level", o.log_level, "trace, debug, info, warn or error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  app.add_option("--commands-endpoint", o.commands_endpoint, "command socket; default: in the run dir");
  app.add_option("--publish-endpoint", o.publish_endpoint, "where events are published; default: in the run dir");
  app.add_option("--events-endpoint", o.events_endpoint, "where events can be read; default: in the run dir");
  app.add_flag("--no-broker", o.no_broker, "a freeride-bus runs the event broker");
  app.add_option("--holdout-pct", o.core.job.holdout_pct,
                 "share of iterations without side tasks, to measure I against; 0: do not measure")
      ->check(within(0.0, 90.0));
  app.add_option("--holdout-block-ms", o.holdout_block_ms, "length of a held-out block")
      ->check(CLI::Range(int64_t{10}, int64_t{3'600'000}));
  app.add_option("--budget-pct", o.budget_pct,
                 "time increase above which side tasks are throttled, or auto: as much as they are worth")
      ->check(CLI::IsMember({"auto"}) | within(0.0, 1000.0));
  app.add_option("--side-worth", o.core.job.budget.side_worth,
                 "what a second of a side task is worth, in seconds of a training GPU")
      ->check(within(0.0, 1000.0));
  app.add_option("--default-memory-mib", o.default_memory_mib,
                 "memory of a task that declares none, until it has been profiled")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--worker-timeout-ms", o.worker_timeout_ms, "silence after which a worker is lost")
      ->check(CLI::Range(int64_t{2000}, int64_t{600'000}));
  app.add_option("--profile-timeout-ms", o.profile_timeout_ms, "longest profile of a plugin")
      ->check(CLI::Range(int64_t{1000}, int64_t{3'600'000}));
  app.add_option("--max-restarts", o.core.restarts.most,
                 "restarts of a task that is lost with its worker, within --restart-interval-s");
  app.add_option("--restart-interval-s", o.restart_interval_s, "time after which a restart counts no more")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400}));
  app.add_option("--plugin-faults", o.core.faults.of_plugin,
                 "GPU faults an hour at which a plugin's content is blocked everywhere; 0: never");
  app.add_option("--user-faults", o.core.faults.of_user, "the same of all tasks of a user");
  app.add_option("--job-faults", o.core.faults.of_job, "the same of all tasks in a job's bubbles");
  app.add_option("--history", o.core.history, "ended tasks that are kept")->check(CLI::Range(0, 100'000));
  app.add_option("--queue", o.queue, "order within a priority: submission or fair (between users)")
      ->check(CLI::IsMember(kQueueOrders));
}

manager::CoreConfig core_config(const Options& o, const Paths& paths) {
  manager::CoreConfig config = o.core;
  config.paths = paths;
  config.version = kVersion;
  config.job.holdout_block_ns = o.holdout_block_ms * kNsPerMs;
  config.job.budget.slowdown_pct.reset();
  if (o.budget_pct != "auto") config.job.budget.slowdown_pct = std::stod(o.budget_pct);
  config.default_memory_bytes = o.default_memory_mib << 20;
  config.worker_timeout_ns = o.worker_timeout_ms * kNsPerMs;
  config.profile_timeout_ns = o.profile_timeout_ms * kNsPerMs;
  config.restarts.interval_ns = o.restart_interval_s * kNsPerSec;
  config.queue_order = kQueueOrders.at(o.queue);
  return config;
}

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int fail(const Error& error) {
  spdlog::error("{}", error.text());
  return 1;
}

// What ends it as a descriptor; blocked before any thread is made, so that no other thread gets them.
Fd signals() {
  const sigset_t set = block_end_signals();
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value)
  return Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int serve(manager::Core& core, manager::Link& link, bus::Broker* broker, const Clock& clock, int signal_fd) {
  while (true) {
    // What is there comes before what time says: after a stall nobody is declared lost whose report is waiting.
    const bool more = link.receive(core, kBatch);
    if (clock.now_ns() >= core.next_tick_ns()) {
      core.tick();
      link.keep_listening();
      if (broker != nullptr) broker->keep_listening();
    }
    int64_t timeout_ms = 0;
    if (!more) timeout_ms = std::clamp<int64_t>((core.next_tick_ns() - clock.now_ns()) / kNsPerMs + 1, 0, 60'000);
    pollfd fds[2] = {{link.fd(), POLLIN, 0}, {signal_fd, POLLIN, 0}};
    poll(fds, 2, static_cast<int>(timeout_ms));
    if ((fds[1].revents & POLLIN) == 0) continue;
    signalfd_siginfo info{};
    if (read(signal_fd, &info, sizeof info) != sizeof info) continue;
    spdlog::info("ending on signal {}", info.ssi_signo);
    core.flush();
    return 0;
  }
}

int run(const Options& o) {
  Paths paths = Paths::defaults();
  if (!o.run_dir.empty()) paths.run_dir = o.run_dir;
  if (!o.state_dir.empty()) paths.state_dir = o.state_dir;
  const auto or_default = [](const std::string& given, const std::string& fallback) {
    return given.empty() ? fallback : given;
  };
  const std::string publish = or_default(o.publish_endpoint, paths.publish_endpoint());
  const std::string events = or_default(o.events_endpoint, paths.events_endpoint());
  const std::string commands = or_default(o.commands_endpoint, paths.commands_endpoint());

  // It decides in seconds; where it shares cores with training, training goes first. Before any thread is made.
  if (auto s = stand_behind_training(); !s) spdlog::warn("{}", s.error().text());
  if (auto s = leave_memory_to_training(kServiceMemoryBytes); !s) spdlog::warn("{}", s.error().text());
  (void)raise_descriptor_limit();  // each connection takes one
  make_files_private();
  const auto group = operators_group(o.group);
  if (!group) return fail(group.error());
  const Fd signal_fd = signals();
  zmq::context_t context;
  // The command socket first: of two managers the second is to hear of the first, not of its database.
  auto server = bus::Server::bind(context, commands, *group);
  if (!server) return fail(server.error());
  for (const auto& folder : {paths.state_dir, paths.store_dir()}) {
    if (auto s = make_private_folder(folder, *group); !s) return fail(s.error());
  }
  // Everybody could read those of an earlier version. Before the store has them open: SQLite's locks end with the first
  // descriptor of theirs that this process closes.
  for (const char* end : {"", "-wal"}) {
    if (auto s = make_private_file(paths.database().string() + end, std::nullopt); !s) return fail(s.error());
  }
  auto store = manager::StateStore::open(paths.database());
  if (!store) return fail(store.error());
  auto audit = manager::AuditLog::open(or_default(o.audit_log, (paths.state_dir / "audit.jsonl").string()), *group);
  if (!audit) return fail(audit.error());
  std::unique_ptr<bus::Broker> broker;
  if (!o.no_broker) {
    auto started = bus::Broker::start(context, publish, events, *group);
    if (!started) return fail(started.error());
    broker = std::move(*started);
  }
  auto publisher = bus::Publisher::connect(context, publish, "manager");
  if (!publisher) return fail(publisher.error());

  const SteadyClock clock;
  manager::Link link(std::move(*server), std::move(*publisher), **audit, unix_ms);
  auto core = manager::Core::start(core_config(o, paths), std::move(*store), link, clock, unix_ms);
  if (!core) return fail(core.error());
  spdlog::info("ready: commands at {}, events at {}, state in {}", commands, events, paths.state_dir.string());
  return serve(**core, link, broker.get(), clock, signal_fd.get());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Places side tasks on workers, keeps their state and measures what they cost training"};
  Options options;
  declare(app, options);
  if (const auto end = parse_options(app, "freeride-manager", "manager", argc, argv)) return *end;
  init_log("freeride-manager", options.log_level);
  return run(options);
}
