#include "jobs.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>

#include "freeride/base/about.hpp"
#include "freeride/base/names.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kSavePause = 10 * kNsPerSec;
constexpr int64_t kStillThere = 5 * kNsPerSec;  // reports come once a second

}  // namespace

Jobs::Jobs(StateStore& store, Outside& outside, const Clock& clock, DiskTrouble& trouble, const JobConfig& config)
    : store_(store), outside_(outside), clock_(clock), trouble_(trouble), config_(config) {
  std::random_device random;
  seed_ = (uint64_t{random()} << 32) | random();
}

Status Jobs::restore() {
  auto rows = store_.jobs();
  if (!rows) return rows.error();
  for (auto& row : *rows) {
    const std::string name = row.plan.job;
    jobs_.emplace(name, Job(std::move(row), config_));
  }
  return {};
}

bool Jobs::see_rank(const bus::TrainingState& rank) {
  auto found = jobs_.find(rank.job);
  if (found == jobs_.end()) {
    if (jobs_.size() >= 2 * kMax || !make_room(rank.job)) return false;
    found = jobs_.emplace(rank.job, Job(rank.job, seed_, config_)).first;
  }
  found->second.see_rank(rank, clock_.now_ns());
  return true;
}

void Jobs::take_measures(const bus::WorkerReport& report) {
  // A rank's last iterations may be reported after it has gone: any job that is known will do.
  for (const auto& iteration : report.iterations) {
    const auto job = jobs_.find(iteration.job);
    if (job != jobs_.end()) job->second.add_iteration(iteration, clock_.now_ns());
  }
  for (const auto& totals : report.bubbles) {
    const auto job = jobs_.find(totals.job);
    if (job != jobs_.end()) job->second.add_bubbles(totals);
  }
}

std::vector<bus::HoldoutPlan> Jobs::wire_plans(const std::string& name) const {
  const auto job = jobs_.find(name);
  return job == jobs_.end() ? std::vector<bus::HoldoutPlan>{} : job->second.wire_plans();
}

std::vector<bus::JobMeasures> Jobs::measures(const std::string& name) const {
  std::vector<bus::JobMeasures> all;
  for (const auto& [known, job] : jobs_) {
    if (name.empty() || known == name) all.push_back(job.measures());
  }
  return all;
}

std::vector<std::string> Jobs::names() const {
  std::vector<std::string> names;
  for (const auto& [name, job] : jobs_) names.push_back(name);
  return names;
}

double Jobs::duty_pct(const std::string& name) const {
  const auto job = jobs_.find(name);
  return job == jobs_.end() ? 100 : job->second.plan().duty_pct;
}

std::vector<std::string> Jobs::replan(int64_t now, int64_t since_ns,
                                      const std::function<uint64_t(const std::string&)>& side_tasks) {
  std::vector<std::string> changed;
  for (auto& [name, job] : jobs_) {
    if (!job.has_rank_since(since_ns)) continue;
    job.see_side_tasks(side_tasks(name));
    if (!job.replan(now)) continue;
    const auto& plan = job.plan();
    spdlog::info("{}: {} % of blocks of {} iterations are baseline, {:.0f} % of the others on duty, from iteration {}",
                 about_job(name), plan.share_pct, plan.block_iterations, plan.duty_pct, plan.from_iteration);
    publish_plan(job);
    changed.push_back(plan.job);
  }
  return changed;
}

void Jobs::publish_changed() {
  for (auto& [name, job] : jobs_) {
    if (job.take_changed()) outside_.publish(job.measures());
  }
}

void Jobs::publish_all() {
  for (const auto& [name, job] : jobs_) {
    outside_.publish(job.measures());
    publish_plan(job);
  }
}

void Jobs::publish_plan(const Job& job) {
  const auto& plan = job.plan();
  outside_.publish(
      bus::TrainingPlan{plan.job, plan.block_iterations, plan.from_iteration, plan.share_pct, plan.duty_pct});
}

void Jobs::save(int64_t now) {
  if (now - saved_ns_ < kSavePause) return;
  saved_ns_ = now;
  for (auto& [name, job] : jobs_) {
    if (!job.has_rank_since(now - 2 * kSavePause)) continue;
    bool forget = false;
    JobRow row = job.take_row(forget);
    if (auto saved = store_.save_job(row, forget); !saved) {
      job.put_back(std::move(row), forget);
      return trouble_.say(saved.error());
    }
  }
}

void Jobs::flush() {
  saved_ns_ = 0;
  save(std::max(clock_.now_ns(), kSavePause));
}

void Jobs::forget_old() {
  while (jobs_.size() > kMax) {
    const auto oldest = std::min_element(jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
      return a.second.last_seen_ns() < b.second.last_seen_ns();
    });
    forget(oldest);
  }
}

// A user's oldest job makes room for that user's next one, unless it is still there.
bool Jobs::make_room(const std::string& name) {
  const std::string owner = name.substr(0, owner_size(name));
  if (owner.empty()) return true;
  size_t owned = 0;
  auto oldest = jobs_.end();
  for (auto job = jobs_.lower_bound(owner); job != jobs_.end() && job->first.rfind(owner, 0) == 0; ++job) {
    ++owned;
    if (oldest == jobs_.end() || job->second.last_seen_ns() < oldest->second.last_seen_ns()) oldest = job;
  }
  if (owned < kMostOfOne) return true;
  if (oldest->second.has_rank_since(clock_.now_ns() - kStillThere)) return false;
  forget(oldest);
  return true;
}

void Jobs::forget(ByName::const_iterator job) {
  if (auto removed = store_.remove_job(job->first); !removed) trouble_.say(removed.error());
  jobs_.erase(job);
}

}  // namespace freeride::manager
