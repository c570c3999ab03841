// freeride-manager: the bus's broker, the command socket and the core, in one process.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <iostream>
#include <map>

#include "audit_log.hpp"
#include "core.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/background.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/bus/bounds.hpp"
#include "key_book.hpp"
#include "link.hpp"

namespace {

using namespace freeride;

constexpr const char* kVersion = FREERIDE_VERSION;
constexpr size_t kBatch = 256;  // messages between two looks at the clock
constexpr size_t kPieces = 16;  // of plugins that are sent, likewise
constexpr useconds_t kFailedPollUs = 100'000;

const std::map<std::string, policy::QueueOrder> kQueueOrders{{"submission", policy::QueueOrder::kSubmission},
                                                             {"fair", policy::QueueOrder::kFairShare}};

struct Options {
  std::string run_dir, state_dir, group, audit_log;
  LogOptions log;
  std::string publish_endpoint, events_endpoint, commands_endpoint, listen, keys_dir, authorized_dir;
  std::string budget_pct = "1", queue = "submission";
  double account_half_life_h = 24;
  int64_t baseline_block_ms = 3000, default_memory_mib = 2048, worker_timeout_ms = 5000, profile_timeout_ms = 180'000;
  int64_t restart_interval_s = 600;
  int64_t order_pause_ms = policy::OrderLimits{}.pause_ns / kNsPerMs;
  int64_t order_stop_ms = policy::OrderLimits{}.stop_ns / kNsPerMs;
  int64_t order_margin_ms = policy::OrderLimits{}.margin_ns / kNsPerMs;
  size_t max_connections = bus::Bounds{}.network_connections;
  manager::CoreConfig core;  // what else is given in the core's own units
  manager::Accounts::Lists accounts;
};

void declare(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("--run-dir", o.run_dir, "folder of the sockets");
  app.add_option("--state-dir", o.state_dir, "state folder: tasks, profiles, keys and plugins, over restarts");
  app.add_option(
      "--group", o.group,
      "group that may command and read events; none: only this user; default: freeride, where root runs this");
  app.add_option(
      "--audit-log", o.audit_log,
      "audit log, with a line for each command that changes something; default: audit.jsonl in the state folder");
  add_log_options(app, o.log);
  app.add_option("--commands-endpoint", o.commands_endpoint, "the command socket; default: in the run folder");
  app.add_option("--publish-endpoint", o.publish_endpoint, "where events are published; default: in the run folder");
  app.add_option("--events-endpoint", o.events_endpoint, "where events can be read; default: in the run folder");
  app.add_option("--listen", o.listen,
                 "take commands over the network, too, from holders of keys: tcp://HOST:PORT (*: all addresses). "
                 "Events are on the next port");
  app.add_option("--keys-dir", o.keys_dir,
                 "folder of the keys that freeride-ctl keys makes; default: keys in the state folder");
  app.add_option(
      "--authorized-dir", o.authorized_dir,
      "folder of the authorised keys, where another program keeps them; default: authorized in the keys folder");
  app.add_option("--baseline-pct", o.core.job.baseline_pct,
                 "percent of the iterations that are baseline iterations: side tasks make no steps in them, and the "
                 "slowdown is "
                 "measured against them; 0: it is not measured, and no side task is throttled")
      ->check(within(0.0, 90.0));
  app.add_option("--baseline-block-ms", o.baseline_block_ms, "length of a block of baseline iterations")
      ->check(CLI::Range(int64_t{10}, int64_t{3'600'000}));
  app.add_option("--budget-pct", o.budget_pct,
                 "slowdown budget: the slowdown in percent above which side tasks are throttled; auto: above what they "
                 "are worth")
      ->check(CLI::IsMember({"auto"}) | within(0.0, 1000.0));
  app.add_option("--side-worth", o.core.job.budget.side_worth,
                 "what a second of a side task is worth, in seconds of a training GPU")
      ->check(within(0.0, 1000.0));
  app.add_option("--default-memory-mib", o.default_memory_mib, "memory of a task that declares none and has no profile")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--worker-timeout-ms", o.worker_timeout_ms, "a worker that is silent for so long is lost")
      ->check(CLI::Range(int64_t{2000}, int64_t{600'000}));
  app.add_option("--order-pause-ms", o.order_pause_ms,
                 "a worker that has not heard from this manager for so long pauses its side tasks")
      ->check(CLI::Range(int64_t{500}, int64_t{86'400'000}));
  app.add_option("--order-stop-ms", o.order_stop_ms, "after so long it ends their processes; at least --order-pause-ms")
      ->check(CLI::Range(int64_t{500}, int64_t{86'400'000}));
  app.add_option("--order-margin-ms", o.order_margin_ms,
                 "this manager waits so much longer than --order-pause-ms before it places such a side task again")
      ->check(CLI::Range(int64_t{100}, int64_t{86'400'000}));
  app.add_option("--profile-timeout-ms", o.profile_timeout_ms, "a profile that takes longer has failed")
      ->check(CLI::Range(int64_t{1000}, int64_t{3'600'000}));
  app.add_option("--max-restarts", o.core.restarts.most,
                 "a task that was lost with its worker is restarted so often within --restart-interval-s");
  app.add_option("--restart-interval-s", o.restart_interval_s, "after so long a restart does not count any more")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400}));
  app.add_option("--plugin-faults", o.core.faults.of_plugin,
                 "a plugin's content with so many GPU faults an hour is blocked on all GPUs; 0: never");
  app.add_option("--user-faults", o.core.faults.of_user, "the same for all tasks of a user");
  app.add_option("--job-faults", o.core.faults.of_job, "the same for all tasks in a job's bubbles");
  app.add_option("--max-workers", o.core.limits.workers,
                 "the most workers that may register; other limits follow from it (docs/scale.md)")
      ->check(CLI::Range(size_t{1}, size_t{100'000}));
  app.add_option("--max-connections", o.max_connections,
                 "the most connections over the network; a node has three, and takes them before its key is known")
      ->check(CLI::Range(size_t{16}, size_t{100'000}));
  app.add_option("--history", o.core.history, "how many ended tasks are kept")->check(CLI::Range(0, 100'000));
  app.add_option("--queue", o.queue, "order within a priority and an account: by submission, or fair: users in turn")
      ->check(CLI::IsMember(kQueueOrders));
  app.add_option(
         "--account-half-life-h", o.account_half_life_h,
         "time after which half of what an account has harvested counts no more in the queue; 0: the queue does "
         "not tell accounts apart")
      ->check(within(0.0, 87'600.0));
}

manager::CoreConfig core_config(const Options& o, const Paths& paths) {
  manager::CoreConfig config = o.core;
  config.paths = paths;
  config.version = kVersion;
  config.job.baseline_block_ns = o.baseline_block_ms * kNsPerMs;
  config.job.budget.slowdown_pct.reset();
  if (o.budget_pct != "auto") config.job.budget.slowdown_pct = std::stod(o.budget_pct);
  config.default_memory_bytes = o.default_memory_mib << 20;
  config.worker_timeout_ns = o.worker_timeout_ms * kNsPerMs;
  config.profile_timeout_ns = o.profile_timeout_ms * kNsPerMs;
  config.restarts.interval_ns = o.restart_interval_s * kNsPerSec;
  config.orders.pause_ns = o.order_pause_ms * kNsPerMs;
  config.orders.stop_ns = std::max(o.order_pause_ms, o.order_stop_ms) * kNsPerMs;
  config.orders.margin_ns = o.order_margin_ms * kNsPerMs;
  config.queue_order = kQueueOrders.at(o.queue);
  config.account_half_life_ns = static_cast<int64_t>(o.account_half_life_h * 3600 * kNsPerSec);
  return config;
}

bus::Bounds bounds_of(const Options& o) {
  const bus::Bounds usual;
  const manager::Limits& limits = o.core.limits;
  bus::Bounds bounds;
  bounds.network_connections = o.max_connections;
  bounds.connections =
      usual.connections - usual.network_connections + std::max(usual.network_connections, o.max_connections);
  bounds.kept_topics = limits.kept_topics();
  bounds.kept_bytes = usual.kept_bytes / usual.kept_topics * bounds.kept_topics;
  bounds.answers = limits.answers();
  bounds.answer_bytes = usual.answer_bytes / usual.answers * bounds.answers;
  return bounds;
}

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int fail(const Error& error) {
  spdlog::error("{}", error.text());
  return error.code == Code::kInvalidArgument ? 2 : 1;
}

// What ends it as a descriptor; blocked before any thread is made, so that no other thread gets them.
Fd signals() {
  const sigset_t set = block_end_signals();
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value)
  return Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

int serve(manager::Core& core, manager::Link& link, Background& background, bus::Broker& broker, const Clock& clock,
          int signal_fd) {
  bool behind = true;  // since the last tick
  while (true) {
    // What is there comes before what time says: after a stall nobody is declared lost whose report is waiting.
    const bool more = link.receive(core, kBatch);
    behind = behind && more;
    if (clock.now_ns() >= core.next_tick_ns()) {
      core.tick(std::exchange(behind, true));
      link.keep_listening();
      broker.keep_listening();
    }
    core.go_on();
    const int64_t now = clock.now_ns(), next = std::min(core.next_tick_ns(), std::max(core.next_slice_ns(), now));
    int64_t timeout_ms = 0;
    if (!more) timeout_ms = std::clamp<int64_t>((next - now) / kNsPerMs + 1, 0, 60'000);
    pollfd fds[3] = {{link.fd(), POLLIN, 0}, {signal_fd, POLLIN, 0}, {background.fd(), POLLIN, 0}};
    if (poll(fds, 3, static_cast<int>(timeout_ms)) < 0 && errno != EINTR) {
      // Without memory for it: what is there is found all the same, a little later, a signal to end among it.
      usleep(kFailedPollUs);
      fds[1].revents = POLLIN;
    }
    if ((fds[2].revents & POLLIN) != 0) background.finish(kPieces);
    if ((fds[1].revents & POLLIN) == 0) continue;
    signalfd_siginfo info{};
    if (read(signal_fd, &info, sizeof info) != sizeof info) continue;
    spdlog::info("ending on signal {}", info.ssi_signo);
    core.flush();
    return 0;
  }
}

// What listens on the network: first who checks the keys, then the ports.
struct Network {
  bus::TcpPort commands, events;
  bus::NodesPort nodes;
  std::unique_ptr<manager::KeyBook> keys;  // nullptr: there are none
  std::unique_ptr<bus::Doorkeeper> door;
  std::string told;  // for users
};

// While it lives, connections to the events end with their keys.
class FollowKeys {
 public:
  FollowKeys(manager::KeyBook* keys, bus::Broker& broker) : keys_(keys) {
    if (keys_ == nullptr) return;
    keys_->on_change([&broker] { broker.look_at_keys(); });
    broker.look_at_keys();
  }
  ~FollowKeys() {
    if (keys_ != nullptr) keys_->on_change(nullptr);
  }
  FollowKeys(const FollowKeys&) = delete;
  FollowKeys& operator=(const FollowKeys&) = delete;

 private:
  manager::KeyBook* keys_;
};

Status prepare_network(const Options& o, const Paths& paths, zmq::context_t& context, Network& network) {
  if (o.listen.empty()) return {};
  network.commands.endpoint = o.listen;
  if (auto next = take(network.events.endpoint, bus::events_port_of(o.listen)); !next) return next;
  if (auto next = take(network.nodes.port.endpoint, bus::nodes_port_of(o.listen)); !next) return next;
  const std::filesystem::path folder = o.keys_dir.empty() ? paths.keys_dir() : std::filesystem::path(o.keys_dir);
  auto keys = manager::KeyBook::open(folder, o.core.limits.keys(), o.authorized_dir);
  if (keys) {
    network.keys = std::move(*keys);
    const auto admits = [&book = *network.keys](const std::string& key) { return book.admits(key); };
    if (auto door = take(network.door, bus::Doorkeeper::start(context, network.keys->secret_key(), admits)); !door)
      return door;
    network.commands.door = network.events.door = network.nodes.port.door = network.door.get();
    network.nodes.may_publish = [&book = *network.keys](const std::string& key) {
      const auto whose = book.find(key);
      return whose && whose->role == policy::Role::kNode;
    };
    network.told = o.listen + ", by key";
    return {};
  }
  if (keys.error().code != Code::kNotFound) return keys.error();
  const auto inside = bus::is_loopback(o.listen);
  if (!inside) return inside.error();
  if (!*inside) {
    return Error{Code::kInvalidArgument,
                 o.listen + " is not opened: there are no keys in " + folder.string() + ", so it would be everybody's",
                 "make one (freeride-ctl keys make NAME --role ROLE), or listen at tcp://127.0.0.1:PORT"};
  }
  network.told = o.listen + ", without keys: anybody on this host may hear events";
  spdlog::warn(
      "{} is opened without keys: anybody on this host may hear events, and nobody command there; make keys "
      "with freeride-ctl keys make, and start again",
      o.listen);
  return {};
}

// Each connection takes a descriptor. What the network finds taken is refused later, one by one.
void check_descriptors(const Options& o, size_t all) {
  const size_t wanted = o.max_connections + bus::kDescriptorsForHost;
  if (o.listen.empty() || all >= wanted) return;
  spdlog::warn(
      "this process may have {} descriptors, and --max-connections {} needs {}: the network gets fewer connections; "
      "raise LimitNOFILE of freeride-manager.service, or ulimit -n",
      all, o.max_connections, wanted);
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
  check_descriptors(o, raise_descriptor_limit());
  make_files_private();
  const auto group = operators_group(o.group);
  if (!group) return fail(group.error());
  const Fd signal_fd = signals();
  if (!signal_fd.valid()) return fail(errno_error("cannot wait for signals", errno));
  bus::set_bounds(bounds_of(o));
  zmq::context_t context(o.listen.empty() ? 1 : 2);  // I/O threads; the second is the network's
  // The command socket first: of two managers the second is to hear of the first, not of its database.
  auto server = bus::Server::bind(context, commands, *group);
  if (!server) return fail(server.error());
  Network network;  // before what is opened with it
  if (auto s = prepare_network(o, paths, context, network); !s) return fail(s.error());
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
  auto broker = bus::Broker::start(context, publish, events, *group, o.listen.empty() ? nullptr : &network.events,
                                   network.keys ? &network.nodes : nullptr);
  if (!broker) return fail(broker.error());
  auto publisher = bus::Publisher::connect(context, publish, "manager");
  if (!publisher) return fail(publisher.error());

  const SteadyClock clock;
  // A port is opened last: who comes is served.
  if (!o.listen.empty()) {
    if (auto s = (*server)->listen(context, network.commands); !s) return fail(s.error());
  }
  const auto background = Background::create();
  if (!background) return fail(background.error());
  manager::Link link(std::move(*server), std::move(*publisher), **background, **audit, unix_ms, network.keys.get(),
                     o.core.limits, o.accounts);
  manager::CoreConfig config = core_config(o, paths);
  config.network = network.told;
  auto core = manager::Core::start(config, std::move(*store), link, clock, unix_ms);
  if (!core) return fail(core.error());
  const FollowKeys follow_keys(network.keys.get(), **broker);
  if (!network.told.empty())
    spdlog::info("network: {}; events on the next port, nodes' on that after it", network.told);
  spdlog::info("ready: commands at {}, events at {}, state in {}", commands, events, paths.state_dir.string());
  return serve(**core, link, **background, **broker, clock, signal_fd.get());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Places side tasks on workers, keeps their state and measures what they cost training"};
  Options options;
  declare(app, options);
  if (const auto end = parse_options(app, "freeride-manager", "manager", argc, argv)) return *end;
  auto accounts = read_lists("accounts");
  if (!accounts) {
    std::cerr << "freeride-manager: " << accounts.error().text() << std::endl;
    return 2;
  }
  options.accounts = std::move(*accounts);
  init_log("freeride-manager", options.log);
  return run(options);
}
