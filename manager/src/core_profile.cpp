// Profiles: taken before a task is placed or because a user asks, kept, and carried from one manager to another.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/bus/codec.hpp"
#include "profile_check.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kFollowPatience = 3 * kNsPerSec / 2;  // then a follower is answered though nothing has changed
constexpr int64_t kAbandonedAfter = 10 * kNsPerSec;
constexpr int64_t kEndedKept = 60 * kNsPerSec;
constexpr size_t kMaxEnded = 64, kMaxFollowers = 64;
constexpr size_t kMaxImport = 1024;
constexpr size_t kMaxListBytes = 12 << 20;  // of a message's 16 MiB

// Every part with its length, so that no two lists of parts give the same text.
std::string profile_key(const std::string& sha256, const std::map<std::string, std::string>& params,
                        const std::string& model) {
  std::string text;
  const auto add = [&](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  add(sha256);
  add(model);
  for (const auto& [key, value] : params) add(key), add(value);
  return sha256_hex(text);
}

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

bool fits(const bus::TakeProfile& wish, const Worker& worker, const policy::DeviceView& device) {
  if (!wish.worker.empty() && worker.name != wish.worker) return false;
  if (!wish.device.empty() && worker.device != wish.device) return false;
  const auto& load = wish.load;
  if (load.stage < 0 && load.replica < 0 && load.job.empty()) return true;
  return std::any_of(device.ranks.begin(), device.ranks.end(), [&](const policy::AttachedRank& rank) {
    return (load.stage < 0 || static_cast<int64_t>(rank.stage) == load.stage) &&
           (load.replica < 0 || static_cast<int64_t>(rank.replica) == load.replica) &&
           (load.job.empty() || rank.job == load.job);
  });
}

}  // namespace

const bus::Profile* Core::profile_for(const Task& task, const std::string& model) const {
  std::string& key = task.profile_keys[model];
  if (key.empty()) key = profile_key(task.state().sha256, task.row.info.load.params, model);
  const auto found = profiles_.find(key);
  return found == profiles_.end() ? nullptr : &found->second;
}

std::vector<policy::ProfileDevice> Core::profile_devices(const std::vector<policy::DeviceView>& devices) const {
  std::vector<policy::ProfileDevice> all;
  for (const auto& device : devices) {
    policy::ProfileDevice one;
    one.device = device;
    one.profiling = std::any_of(profile_runs_.begin(), profile_runs_.end(),
                                [&](const auto& run) { return run.second.worker == device.worker; });
    all.push_back(std::move(one));
  }
  return all;
}

// ---- for a task in the queue

bool Core::take_profile_for(Task& task, const std::string& preferred, const std::vector<policy::DeviceView>& devices) {
  const auto& load = task.row.info.load;
  for (const auto& [name, run] : profile_runs_) {
    const auto worker = workers_.find(run.worker);
    if (worker == workers_.end() || run.key != profile_key(task.state().sha256, load.params, worker->second.model))
      continue;
    if (!preferred.empty()) wait(task, "being profiled on " + run.worker);
    return false;
  }
  auto candidates = profile_devices(devices);
  if (!preferred.empty()) {
    const std::string& model = workers_.at(preferred).model;
    for (auto& one : candidates) one.right_model = workers_.at(one.device.worker).model == model;
  }
  const auto place = policy::place_profile(candidates, memory_cap(load), preferred);
  if (place.worker.empty()) {
    if (!preferred.empty()) wait(task, "waiting to be profiled: " + place.reason);
    return false;
  }
  ProfileRun& run = begin_profile(load, task.state().sha256, workers_.at(place.worker));
  run.wanted_steps = policy::kLeastProfileSteps;
  spdlog::info("task {}: being profiled on {}", task.name(), run.worker);
  if (!preferred.empty()) wait(task, "being profiled on " + run.worker);
  send_profile(run);
  return true;
}

ProfileRun& Core::begin_profile(const bus::Load& load, const std::string& sha256, const Worker& worker) {
  ProfileRun run;
  run.key = profile_key(sha256, load.params, worker.model);
  run.name = "profile-" + run.key.substr(0, 12) + "-" + std::to_string(started_ns_ % 1'000'000) + "-" +
             std::to_string(++profile_count_);
  run.worker = worker.name;
  run.plugin = load.plugin;
  run.sha256 = sha256;
  run.params = load.params;
  run.network = load.network;
  run.memory_bytes = memory_cap(load);
  run.started_ns = clock_.now_ns();
  return profile_runs_[run.name] = run;
}

void Core::send_profile(ProfileRun& run) {
  const Worker& worker = workers_.at(run.worker);
  bus::CreateTask order;
  order.task = run.name;
  order.purpose = "profile";
  order.plugin = run.plugin;
  order.sha256 = run.sha256;
  order.params = run.params;
  order.network = run.network;
  order.memory_limit_bytes = run.memory_bytes;
  order.steps = run.wanted_steps;
  run.create_sent_ns = clock_.now_ns();
  if (auto id = outside_.send(worker.peer, order)) {
    pending_[*id] = {Pending::Kind::kCreate, worker.peer, worker.name, 0, run.name, 0, run.create_sent_ns};
  }
}

void Core::profile_report(ProfileRun& run, const bus::TaskReport& report) {
  run.seen_ns = clock_.now_ns();
  if (report.state != "STOPPED") {
    run.state = "running";
    run.steps = std::max(run.steps, report.counters.steps);
    return tell_followers(run, false);
  }
  run.steps = std::max(run.steps, report.counters.steps);
  const ProfileRun done = std::move(run);
  profile_runs_.erase(done.name);
  const Worker* worker = worker_of(done.worker);
  if (Worker* there = worker_of(done.worker)) there->plan_due = true;
  const auto& kind = report.verdict.kind;
  if (kind != "finished" && kind != "stopped")
    return profile_failed(done, report.verdict, kind == "lost" || kind == "evicted");
  if (kind == "stopped" && report.init_ns <= 0) {  // nothing of it has been seen yet
    bus::Verdict verdict = report.verdict;
    verdict.kind = "lost";
    verdict.reason = "its worker stopped it before it was initialised";
    return profile_failed(done, verdict, true);
  }
  const bool on_gpu = worker != nullptr && worker->on_gpu();
  bus::Profile profile;
  const auto complete = [&](bus::Profile& made) {
    made.plugin = done.plugin;
    made.sha256 = done.sha256;
    made.params = done.params;
    made.device_model = worker != nullptr && is_plain(worker->model) ? worker->model : "unknown";
    made.worker = done.worker;
    made.taken_unix_ms = unix_ms_();
    made.wanted_steps = done.wanted_steps;
    made.ended = bounded(made.ended, kMaxReason);
  };
  if (!report.profile.empty()) profile = report.profile.front();
  complete(profile);
  if (const auto checked = check_profile(profile); report.profile.empty() || !checked) {
    if (!report.profile.empty())
      spdlog::warn("worker {}: its profile of {} makes no sense: {}", done.worker, done.plugin,
                   checked.error().message);
    profile = from_counters(report, on_gpu);
    complete(profile);
  }
  spdlog::info("profile of {} ({}): {} MiB, {:.3f} ms a step (p90 of {})", done.plugin, done.sha256.substr(0, 12),
               profile.peak_bytes[on_gpu ? "gpu" : "host"] >> 20, static_cast<double>(profile.steps.p90_ns) / kNsPerMs,
               profile.steps.count);
  keep_profile(done.key, profile);
  bus::ProfileReply reply = reply_of(done);
  reply.state = "done";
  reply.profiles = {std::move(profile)};
  end_run(done, std::move(reply));
  schedule_due_ = true;
}

void Core::keep_profile(const std::string& key, const bus::Profile& profile) {
  profiles_[key] = profile;
  if (auto saved = store_->save_profiles({{key, profile}}); !saved) disk_trouble(saved.error());
  while (profiles_.size() > kMaxProfiles) {
    const auto oldest = std::min_element(profiles_.begin(), profiles_.end(), [](const auto& a, const auto& b) {
      return a.second.taken_unix_ms < b.second.taken_unix_ms;
    });
    if (auto removed = store_->remove_profile(oldest->first); !removed) return disk_trouble(removed.error());
    profiles_.erase(oldest);
  }
}

bool Core::profile_wanted(const ProfileRun& run) const {
  return std::any_of(live_.begin(), live_.end(), [&](const auto& entry) {
    const Task& task = tasks_.at(entry.second);
    return task.phase == Task::Phase::kQueued && task.state().sha256 == run.sha256 &&
           task.row.info.load.params == run.params;
  });
}

void Core::profile_failed(const ProfileRun& run, bus::Verdict verdict, bool again) {
  bus::ProfileReply reply = reply_of(run);
  reply.state = "failed";
  reply.reason = bounded(verdict.reason, kMaxReason);
  reply.verdict = verdict;
  reply.verdict.reason = reply.reason;
  reply.verdict.log_tail = tail(verdict.log_tail, kMaxLog);
  end_run(run, std::move(reply));
  verdict.reason = "while being profiled on " + run.worker + ": " + verdict.reason;
  schedule_due_ = true;
  std::vector<int64_t> concerned;
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    if (task.phase != Task::Phase::kQueued || task.state().sha256 != run.sha256 ||
        task.row.info.load.params != run.params)
      continue;
    // A task with a larger allowance than the profile had may do better on its own.
    if (!again && memory_cap(task.row.info.load) > run.memory_bytes) continue;
    concerned.push_back(id);
  }
  for (const int64_t id : concerned) {
    Task& task = tasks_.at(id);
    if (!again || ++task.profile_failures > config_.max_restarts) {
      end_task(task, verdict);
      continue;
    }
    task.not_before_ns = clock_.now_ns() + 2 * kNsPerSec;
    wait(task, bounded(verdict.reason, kMaxReason));
  }
}

// ---- because a user asks

Result<std::vector<policy::ProfileDevice>> Core::profile_candidates(const bus::TakeProfile& wish) const {
  const auto views = device_views();
  if (!wish.worker.empty()) {
    const auto named = workers_.find(wish.worker);
    if (named == workers_.end()) {
      std::string known;
      for (const auto& view : views) known += (known.empty() ? "" : ", ") + view.worker;
      return Error{
          Code::kNotFound,
          "there is no worker " + in_quotes(wish.worker) + "; up: " + (known.empty() ? "none" : bounded(known, 512)),
          "see freeride-ctl workers"};
    }
    if (!named->second.up())
      return Error{Code::kUnavailable,
                   "worker " + wish.worker + " is " + (named->second.state == Worker::State::kDown ? "down" : "lost"),
                   "start freeride-worker there"};
  }
  if (views.empty()) {
    return Error{Code::kUnavailable, "no worker is up to profile on", "start one: freeride-worker --device cpu-0"};
  }
  auto candidates = profile_devices(views);
  std::erase_if(candidates, [&](const auto& one) { return !fits(wish, workers_.at(one.device.worker), one.device); });
  if (!candidates.empty()) return candidates;
  std::string what;
  if (!wish.device.empty()) what += " device " + in_quotes(wish.device);
  if (wish.load.stage >= 0) what += " stage " + std::to_string(wish.load.stage);
  if (wish.load.replica >= 0) what += " replica " + std::to_string(wish.load.replica);
  if (!wish.load.job.empty()) what += " job " + in_quotes(wish.load.job);
  return Error{Code::kNotFound, "no worker that is up has" + what, "see freeride-ctl workers"};
}

void Core::take_profile(Ticket ticket, const bus::TakeProfile& wish, const std::string& attachment) {
  const auto refuse = [&](const Error& error) { outside_.answer(ticket, error, {}); };
  bus::Load load = wish.load;
  load.name.clear();
  if (auto checked = check_load(load); !checked) return refuse(checked.error());
  // A stage that the job does not have is told from one whose trainer is not there yet; any job will do.
  if (load.stage >= 0 || load.replica >= 0 || !load.job.empty()) {
    if (auto checked = check_job(load); !checked) return refuse(checked.error());
  }
  const auto candidates = profile_candidates(wish);
  if (!candidates) return refuse(candidates.error());
  auto sha256 = resolve_plugin(load, attachment);
  if (!sha256) return refuse(sha256.error());
  const auto key_on = [&](const std::string& worker) {
    return profile_key(*sha256, load.params, workers_.at(worker).model);
  };
  for (const auto& one : *candidates) {
    const auto known = profiles_.find(key_on(one.device.worker));
    if (wish.again || known == profiles_.end() || known->second.sha256.empty()) continue;
    // Too few steps for this wish, or none at all.
    const auto& steps = known->second.steps;
    if (steps.count == 0 || load.steps > std::max(steps.count, known->second.wanted_steps)) continue;
    release_content(*sha256);
    bus::ProfileReply reply;
    reply.state = "done";
    reply.worker = known->second.worker;
    reply.steps = known->second.steps.count;
    reply.profiles = {known->second};
    return outside_.answer(ticket, Reply(std::move(reply)), {});
  }
  for (auto& [name, run] : profile_runs_) {
    const bool here = std::any_of(candidates->begin(), candidates->end(), [&, &taken = run](const auto& one) {
      return one.device.worker == taken.worker && taken.key == key_on(taken.worker);
    });
    if (here) return outside_.answer(ticket, Reply(reply_of(run)), {});
  }
  const auto place = policy::place_profile(*candidates, memory_cap(load), {});
  if (place.worker.empty()) {
    release_content(*sha256);
    return refuse(Error{Code::kExhausted, "cannot profile " + load.plugin + " now: " + place.reason,
                        "try again later, name another --worker, or declare less --memory"});
  }
  ProfileRun& run = begin_profile(load, *sha256, workers_.at(place.worker));
  run.asked = true;
  run.followed_ns = clock_.now_ns();
  run.wanted_steps = load.steps;
  spdlog::info("profile of {} ({}) on {}", load.plugin, sha256->substr(0, 12), run.worker);
  send_profile(run);
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kNsPerSec);
  outside_.answer(ticket, Reply(reply_of(run)), {});
}

bus::ProfileReply Core::reply_of(const ProfileRun& run) const {
  bus::ProfileReply reply;
  reply.run = run.name;
  reply.state = run.state;
  reply.worker = run.worker;
  reply.steps = run.steps;
  const auto worker = workers_.find(run.worker);
  const bool trained = worker != workers_.end() && !worker->second.ranks.empty();
  if (run.state == "starting") {
    reply.reason = "being started";
  } else if (run.steps == 0) {
    reply.reason = trained ? "being initialised, then waiting for bubbles" : "being initialised";
  }
  return reply;
}

void Core::follow_profile(Ticket ticket, const bus::FollowProfile& follow) {
  if (const auto ended = ended_runs_.find(follow.run); ended != ended_runs_.end())
    return outside_.answer(ticket, Reply(ended->second.reply), {});
  const auto found = profile_runs_.find(follow.run);
  if (found == profile_runs_.end()) {
    return outside_.answer(
        ticket,
        Error{Code::kNotFound,
              "there is no profile run " + in_quotes(follow.run) + "; the manager may have been restarted",
              "profile again"},
        {});
  }
  ProfileRun& run = found->second;
  run.followed_ns = clock_.now_ns();
  if (run.state != follow.state || run.steps != follow.steps || run.followers.size() >= kMaxFollowers)
    return outside_.answer(ticket, Reply(reply_of(run)), {});
  run.followers.push_back({ticket, follow.state, follow.steps, clock_.now_ns()});
}

void Core::tell_followers(ProfileRun& run, bool all) {
  std::vector<Follower> waiting;
  for (Follower& follower : run.followers) {
    const bool news = follower.state != run.state || follower.steps != run.steps;
    if (!all && !news && clock_.now_ns() - follower.since_ns < kFollowPatience) {
      waiting.push_back(std::move(follower));
      continue;
    }
    run.followed_ns = clock_.now_ns();  // it is about to ask again
    outside_.answer(follower.ticket, Reply(reply_of(run)), {});
  }
  run.followers = std::move(waiting);
}

void Core::end_run(const ProfileRun& run, bus::ProfileReply reply) {
  for (const Follower& follower : run.followers) outside_.answer(follower.ticket, Reply(reply), {});
  release_content(run.sha256);
  if (!run.asked && run.followers.empty()) return;
  ended_runs_[run.name] = {std::move(reply), clock_.now_ns()};
  while (ended_runs_.size() > kMaxEnded) {
    ended_runs_.erase(std::min_element(ended_runs_.begin(), ended_runs_.end(), [](const auto& a, const auto& b) {
      return a.second.ended_ns < b.second.ended_ns;
    }));
  }
}

void Core::give_up_profile(const std::string& name, const std::string& why) {
  const auto found = profile_runs_.find(name);
  const ProfileRun run = std::move(found->second);
  profile_runs_.erase(found);
  spdlog::info("profile of {} on {}: {}", run.plugin, run.worker, why);
  if (Worker* worker = worker_of(run.worker)) worker->plan_due = true;  // it is not in the plan: the worker stops it
  bus::ProfileReply reply = reply_of(run);
  reply.state = "failed";
  reply.reason = reply.verdict.reason = why;
  reply.verdict.kind = "stopped";
  end_run(run, std::move(reply));
  send_plans(clock_.now_ns());
}

void Core::stop_profile(Ticket ticket, const std::string& name) {
  if (const auto ended = ended_runs_.find(name); ended != ended_runs_.end())
    return outside_.answer(ticket, Reply(ended->second.reply), {});
  const auto found = profile_runs_.find(name);
  if (found == profile_runs_.end()) {
    return outside_.answer(ticket, Error{Code::kNotFound, "there is no profile run " + in_quotes(name), {}}, {});
  }
  if (profile_wanted(found->second) || !found->second.asked) {
    found->second.asked = false;
    return outside_.answer(ticket, Reply(reply_of(found->second)), {});
  }
  give_up_profile(name, "stopped by the user");
  outside_.answer(ticket, Reply(ended_runs_.at(name).reply), {});
}

void Core::look_at_followers(int64_t now) {
  std::vector<std::string> abandoned;
  for (auto& [name, run] : profile_runs_) {
    tell_followers(run, false);
    if (!run.asked || !run.followers.empty() || now - run.followed_ns < kAbandonedAfter) continue;
    if (profile_wanted(run)) {
      run.asked = false;
    } else {
      abandoned.push_back(name);
    }
  }
  for (const std::string& name : abandoned) give_up_profile(name, "whoever asked for it is gone");
  std::erase_if(ended_runs_, [now](const auto& ended) { return now - ended.second.ended_ns > kEndedKept; });
}

// ---- the profiles that are kept

void Core::list_profiles(Ticket ticket, const bus::ListProfiles& wish) {
  std::vector<const bus::Profile*> found;
  for (const auto& [key, profile] : profiles_) {
    if (profile.sha256.empty() || (!wish.plugin.empty() && profile.plugin != wish.plugin)) continue;
    found.push_back(&profile);
  }
  std::sort(found.begin(), found.end(),
            [](const auto* a, const auto* b) { return a->taken_unix_ms > b->taken_unix_ms; });
  bus::ProfilesReply reply;
  size_t bytes = 0;
  for (const bus::Profile* profile : found) {
    bus::Profile one = *profile;
    if (!wish.whole) {
      one.step_ns.clear();
      one.memory_t_ns.clear();
      one.host_bytes.clear();
      one.gpu_bytes.clear();
    }
    bytes += bus::encode(one).size();
    if (bytes > kMaxListBytes) {
      ++reply.left_out;
    } else {
      reply.profiles.push_back(std::move(one));
    }
  }
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::import_profiles(Ticket ticket, const bus::ImportProfiles& wish) {
  const auto refuse = [&](std::string message) {
    outside_.answer(ticket, Error{Code::kInvalidArgument, std::move(message), "nothing was imported"}, {});
  };
  if (wish.profiles.size() > kMaxImport) return refuse("more than 1024 profiles");
  bus::ImportReply reply;
  std::map<std::string, bus::Profile> taken;
  for (size_t i = 0; i < wish.profiles.size(); ++i) {
    const bus::Profile& profile = wish.profiles[i];
    if (auto checked = check_profile(profile); !checked) {
      return refuse("profile " + std::to_string(i + 1) + " of " + std::to_string(wish.profiles.size()) + " (" +
                    in_quotes(profile.plugin) + ") makes no sense: " + checked.error().message);
    }
    const std::string key = profile_key(profile.sha256, profile.params, profile.device_model);
    const auto there = taken.count(key) != 0 ? taken.find(key) : taken.end();
    const auto known = profiles_.find(key);
    const bus::Profile* before = there != taken.end()       ? &there->second
                                 : known != profiles_.end() ? &known->second
                                                            : nullptr;
    if (before != nullptr && before->taken_unix_ms >= profile.taken_unix_ms && !before->sha256.empty()) {
      ++reply.older;
      continue;
    }
    ++(before == nullptr ? reply.added : reply.replaced);
    taken[key] = profile;
  }
  if (profiles_.size() + reply.added > kMaxProfiles)
    return outside_.answer(
        ticket, Error{Code::kExhausted, "there would be more than 1024 profiles", "nothing was imported"}, {});
  if (auto saved = store_->save_profiles(taken); !saved) {
    disk_trouble(saved.error());
    return outside_.answer(ticket, saved.error(), {});
  }
  for (auto& [key, profile] : taken) profiles_[key] = std::move(profile);
  schedule_due_ = true;
  schedule();
  outside_.answer(ticket, Reply(reply), {});
}

}  // namespace freeride::manager
