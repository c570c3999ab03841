#include "tasks/side_task.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <utility>

#include "freeride/base/about.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages/names.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "tasks/task_folders.hpp"
#include "tasks/task_report.hpp"
#include "tasks/task_work.hpp"
#include "tasks/verdicts.hpp"

namespace freeride::worker {
namespace {

using pages::load_relaxed;
using policy::Cause;
using policy::VerdictKind;

constexpr size_t kVerdictTailBytes = 4096;
constexpr int kSignalled = 128;  // bubblewrap exits with this and the signal that killed what it started
constexpr int64_t kLogPauseNs = 100 * kNsPerMs;
constexpr int64_t kSweepNs = 5 * kNsPerSec;  // for a supervisor to sweep up what its plugin has left

// The number of a pidfd's process here; in a sandbox it is another one.
int pid_of(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("Pid:", 0) == 0) return std::atoi(line.c_str() + 4);
  }
  return -1;
}

// 0: it is gone.
int parent_of(int pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("PPid:", 0) == 0) return std::atoi(line.c_str() + 5);
  }
  return 0;
}

uint32_t order_word(const std::string& order) {
  if (order == "stop") return FREERIDE_ORDER_STOP;
  return order == "pause" ? FREERIDE_ORDER_PAUSE : FREERIDE_ORDER_RUN;
}

// Of a supervisor that has said nothing of its task's end.
policy::Verdict verdict_of_exit(const siginfo_t& info) {
  policy::Verdict verdict{VerdictKind::kLost, Cause::kSupervisor, ""};
  const bool exited = info.si_code == CLD_EXITED;
  if (exited && info.si_status == kNotGiven) {
    verdict = {VerdictKind::kRejected, Cause::kRefused,
               "it could not be given a file that it asks for; its log says why"};
  } else if (exited && info.si_status == kCannotStart) {
    verdict.cause = Cause::kSandbox;
    verdict.message = "the runner could not be started; the log says why";
  } else if (exited && info.si_status <= kSignalled) {
    verdict.message = "its supervisor exited with code " + std::to_string(info.si_status) + " without a verdict";
  } else {
    verdict.signal = exited ? info.si_status - kSignalled : info.si_status;
    verdict.message = "its supervisor was killed by signal " + std::to_string(verdict.signal);
  }
  return verdict;
}

}  // namespace

SideTask::SideTask(bus::CreateTask spec, uint64_t id, const SideTaskOptions& options, Sandbox& sandbox, Loop& loop,
                   ActingThread& acting, Changed changed)
    : spec_(std::move(spec)),
      id_(id),
      options_(options),
      sandbox_(sandbox),
      loop_(loop),
      acting_(acting),
      changed_(std::move(changed)),
      saver_(loop, acting),
      memory_(options.cpu_device()),
      order_(spec_.start_paused ? "pause" : "run") {}

SideTask::~SideTask() {
  if (ended_) return;
  changed_ = nullptr;
  if (dead_) {
    on_gone();
  } else {
    kill_group();
    end({});
  }
}

// ---- its beginning

void SideTask::start(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants) {
  if (dead_) return;
  auto python = add_environment(plugin, spec_, grants);
  if (!python.ok()) return end({VerdictKind::kRejected, Cause::kParameter, python.error().text()});
  auto started = launch(plugin, folder, std::move(grants), std::move(*python));
  if (started.ok()) started = watch();
  if (started.ok()) return;
  kill_group();
  end({VerdictKind::kLost, Cause::kSandbox, started.error().text()});
}

Status SideTask::launch(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants,
                        std::string python) {
  const uint32_t order = held_ && order_ != "stop" ? static_cast<uint32_t>(FREERIDE_ORDER_PAUSE) : order_word(order_);
  auto launched = launch_task(
      {id_, spec_, options_, plugin, folder, std::move(grants), std::move(python), order, state_in_}, sandbox_, parts_);
  if (!launched.ok()) return launched;
  renew(term_);
  log_ = std::make_unique<TaskLog>(std::move(parts_.output),
                                   folder / (spec_.purpose == "profile" ? "profile.log" : "log"));
  if (!first_line_.empty()) log_->note(first_line_);
  acting_.add_task(parts_.pages);
  return {};
}

Status SideTask::watch() {
  if (auto s = loop_.watch(parts_.supervisor.pidfd.get(), EPOLLIN, [this](uint32_t) { on_supervisor_exit(); }); !s.ok())
    return s;
  ReportReader::Calls calls;
  calls.started = [this](Fd process, Fd scratch) { on_started(std::move(process), std::move(scratch)); };
  calls.verdict = [this](const policy::Verdict& verdict, int64_t peak_bytes) {
    memory_.note_host_peak(peak_bytes);
    policy::Verdict seen = verdict;
    if (seen.kind == VerdictKind::kStopped && !stopping_) policy::doubt_stop(seen);
    note(seen);
  };
  reader_ = std::make_unique<ReportReader>(std::move(parts_.report), loop_, std::move(calls));
  if (auto s = reader_->start(); !s.ok()) return s;
  if (auto s = loop_.watch(log_->fd(), EPOLLIN, [this](uint32_t) { on_log(); }); !s.ok()) return s;
  if (spec_.purpose != "profile") return {};
  ProfileRun::Calls profile_calls;
  profile_calls.look = [this]() -> const TaskMemory& { return look_at_memory(); };
  profile_calls.enough = [this] {
    if (auto s = order("stop"); !s.ok()) spdlog::warn("{}", s.error().text());
  };
  profile_ = std::make_unique<ProfileRun>(parts_.pages, parts_.state_pipe.get(),
                                          policy::profile_patience_ns(spec_.steps, options_.profile_ms * kNsPerMs),
                                          options_.cpu_device(), loop_, std::move(profile_calls));
  return profile_->start();
}

void SideTask::on_started(Fd process, Fd scratch) {
  if (runner_pid_ != 0) return;
  scratch_fd_ = std::move(scratch);
  write_work();
  const int pid = pid_of(process.get());
  if (pid <= 1) {
    pollfd gone{process.get(), POLLIN, 0};
    if (process.valid() && poll(&gone, 1, 0) > 0) return;  // the supervisor says how
    // A process that this worker could not kill gets no lease.
    return kill({VerdictKind::kLost, Cause::kWorker, "its worker has no descriptor left to watch its process with"});
  }
  runner_pidfd_ = std::make_shared<const Fd>(std::move(process));
  runner_pid_ = pid;
  if (parts_.pages->program) parts_.pages->supervisor_pid.store(parent_of(pid), std::memory_order_relaxed);
  acting_.set_process(id_, pid, runner_pidfd_);
}

void SideTask::on_log() {
  const bool open = log_->read(SteadyClock::now());
  loop_.forget(log_->fd());
  if (!open) {
    log_->close();
    return;
  }
  // Looked at again in a while: a task that prints a lot must not keep this thread, and so its core, busy. A pipe holds
  // 64 KiB.
  log_timer_ = loop_.at(SteadyClock::now() + kLogPauseNs, [this] {
    log_timer_ = 0;
    if (log_->fd() < 0) return;
    if (auto s = loop_.watch(log_->fd(), EPOLLIN, [this](uint32_t) { on_log(); }); !s.ok())
      spdlog::warn("{}", s.error().text());
  });
}

// ---- orders

// Not under the page's seqlock: nobody is woken by it, and the acting thread looks by itself once a second.
void SideTask::renew(const policy::OrderTerm& term) {
  term_ = term;
  if (parts_.pages == nullptr) return;
  pages::store_relaxed(parts_.pages->lease->orders_until_ns, static_cast<uint64_t>(term.until_ns));
  pages::store_relaxed(parts_.pages->lease->orders_end_ns, static_cast<uint64_t>(term.end_ns));
}

Status SideTask::order(const std::string& order) {
  if (order != "run" && order != "pause" && order != "stop") {
    return Error{Code::kInvalidArgument, "there is no order '" + order.substr(0, 40) + "'",
                 "orders are run, pause, stop"};
  }
  if (dead_ || stopping_) return {};
  order_ = order;
  if (held_ && order != "stop") return {};
  if (order == "stop") {
    stopping_ = true;
    if (parts_.supervisor.pid == 0) {
      end({VerdictKind::kStopped, Cause::kOrder, "stopped before it was created"});
      return {};
    }
    stop_timer_ = loop_.at(SteadyClock::now() + options_.stop_ms * kNsPerMs, [this] {
      stop_timer_ = 0;
      const std::string patience = std::to_string(options_.stop_ms) + " ms";
      policy::Verdict late{VerdictKind::kOverran, Cause::kSlowTransition, "had not stopped after " + patience};
      late.limit = "stop " + patience;
      kill(std::move(late));
    });
  }
  if (order == "stop" && ask_to_end()) return {};
  if (parts_.pages != nullptr) acting_.set_order(id_, order_word(order));
  return {};
}

// A program gets SIGTERM and a save lease to act upon it, and is killed after its part of the time. False: there is
// nothing that could.
bool SideTask::ask_to_end() {
  if (spec_.program.empty() || parts_.pages == nullptr || !initialised()) return false;
  end_timer_ = loop_.at(SteadyClock::now() + options_.stop_ms * kNsPerMs * 2 / 3, [this] {
    end_timer_ = 0;
    if (!dead_) acting_.set_order(id_, FREERIDE_ORDER_STOP);
  });
  acting_.set_order(id_, FREERIDE_ORDER_END);
  acting_.ask_to_save(id_, true);
  return true;
}

void SideTask::go_on_from(Fd state, const bus::TaskCounters& earlier) {
  state_in_ = std::move(state);
  earlier_ = earlier;
}

void SideTask::give_order() {
  if (dead_ || stopping_ || parts_.pages == nullptr) return;
  acting_.set_order(id_, held_ ? static_cast<uint32_t>(FREERIDE_ORDER_PAUSE) : order_word(order_));
}

void SideTask::give_work(const std::string& text) {
  work_ = text;
  if (runner_pid_ != 0) write_work();
}

// Before its process is there, so is its scratch folder not.
void SideTask::write_work() {
  if (dead_ || work_.empty() || work_ == written_work_) return;
  Fd outside;  // without a sandbox
  if (!scratch_fd_.valid()) outside.reset(openat(parts_.folder.get(), "scratch", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto put = put_work(scratch_fd_.valid() ? scratch_fd_.get() : outside.get(), work_);
  if (put.ok()) written_work_ = work_;
  if (!put.ok() && !work_failed_) spdlog::warn("side {}: {}", about_task(spec_.task), put.error().text());
  work_failed_ = !put.ok();
}

void SideTask::hold() {
  held_ = true;
  give_order();
}

void SideTask::release() {
  held_ = false;
  give_order();
}

void SideTask::save(StateFile& file, StateSaver::Saved saved) {
  saver_.save(parts_.pages, parts_.state_pipe.get(), file, std::move(saved));
}

uint32_t SideTask::answered_state() const {
  return parts_.pages == nullptr ? static_cast<uint32_t>(FREERIDE_STATE_SUBMITTED)
                                 : load_relaxed(parts_.pages->answer->state);
}

uint32_t SideTask::answered_transition() const {
  return parts_.pages == nullptr ? static_cast<uint32_t>(FREERIDE_IN_NONE)
                                 : load_relaxed(parts_.pages->answer->transition);
}

bool SideTask::initialised() const {
  const uint32_t state = answered_state();
  return state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING;
}

bool SideTask::in_transition() const {
  return parts_.pages == nullptr || parts_.pages->in_transition.load(std::memory_order_relaxed);
}

bool SideTask::restored() const {
  return parts_.pages != nullptr && load_relaxed(parts_.pages->answer->restored) == 1;
}

// ---- its end

// The first cause is the verdict. What the acting thread has killed it for came before all that its signals brought
// about, and what the supervisor has said came before what is seen now.
void SideTask::note(const policy::Verdict& seen) {
  const TaskSource* pages = parts_.pages.get();
  if (pages != nullptr && pages->killed.load(std::memory_order_acquire)) {
    // A transition that has failed has failed, however long it took to say so.
    const bool failed = seen.cause == Cause::kTransition || seen.cause == Cause::kNoMemory;
    if (pages->failed_before_kill && failed) policy::note_symptom(verdict_, seen);
    policy::note_symptom(verdict_, pages->killed_verdict);
  }
  policy::note_symptom(verdict_, seen);
}

void SideTask::note_gpu_fault(uint32_t xid) {
  verdict_.gpu_fault = true;
  // What it looked like afterwards, a step that failed or did not come back, is a symptom.
  if (policy::is_plugins_fault(verdict_.kind) || verdict_.kind == VerdictKind::kLost) {
    policy::Verdict before{VerdictKind::kCrashed, Cause::kGpuFault, "its work made the GPU fault"};
    before.message += xid == 0 ? ", as its MPS server says" : " (Xid " + std::to_string(xid) + ")";
    before.gpu_fault = true;
    return policy::note_cause(verdict_, std::move(before));
  }
  if (!tells_gpu_fault(verdict_) && verdict_.evidence.size() < policy::Verdict::kMostEvidence)
    verdict_.evidence.emplace_back("its MPS server saw a fatal GPU error");
}

void SideTask::kill(policy::Verdict verdict) {
  if (dead_) return;
  if (parts_.supervisor.pid == 0) return end(verdict);
  if (reader_ != nullptr) reader_->read();
  verdict.transition = pages::transition_name(answered_transition());
  if (verdict.cause == Cause::kMpsServer && verdict_.ended()) {
    policy::note_cause(verdict_, std::move(verdict));  // whatever a client says of its server's death
  } else {
    note(verdict);
  }
  kill_group();
}

void SideTask::kill_group() {
  if (parts_.supervisor.pid == 0) return;
  SystemProcesses().freeze_and_kill(runner_pid_, runner_fd());
  // The supervisor goes by its lifeline, after it has swept up what the plugin left behind; if it does not, by force.
  parts_.lifeline.reset();
  if (stop_timer_ != 0) loop_.cancel(stop_timer_);
  stop_timer_ = loop_.at(SteadyClock::now() + kSweepNs, [this] {
    stop_timer_ = 0;
    const Fd& pidfd = parts_.supervisor.pidfd;
    if (pidfd.valid()) syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  });
}

void SideTask::on_supervisor_exit() {
  if (reader_ != nullptr) reader_->read();  // what it said last
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(parts_.supervisor.pid), &info, WEXITED | WNOHANG);
  if (info.si_pid == 0) return;
  note({});
  SystemProcesses().freeze_and_kill(runner_pid_, runner_fd());
  end(verdict_.ended() ? policy::Verdict{} : verdict_of_exit(info));
}

void SideTask::end(const policy::Verdict& seen) {
  if (dead_) return;
  note(seen);
  look_at_memory();
  dead_ = true;
  if (log_ != nullptr) {
    if (log_->fd() >= 0) {
      loop_.forget(log_->fd());
      log_->read(SteadyClock::now());
      log_->close();
    }
    log_tail_ = log_->tail(kVerdictTailBytes);
  }
  stop_saving();
  if (profile_ != nullptr) profile_->stop();
  state_in_.reset();
  acting_.remove_task(id_);
  loop_.cancel(stop_timer_);
  loop_.cancel(end_timer_);
  loop_.cancel(log_timer_);
  stop_timer_ = end_timer_ = log_timer_ = 0;
  const Child& supervisor = parts_.supervisor;
  if (supervisor.pidfd.valid()) {
    loop_.forget(supervisor.pidfd.get());
    // Reached by force only (this worker is ending, or could not watch it): it is not left behind as a zombie.
    syscall(SYS_pidfd_send_signal, supervisor.pidfd.get(), SIGKILL, nullptr, 0);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(supervisor.pid), &info, WEXITED | WNOHANG);
  }
  reader_.reset();
  parts_.report.reset();
  parts_.output.reset();
  parts_.state_pipe.reset();
  parts_.lifeline.reset();
  runner_pidfd_.reset();
  if (const std::filesystem::path& scratch = parts_.profile_scratch; !scratch.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(scratch, ignored);
    const std::filesystem::path folder = scratch.parent_path();
    if (verdict_.kind == VerdictKind::kFinished) std::filesystem::remove(folder / "profile.log", ignored);
    std::filesystem::remove(folder, ignored);  // unless a log is left in it
  }
  let_go();
}

// Not that of a copy after which another worker of this host has launched one: it would take the place of what is
// newer.
bool SideTask::keeps_scratch() const {
  const uint64_t latest = parts_.folder.valid() ? noted_epoch(parts_.folder.get()) : 0;
  return spec_.purpose != "profile" && (latest == 0 || latest == spec_.epoch);
}

// All in the sandbox is dead: what it leaves is kept and taken down.
void SideTask::let_go() {
  if (parts_.supervisor.hold == nullptr) return on_gone();
  leftovers_ = std::make_unique<Leftovers>(loop_, spec_.task, std::exchange(parts_.supervisor, Child{}),
                                           std::move(scratch_fd_), keeps_scratch());
  if (changed_ != nullptr && leftovers_->put_away([this] { on_gone(); })) return;
  leftovers_->put_away_now();
  on_gone();
}

void SideTask::on_gone() {
  if (leftovers_ != nullptr) {
    leftovers_->wait();
    leftovers_->hold().explain(verdict_, log_tail_);
    leftovers_.reset();
  }
  scratch_fd_.reset();
  parts_.supervisor = Child{};
  shim_.look(parts_.files.shim, SteadyClock::now());
  parts_.files.remove();
  sandbox_.forget(id_);
  if (parts_.folder.valid()) futimens(parts_.folder.get(), nullptr);  // used until now
  parts_.folder.reset();
  ended_ = true;
  ended_ns_ = SteadyClock::now();
  if (changed_) changed_(*this);
}

// ---- what is said of it

// On a GPU the host's memory is of interest in a profile only.
const TaskMemory& SideTask::look_at_memory() {
  if (options_.cpu_device() || spec_.purpose == "profile") memory_.look(runner_pid_, runner_fd());
  return memory_;
}

bus::TaskCounters SideTask::counters_now() {
  if (!dead_) look_at_memory();
  bus::TaskCounters counters = earlier_;
  counters.memory_bytes = dead_ ? 0 : memory_.resident_bytes();
  counters.peak_memory_bytes = std::max(earlier_.peak_memory_bytes, memory_.peak_bytes());
  counters.metrics.clear();
  counters.predicted_ns = 0;
  return parts_.pages == nullptr ? counters : counters_of(*parts_.pages, std::move(counters));
}

policy::Why SideTask::why() const {
  using policy::Why;
  if (ended_) return Why::kNone;
  if (stopping_ || dead_) return Why::kStopping;
  if (answered_state() == FREERIDE_STATE_SUBMITTED) return Why::kLoading;
  if (saver_.saving()) return Why::kSaveLease;
  if (unknown_) return Why::kNotRecorded;
  if (order_ == "pause") return Why::kPausedByUser;
  if (held_) return Why::kReplacing;
  if (!initialised()) return Why::kInitLease;
  const Why why = parts_.pages->why.load(std::memory_order_relaxed);
  return why == Why::kNone && shim_.work_too_long(SteadyClock::now()) ? Why::kWorkTooLong : why;
}

bus::TaskReport SideTask::report() {
  bus::TaskReport report;
  report.task = spec_.task;
  report.purpose = spec_.purpose;
  report.revision = spec_.revision;
  report.epoch = spec_.epoch;
  report.instance = spec_.instance;
  report.sha256 = spec_.sha256;
  report.sandbox = parts_.limits.empty() ? sandbox_.name() : parts_.limits;
  report.counters = counters_now();
  shim_.look(parts_.files.shim, SteadyClock::now());
  report.shim = shim_.counters();
  report.state = state_name(answered_state());
  report.why = policy::why_name(why());
  if (const TaskSource* pages = parts_.pages.get()) {
    report.create_ns = sane(load_relaxed(pages->answer->create_ns));
    report.init_ns = sane(load_relaxed(pages->answer->init_ns));
    report.bubble_ns = pages->longest_lease_ns.load(std::memory_order_relaxed);
  }
  if (ended_) {
    report.state = state_name(FREERIDE_STATE_STOPPED);
    report.verdict = to_bus(verdict_, log_tail_);
    // One that was never initialised has been stopped before there was anything to measure.
    const bool whole = verdict_.kind == VerdictKind::kFinished || verdict_.kind == VerdictKind::kStopped;
    if (profile_ != nullptr && report.init_ns > 0 && whole)
      report.profile.push_back(profile_->result(memory_, verdict_, spec_.steps));
  } else if (report.state == "STOPPED") {
    report.state = "PAUSED";  // until its verdict is there
  }
  return report;
}

}  // namespace freeride::worker
