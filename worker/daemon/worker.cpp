#include "daemon/worker.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "daemon/measures.hpp"
#include "daemon/phase_name.hpp"
#include "freeride/base/about.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/base/utf8.hpp"
#include "freeride/bus/device_alarm.hpp"
#include "tasks/granted_files.hpp"
#include "tasks/task_folders.hpp"
#include "tasks/verdicts.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kTickNs = kNsPerSec;
constexpr int64_t kEndedKeptNs = 600 * kNsPerSec;  // an ended task's log can be asked for so long
constexpr size_t kMostEnded = 32;
constexpr size_t kMostEpochs = 4096;
constexpr size_t kLogReplyBytes = 32u << 10;

std::string random_name() {
  std::array<unsigned char, 8> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    const int64_t now = SteadyClock::now();
    std::copy_n(reinterpret_cast<const unsigned char*>(&now), bytes.size(), bytes.begin());
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Error late(const std::string& task) {
  return {Code::kUnavailable, "the order for task " + task.substr(0, 80) + " came too late", ""};
}

}  // namespace

Worker::Worker(Options options) : options_(std::move(options)), incarnation_(random_name()) {}

Result<std::unique_ptr<Worker>> Worker::create(const Options& options) {
  std::unique_ptr<Worker> worker(new Worker(options));
  if (auto opened = worker->open(); !opened.ok()) return opened.error();
  return worker;
}

Worker::~Worker() {
  folders_.reset();
  launches_.reset();
  // Tasks first: they use everything else.
  draining_.reset();
  shutdown_.reset();
  tasks_.clear();
  replacements_.reset();
  retired_.clear();
  contents_.reset();
  link_.reset();
  trainers_.reset();
  drop_folder_.reset();
  gpu_.reset();
  probe_.reset();
  publisher_.reset();
  if (acting_ != nullptr) loop_->forget(acting_->event_fd());
  acting_.reset();
}

Status Worker::open() {
  if (auto device = check_device(options_.device); !device.ok()) return device;
  auto runner = find_runner(options_.sandbox.runner);
  if (!runner.ok()) return runner.error();
  if (!options_.cpu_device()) {
    if (auto s = take(options_.shim, find_shim(options_.shim)); !s.ok()) return s;
    options_.drivers = find_drivers(options_.sandbox.library_dirs);
    options_.pages_dir = options_.paths.run_dir / "pages";
  }
  utsname name{};
  uname(&name);
  host_ = name.nodename;
  const std::string called = options_.host_id.empty() ? host_id() : options_.host_id;
  id_ = called + ":" + options_.device;

  if (auto s = take(loop_, Loop::create()); !s.ok()) return s;
  if (auto s = open_signals(); !s.ok()) return s;
  if (auto s = make_run_folder(options_.paths.run_dir); !s.ok()) return s;
  keep_host_id();
  if (auto s = make_private_folder(options_.paths.state_dir, std::nullopt); !s.ok()) return s;

  SandboxOptions sandbox_options = options_.sandbox;
  sandbox_options.runner = *runner;
  sandbox_options.device = options_.device;
  sandbox_options.uid_folder = (options_.paths.run_dir / "task-uids").string();
  if (auto s = take(sandbox_, make_sandbox(sandbox_options)); !s.ok()) return s;
  if (auto s = sandbox_->check(); !s.ok()) return s;

  if (!options_.cpu_device()) {
    if (auto s = open_gpu(); !s.ok()) return s;
  }

  ActorConfig config;
  config.task.by_cpu_clock = options_.cpu_device();
  config.probe.one_in = static_cast<uint32_t>(options_.probe_one_in);
  config.probe.one_in_holdout = std::min(config.probe.one_in, config.probe.one_in_holdout);
  config.probe_secret = std::stoull(random_name(), nullptr, 16);
  config.probe_counts = probe_counts_;
  config.task.stops = !options_.cpu_device();
  config.task.cores = static_cast<uint32_t>(options_.cores.empty() ? std::max(1l, sysconf(_SC_NPROCESSORS_ONLN))
                                                                   : static_cast<long>(options_.cores.size()));
  config.task.grace_ns = options_.grace_ms * kNsPerMs;
  config.task.hang_ns = options_.hang_ms * kNsPerMs;
  config.task.stop_ns = options_.stop_ms * kNsPerMs;
  config.lease.init_ns = options_.init_ms * kNsPerMs;
  config.lease.profile_ns = options_.profile_ms * kNsPerMs;
  config.lease.order = options_.lease_order;
  config.settled_ns = SteadyClock::now() + options_.settle_ms * kNsPerMs;
  if (auto s = take(acting_, ActingThread::start(config)); !s.ok()) return s;
  // After the acting thread, which must not wait for training. On a CPU device all others share their core with it.
  if (options_.cpu_device()) {
    if (auto s = stand_behind_training(); !s.ok()) spdlog::warn("{}", s.error().text());
  }
  if (auto s = loop_->watch(acting_->event_fd(), EPOLLIN, [this](uint32_t) { on_acting(); }); !s.ok()) return s;

  auto publisher = bus::Publisher::connect(context_, options_.paths.publish_endpoint(), "worker " + id_);
  if (auto s = take(publisher_, std::move(publisher)); !s.ok()) return s;

  auto on_device = [this](pid_t pid) {
    return gpu_ != nullptr ? gpu_->check_training(pid) : check_process_on(pid, options_.cores);
  };
  auto trainers = Trainers::listen(
      options_.paths.worker_socket(options_.device).string(), options_.device, *loop_, *acting_, std::move(on_device),
      [this](const AttachedRank& rank, Trainers::Change change) { on_rank(rank, change); });
  if (auto s = take(trainers_, std::move(trainers)); !s.ok()) return s;

  store_ = std::make_unique<PluginStore>(options_.paths.store_dir());
  drop_folder_ = std::make_unique<DropFolder>(
      options_.drop_dir.empty() ? options_.paths.drop_dir() : std::filesystem::path(options_.drop_dir), *store_, *loop_,
      [this](const DroppedFile& file) { on_file(file); });

  ManagerLink::Host& reporter = *this;
  link_ = std::make_unique<ManagerLink>(context_, options_.paths.commands_endpoint(), *loop_, reporter);
  if (auto s = take(launches_, Background::create(*loop_)); !s.ok()) return s;
  contents_ = std::make_unique<Contents>(
      *store_, *drop_folder_, *launches_,
      [this](const std::string& sha256, auto answer) { link_->fetch(sha256, std::move(answer)); });
  states_ = std::make_unique<StateFetch>(
      *loop_, [this](const bus::FetchState& wish, auto answer) { link_->fetch_state(wish, std::move(answer)); });
  Replacements::Host& host = *this;
  replacements_ = std::make_unique<Replacements>(host, *loop_, options_.init_ms * kNsPerMs);
  shutdown_ = std::make_unique<Shutdown>(*loop_, options_.stop_ms * kNsPerMs, host, *replacements_);
  draining_ = std::make_unique<Draining>(*loop_, options_.stop_ms * kNsPerMs, host, *replacements_,
                                         [this] { return still_there(); });
  auto folders =
      TaskFolders::create(options_.paths.state_dir / "tasks", {options_.keep_days * 86'400, options_.keep_bytes},
                          *loop_, [this](const std::string& name, auto answer) {
                            if (tasks_.count(name) != 0 && !tasks_[name]->ended()) return answer(false);
                            if (is_marked_ended(folder(name))) return answer(true);
                            link_->ask_ended(name, std::move(answer));
                          });
  if (auto s = take(folders_, std::move(folders)); !s.ok()) return s;
  loop_->after_each_turn([this] {
    retired_.clear();
    link_->receive();
  });
  drop_folder_->start();
  return link_->start();
}

Status Worker::open_signals() {
  const sigset_t set = end_signals();
  signals_.reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return errno_error("cannot make a signal descriptor", errno);
  return loop_->watch(signals_.get(), EPOLLIN, [this](uint32_t) {
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return;
    if (shutdown_->begun()) {
      loop_->stop();
    } else {
      begin_stop();
    }
  });
}

Status Worker::open_gpu() {
  if (std::string(sandbox_->name()) != "none" && options_.paths.run_dir.string().rfind("/tmp/", 0) == 0) {
    return Error{Code::kInvalidArgument,
                 "the run folder " + options_.paths.run_dir.string() +
                     " lies in /tmp, which a sandbox has to itself: a task could not reach its MPS server there",
                 "name another one with --run-dir"};
  }
  GpuGuardOptions options;
  options.gpu = options_.device;
  options.control = options_.mps_control;
  options.mps_folder = options_.paths.run_dir / "mps";
  options.reserve_bytes = options_.reserve_bytes;
  options.memory_bytes = options_.memory_bytes;
  options.thread_pct = options_.thread_pct;
  GpuGuard::Calls calls;
  calls.training = [this] { return trainers_ != nullptr && !trainers_->ranks().empty(); };
  calls.wanted = [this] {
    const int64_t bytes =
        trainers_ == nullptr ? 0 : trainers_->wanted_bytes([this](pid_t pid) { return gpu_->on_gpu(pid); });
    if (bytes > 0 && probe_ != nullptr) probe_->make_room();
    return bytes;
  };
  calls.others = [this](const std::set<pid_t>& pids) { note_others(pids); };
  calls.leased = [this](uint64_t id) {
    const SideTask* one = task(id);
    return one == nullptr || one->leased();
  };
  calls.own = [this] { return probe_ == nullptr ? 0 : probe_->pid(); };
  calls.root = [this](uint64_t id) -> pid_t {
    const SideTask* one = task(id);
    return one == nullptr ? 0 : one->root_pid();
  };
  calls.memory = [this](uint64_t id, int64_t bytes) {
    if (SideTask* one = task(id)) one->set_device_memory(bytes);
  };
  calls.fault = [this](uint64_t id, uint32_t xid) {
    bus::GpuFault fault;
    fault.worker = id_;
    fault.device = options_.device;
    fault.xid = xid;
    fault.time_ns = SteadyClock::now();
    if (const SideTask* one = task(id)) fault.task = one->spec().task;
    if (trainers_ != nullptr && !trainers_->ranks().empty())
      fault.job = trainers_->ranks().begin()->second.identity.job;
    spdlog::error("GPU {} has faulted (Xid {}): {}", fault.device, xid == 0 ? "not told" : std::to_string(xid),
                  id == 0 ? "training, or whoever else is on it" : "side task " + fault.task);
    if (publisher_ != nullptr) publisher_->publish(fault);
  };
  calls.end = [this](uint64_t id, policy::Verdict verdict) {
    SideTask* one = live_task(id);
    if (one == nullptr) return;
    spdlog::warn("side {} is taken off: {}", about_task(one->spec().task), text_of(verdict));
    one->kill(std::move(verdict));
    report_soon();
  };
  if (options_.probe_one_in > 0) {
    probe_ = std::make_unique<GpuProbe>(options_.device, *loop_, [this](std::shared_ptr<ProbeMapping> mapping) {
      if (acting_ != nullptr) acting_->set_probe(std::move(mapping));
    });
  }
  return take(gpu_, GpuGuard::open(options, *loop_, std::move(calls)));
}

// Whoever is on the GPU and no rank may be a training that has not attached, or has no hook.
void Worker::note_others(const std::set<pid_t>& pids) {
  if (acting_ == nullptr || trainers_ == nullptr) return;
  pid_t other = 0;
  for (const pid_t pid : pids) {
    const auto& ranks = trainers_->ranks();
    if (std::none_of(ranks.begin(), ranks.end(), [pid](const auto& rank) { return rank.second.peer.pid == pid; })) {
      other = pid;
      break;
    }
  }
  if (other == other_process_) return;
  other_process_ = other;
  acting_->set_other_process(other != 0);
  report_soon();
  if (other != 0) {
    spdlog::info("process {} uses the GPU and is no attached rank: side tasks run in bubbles only while it is there",
                 other);
  } else {
    spdlog::info("no process uses the GPU that is no attached rank");
  }
}

void Worker::run() {
  const std::string note = acting_->priority_note();
  if (!note.empty()) spdlog::warn("{}", note);
  if (acting_->bell_fd() >= 0)
    spdlog::warn(
        "there is no futex_waitv here (Linux before 5.16, or a filter of system calls): hooks of this version "
        "ring a bell, the pages of earlier ones are looked at every millisecond");
  spdlog::info("ready: worker {} takes trainers at {}", id_, options_.paths.worker_socket(options_.device).string());
  tick();
  loop_->run();
  link_->leave();
}

// What this host is called, for scripts on it: a key, a setting or the machine's id has made the name. Written at the
// start, and again where the run folder has been made anew.
void Worker::keep_host_id() {
  const auto file = options_.paths.run_dir / "host-id";
  if (std::exchange(host_id_written_, true) && access(file.c_str(), F_OK) == 0) return;
  const auto fresh = options_.paths.run_dir / (".host-id-" + std::to_string(getpid()));
  std::error_code failed;
  std::ofstream out(fresh);
  if (!(out << id_.substr(0, id_.rfind(':')) << "\n" << std::flush)) failed.assign(errno, std::generic_category());
  out.close();
  if (!failed) std::filesystem::rename(fresh, file, failed);
  const bool said = std::exchange(host_id_failed_, static_cast<bool>(failed));
  if (failed && !said) spdlog::warn("cannot write {}: {}", file.string(), failed.message());
}

void Worker::tick() {
  if (probe_ != nullptr) {
    const bool live = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return !t.second->ended(); });
    probe_->want(live && !trainers_->ranks().empty());
  }
  look_at_drain();
  look_at_reasons();
  publish_progress();
  forget_old_tasks();
  end_expired();
  replacements_->look_at_all();
  trainers_->keep_listening();
  keep_host_id();
  trainers_->look_at_strangers();
  if (acting_->dropped() != dropped_events_) {
    spdlog::warn("{} events of bubbles were dropped: this thread could not keep up",
                 acting_->dropped() - dropped_events_);
    dropped_events_ = acting_->dropped();
  }
  loop_->at(SteadyClock::now() + kTickNs, [this] { tick(); });
}

// ---- trainers

bus::TrainingState Worker::state_of(const AttachedRank& rank) const {
  bus::TrainingState state = training_state(rank, SteadyClock::now());
  state.worker = id_;
  state.why = policy::rank_why_name(reasons_.of(rank.id));
  return state;
}

// Publishes ranks whose reason has changed, but for one that is published anyhow.
void Worker::look_at_reasons(uint64_t but) {
  RankReasons::Device device;
  device.drained = draining_->on();
  device.has_task = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return !t.second->ended(); });
  device.plans = plans_.get();
  for (const uint64_t rank : reasons_.look(trainers_->ranks(), device, SteadyClock::now())) {
    if (rank != but) publisher_->publish(state_of(trainers_->ranks().at(rank)));
  }
}

void Worker::publish_rank(const AttachedRank& rank) {
  look_at_reasons(rank.id);
  const bus::TrainingState state = state_of(rank);
  spdlog::info("rank {} of job {} (stage {} of {}) is {}", state.rank, state.job, state.stage, state.stages,
               state.state);
  publisher_->publish(state);
  link_->report_soon();
}

void Worker::on_rank(const AttachedRank& rank, Trainers::Change change) {
  if (change == Trainers::Change::kAttached) {
    publish_rank(rank);
    return;
  }
  on_acting();          // what is known of its last bubbles goes first
  other_process_ = -1;  // as the acting thread has taken it: the next look tells
  bus::TrainingState state = state_of(rank);
  const bool ended = state.state == "gone";
  if (!ended) state.state = "lost";
  state.why = policy::rank_why_name(ended ? policy::RankWhy::kEnded : policy::RankWhy::kDied);
  spdlog::info("rank {} of job {} is {}", state.rank, state.job, state.state);
  publisher_->publish(state);
  news_.add_departed(state);
  link_->report_soon();
}

// ---- acting thread

void Worker::on_acting() {
  acting_->acknowledge();
  ActEvent event;
  while (acting_->pop(event)) {
    if (event.kind == ActEvent::Kind::kTaskState) {
      link_->report_soon();
      if (const SideTask* one = task(event.id)) replacements_->look_at(std::string(one->spec().task));
    } else if (const auto it = trainers_->ranks().find(event.id); it != trainers_->ranks().end()) {
      on_rank_event(it->second, event);
    }
  }
  for (const Kill& kill : acting_->take_kills()) {
    SideTask* killed = task(kill.task);
    if (killed == nullptr) continue;
    spdlog::warn("side {} was killed: {}", about_task(killed->spec().task), text_of(kill.verdict));
    killed->killed();
  }
}

void Worker::on_rank_event(const AttachedRank& rank, const ActEvent& event) {
  switch (event.kind) {
    case ActEvent::Kind::kBubbleBegin:
      return publisher_->publish(bubble_begin(rank, event));
    case ActEvent::Kind::kBubbleEnd: {
      bus::BubbleEnd end = bubble_end(rank, event);
      if (const SideTask* one = event.task == 0 ? nullptr : task(event.task)) end.task = one->spec().task;
      publisher_->publish(end);
      if (event.harvested_ns > 0) reasons_.harvested(rank.id, SteadyClock::now());
      news_.add_bubble(rank.id, end);
      // Of a phase that was told of, nobody shall be told that it goes on.
      if (!end.phase.empty() && end.end_ns - end.begin_ns >= PresentPhase::kLeastNs) {
        look_at_reasons();
        link_->report_soon();
      }
      return;
    }
    case ActEvent::Kind::kIteration: {
      bus::TrainingIteration iteration = training_iteration(rank, event);
      publisher_->publish(iteration);
      return news_.add_iteration(std::move(iteration));
    }
    case ActEvent::Kind::kRankState:
      return publish_rank(rank);
    case ActEvent::Kind::kTaskState:
      return;  // of no rank
  }
}

// ---- plugins

bus::PluginState Worker::state_of(const DroppedFile& file) const {
  bus::PluginState state;
  state.name = file.name;
  state.worker = id_;
  state.sha256 = file.sha256;
  state.state = to_string(file.state);
  state.reason = file.reason;
  state.size_bytes = file.size_bytes;
  return state;
}

void Worker::on_file(const DroppedFile& file) {
  const bus::PluginState state = state_of(file);
  if (file.state == DroppedFile::State::kRejected) {
    spdlog::warn("plugin {} rejected: {}", file.name, file.reason);
  } else {
    spdlog::info("plugin {} {}{}", file.name, state.state, file.sha256.empty() ? "" : ", " + file.sha256.substr(0, 12));
  }
  publisher_->publish(state);
  news_.add_plugin(state);
  link_->report_soon();
}

// ---- manager

bus::RegisterWorker Worker::registration() {
  bus::RegisterWorker registration;
  registration.worker = id_;
  registration.incarnation = incarnation_;
  registration.host = host_;
  registration.device = options_.device;
  registration.device_model = gpu_ == nullptr ? cpu_model() : gpu_->model();
  registration.sandbox = sandbox_->name();
  registration.programs = runs_programs();
  registration.file_users = options_.sandbox.users_of_all_hosts ? "all" : "own";
  registration.pid = static_cast<uint32_t>(getpid());
  registration.memory_bytes = capacity_bytes();
  registration.usable_bytes = usable_bytes();
  if (gpu_ != nullptr) registration.context_bytes = kMpsContextBytes;
  for (auto& [name, task] : tasks_) {
    if (acknowledged_.count(task->id()) == 0) registration.tasks.push_back(report_of(*task));
  }
  for (const auto& [id, rank] : trainers_->ranks()) registration.ranks.push_back(state_of(rank));
  for (const auto& [name, file] : drop_folder_->files()) registration.plugins.push_back(state_of(file));
  return registration;
}

bus::WorkerReport Worker::report() {
  bus::WorkerReport report;
  report.worker = id_;
  report.incarnation = incarnation_;
  report.usable_bytes = usable_bytes();
  told_ended_.clear();
  for (auto& [name, task] : tasks_) {
    if (acknowledged_.count(task->id()) != 0) continue;
    report.tasks.push_back(report_of(*task));
    if (task->ended()) told_ended_.push_back(task->id());
  }
  for (const auto& [id, rank] : trainers_->ranks()) report.ranks.push_back(state_of(rank));
  report.drained = draining_->done();
  report.not_empty = draining_->there();
  report.other_process = gpu_ != nullptr && other_process_ != 0;
  report.ending = shutdown_->begun();
  news_.take_into(report);
  if (!report.bubbles.empty()) probe_news_.take_into(report.bubbles.front(), *probe_counts_);
  return report;
}

bus::TaskReport Worker::report_of(SideTask& task) {
  bus::TaskReport report = task.report();
  replacements_->fill(report);
  return report;
}

void Worker::reported() {
  for (const uint64_t id : told_ended_) {
    if (SideTask* ended = task(id)) acknowledged_[id] = ended->spec().task;
  }
  if (!told_ended_.empty()) folders_->look_soon();
  told_ended_.clear();
}

void Worker::registered() {
  // A broker that is new as well has none of the last states.
  for (const auto& [id, rank] : trainers_->ranks()) publisher_->publish(state_of(rank));
  for (const auto& [name, file] : drop_folder_->files()) publisher_->publish(state_of(file));
  news_.forget_plugins();
}

void Worker::on_plan(const bus::WorkerPlan& plan) {
  if (!plan.holdout.empty()) {
    std::vector<policy::HoldoutPlan> news;
    for (const bus::HoldoutPlan& one : plan.holdout) news.push_back(holdout_plan(one));
    auto plans = plans_ == nullptr ? std::make_shared<PlanSet>() : std::make_shared<PlanSet>(*plans_);
    plans->merge(news);
    plans_ = plans;
    acting_->set_plans(plans_);
  }
  const auto term = link_->term_of(plan.heard);
  std::vector<std::string> names;
  for (const auto& [name, task] : tasks_) {
    if (!task->ended()) names.push_back(name);
  }
  for (const std::string& name : names) {
    SideTask& task = *tasks_.at(name);
    const auto it = std::find_if(plan.orders.begin(), plan.orders.end(),
                                 [&](const bus::TaskOrder& order) { return order.task == name; });
    if (it == plan.orders.end()) {
      pause_unknown(task);
    } else if (auto obeyed = obey(task, *it, term); !obeyed.ok()) {
      spdlog::warn("{}", obeyed.error().text());
    }
  }
  for (const bus::TaskWork& work : plan.work) {
    SideTask* task = named(work.task);
    if (task != nullptr && !task->ended() && task->spec().epoch == work.epoch) task->give_work(work.text);
  }
  for (const bus::TaskOrder& order : plan.settled) settle(order);
  const bool before = draining_->on();
  draining_->order(plan.drain);
  if (before != draining_->on() || plan.drain != 0) look_at_drain();
}

// Not to be named is no order to end it: this manager may be on an older database, or another's. A profile is nobody's
// work.
void Worker::pause_unknown(SideTask& task) {
  if (task.stopping() || task.unknown()) return;
  const bool profile = task.spec().purpose == "profile";
  spdlog::warn("side {} is not in the manager's plan: {}", about_task(task.spec().task),
               profile ? "the profile is given up" : "it is paused, and kept");
  task.set_unknown(!profile);
  if (auto ordered = replacements_->order(task, profile ? "stop" : "pause"); !ordered.ok())
    spdlog::warn("{}", ordered.error().text());
}

Status Worker::obey(SideTask& task, const bus::TaskOrder& order, const std::optional<policy::OrderTerm>& term) {
  const uint64_t epoch = task.spec().epoch;
  if (task.ended()) return {};
  if (order.epoch > epoch) {
    end_at_once(task, {policy::VerdictKind::kLost, policy::Cause::kSuperseded,
                       "the manager has placed the task again, so this copy of it was ended"});
    return {};
  }
  if (order.epoch != 0 && order.epoch < epoch) return {};  // late: of a placement before this one
  if (term) renew(task, *term);
  task.set_unknown(false);
  // Each answer to a report repeats it.
  if (task.ordered() == order.order && !replacements_->under_way(task.spec().task)) return {};
  return replacements_->order(task, order.order);
}

// Answers may come out of order; what one of them has given, an earlier one does not take back.
void Worker::renew(SideTask& task, const policy::OrderTerm& term) {
  const int64_t before_ns = task.term().until_ns;
  if (term.until_ns != 0 && before_ns != 0 && term.until_ns <= before_ns) return;
  task.renew(term);
  if (SideTask* next = replacements_->next_of(task.spec().task)) next->renew(term);
}

void Worker::settle(const bus::TaskOrder& order) {
  SideTask* task = named(order.task);
  if (task == nullptr || !task->ended() || task->spec().epoch != order.epoch) return;
  if (order.order == "ended") mark_ended(folder(order.task));
  acknowledged_[task->id()] = order.task;
  folders_->look_soon();
}

// Nothing of it executes any more, so its plugin neither saves nor stops in good order: it may be at work elsewhere.
void Worker::end_at_once(SideTask& task, policy::Verdict verdict) {
  spdlog::warn("side {} is ended at once: {}", about_task(task.spec().task), verdict.message);
  task.keep_state();
  replacements_->give_up(task.spec().task, verdict);
  task.kill(std::move(verdict));
  report_soon();
}

// Those that end by their term, or, when the worker goes down, those that may not execute any more.
void Worker::end_expired() {
  const int64_t now_ns = boottime_now();
  std::vector<SideTask*> expired;
  for (const auto& [name, task] : tasks_) {
    const int64_t end_ns = shutdown_->begun() ? task->term().until_ns : task->term().end_ns;
    if (!task->ended() && end_ns != 0 && end_ns <= now_ns) expired.push_back(task.get());
  }
  for (SideTask* task : expired) {
    end_at_once(*task, {policy::VerdictKind::kLost, policy::Cause::kExpired,
                        "its worker had not heard from the manager for too long, so it was ended"});
  }
}

// On a GPU nothing but the shim keeps them within their leases.
bool Worker::runs_programs() const {
  return gpu_ == nullptr || (!options_.shim.empty() && !options_.drivers.empty());
}

Status Worker::on_create(const bus::CreateTask& spec) {
  if (!is_task_name(spec.task)) {
    return Error{Code::kInvalidArgument, in_quotes(spec.task) + " is no task name", kTaskNameRule};
  }
  if (spec.purpose != "run" && spec.purpose != "profile") {
    return Error{Code::kInvalidArgument, "there is no purpose '" + spec.purpose.substr(0, 40) + "'", "run or profile"};
  }
  if (!is_sha256(spec.sha256))
    return Error{Code::kInvalidArgument, "task " + spec.task + " names no plugin content", ""};
  if (!spec.program.empty() && (!runs_programs() || spec.purpose != "run")) {
    return Error{Code::kInvalidArgument, "worker " + id_ + " cannot run the program of task " + spec.task,
                 "on a GPU it needs libfreeride_shim.so (--shim) and the driver's libcuda.so.1"};
  }
  if (spec.network && options_.sandbox.no_network) {
    return Error{Code::kPermission, "side tasks get no network there",
                 "load it without --network, or ask an operator: the worker has --no-task-network"};
  }
  if (shutdown_->begun()) return Error{Code::kUnavailable, "worker " + id_ + " is going down", ""};
  if (draining_->on()) return Error{Code::kUnavailable, "worker " + id_ + " is drained", "freeride-ctl uncordon"};
  const auto it = tasks_.find(spec.task);
  if (it != tasks_.end() && !it->second->ended()) {
    const bus::CreateTask& there = it->second->spec();
    if (there.epoch == spec.epoch && there.purpose == spec.purpose && there.sha256 == spec.sha256 &&
        !it->second->stopping())
      return {};  // repeated
    if (there.epoch < spec.epoch && there.instance == spec.instance)
      (void)obey(*it->second, {spec.task, "stop", spec.epoch}, {});
    return Error{Code::kAlreadyExists, "task " + spec.task + " is still on worker " + id_, "stop it first"};
  }
  const auto term = link_->term_of(spec.heard);
  if (spec.epoch != 0) {
    // Each is taken or refused once: what comes again is a repetition that was held up on its way.
    uint64_t& last = epochs_[spec.task];
    if (spec.epoch <= last) return late(spec.task);
    last = spec.epoch;
    if (!term || (term->until_ns != 0 && term->until_ns <= boottime_now())) return late(spec.task);
  }
  if (auto room = check_room(); !room.ok()) return room;
  if (it != tasks_.end()) {
    acknowledged_.erase(it->second->id());
    tasks_.erase(it);
  }
  if (gpu_ != nullptr) {
    if (auto admitted = gpu_->admit(last_task_ + 1, spec.priority, spec.memory_limit_bytes); !admitted.ok())
      return admitted;
  }
  auto made = make(spec);
  SideTask& task = *made;
  made->renew(term.value_or(policy::OrderTerm{}));
  if (spec.purpose == "run") made->go_on_from(open_state(folder(spec.task), spec.instance), {});
  tasks_[spec.task] = std::move(made);
  told_progress_.erase(spec.task);
  alarms_.forget(spec.task);
  replacements_->forget(spec.task);
  spdlog::info("side {} ({}): {} {}", about_task(spec.task), spec.purpose, spec.plugin, spec.sha256.substr(0, 12));
  if (spec.purpose == "run" && !spec.state_worker.empty()) {
    fetch_state(task);
  } else {
    launch(task);
  }
  return {};
}

Status Worker::on_replace(const bus::ReplaceTask& replace) {
  const std::string name = replace.create.task;
  if (!is_sha256(replace.create.sha256))
    return Error{Code::kInvalidArgument, "the replacement of task " + name.substr(0, 80) + " names no plugin content",
                 ""};
  SideTask* old = named(name);
  if (old == nullptr || old->ended() || old->spec().purpose != "run") return no_task(name);
  if (replace.create.epoch != 0 && old->spec().epoch != replace.create.epoch) return late(name);
  return replacements_->begin(*old, replace.create);
}

Status Worker::may_replace(const SideTask& task) {
  if (fetching_.count(task.id()) != 0)
    return Error{Code::kUnavailable, "task " + task.spec().task + " still fetches its saved state", "try again"};
  if (!shutdown_->begun() && !draining_->on() && !task.stopping()) return check_room();
  return Error{Code::kUnavailable, "task " + task.spec().task + " is being stopped on worker " + id_, ""};
}

Status Worker::check_room() const {
  const auto live = static_cast<size_t>(
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& t) { return !t.second->ended(); }));
  const size_t all = live + replacements_->count();
  if (all < Actor::kMostTasks) return {};
  return Error{Code::kExhausted, "worker " + id_ + " has " + std::to_string(all) + " tasks already", ""};
}

Status Worker::on_order(const bus::TaskOrder& order) {
  SideTask* task = named(order.task);
  if (task == nullptr) return no_task(order.task);
  auto ordered = obey(*task, order, std::nullopt);
  link_->report_soon();
  return ordered;
}

Result<bus::LogReply> Worker::on_log(const bus::GetLog& wish) {
  if (!is_task_name(wish.task)) return no_task(wish.task);
  const SideTask* task = named(wish.task);
  if (wish.instance.empty()) {  // the last lines, as they are in memory
    if (task == nullptr) return no_task(wish.task);
    bus::LogReply reply;
    reply.text = task->log_tail(kLogReplyBytes);
    return reply;
  }
  const auto its = folder_of_instance(folder(wish.task), wish.instance);
  if (its.empty()) return no_task(wish.task);
  const bool here = task != nullptr && task->spec().instance == wish.instance;
  auto piece = wish.previous
                   ? read_log_piece(its / "log.previous.1", its / "log.previous", 0, wish.offset)
                   : read_log_piece(its / "log.1", its / "log", here ? task->log_forgotten() : 0, wish.offset);
  if (!piece.ok()) {
    return Error{
        piece.error().code,
        "of task " + wish.task + " " + (wish.previous ? "there was no earlier start" : "nothing was printed yet"), ""};
  }
  piece->ended = wish.previous || !here || task->ended();
  return piece;
}

Result<FilePiece> Worker::on_file(const bus::GetFile& wish) {
  if (!is_task_name(wish.task)) return no_task(wish.task);
  const SideTask* task = named(wish.task);
  if (task != nullptr && task->spec().instance == wish.instance && task->scratch_fd() >= 0)
    return read_piece(task->scratch_fd(), wish.path, wish.offset);
  const auto its = folder_of_instance(folder(wish.task), wish.instance);
  if (its.empty()) return no_task(wish.task);
  const Fd scratch(::open((its / "scratch").c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!scratch.valid())
    return Error{Code::kNotFound, "task " + wish.task + " has left no scratch folder on worker " + id_, ""};
  return read_piece(scratch.get(), wish.path, wish.offset);
}

Result<FilePiece> Worker::on_state(const bus::GetState& wish) {
  if (!is_task_name(wish.task)) return no_task(wish.task);
  const auto its = folder_of_instance(folder(wish.task), wish.instance);
  const Fd there(its.empty() ? -1 : ::open(its.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!there.valid() || !open_state(its, wish.instance).valid())
    return Error{Code::kNotFound, "task " + wish.task + " has no saved state on worker " + id_, ""};
  return read_piece(there.get(), "state", wish.offset);
}

Result<FilePiece> Worker::on_plugin(const bus::GetPlugin& wish) {
  for (const auto& [name, file] : drop_folder_->files()) {
    if (file.sha256 != wish.sha256 || file.state == DroppedFile::State::kRejected) continue;
    const Fd store(::open(store_->folder().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    // Unhashed, which would take a large one's time: who joins the pieces hashes.
    auto piece = store.valid() ? read_piece(store.get(), file.sha256 + std::filesystem::path(name).extension().string(),
                                            wish.offset)
                               : Result<FilePiece>(Error{Code::kNotFound, "", ""});
    if (piece.ok() || piece.error().code != Code::kNotFound) return piece;
    return Error{Code::kNotFound, "the content of " + name + " is not in the store of worker " + id_ + " any more",
                 "drop the file there again"};
  }
  return Error{Code::kNotFound, "the drop folder of worker " + id_ + " does not have that plugin", ""};
}

// ---- draining

std::string Worker::still_there() {
  for (const auto& [name, task] : tasks_) {
    if (!task->ended()) return "side task " + name + (task->stopping() ? ", which is stopping" : "");
  }
  if (!replacements_->idle()) return "a side task that is being replaced";
  if (probe_ != nullptr) probe_->want(false);
  if (gpu_ != nullptr) {
    if (auto empty = gpu_->check_empty(); !empty.ok()) return empty.error().message;
  }
  const std::string children = child_processes();
  return children.empty() ? "" : "processes of the worker's: " + children;
}

void Worker::look_at_drain() {
  if (!shutdown_->begun() && draining_->work(tasks_)) report_soon();
}

// ---- tasks

std::unique_ptr<SideTask> Worker::make(bus::CreateTask spec) {
  const SideTask* there = named(spec.task);
  auto made = std::make_unique<SideTask>(std::move(spec), ++last_task_, options_, *sandbox_, *loop_, *acting_,
                                         [this](SideTask& task) { on_task(task); });
  // Another content of the same placement.
  if (there != nullptr && there->spec().epoch == made->spec().epoch) made->renew(there->term());
  return made;
}

SideTask* Worker::named(const std::string& name) {
  const auto it = tasks_.find(name);
  return it == tasks_.end() ? nullptr : it->second.get();
}

std::unique_ptr<SideTask> Worker::put(const std::string& name, std::unique_ptr<SideTask> task) {
  return std::exchange(tasks_.at(name), std::move(task));
}

SideTask* Worker::task(uint64_t id) {
  const auto it = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t.second->id() == id; });
  return it == tasks_.end() ? replacements_->find(id) : it->second.get();
}

SideTask* Worker::live_task(uint64_t id) {
  SideTask* found = task(id);
  return found == nullptr || found->ended() ? nullptr : found;
}

void Worker::fetch_state(SideTask& made) {
  const bus::CreateTask& spec = made.spec();
  const uint64_t id = made.id();
  const std::filesystem::path its_folder = folder(spec.task);
  StateFetch::Request request{{id_, spec.task, spec.epoch, 0}, spec.instance, its_folder, {}, {}};
  request.wanted = [this, id] { return live_task(id) != nullptr; };
  request.done = [this, id, its_folder](const Status& got, bool here) {
    fetching_.erase(id);
    SideTask& task = *live_task(id);
    const bus::CreateTask& spec = task.spec();
    if (here) {  // it may continue where there is room for its state
      task.kill({policy::VerdictKind::kLost, policy::Cause::kSandbox, got.error().text()});
      return;
    }
    const std::string from = "the saved state of task " + spec.task + " from worker " + spec.state_worker;
    if (got.ok()) spdlog::info("{} is here", from);
    if (!got.ok() && got.error().code != Code::kNotFound) {
      spdlog::warn("{} could not be fetched, so the task starts without it: {}", from, got.error().message);
      task.note_at_start("this start is without " + from + ", which could not be fetched: " + got.error().message);
    }
    task.go_on_from(open_state(its_folder, spec.instance), {});
    launch(task);
  };
  if (auto claimed = claim_folder(its_folder, spec.instance); !claimed.ok()) {
    made.kill({policy::VerdictKind::kLost, policy::Cause::kSandbox, claimed.error().text()});
    return;
  }
  fetching_.insert(id);
  states_->get(std::move(request));
}

void Worker::launch(SideTask& made) {
  const uint64_t id = made.id();
  if (!made.spec().program.empty()) {
    launches_->run([] {},
                   [this, id] {
                     if (live_task(id) != nullptr) give_files(id, {});
                   });
    return;
  }
  Contents::Request request;
  request.sha256 = made.spec().sha256;
  request.wanted = [this, id] { return live_task(id) != nullptr; };
  request.found = [this, id](const std::filesystem::path& plugin) { give_files(id, plugin); };
  request.failed = [this, id](policy::Verdict verdict) { live_task(id)->kill(std::move(verdict)); };
  contents_->get(std::move(request));
}

void Worker::give_files(uint64_t id, const std::filesystem::path& plugin) {
  SideTask& made = *live_task(id);
  if (!asks_for_files(made.spec())) return start(made, plugin, {});
  struct Work {
    bus::CreateTask spec;
    std::string host;
    bool takes_rights;
    SandboxGrants grants;
    Status given;
  };
  const std::string host = options_.host_id.empty() ? host_id() : options_.host_id;
  auto work = std::make_shared<Work>(Work{made.spec(), host, sandbox_->takes_rights(), {}, {}});
  launches_->run(
      [work, &options = options_.sandbox] {
        work->given = grant_files(work->spec, options, work->host, work->takes_rights, work->grants);
      },
      [this, work, id, plugin] {
        SideTask* waiting = live_task(id);
        if (waiting == nullptr) return;
        if (work->given.ok()) return start(*waiting, plugin, std::move(work->grants));
        waiting->kill({policy::VerdictKind::kRejected, policy::Cause::kRefused, work->given.error().text()});
      });
}

void Worker::start(SideTask& made, const std::filesystem::path& plugin, SandboxGrants data) {
  using policy::Cause;
  using policy::VerdictKind;
  const std::filesystem::path its_folder = folder(made.spec().task);
  if (gpu_ == nullptr) return made.start(plugin, its_folder, std::move(data));
  const uint64_t id = made.id();
  if (!gpu_->has(id)) {  // a replacement: it has a limit and a server of its own, while the old one still has its
    const auto admitted = gpu_->admit(id, made.spec().priority, made.spec().memory_limit_bytes);
    if (!admitted.ok()) return made.kill({VerdictKind::kRejected, Cause::kRefused, admitted.error().text()});
  }
  gpu_->prepare(
      id, sandbox_->identity(id), [this, id, plugin, its_folder, data = std::move(data)](Result<SandboxGrants> grants) {
        SideTask* waiting = live_task(id);
        if (waiting == nullptr) return;
        if (grants.ok()) {
          grants->data = data.data;
          grants->data_user = data.data_user;
          grants->own_env = data.own_env;
          grants->working_dir = data.working_dir;
        }
        if (grants.ok()) return waiting->start(plugin, its_folder, std::move(*grants));
        waiting->kill({VerdictKind::kLost, Cause::kMpsServer, "it got no MPS server: " + grants.error().text()});
      });
}

void Worker::on_task(SideTask& changed) {
  if (changed.ended()) {
    if (gpu_ != nullptr) {
      if (const auto fault = gpu_->fault_of(changed.id())) changed.note_gpu_fault(fault->xid);
      gpu_->release(changed.id());
    }
    spdlog::info("side {} ({}) has ended: {}", about_task(changed.spec().task), changed.spec().purpose,
                 text_of(changed.verdict()));
    if (named(changed.spec().task) == &changed) {
      const bus::TaskProgress progress = task_progress(id_, report_of(changed));
      publish_alarms(progress, changed);
      publisher_->publish(progress);
    }
    replacements_->look_at(std::string(changed.spec().task));
    on_end(changed);
    shutdown_->ended(changed);
    draining_->ended(changed);
    link_->report_at_once();
  } else {
    link_->report_soon();
  }
  stop_when_idle();
}

void Worker::on_end(SideTask& task) {
  if (replacements_->ended(task)) return;
  if (named(task.spec().task) != &task || task.spec().purpose != "run") return;
  if (!task.keeps_state() && !may_continue(task.verdict())) forget_state(folder(task.spec().task));
  drop_content(task.spec().sha256);
}

void Worker::drop_content(const std::string& sha256) {
  const bool used =
      std::any_of(tasks_.begin(), tasks_.end(),
                  [&](const auto& t) { return !t.second->ended() && t.second->spec().sha256 == sha256; }) ||
      replacements_->uses(sha256) ||
      std::any_of(drop_folder_->files().begin(), drop_folder_->files().end(),
                  [&](const auto& f) { return f.second.sha256 == sha256; });
  if (!used) contents_->drop(sha256);
}

void Worker::begin_stop() {
  replacements_->going_down();
  shutdown_->begin(tasks_);
  end_expired();
  stop_when_idle();
}

void Worker::stop_when_idle() {
  if (!shutdown_->begun()) return;
  const bool idle = std::all_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t.second->ended(); });
  if (idle && replacements_->idle()) loop_->stop();
}

void Worker::publish_progress() {
  for (auto& [name, task] : tasks_) {
    if (task->ended()) continue;
    const bus::TaskProgress progress = task_progress(id_, report_of(*task));
    publish_alarms(progress, *task);
    // Memory alone is no progress.
    bus::TaskProgress essence = progress;
    essence.counters.memory_bytes = essence.counters.peak_memory_bytes = 0;
    if (essence.state == "RUNNING") essence.state = "PAUSED";
    std::string encoded = bus::encode(essence);
    if (told_progress_[name] == encoded) continue;
    told_progress_[name] = std::move(encoded);
    publisher_->publish(progress);
  }
}

void Worker::publish_alarms(const bus::TaskProgress& progress, const SideTask& task) {
  if (task.spec().purpose != "run") return;  // a profile is of a moment, and nobody's task
  for (const Alarms::Alarm& alarm : alarms_.note(progress.task, progress.counters.metrics, SteadyClock::now())) {
    bus::DeviceAlarm event;
    event.worker = id_;
    event.device = options_.device;
    if (gpu_ != nullptr) event.serial = gpu_->serial();
    event.task = progress.task;
    event.uid = task.spec().uid;
    event.alarm = alarm.name;
    event.count = alarm.count;
    event.rise = alarm.rise;
    if (!trainers_->ranks().empty()) event.job = trainers_->ranks().begin()->second.identity.job;
    event.time_ns = SteadyClock::now();
    spdlog::warn("device {}{}: side task {} says '{}', {} times so far; its log says more: freeride-ctl logs {}",
                 event.device, event.serial.empty() ? "" : ", serial number " + event.serial, event.task, event.alarm,
                 event.count, event.task);
    publisher_->publish(event);
  }
}

void Worker::forget_old_tasks() {
  // What is older than an order's term is refused for that.
  if (epochs_.size() > kMostEpochs)
    std::erase_if(epochs_, [this](const auto& e) { return tasks_.count(e.first) == 0; });
  const int64_t now_ns = SteadyClock::now();
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const auto& [name, task] : tasks_) {
    if (task->ended() && acknowledged_.count(task->id()) != 0) ended.emplace_back(task->ended_ns(), name);
  }
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i < ended.size(); ++i) {
    const bool old = now_ns - ended[i].first > kEndedKeptNs || ended.size() - i > kMostEnded;
    if (!old) break;
    const auto it = tasks_.find(ended[i].second);
    acknowledged_.erase(it->second->id());
    told_progress_.erase(it->first);
    alarms_.forget(it->first);
    replacements_->forget(it->first);
    tasks_.erase(it);
  }
}

int64_t Worker::capacity_bytes() const {
  if (gpu_ != nullptr) return gpu_->capacity_bytes();
  return options_.memory_bytes > 0 ? options_.memory_bytes : host_memory_bytes("MemTotal:");
}

int64_t Worker::usable_bytes() const {
  if (gpu_ != nullptr) return gpu_->usable_bytes();
  int64_t usable = capacity_bytes();
  int64_t resident = 0;
  for (const auto& [name, task] : tasks_) {
    if (!task->ended()) resident += task->resident_bytes();
  }
  // On a host whose memory is shared with everybody: what is free now and what side tasks hold of it.
  if (options_.memory_bytes == 0) usable = std::min(usable, host_memory_bytes("MemAvailable:") + resident);
  for (const auto& [id, rank] : trainers_->ranks()) {
    const uint64_t promised = pages::load_relaxed(rank.source->page->usable_bytes);
    if (promised != 0 && promised < static_cast<uint64_t>(INT64_MAX))
      usable = std::min(usable, static_cast<int64_t>(promised));
  }
  for (const auto& [name, task] : tasks_) {
    if (!task->ended()) usable -= std::max(task->spec().memory_limit_bytes, task->resident_bytes());
  }
  return std::max<int64_t>(0, usable);
}

}  // namespace freeride::worker
