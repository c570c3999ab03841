#include "core.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>

#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kTick = kNsPerSec;
constexpr int64_t kAnnounceAfter = 300 * kNsPerMs;  // our publisher has found the broker by then
constexpr int64_t kIdleTick = 10 * kNsPerSec;
constexpr int64_t kOrderPatience = 2 * kNsPerSec;  // then an order is sent again
constexpr int64_t kLogPatience = 2 * kNsPerSec;
constexpr int64_t kJobSavePause = 10 * kNsPerSec;
constexpr int64_t kSaveRetry = 5 * kNsPerSec;
constexpr int64_t kForgetWorker = 600 * kNsPerSec;
constexpr uint32_t kCreateTries = 4;
constexpr int64_t kRestoredContentPatience = 60 * kNsPerSec;

}  // namespace

Core::Core(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside, const Clock& clock,
           std::function<int64_t()> unix_ms)
    : config_(config),
      store_(std::move(store)),
      content_(config.paths.store_dir()),
      outside_(outside),
      clock_(clock),
      unix_ms_(std::move(unix_ms)),
      started_ns_(clock.now_ns()),
      last_tick_ns_(started_ns_),
      next_tick_ns_(started_ns_) {
  std::random_device random;
  seed_ = (uint64_t{random()} << 32) | random();
}

Result<std::unique_ptr<Core>> Core::start(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside,
                                          const Clock& clock, std::function<int64_t()> unix_ms) {
  std::unique_ptr<Core> core(new Core(config, std::move(store), outside, clock, std::move(unix_ms)));
  if (auto restored = core->restore(); !restored) return restored.error();
  return core;
}

Status Core::restore() {
  auto tasks = store_->tasks();
  if (!tasks) return tasks.error();
  auto profiles = store_->profiles();
  if (!profiles) return profiles.error();
  auto jobs = store_->jobs();
  if (!jobs) return jobs.error();
  profiles_ = std::move(*profiles);
  for (auto& row : *jobs) {
    const std::string name = row.plan.job;
    jobs_.emplace(name, Job(std::move(row), config_.job));
  }
  // Whatever lies in the store and nobody turns out to need, once the workers have had the time to come back.
  for (const std::string& sha256 : content_.list()) released_[sha256] = started_ns_ + kRestoredContentPatience;
  for (auto& row : *tasks) {
    next_id_ = std::max(next_id_, row.id + 1);
    Task task;
    task.row = std::move(row);
    if (task.state().state == "STOPPED") {
      task.phase = Task::Phase::kEnded;
    } else {
      live_[task.name()] = task.row.id;
      if (!task.state().worker.empty()) {
        // It may run on: the worker outlives us, and will say so when it registers.
        task.phase = Task::Phase::kPlaced;
        task.reported_ns = started_ns_;
        task.state().reason = "the manager was restarted; waiting for worker " + task.state().worker + " to report";
      }
    }
    tasks_.emplace(task.row.id, std::move(task));
  }
  return {};
}

Job& Core::job(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return found->second;
  return jobs_.emplace(name, Job(name, seed_, config_.job)).first->second;
}

void Core::tick() {
  const int64_t now = clock_.now_ns();
  // If we ourselves were held up (stopped, swapped, suspended), nobody's silence meanwhile means anything.
  if (const int64_t gap = now - last_tick_ns_; gap > config_.worker_timeout_ns / 2) {
    for (auto& [name, worker] : workers_) worker.heard_ns = std::max(worker.heard_ns, now - kTick);
    for (auto& [id, task] : tasks_) task.reported_ns = std::max(task.reported_ns, now - kTick);
    for (auto& [name, run] : profile_runs_) {
      if (run.seen_ns != 0) run.seen_ns = std::max(run.seen_ns, now - kTick);
    }
  }
  last_tick_ns_ = now;
  announce();
  expire_pending(now);
  expire_workers(now);
  expire_tasks(now);
  expire_profiles(now);
  look_at_followers(now);
  forget_old(now);
  drop_contents(now);
  replan_jobs(now);
  schedule_due_ = true;  // free memory moves without an event
  schedule();
  send_plans(now);
  for (auto& [name, job] : jobs_) {
    if (job.take_changed()) outside_.publish(job.measures());
  }
  save_unsaved(now);
  save_jobs(now);
  const bool anyone = std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.up(); });
  if (!announced_) {
    next_tick_ns_ = started_ns_ + kAnnounceAfter;
    return;
  }
  next_tick_ns_ = now + (anyone || !pending_.empty() || !live_.empty() || !profile_runs_.empty() ? kTick : kIdleTick);
}

// A broker that has just been started knows nothing: what it keeps for late joiners comes from here.
void Core::announce() {
  if (announced_ || clock_.now_ns() - started_ns_ < kAnnounceAfter) return;
  announced_ = true;
  for (const auto& [id, task] : tasks_) outside_.publish(task.state());
  for (const auto& [name, job] : jobs_) outside_.publish(job.measures());
}

void Core::expire_pending(int64_t now) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const Pending& pending = it->second;
    const int64_t patience = pending.kind == Pending::Kind::kLog ? kLogPatience : kOrderPatience;
    if (now - pending.sent_ns < patience) {
      ++it;
      continue;
    }
    if (pending.kind == Pending::Kind::kLog) {
      const auto task = tasks_.find(pending.task);
      if (task != tasks_.end()) {
        answer_task(pending.ticket, task->second, "(worker " + pending.worker + " did not answer)\n");
      } else {
        outside_.answer(pending.ticket, Error{Code::kNotFound, "the task is gone", {}}, {});
      }
    } else if (Worker* worker = worker_of(pending.worker);
               worker != nullptr && pending.kind != Pending::Kind::kCreate && pending.kind != Pending::Kind::kReplace) {
      // The plan holds the order as well; a plan is sent until one is taken.
      if (pending.kind == Pending::Kind::kOrder || worker->plan_id == it->first) worker->plan_due = true;
      if (worker->plan_id == it->first) worker->plan_id.clear();
    }
    it = pending_.erase(it);
  }
}

void Core::expire_workers(int64_t now) {
  for (auto& [name, worker] : workers_) {
    if (!worker.up() || now - worker.heard_ns < config_.worker_timeout_ns) continue;
    worker_gone(worker, Worker::State::kLost, "worker " + name + " was lost", true);
  }
}

void Core::expire_tasks(int64_t now) {
  for (auto& [id, task] : tasks_) {
    if (!task.on_worker()) continue;
    Worker* worker = worker_of(task.state().worker);
    if (worker == nullptr || !worker->up()) {
      // Only after a restart of ours: workers get three times the usual patience to find us again.
      if (now - std::max(task.reported_ns, started_ns_) > 3 * config_.worker_timeout_ns) {
        requeue(task, "worker " + task.state().worker + " did not come back", true);
      }
      continue;
    }
    if (task.phase == Task::Phase::kPlaced && now - task.reported_ns > config_.worker_timeout_ns) {
      requeue(task, "worker " + worker->name + " has it no more", true);
      continue;
    }
    if (task.phase != Task::Phase::kCreating || now - task.create_sent_ns < kOrderPatience) continue;
    if (task.create_tries >= kCreateTries) {
      task.not_before_ns = now + 5 * kNsPerSec;
      requeue(task, "worker " + worker->name + " did not take it", false);
      continue;
    }
    create(task, *worker, task.row.reserved_bytes);
  }
}

void Core::expire_profiles(int64_t now) {
  for (auto it = profile_runs_.begin(); it != profile_runs_.end();) {
    ProfileRun& run = it->second;
    Worker* worker = worker_of(run.worker);
    bus::Verdict verdict;
    bool again = true;
    if (run.lost || worker == nullptr || !worker->up() ||
        (run.seen_ns != 0 && now - run.seen_ns > config_.worker_timeout_ns)) {
      verdict.kind = "lost";
      verdict.reason = "worker " + run.worker + " was lost or restarted";
    } else if (now - run.started_ns > config_.profile_timeout_ns) {
      verdict.kind = "failed";
      verdict.reason =
          "the profile did not end within " + std::to_string(config_.profile_timeout_ns / kNsPerSec) + " s";
      again = false;
    } else if (run.seen_ns == 0 && now - run.create_sent_ns > kOrderPatience) {
      if (now - run.started_ns < kCreateTries * kOrderPatience) {
        send_profile(run);
        ++it;
        continue;
      }
      verdict.kind = "lost";
      verdict.reason = "worker " + run.worker + " did not take the profile";
    } else {
      ++it;
      continue;
    }
    if (worker != nullptr) worker->plan_due = true;
    const ProfileRun failed = std::move(run);
    it = profile_runs_.erase(it);
    profile_failed(failed, verdict, again);
  }
}

void Core::forget_old(int64_t now) {
  for (const int64_t id : forgotten_) tasks_.erase(id);
  forgotten_.clear();
  for (auto it = workers_.begin(); it != workers_.end();) {
    const bool old = !it->second.up() && now - it->second.heard_ns > kForgetWorker;
    it = old ? workers_.erase(it) : std::next(it);
  }
  while (jobs_.size() > kMaxJobs) {
    const auto oldest = std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
      return a.second.last_seen_ns() < b.second.last_seen_ns();
    });
    if (auto removed = store_->remove_job(oldest->first); !removed) disk_trouble(removed.error());
    jobs_.erase(oldest);
  }
}

void Core::replan_jobs(int64_t now) {
  for (auto& [name, job] : jobs_) {
    if (!job.has_rank_since(now - config_.worker_timeout_ns)) continue;
    job.see_side_tasks(side_tasks_of(name));
    if (!job.replan(now)) continue;
    const auto& plan = job.plan();
    spdlog::info("job {}: {} % of blocks of {} iterations held out, {:.0f} % of the others on duty, from iteration {}",
                 name, plan.share_pct, plan.block_iterations, plan.duty_pct, plan.from_iteration);
    for (auto& [worker_name, worker] : workers_) {
      if (std::any_of(worker.ranks.begin(), worker.ranks.end(),
                      [&](const auto& rank) { return rank.job == plan.job; })) {
        worker.plan_due = true;
      }
    }
  }
}

void Core::send_plans(int64_t now) {
  for (auto& [name, worker] : workers_) {
    if (!worker.up() || !worker.plan_due || !worker.plan_id.empty()) continue;
    auto id = outside_.send(worker.peer, plan_of(worker));
    if (!id) continue;
    worker.plan_due = false;
    worker.plan_id = *id;
    pending_[*id] = {Pending::Kind::kPlan, worker.peer, name, 0, {}, 0, now};
  }
}

void Core::save_unsaved(int64_t now) {
  if (now - retry_saved_ns_ < kSaveRetry) return;
  retry_saved_ns_ = now;
  for (auto& [id, task] : tasks_) {
    if (!task.unsaved) continue;
    save(task);
    if (task.unsaved) return;  // the disk still refuses
  }
}

void Core::save_jobs(int64_t now) {
  if (now - jobs_saved_ns_ < kJobSavePause) return;
  jobs_saved_ns_ = now;
  for (auto& [name, job] : jobs_) {
    if (!job.has_rank_since(now - 2 * kJobSavePause)) continue;
    bool forget = false;
    JobRow row = job.take_row(forget);
    if (auto saved = store_->save_job(row, forget); !saved) {
      job.put_back(std::move(row), forget);
      disk_trouble(saved.error());
      return;
    }
  }
}

void Core::flush() {
  retry_saved_ns_ = jobs_saved_ns_ = 0;
  for (auto& [id, task] : tasks_) task.unsaved = task.unsaved || task.on_worker();  // for their counters
  const int64_t now = std::max(clock_.now_ns(), kSaveRetry + kJobSavePause);
  save_unsaved(now);
  save_jobs(now);
}

// Said once a minute, however often it happens.
void Core::disk_trouble(const Error& error) {
  const int64_t now = clock_.now_ns();
  if (disk_trouble_ns_ != 0 && now - disk_trouble_ns_ < 60 * kNsPerSec) return;
  disk_trouble_ns_ = now;
  spdlog::error("{}; going on from memory, trying again", error.text());
}

}  // namespace freeride::manager
