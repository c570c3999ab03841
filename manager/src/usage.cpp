#include "usage.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace freeride::manager {
namespace {

constexpr int64_t kSavePause = 60 * kNsPerSec;
constexpr int64_t kMsPerHour = 3600 * 1000;
constexpr int64_t kMostIterationNs = 24 * 3600 * kNsPerSec;  // a worker that says more is not believed
constexpr size_t kMostUnsaved = 100'000;                     // with a disk that takes nothing: the rest is lost

int64_t grown(int64_t before, int64_t after) {
  return std::max<int64_t>(0, std::max<int64_t>(after, 0) - std::max<int64_t>(before, 0));
}

uint64_t grown(uint64_t before, uint64_t after) {
  return after - std::min(before, after);
}

}  // namespace

void Usage::add(const bus::TaskInfo& task, const std::string& job, const bus::TaskCounters& before,
                const bus::TaskCounters& after, int64_t unix_ms) {
  TaskUsage more;
  more.step_ns = grown(before.step_ns, after.step_ns);
  more.harvested_ns = std::min(grown(before.harvested_ns, after.harvested_ns), more.step_ns);
  more.overrun_ns = grown(before.overrun_ns, after.overrun_ns);
  more.steps = grown(before.steps, after.steps);
  if (more.step_ns == 0 && more.steps == 0) return;
  const TaskUsageKey key{unix_ms / kMsPerHour, task.state.task, task.load.user, job};
  if (tasks_.size() >= kMostUnsaved && tasks_.count(key) == 0) return;
  tasks_[key] += more;
}

void Usage::add(const bus::WorkerReport& report, int64_t unix_ms) {
  for (const auto& iteration : report.iterations) {
    const std::pair key{unix_ms / kMsPerHour, iteration.job};
    if (iteration.job.empty() || (trainings_.size() >= kMostUnsaved && trainings_.count(key) == 0)) continue;
    Exposed& sum = trainings_[key];
    const int64_t gpu_ns = std::clamp<int64_t>(grown(iteration.begin_ns, iteration.end_ns), 0, kMostIterationNs);
    sum.gpu_ns += gpu_ns;
    sum.bubble_ns += std::clamp<int64_t>(iteration.bubble_ns, 0, gpu_ns);
    if (!iteration.holdout) sum.not_held_out_ns += gpu_ns;
    sum.harvested = sum.harvested || iteration.harvested;
  }
}

// The live I is (with side tasks ÷ without) − 1, so of each second with side tasks I ÷ (1 + I) is what they cost.
TrainingUsageRow Usage::row_of(const std::string& job, int64_t hour, const Exposed& exposed) const {
  TrainingUsageRow row;
  row.hour = hour;
  row.job = job;
  row.gpu_ns = exposed.gpu_ns;
  row.bubble_ns = exposed.bubble_ns;
  if (!exposed.harvested) return row;
  const auto measured = measures_(job);
  const auto part = [&](double increase_pct) {
    const double increase = std::clamp(increase_pct, -50.0, 1000.0) / 100;
    return std::llround(static_cast<double>(exposed.not_held_out_ns) * increase / (1 + increase));
  };
  if (measured.empty() || !measured.front().measured) {
    row.unmeasured_ns = exposed.not_held_out_ns;
    return row;
  }
  row.cost_ns = part(measured.front().time_increase_pct);
  row.cost_low_ns = part(measured.front().time_increase_ci95_low_pct);
  row.cost_high_ns = part(measured.front().time_increase_ci95_high_pct);
  return row;
}

void Usage::save() {
  if (const int64_t now = clock_.now_ns(); saved_ns_ == 0 || now - saved_ns_ >= kSavePause) {
    saved_ns_ = now;
    flush();
  }
}

void Usage::flush() {
  if (tasks_.empty() && trainings_.empty()) return;
  std::vector<TrainingUsageRow> trainings;
  for (const auto& [key, exposed] : trainings_) trainings.push_back(row_of(key.second, key.first, exposed));
  if (auto saved = store_.add_usage(tasks_, trainings); !saved) return trouble_.say(saved.error());
  tasks_.clear();
  trainings_.clear();
}

Result<bus::UsageReply> Usage::report(const bus::GetUsage& wish) {
  if (wish.by != "user" && wish.by != "job" && wish.by != "task") {
    return Error{Code::kInvalidArgument, "usage is added up by user, job or task", {}};
  }
  flush();
  return store_.usage(wish.by, std::max<int64_t>(0, wish.since_unix_ms) / kMsPerHour);
}

}  // namespace freeride::manager
