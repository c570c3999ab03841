#include "profiler.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "freeride/base/about.hpp"
#include "profile_check.hpp"
#include "text.hpp"
#include "verdicts.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

using policy::Cause;
using policy::VerdictKind;

constexpr int kCreateTries = 4;

// What a worker from before there were such profiles says: its counters.
bus::Profile from_counters(const bus::TaskReport& report, bool on_gpu) {
  bus::Profile profile;
  profile.conditions = "idle";
  profile.peak_bytes[on_gpu ? "gpu" : "host"] =
      std::clamp<int64_t>(report.counters.peak_memory_bytes, 0, int64_t{1} << 50);
  profile.create_ns = std::max<int64_t>(report.create_ns, 0);
  profile.init_ns = std::max<int64_t>(report.init_ns, 0);
  if (report.counters.steps > 0) {
    const int64_t mean_ns = std::max<int64_t>(report.counters.step_ns, 0) /
                            static_cast<int64_t>(std::min<uint64_t>(report.counters.steps, INT64_MAX));
    profile.steps = {report.counters.steps, mean_ns, mean_ns, mean_ns, mean_ns};
  }
  profile.ended = "by a worker of an earlier version, which tells the mean of its steps only";
  return profile;
}

}  // namespace

std::vector<policy::ProfileDevice> Profiler::devices(const std::vector<policy::DeviceView>& devices) const {
  std::vector<policy::ProfileDevice> all;
  for (const auto& device : devices) {
    policy::ProfileDevice one;
    one.device = device;
    one.profiling = the_.runs.any_on(device.worker);
    all.push_back(std::move(one));
  }
  return all;
}

bool Profiler::may_run_on(const Task& task, const std::string& worker) const {
  const auto devices = the_.capacity.device(worker);
  if (devices.empty()) return false;
  const auto placement = policy::place(the_.capacity.request_of(task), devices);
  return placement.kind == policy::Placement::Kind::kPlace || placement.why == policy::Why::kNoMemory;
}

Profiler::Outcome Profiler::take_for(const Task& task, const std::string& preferred,
                                     const std::vector<policy::DeviceView>& devices_there) {
  const auto& load = task.load();
  for (const auto& [name, run] : the_.runs.all()) {
    const Worker* worker = the_.workers.find(run.worker);
    if (worker == nullptr ||
        run.key != ProfileBook::key_of(task.state().sha256, ProfileBook::scope_of(load), worker->model))
      continue;
    return {false, policy::Why::kProfiling, run.worker};
  }
  auto candidates = devices(devices_there);
  if (task.profile_here)
    std::erase_if(candidates, [&](const auto& one) { return !may_run_on(task, one.device.worker); });
  if (!preferred.empty()) {
    const std::string& model = the_.workers.at(preferred).model;
    for (auto& one : candidates) one.right_model = the_.workers.at(one.device.worker).model == model;
  }
  const auto place = policy::place_profile(candidates, the_.capacity.cap_bytes(load), preferred);
  if (place.worker.empty()) return {false, policy::Why::kProfileWait, place.reason};
  spdlog::info("{}: being profiled on {}", about_task(task.name()), place.worker);
  begin(load, task.state().sha256, the_.workers.at(place.worker), policy::kLeastProfileSteps, false);
  return {true, policy::Why::kProfiling, place.worker};
}

ProfileRun& Profiler::begin(const bus::Load& load, const std::string& sha256, const Worker& worker,
                            uint64_t wanted_steps, bool asked) {
  ProfileRun run;
  run.key = ProfileBook::key_of(sha256, ProfileBook::scope_of(load), worker.model);
  run.worker = worker.name;
  run.plugin = load.plugin;
  run.user = load.user;
  run.sha256 = sha256;
  run.epoch = the_.tasks.next_epoch();
  run.params = load.params;
  run.network = load.network;
  run.load = load;
  run.memory_bytes = the_.capacity.cap_bytes(load);
  run.wanted_steps = wanted_steps;
  run.asked = asked;
  if (asked) run.followed_ns = the_.clock.now_ns();
  the_.due.changed.insert(worker.name);
  ProfileRun& kept = the_.runs.add(std::move(run));
  send(kept);
  return kept;
}

void Profiler::send(ProfileRun& run) {
  bus::CreateTask order;
  order.task = run.name;
  order.purpose = "profile";
  order.plugin = run.plugin;
  order.sha256 = run.sha256;
  order.params = run.params;
  order.network = run.network;
  give_files(run.load, the_.workers.at(run.worker), order);
  order.memory_limit_bytes = run.memory_bytes;
  order.steps = run.wanted_steps;
  order.epoch = run.epoch;
  order.heard = the_.workers.at(run.worker).number;
  run.create_sent_ns = the_.clock.now_ns();
  (void)the_.orders.send(the_.workers.at(run.worker), order,
                         {Pending::Kind::kCreate, 0, run.name});  // expire() repeats
}

void Profiler::take_report(Worker& worker, const bus::TaskReport& report, bool leaving) {
  ProfileRun* run = the_.runs.find(report.task);
  if (run == nullptr || run->worker != worker.name) {
    if (report.state != "STOPPED") worker.plan_due = true;  // of a manager before us: the plan does not name it
    return;
  }
  run->seen_ns = the_.clock.now_ns();
  run->steps = std::max(run->steps, report.counters.steps);
  run->cut_short = run->cut_short || leaving || worker.drain != 0;
  if (report.state != "STOPPED" && worker.ranks.empty() && worker.other_process) {
    return give_up(report.task, "a process that may be a training without the hook uses the GPU of " + worker.name);
  }
  if (report.state != "STOPPED") {
    run->state = "running";
    return the_.runs.tell_followers(*run);
  }
  worker.plan_due = true;
  the_.lifecycle.note_fault(report.verdict, worker, run->sha256, run->user, report.task);
  finish(the_.runs.take_out(report.task), report);
}

void Profiler::finish(const ProfileRun& run, const bus::TaskReport& report) {
  const VerdictKind kind = kind_of(report.verdict);
  if (kind != VerdictKind::kFinished && kind != VerdictKind::kStopped)
    return failed(run, report.verdict, policy::repeats_profile(kind));
  // A worker also stops one that has seen enough; this one has seen nothing, or too little to be kept.
  if (kind == VerdictKind::kStopped && (report.init_ns <= 0 || run.cut_short)) {
    bus::Verdict verdict = report.verdict;
    verdict.kind = policy::kind_name(VerdictKind::kLost);
    verdict.cause = policy::cause_name(Cause::kWorker);
    verdict.reason = report.init_ns <= 0 ? "its worker stopped it before it was initialised"
                                         : "its device was drained, or its worker went down, before it was whole";
    return failed(run, verdict, true);
  }
  const Worker& worker = the_.workers.at(run.worker);
  bus::Profile profile;
  const auto complete = [&](bus::Profile& made) {
    made.plugin = run.plugin;
    made.sha256 = run.sha256;
    made.params = run.params;
    made.device_model = is_plain(worker.model) ? worker.model : "unknown";
    made.worker = run.worker;
    made.taken_unix_ms = the_.tasks.unix_ms();
    made.wanted_steps = run.wanted_steps;
    made.ended = bounded(made.ended, kMaxReason);
  };
  if (!report.profile.empty()) profile = report.profile.front();
  complete(profile);
  if (const auto checked = check_profile(profile); report.profile.empty() || !checked) {
    if (!report.profile.empty())
      spdlog::warn("{}: its profile of {} makes no sense: {}", about_worker(run.worker), run.plugin,
                   checked.error().message);
    profile = from_counters(report, worker.on_gpu());
    complete(profile);
  }
  spdlog::info("profile of {} ({}): {} MiB, {:.3f} ms a step (p90 of {})", run.plugin, run.sha256.substr(0, 12),
               profile.peak_bytes[worker.on_gpu() ? "gpu" : "host"] >> 20,
               static_cast<double>(profile.steps.p90_ns) / kNsPerMs, profile.steps.count);
  the_.profiles.keep(run.key, profile);
  bus::ProfileReply reply = the_.runs.reply_of(run);
  reply.state = "done";
  reply.profiles = {std::move(profile)};
  end(run, std::move(reply));
  the_.due.raised = true;
}

void Profiler::create_reply(const std::string& name, const std::optional<Error>& error) {
  ProfileRun* run = the_.runs.find(name);
  if (run == nullptr) return;
  if (!error || error->code == Code::kAlreadyExists) {
    run->seen_ns = the_.clock.now_ns();
    return;
  }
  const bool later =
      error->code == Code::kUnavailable || error->code == Code::kTimeout || error->code == Code::kExhausted;
  const auto verdict = later ? verdict_of(VerdictKind::kLost, Cause::kWorker, error->text())
                             : verdict_of(VerdictKind::kRejected, Cause::kRefused, error->text());
  failed(the_.runs.take_out(name), verdict, later);
}

bool Profiler::is_for(const ProfileRun& run, const Task& task) {
  return task.phase == Task::Phase::kQueued && task.state().sha256 == run.sha256 && task.load().params == run.params &&
         ProfileBook::scope_of(task.load()) == ProfileBook::scope_of(run.load);
}

bool Profiler::wanted(const ProfileRun& run) const {
  const auto& live = the_.tasks.live();
  return std::any_of(live.begin(), live.end(), [&](const auto& entry) {
    const Task& task = *entry.second;
    return is_for(run, task);
  });
}

void Profiler::failed(const ProfileRun& run, bus::Verdict verdict, bool again) {
  bus::ProfileReply reply = the_.runs.reply_of(run);
  reply.state = "failed";
  reply.reason = bounded(verdict.reason, kMaxReason);
  reply.verdict = verdict;
  reply.verdict.reason = reply.reason;
  reply.verdict.log_tail = tail(verdict.log_tail, kMaxLog);
  end(run, std::move(reply));
  const std::string last_try = "the last try, on " + run.worker + ", failed: " + verdict.reason;
  verdict.reason = "while being profiled on " + run.worker + ": " + verdict.reason;
  the_.due.raised = true;
  std::vector<Task*> concerned;
  for (const auto& [name, task] : the_.tasks.live()) {
    if (!is_for(run, *task)) continue;
    // A task with a larger allowance than the profile had may do better on its own.
    if (!again && the_.capacity.cap_bytes(task->load()) > run.memory_bytes) continue;
    concerned.push_back(task);
  }
  for (Task* task : concerned) {
    const bool last = !again || task->profile_failures >= the_.config.restarts.most;
    if (last && !task->profile_here && !may_run_on(*task, run.worker)) {
      // What failed on a device that it would never have run on says nothing of those that it may run on.
      task->profile_here = true;
      task->profile_failures = 0;
      the_.tasks.wait(*task, policy::Why::kProfileWait,
                      bounded("once more, on a device that it may run on; " + last_try, kMaxReason));
      continue;
    }
    if (!again || ++task->profile_failures > the_.config.restarts.most) {
      the_.lifecycle.end(*task, verdict);
      continue;
    }
    task->not_before_ns = the_.clock.now_ns() + 2 * kNsPerSec;
    the_.tasks.wait(*task, policy::Why::kProfileWait, bounded(last_try, kMaxReason));
  }
}

void Profiler::end(const ProfileRun& run, bus::ProfileReply reply) {
  the_.runs.tell_end(run, std::move(reply));
  the_.due.changed.insert(run.worker);
  the_.contents.release(run.sha256);
}

void Profiler::give_up(const std::string& name, const std::string& why) {
  const ProfileRun run = the_.runs.take_out(name);
  spdlog::info("profile of {} on {}: {}", run.plugin, run.worker, why);
  the_.workers.plan_is_due(run.worker);  // it is not in the plan: the worker stops it
  bus::ProfileReply reply = the_.runs.reply_of(run);
  reply.state = "failed";
  reply.reason = why;
  reply.verdict = verdict_of(VerdictKind::kStopped, Cause::kOrder, why);
  end(run, std::move(reply));
}

void Profiler::expire(int64_t now) {
  std::vector<std::string> names;
  for (const auto& [name, run] : the_.runs.all()) names.push_back(name);
  for (const std::string& name : names) {
    ProfileRun& run = *the_.runs.find(name);
    bus::Verdict verdict;
    bool again = true;
    if (run.lost || the_.workers.find_up(run.worker) == nullptr ||
        (run.seen_ns != 0 && now - run.seen_ns > the_.config.worker_timeout_ns)) {
      verdict = verdict_of(VerdictKind::kLost, Cause::kWorker, "worker " + run.worker + " was lost or restarted");
    } else if (now - run.started_ns > the_.config.profile_timeout_ns) {
      verdict = verdict_of(
          VerdictKind::kFailed, Cause::kSlowTransition,
          "the profile did not end within " + std::to_string(the_.config.profile_timeout_ns / kNsPerSec) + " s");
      again = false;
    } else if (run.seen_ns == 0 && now - run.create_sent_ns > kOrderPatience) {
      if (now - run.started_ns < kCreateTries * kOrderPatience) {
        send(run);
        continue;
      }
      verdict = verdict_of(VerdictKind::kLost, Cause::kWorker, "worker " + run.worker + " did not take the profile");
    } else {
      continue;
    }
    the_.workers.plan_is_due(run.worker);
    failed(the_.runs.take_out(name), verdict, again);
  }
}

}  // namespace freeride::manager
