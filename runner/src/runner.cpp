#include "runner.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <new>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "last_words.hpp"
#include "saved_state.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {
namespace {

using pages::load_acquire;
using pages::load_relaxed;
using pages::store_relaxed;
using pages::store_release;
using policy::Cause;
using policy::VerdictKind;

int64_t clock_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kNsPerSec + time.tv_nsec;
}

int64_t thread_cpu_ns() {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}
int64_t process_cpu_ns() {
  return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t as_time(uint64_t ns) {
  return ns > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(ns);
}

uint32_t count_threads() {
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  uint32_t count = 0;
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(folder);
  return count;
}

// What the kernel has counted of every thread but this one: time executed and how often.
std::map<std::string, std::string> execution_of_others() {
  std::map<std::string, std::string> all;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return all;
  const std::string self = std::to_string(gettid());
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    const std::string name = entry->d_name;
    if (name[0] == '.' || name == self) continue;
    std::ifstream file("/proc/self/task/" + name + "/schedstat");
    std::getline(file, all[name]);
  }
  closedir(folder);
  return all;
}

// How many threads but this one execute within kThreadWatchMs.
uint32_t count_awake() {
  const auto before = execution_of_others();
  const timespec watch{0, kThreadWatchMs * kNsPerMs};
  nanosleep(&watch, nullptr);
  uint32_t awake = 0;
  for (const auto& [thread, executed] : execution_of_others()) {
    const auto known = before.find(thread);
    if (known == before.end() || known->second != executed) ++awake;
  }
  return awake;
}

const char* status_text(freeride_status status) {
  switch (status) {
    case FREERIDE_ERROR:
      return "failed without saying why";
    case FREERIDE_BAD_PARAMETER:
      return "a parameter's value makes no sense";
    case FREERIDE_OUT_OF_MEMORY:
      return "out of memory";
    case FREERIDE_UNAVAILABLE:
      return "something it needs is not there now; trying again later can succeed";
    default:
      return nullptr;
  }
}

}  // namespace

Runner::Runner(Job job, const freeride_lease_page& lease, freeride_answer_page& answer, int last_words_fd, Thaw* thaw)
    : job_(std::move(job)),
      lease_(lease),
      answer_(answer),
      last_words_fd_(last_words_fd),
      by_cpu_clock_(job_.device.rfind("cpu-", 0) == 0),
      thaw_(thaw),
      host_(answer, STDERR_FILENO) {
  seed();
  if (by_cpu_clock_) workload_.begin_what_does_not_fit();
  if (job_.profile) record_ = std::make_unique<ProfileRecorder>();
  host_.on_yield([this] { return workload_.is_this_thread() ? workload_.pass_piece() : yield_point(); });
  host_.on_yield_queued([this](const Host::Wait& wait) { return yield_queued(wait); });
  host_.on_gate([this] { return workload_.is_this_thread() ? workload_.pass() : FREERIDE_OK; });
  store_relaxed(answer_.predicted_ns, static_cast<uint64_t>(fit_.predicted_ns()));
}

// What its profile says stands for one step that was made, so that the first lease is not spent on finding out; what is
// seen here soon outweighs it. On a GPU what by its profile never was as short as a lease is seldom tried in it; on a
// CPU, where a profile is as long as others let it be, it soon is.
void Runner::seed() {
  if (by_cpu_clock_) {
    const auto& pieces = job_.predicted_pieces_ns;
    for (size_t i = 0; i + 1 < pieces.size(); ++i) fit_.piece_done(pieces[i]);
    const int64_t last_ns = pieces.empty() ? job_.predicted_step_ns : pieces.back();
    if (last_ns > 0) fit_.step_done(last_ns);
    return;
  }
  if (!job_.predicted_pieces_ns.empty()) {
    fit_.seed(job_.predicted_pieces_ns);
  } else if (job_.predicted_step_ns > 0) {
    fit_.seed({job_.predicted_step_ns});
  }
}

void Runner::run() {
  if (create() == Next::kGoOn) loop();
}

// ---- transitions
// -----------------------------------------------------------------------------------------------------------

void Runner::enter(uint32_t transition, int64_t now_ns) {
  store_relaxed(answer_.transition_ns, static_cast<uint64_t>(now_ns));
  store_release(answer_.transition, transition);
}

void Runner::leave() {
  store_release<uint32_t>(answer_.transition, FREERIDE_IN_NONE);
}

// Wakes the worker, but for RUNNING: the first step comes first, and tells by itself.
void Runner::set_state(uint32_t state) {
  store_release(answer_.state, state);
  leave();
  if (state != FREERIDE_STATE_RUNNING) pages::bump_and_wake(answer_.sequence);
}

// Exceptions are not caught here but around whole phases, once: entering a try block is free, and every phase ends the
// task.
freeride_status Runner::call(uint32_t transition, freeride_status (*function)(void*), int64_t now_ns) {
  enter(transition, now_ns);
  return function(task_);
}

Runner::Next Runner::create() {
  const int64_t begin_ns = SteadyClock::now();
  enter(FREERIDE_IN_LOAD, begin_ns);
  threads_before_ = count_threads();
  uint32_t transition = FREERIDE_IN_LOAD;
  try {
    auto plugin = open_plugin(job_.plugin, job_.params);
    if (!plugin.ok()) return rejected(Cause::kPlugin, plugin.error());
    table_ = *plugin;
    plugin_ = &table_;
    auto params = resolve_params(*plugin_, job_.params, &imperative_);
    if (!params.ok()) return rejected(Cause::kParameter, params.error());
    std::vector<freeride_param> list;
    list.reserve(params->size());
    for (const auto& [key, value] : *params) list.push_back({key.c_str(), value.c_str()});
    freeride_task_info info{};
    info.struct_size = sizeof(info);
    info.param_count = static_cast<uint32_t>(list.size());
    info.params = list.data();
    info.name = job_.task.c_str();
    info.device = job_.device.c_str();
    info.scratch_dir = job_.scratch.c_str();

    transition = FREERIDE_IN_CREATE;
    const int64_t create_ns = SteadyClock::now();
    enter(transition, create_ns);
    void* task = nullptr;
    const freeride_status status = plugin_->create(host_.table(), &info, &task);
    if (status != FREERIDE_OK) return failed(transition, status);
    task_ = task;
    store_relaxed(answer_.create_ns, static_cast<uint64_t>(SteadyClock::now() - create_ns));
  } catch (const std::bad_alloc& error) {
    return threw(transition, error.what(), true);
  } catch (const std::exception& error) {
    return threw(transition, error.what(), false);
  } catch (...) {
    return threw(transition, "something that is no std::exception", false);
  }
  install_stop_signal();
  set_state(FREERIDE_STATE_CREATED);
  return Next::kGoOn;
}

Runner::Next Runner::loop() {
  try {
    for (;;) {
      pages::Lease lease;
      uint32_t sequence = 0;
      const bool readable = pages::read_lease(lease_, lease, sequence);
      // Unreadable: its writer died while writing, or is at it. No lease, until the word changes.
      if (!readable) sequence = load_acquire(lease_.sequence);
      if (stop_requested()) return stop(VerdictKind::kStopped, Cause::kOrder, "stopped in good order");
      if (readable && act(lease, sequence) == Next::kEnded) return Next::kEnded;
      if (stop_requested()) continue;
      if (workload_.started() && pages::load_acquire(lease_.sequence) == sequence) freeze();
      wait_for_change(lease_.sequence, sequence, FREERIDE_WAKE_RUNNER);
    }
  } catch (const std::bad_alloc& error) {
    return threw(load_relaxed(answer_.transition), error.what(), true);
  } catch (const std::exception& error) {
    return threw(load_relaxed(answer_.transition), error.what(), false);
  } catch (...) {
    return threw(load_relaxed(answer_.transition), "something that is no std::exception", false);
  }
}

Runner::Next Runner::act(const pages::Lease& lease, uint32_t sequence) {
  if (lease.order == FREERIDE_ORDER_STOP) return stop(VerdictKind::kStopped, Cause::kOrder, "stopped in good order");
  if (lease.lease_id == 0 || as_time(lease.deadline_ns) <= SteadyClock::now()) return Next::kGoOn;
  const uint32_t state = load_relaxed(answer_.state);
  switch (lease.kind) {
    case FREERIDE_LEASE_INIT:
      return state == FREERIDE_STATE_CREATED ? init() : Next::kGoOn;
    case FREERIDE_LEASE_PROFILE:
      return state == FREERIDE_STATE_CREATED && job_.profile ? profile(lease, sequence) : Next::kGoOn;
    case FREERIDE_LEASE_SAVE:
      return state == FREERIDE_STATE_PAUSED && load_relaxed(answer_.saved_lease) != lease.lease_id ? save(lease)
                                                                                                   : Next::kGoOn;
    case FREERIDE_LEASE_BUBBLE:
    case FREERIDE_LEASE_IDLE:
      if (state != FREERIDE_STATE_PAUSED || lease.order != FREERIDE_ORDER_RUN) return Next::kGoOn;
      return imperative_ ? run_workload(lease, sequence) : run_lease(lease, sequence);
    default:
      return Next::kGoOn;
  }
}

Runner::Next Runner::init() {
  const int64_t begin_ns = SteadyClock::now();
  const freeride_status status = call(FREERIDE_IN_INIT, plugin_->init, begin_ns);
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_INIT, status);
  if (imperative_) {
    if (const auto prepared = prepare_workload(); prepared != FREERIDE_OK) return failed(FREERIDE_IN_INIT, prepared);
  }
  install_stop_signal();
  if (restore() == Next::kEnded) return Next::kEnded;
  const int64_t end_ns = SteadyClock::now();
  cpu_ns_ = thread_cpu_ns();
  store_relaxed(answer_.init_ns, static_cast<uint64_t>(end_ns - begin_ns));
  store_relaxed(answer_.last_paused_ns, static_cast<uint64_t>(end_ns));
  store_relaxed(answer_.last_paused_cpu_ns, static_cast<uint64_t>(process_cpu_ns()));
  set_state(FREERIDE_STATE_PAUSED);
  return Next::kGoOn;
}

Runner::Next Runner::restore() {
  if (job_.state_in_fd < 0) return Next::kGoOn;
  auto read = read_saved_state(job_.state_in_fd);
  if (!read.ok()) return failed(FREERIDE_IN_RESTORE, FREERIDE_ERROR, read.error().text());
  if (!read->has_value()) return Next::kGoOn;
  const SavedState& saved = **read;
  steps_before_ = saved.steps;
  if (!saved.present) return Next::kGoOn;
  const auto state = state_extension(*plugin_);
  if (!state || saved.plugin != plugin_->name) {
    host_.log(FREERIDE_LOG_INFO, ("begins anew: the state was saved by " + saved.plugin +
                                  (!state ? ", and this content keeps none" : ", another plugin"))
                                     .c_str());
    return Next::kGoOn;
  }
  enter(FREERIDE_IN_RESTORE, SteadyClock::now());
  const freeride_status status = state->restore(task_, saved.version, saved.bytes.data(), saved.bytes.size());
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_RESTORE, status);
  install_stop_signal();
  store_relaxed<uint64_t>(answer_.restored, 1);
  host_.log(FREERIDE_LOG_INFO,
            ("went on from a saved state of " + std::to_string(saved.bytes.size()) + " bytes").c_str());
  return Next::kGoOn;
}

// Whatever comes of it, the task is as it was: PAUSED.
Runner::Next Runner::save(const pages::Lease& lease) {
  SavedState saved;
  saved.lease_id = lease.lease_id;
  saved.steps = steps_before_ + load_relaxed(answer_.steps);
  enter(FREERIDE_IN_SAVE, SteadyClock::now());
  if (workload_.started()) workload_.close(as_time(lease.deadline_ns));  // at its gate nothing of it changes
  if (const auto state = state_extension(*plugin_)) {
    saved.present = true;
    saved.plugin = plugin_->name;
    saved.version = state->version;
    saved.status = collect_state(*state, task_, saved.bytes);
    if (saved.status != FREERIDE_OK) {
      const char* text = status_text(saved.status);
      saved.bytes = host_.take_reason();
      if (saved.bytes.empty()) saved.bytes = text != nullptr ? text : "returned status " + std::to_string(saved.status);
    }
  }
  if (job_.state_out_fd >= 0) write_saved_state(job_.state_out_fd, saved);
  const int64_t end_ns = SteadyClock::now();
  cpu_ns_ = thread_cpu_ns();
  store_relaxed(answer_.last_paused_ns, static_cast<uint64_t>(end_ns));
  store_relaxed(answer_.last_paused_cpu_ns, static_cast<uint64_t>(process_cpu_ns()));
  store_relaxed(answer_.saved_lease, lease.lease_id);
  leave();
  pages::bump_and_wake(answer_.sequence);
  return Next::kGoOn;
}

// With no training on the device: at once, under one grant. When that is taken back because a training has come, the
// rest is for its bubbles.
Runner::Next Runner::profile(const pages::Lease& lease, uint32_t sequence) {
  if (init() == Next::kEnded) return Next::kEnded;
  held_ = lease;
  held_sequence_ = sequence;
  if (load_acquire(lease_.sequence) != held_sequence_ && !go_on()) return Next::kGoOn;
  const int64_t begin_ns = SteadyClock::now();
  const int64_t until_ns =
      begin_ns + std::max<int64_t>(0, as_time(lease.deadline_ns) - begin_ns) / kProfileShareDivisor;
  store_relaxed(answer_.lease_id, lease.lease_id);
  const freeride_status status = call(FREERIDE_IN_START, plugin_->start, begin_ns);
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_START, status);
  set_state(FREERIDE_STATE_RUNNING);
  started(begin_ns);
  if (imperative_) return profile_workload(until_ns);
  bool taken_back = false;
  while (!finished_ && now_ns_ < until_ns && !stop_requested() && !taken_back) {
    if (load_acquire(lease_.sequence) != held_sequence_ && !go_on()) {
      taken_back = true;
    } else {
      if (step(now_ns_) == Next::kEnded) return Next::kEnded;
      taken_back = abandoned_;
    }
  }
  if (pause() == Next::kEnded) return Next::kEnded;
  return taken_back && !finished_ ? Next::kGoOn : profiled();
}

Runner::Next Runner::profiled() {
  return stop(VerdictKind::kFinished, Cause::kDone, finished_ && !profiled_enough() ? "its work is done" : "profiled");
}

bool Runner::profiled_enough() const {
  policy::ProfileProgress progress;
  progress.steps = load_relaxed(answer_.steps);
  progress.executed_ns = as_time(load_relaxed(answer_.step_ns));
  progress.wanted_steps = job_.steps;
  progress.imperative = imperative_;
  return policy::profile_is_enough(progress);
}

// StartSideTask was entered at `begin_ns` and is over.
void Runner::started(int64_t begin_ns) {
  now_ns_ = SteadyClock::now();
  if (record_ != nullptr) record_->start(now_ns_ - begin_ns);
}

// ---- the hot path
// ----------------------------------------------------------------------------------------------------------

Runner::Next Runner::run_lease(const pages::Lease& lease, uint32_t sequence) {
  now_ns_ = SteadyClock::now();
  const bool first_look = lease.lease_id != last_run_lease_;
  if (!fit_.fits(as_time(lease.deadline_ns) - now_ns_, first_look)) {
    if (first_look) skip(lease);
    return Next::kGoOn;
  }
  store_relaxed(answer_.lease_id, lease.lease_id);
  const freeride_status status = call(FREERIDE_IN_START, plugin_->start, now_ns_);
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_START, status);
  set_state(FREERIDE_STATE_RUNNING);

  started(now_ns_);
  held_ = lease;
  held_sequence_ = sequence;
  told_ = false;
  for (;;) {
    if (load_acquire(lease_.sequence) != held_sequence_ && !go_on()) break;
    if (stop_requested()) break;
    const bool first = held_.lease_id != last_run_lease_;
    if (!fit_.fits(as_time(held_.deadline_ns) - now_ns_, first)) {
      if (first) skip(held_);
      break;
    }
    if (step(now_ns_) == Next::kEnded) return Next::kEnded;
    if (finished_ || abandoned_) break;
    if (!std::exchange(told_, true)) {
      pages::bump_and_wake(answer_.sequence);
      now_ns_ = SteadyClock::now();
    }
  }
  store_relaxed(answer_.pause_seen_ns, static_cast<uint64_t>(now_ns_));
  if (pause() == Next::kEnded) return Next::kEnded;
  if (finished_ && job_.profile) return profiled();
  if (finished_) {
    const bool all_steps = job_.steps != 0 && steps_before_ + load_relaxed(answer_.steps) >= job_.steps;
    return stop(VerdictKind::kFinished, all_steps ? Cause::kSteps : Cause::kDone,
                all_steps ? "did its " + std::to_string(job_.steps) + " steps" : "its work is done");
  }
  return Next::kGoOn;
}

// The imperative interface: the workload's thread executes, this one watches the lease. It pauses so early that
// PauseSideTask is over when the lease is.
Runner::Next Runner::run_workload(const pages::Lease& lease, uint32_t sequence) {
  now_ns_ = SteadyClock::now();
  // By what the recent pauses took, whatever has decayed: where that fits, the rest of the lease is not put at risk.
  const auto until_ns = [&] { return as_time(held_.deadline_ns) - pauses_.full_ns(); };
  held_ = lease;
  held_sequence_ = sequence;
  // A piece that was stopped in its middle goes on, whatever is known: it is long enough for several leases.
  const bool rest = stuck_ && workload_.arrivals() == stuck_at_;
  const bool one_piece = until_ns() <= now_ns_;
  if (one_piece && !rest && !pauses_.fits(as_time(held_.deadline_ns) - now_ns_, true)) {
    if (lease.lease_id != last_run_lease_) skip(lease);
    return Next::kGoOn;
  }
  // What was seen says that it does not fit. One piece from the lease's begin is the least that can show that it does.
  tries_ = one_piece && !rest;
  store_relaxed(answer_.lease_id, lease.lease_id);
  if (const auto status = call(FREERIDE_IN_START, plugin_->start, now_ns_); status != FREERIDE_OK)
    return failed(FREERIDE_IN_START, status);
  set_state(FREERIDE_STATE_RUNNING);
  started(now_ns_);
  piece_begin_ns_ = now_ns_;
  first_of_lease(piece_begin_ns_);
  enter(FREERIDE_IN_STEP, piece_begin_ns_);
  const auto expect = [&] { workload_.expect_open_until(held_.lease_id, one_piece ? 0 : until_ns()); };
  expect();
  if (tries_ || !one_piece) open_workload();
  pages::bump_and_wake(answer_.sequence);
  for (;;) {
    now_ns_ = SteadyClock::now();
    if (load_acquire(lease_.sequence) != held_sequence_ && !go_on()) {
      held_.deadline_ns = static_cast<uint64_t>(now_ns_);  // taken back
      break;
    }
    expect();
    const int64_t wait_ns = one_piece ? as_time(held_.deadline_ns) : until_ns();
    if (workload_.ended() || stop_requested() || now_ns_ >= wait_ns || workload_.waits()) break;
    workload_.wait(lease_.sequence, held_sequence_, wait_ns);
  }
  return end_workload();
}

// Under the init grant. An older plugin's thread starts with its first lease.
freeride_status Runner::prepare_workload() {
  const auto imperative = imperative_extension(*plugin_);
  if (imperative->prepare_gpu_workload == nullptr) return FREERIDE_OK;
  const auto status = workload_.prepare([this, imperative] { return imperative->prepare_gpu_workload(task_); },
                                        [this, imperative] { return imperative->run_gpu_workload(task_); });
  if (status == FREERIDE_OK) ask_for_thaw();
  return status;
}

void Runner::open_workload() {
  const auto imperative = imperative_extension(*plugin_);
  workload_.open([this, imperative] { return imperative->run_gpu_workload(task_); }, tries_);
  ask_for_thaw();
}

// From now on this process stops itself between leases.
void Runner::ask_for_thaw() {
  if (thaw_ == nullptr || thaw_->wanted != 0) return;
  store_release<uint32_t>(thaw_->wanted, 1);
  pages::futex_wake(thaw_->wanted);
}

// Holds the workload at its gate, pauses; says what came of a work that is done.
Runner::Next Runner::end_workload() {
  now_ns_ = SteadyClock::now();
  const int64_t begin_ns = tries_ ? piece_begin_ns_ : now_ns_;
  const int64_t room_ns = as_time(held_.deadline_ns) - begin_ns;
  // Until the lease's end it may come to its gate; where that was taken back, as long as it mostly needs, and on a GPU
  // twice that: there a stop does not end what is executing, and what is not seen would be learned too short. That once
  // a piece: of one that is longer than leases are it says nothing, and is not waited for.
  const bool rest = stuck_ && workload_.arrivals() == stuck_at_;
  const int64_t needs_ns = rest ? kLeastGateNs : (by_cpu_clock_ ? 1 : 2) * std::max(pauses_.full_ns(), kLeastGateNs);
  workload_.close(std::max(as_time(held_.deadline_ns), now_ns_ + needs_ns));
  stuck_ = !workload_.waits() && !workload_.ended();
  stuck_at_ = workload_.arrivals();
  now_ns_ = SteadyClock::now();
  store_relaxed(answer_.pause_seen_ns, static_cast<uint64_t>(now_ns_));
  const int64_t taught_ns = end_piece(now_ns_);
  if (record_ != nullptr) record_->step(taught_ns, taught_ns);
  store_release(answer_.steps, load_relaxed(answer_.steps) + 1);
  if (pause() == Next::kEnded) return Next::kEnded;
  if (!rest) pauses_.record(SteadyClock::now() - begin_ns, tries_ ? room_ns : INT64_MAX);
  tries_ = false;
  store_relaxed(answer_.predicted_ns, static_cast<uint64_t>(pauses_.predicted_ns()));
  if (!workload_.ended()) return job_.profile && profiled_enough() ? profiled() : Next::kGoOn;
  const freeride_status status = workload_.status();
  if (status != FREERIDE_OK && status != FREERIDE_FINISHED) return failed(FREERIDE_IN_STEP, status);
  finished_ = true;
  store_relaxed<uint64_t>(answer_.finished, 1);
  return stop(VerdictKind::kFinished, Cause::kDone, "its work is done");
}

// The workload runs until enough of it has been seen; where a training takes the grant back, the rest is for its
// bubbles.
Runner::Next Runner::profile_workload(int64_t until_ns) {
  piece_begin_ns_ = now_ns_;
  until_ns = std::min(until_ns, now_ns_ + policy::kEnoughProfileNs);
  enter(FREERIDE_IN_STEP, piece_begin_ns_);
  open_workload();
  bool taken_back = false;
  while (!workload_.ended() && !stop_requested() && SteadyClock::now() < until_ns) {
    if (load_acquire(lease_.sequence) != held_sequence_ && !go_on()) {
      taken_back = true;
      break;
    }
    workload_.wait(lease_.sequence, held_sequence_, until_ns);
  }
  if (end_workload() == Next::kEnded) return Next::kEnded;
  return taken_back ? Next::kGoOn : profiled();
}

// Stops the whole process, wherever its threads are, until the supervisor sees a lease or an order to stop. A lease
// that is opened in the instant between the look at the page and the stop is missed; the next one is not.
void Runner::freeze() {
  if (thaw_ != nullptr) kill(getpid(), SIGSTOP);
}

// The page has changed under a running task: takes over what it says now, and says whether steps may go on.
bool Runner::go_on() {
  pages::Lease changed;
  const bool readable = pages::read_lease(lease_, changed, held_sequence_);
  now_ns_ = SteadyClock::now();
  if (!readable || changed.lease_id == 0 || changed.kind != held_.kind) return false;
  if (changed.order == FREERIDE_ORDER_STOP || as_time(changed.deadline_ns) <= now_ns_) return false;
  // The init and profile grants are given whatever the standing order is.
  if (changed.kind != FREERIDE_LEASE_PROFILE && changed.order != FREERIDE_ORDER_RUN) return false;
  held_ = changed;
  store_relaxed(answer_.lease_id, held_.lease_id);
  return true;
}

void Runner::first_of_lease(int64_t begin_ns) {
  if (held_.lease_id == last_run_lease_) return;
  last_run_lease_ = held_.lease_id;
  store_relaxed(answer_.first_step_ns, static_cast<uint64_t>(begin_ns));
}

// Counts the piece that ends now; returns what it teaches.
int64_t Runner::end_piece(int64_t end_ns) {
  const int64_t duration_ns = end_ns - piece_begin_ns_;
  const int64_t within_ns = std::max<int64_t>(0, std::min(end_ns, as_time(held_.deadline_ns)) - piece_begin_ns_);
  store_release(answer_.step_ns, load_relaxed(answer_.step_ns) + static_cast<uint64_t>(duration_ns));
  store_relaxed(answer_.lease_step_ns, load_relaxed(answer_.lease_step_ns) + static_cast<uint64_t>(within_ns));
  piece_begin_ns_ = end_ns;
  if (!by_cpu_clock_) return duration_ns;
  const int64_t cpu_ns = thread_cpu_ns();
  const int64_t executed_ns = cpu_ns - cpu_ns_;
  cpu_ns_ = cpu_ns;
  // One whose lease ended under it was, most likely, preempted by the training for as long as that wished: what it
  // takes by itself is its CPU time, not this.
  const bool ended = end_ns > as_time(held_.deadline_ns) || load_relaxed(lease_.sequence) != held_sequence_;
  return ended ? std::min(duration_ns, std::max<int64_t>(1, executed_ns)) : duration_ns;
}

Runner::Next Runner::step(int64_t begin_ns) {
  first_of_lease(begin_ns);
  piece_begin_ns_ = begin_ns;
  abandoned_ = ahead_ = behind_ = false;
  in_step_ = true;
  const freeride_status status = call(FREERIDE_IN_STEP, plugin_->run_next_step, begin_ns);
  in_step_ = false;
  now_ns_ = SteadyClock::now();
  if (abandoned_ && status == FREERIDE_ABANDONED) {
    fit_.step_abandoned();
    if (record_ != nullptr) record_->abandoned();
    cpu_ns_ = thread_cpu_ns();
    return Next::kGoOn;
  }
  if (status != FREERIDE_OK && status != FREERIDE_FINISHED) return failed(FREERIDE_IN_STEP, status);

  const uint64_t steps = load_relaxed(answer_.steps) + 1;
  const int64_t taught_ns = end_piece(now_ns_);
  if (record_ != nullptr) record_->step(fit_.executed_ns() + taught_ns, taught_ns);
  if (ahead_) {
    fit_.last_two_done(taught_ns, behind_);
  } else {
    fit_.step_done(taught_ns);
  }
  store_relaxed(answer_.predicted_ns, static_cast<uint64_t>(fit_.predicted_ns()));
  store_release(answer_.steps, steps);
  leave();
  if (status == FREERIDE_FINISHED || (job_.steps != 0 && steps_before_ + steps >= job_.steps)) {
    finished_ = true;
    store_relaxed<uint64_t>(answer_.finished, 1);
  }
  if (job_.profile && profiled_enough()) finished_ = true;
  return Next::kGoOn;
}

// ---- yield points
// ----------------------------------------------------------------------------------------------------------

// On the main thread, within RunNextStep.
freeride_status Runner::yield_point() {
  if (!in_step_) return FREERIDE_OK;
  if (abandoned_) return FREERIDE_ABANDONED;
  return end_of_piece(true);
}

// `open`: as far as the caller knows. A lease that is gone is seen once, since the page's sequence has been read then.
freeride_status Runner::end_of_piece(bool open) {
  now_ns_ = piece_ends();
  open = open && may_go_on();
  if (held_.kind == FREERIDE_LEASE_PROFILE) {
    if (open) return FREERIDE_OK;
    abandoned_ = true;
    return FREERIDE_ABANDONED;
  }
  if (open && fit_.fits(as_time(held_.deadline_ns) - now_ns_, held_.lease_id != last_run_lease_)) {
    first_of_lease(now_ns_);
    return FREERIDE_OK;
  }
  store_relaxed(answer_.pause_seen_ns, static_cast<uint64_t>(now_ns_));
  return wait_at_yield_point();
}

// Counts the piece that has just ended; when that was.
int64_t Runner::piece_ends() {
  const int64_t end_ns = SteadyClock::now();
  // Before the piece is counted: a reader in between sees too little of it, never the piece twice.
  store_release(answer_.transition_ns, static_cast<uint64_t>(end_ns));
  const int64_t taught_ns = end_piece(end_ns);
  if (record_ != nullptr) record_->piece(taught_ns);
  fit_.piece_done(taught_ns, behind_);
  behind_ = false;
  store_relaxed(answer_.predicted_ns, static_cast<uint64_t>(fit_.predicted_ns()));
  if (!std::exchange(told_, true)) pages::bump_and_wake(answer_.sequence);
  return end_ns;
}

bool Runner::may_go_on() {
  return (load_acquire(lease_.sequence) == held_sequence_ || go_on()) && !stop_requested();
}

// As yield_point(), but one piece ahead of the GPU while that one and the next fit. Two pieces and no more: so much is
// overrun where a bubble ends before it should.
freeride_status Runner::yield_queued(const Host::Wait& wait) {
  if (workload_.is_this_thread()) return workload_.pass_queued(wait);
  const bool steps = in_step_ && !abandoned_;
  if (steps && std::exchange(ahead_, false)) {
    if (const auto status = wait(false); status != FREERIDE_OK) return status;
    now_ns_ = piece_ends();
    behind_ = true;
  }
  const bool open = !steps || may_go_on();
  const int64_t two_ns = fit_.predicted_two_ns(behind_);
  // A profile wants each piece's time by itself.
  if (steps && open && record_ == nullptr && two_ns > 0 && piece_begin_ns_ + two_ns <= as_time(held_.deadline_ns)) {
    first_of_lease(now_ns_);
    ahead_ = true;
    return FREERIDE_OK;
  }
  if (const auto status = wait(true); status != FREERIDE_OK) return status;
  return steps ? end_of_piece(open) : yield_point();
}

// PAUSED as after PauseSideTask, but in the middle of a step: nothing executes until a lease has room for the next
// piece.
freeride_status Runner::wait_at_yield_point() {
  store_relaxed(answer_.last_paused_ns, static_cast<uint64_t>(SteadyClock::now()));
  if (by_cpu_clock_) {
    cpu_ns_ = thread_cpu_ns();
    store_relaxed(answer_.last_paused_cpu_ns, static_cast<uint64_t>(process_cpu_ns()));
  }
  set_state(FREERIDE_STATE_PAUSED);
  for (;;) {
    pages::Lease lease;
    uint32_t sequence = 0;
    const bool readable = pages::read_lease(lease_, lease, sequence);
    if (!readable) sequence = load_acquire(lease_.sequence);
    now_ns_ = SteadyClock::now();
    const bool open = readable && lease.lease_id != 0 && as_time(lease.deadline_ns) > now_ns_;
    const bool saves = open && lease.kind == FREERIDE_LEASE_SAVE && load_relaxed(answer_.saved_lease) != lease.lease_id;
    if (stop_requested() || (readable && lease.order == FREERIDE_ORDER_STOP) || saves) {
      // What it still executes to get out of the step is judged as a step's.
      enter(FREERIDE_IN_STEP, now_ns_);
      abandoned_ = true;
      return FREERIDE_ABANDONED;
    }
    if (open && resume(lease, sequence)) return FREERIDE_OK;
    if (!stop_requested()) wait_for_change(lease_.sequence, sequence, FREERIDE_WAKE_RUNNER);
  }
}

// Whether the step goes on under `lease`.
bool Runner::resume(const pages::Lease& lease, uint32_t sequence) {
  const bool bubble = lease.kind == FREERIDE_LEASE_BUBBLE || lease.kind == FREERIDE_LEASE_IDLE;
  if (!bubble || lease.order != FREERIDE_ORDER_RUN) return false;
  const bool first = lease.lease_id != last_run_lease_;
  if (!fit_.fits(as_time(lease.deadline_ns) - now_ns_, first)) {
    if (first) skip(lease);
    return false;
  }
  held_ = lease;
  held_sequence_ = sequence;
  told_ = false;
  store_relaxed(answer_.lease_id, lease.lease_id);
  first_of_lease(now_ns_);
  piece_begin_ns_ = now_ns_;
  enter(FREERIDE_IN_STEP, now_ns_);
  store_release<uint32_t>(answer_.state, FREERIDE_STATE_RUNNING);
  return true;
}

Runner::Next Runner::pause() {
  const freeride_status status = call(FREERIDE_IN_PAUSE, plugin_->pause, now_ns_);
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_PAUSE, status);
  const int64_t end_ns = SteadyClock::now();
  if (record_ != nullptr) record_->pause(end_ns - now_ns_);
  store_relaxed(answer_.last_paused_ns, static_cast<uint64_t>(end_ns));
  if (by_cpu_clock_) {
    cpu_ns_ = thread_cpu_ns();
    store_relaxed(answer_.last_paused_cpu_ns, static_cast<uint64_t>(process_cpu_ns()));
  }
  set_state(FREERIDE_STATE_PAUSED);
  return Next::kGoOn;
}

void Runner::skip(const pages::Lease& lease) {
  if (lease.lease_id == last_skipped_lease_) return;
  last_skipped_lease_ = lease.lease_id;
  imperative_ ? pauses_.lease_skipped() : fit_.lease_skipped();
  store_relaxed(answer_.lease_id, lease.lease_id);
  store_relaxed(answer_.predicted_ns,
                static_cast<uint64_t>(imperative_ ? pauses_.predicted_ns() : fit_.predicted_ns()));
  store_relaxed(answer_.skipped, load_relaxed(answer_.skipped) + 1);
  // The worker may give the bubble to somebody else.
  pages::bump_and_wake(answer_.sequence);
}

// ---- endings
// ---------------------------------------------------------------------------------------------------------------

Runner::Next Runner::stop(VerdictKind kind, Cause cause, const std::string& reason) {
  if (workload_.started()) {
    enter(FREERIDE_IN_STOP, SteadyClock::now());
    workload_.abandon(kAbandonMs);
  }
  const int64_t begin_ns = SteadyClock::now();
  const freeride_status status = call(FREERIDE_IN_STOP, plugin_->stop, begin_ns);
  if (status != FREERIDE_OK) return failed(FREERIDE_IN_STOP, status);
  if (record_ != nullptr && job_.state_out_fd >= 0) record_->write(job_.state_out_fd, SteadyClock::now() - begin_ns);
  const uint32_t threads = count_threads();
  if (threads > threads_before_) {
    threads_left_ = threads - threads_before_;
    threads_awake_ = count_awake();
    host_.log(FREERIDE_LOG_WARN,
              (std::to_string(threads_left_) + " thread(s) of the plugin outlived StopSideTask").c_str());
  }
  say(kind, cause, FREERIDE_IN_NONE, reason);
  // Still "in StopSideTask", and so under its bound, until the process has ended.
  destroy();
  store_release<uint32_t>(answer_.state, FREERIDE_STATE_STOPPED);
  leave();
  pages::bump_and_wake(answer_.sequence);
  return Next::kEnded;
}

Runner::Next Runner::failed(uint32_t transition, freeride_status status, std::string reason) {
  store_relaxed(answer_.result, static_cast<uint32_t>(status));
  if (reason.empty()) reason = host_.take_reason();
  if (reason.empty()) {
    const char* text = status_text(status);
    reason = text != nullptr ? text : "returned status " + std::to_string(status) + ", which means nothing there";
  }
  if (status == FREERIDE_OUT_OF_MEMORY) {
    say(VerdictKind::kOutOfMemory, Cause::kNoMemory, transition, reason);
  } else if (status == FREERIDE_BAD_PARAMETER && transition == FREERIDE_IN_CREATE) {
    say(VerdictKind::kRejected, Cause::kParameter, transition, reason);
  } else {
    say(VerdictKind::kFailed, Cause::kTransition, transition, reason);
  }
  // Without prejudice only here: after a failed step nothing is known of the plugin's state.
  if (transition == FREERIDE_IN_INIT || transition == FREERIDE_IN_RESTORE || transition == FREERIDE_IN_STOP) destroy();
  return Next::kEnded;
}

Runner::Next Runner::threw(uint32_t transition, const char* what, bool out_of_memory) {
  say(out_of_memory ? VerdictKind::kOutOfMemory : VerdictKind::kFailed,
      out_of_memory ? Cause::kNoMemory : Cause::kTransition, transition, std::string("threw ") + what);
  return Next::kEnded;
}

Runner::Next Runner::rejected(Cause cause, const Error& error) {
  say(VerdictKind::kRejected, cause, FREERIDE_IN_NONE, error.text());
  return Next::kEnded;
}

void Runner::say(VerdictKind kind, Cause cause, uint32_t transition, const std::string& reason) {
  if (said_) return;
  said_ = true;
  LastWords words = last_words(kind, cause, transition, reason.c_str());
  words.threads_left = threads_left_;
  words.threads_awake = threads_awake_;
  words.step_p50_ns = fit_.quantile_ns(0.5);
  words.step_p90_ns = fit_.quantile_ns(0.9);
  words.step_max_ns = fit_.quantile_ns(1.0);
  const size_t length = std::min(reason.size(), sizeof(answer_.message) - 1);
  std::memcpy(answer_.message, reason.c_str(), length);
  answer_.message[length] = '\0';
  write_last_words(last_words_fd_, words);
}

void Runner::destroy() {
  if (task_ == nullptr) return;
  plugin_->destroy(task_);
  task_ = nullptr;
}

}  // namespace freeride::runner
