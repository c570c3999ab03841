#include "usage.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "accounts.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kSavePause = 60 * kNsPerSec;
constexpr int64_t kSaveSlice = 20 * kNsPerMs;
constexpr int64_t kAskedSavePause = kNsPerSec;  // workers report once a second
constexpr int64_t kMsPerHour = 3600 * 1000;
constexpr int64_t kHoursInDetail = 72, kHoursKept = 24LL * 397;
constexpr int64_t kMostIterationNs = 24 * 3600 * kNsPerSec;  // a worker that says more is not believed
constexpr int64_t kNsPerHour = 3600 * kNsPerSec;
constexpr int64_t kHalfLivesKept = 20;    // a millionth is left then
constexpr double kTurnS = 60;             // that a placement counts for, beside what it harvests
constexpr size_t kMostUnsaved = 100'000;  // with a disk that takes nothing: the rest is lost

int64_t grown(int64_t before, int64_t after) {
  return std::max<int64_t>(0, std::max<int64_t>(after, 0) - std::max<int64_t>(before, 0));
}

uint64_t grown(uint64_t before, uint64_t after) {
  return after - std::min(before, after);
}

// Never more than the steps took. Of all so far, not of what is new: one report may have a step's time, the next what
// of it was in the bubble.
int64_t harvested(const bus::TaskCounters& so_far) {
  return std::min(so_far.harvested_ns, so_far.step_ns);
}

}  // namespace

void Usage::add(const bus::TaskInfo& task, const std::string& job, const bus::TaskCounters& before,
                const bus::TaskCounters& after, int64_t unix_ms) {
  TaskUsage more;
  more.step_ns = grown(before.step_ns, after.step_ns);
  more.harvested_ns = grown(harvested(before), harvested(after));
  more.overrun_ns = grown(before.overrun_ns, after.overrun_ns);
  more.steps = grown(before.steps, after.steps);
  if (more.step_ns == 0 && more.steps == 0 && more.harvested_ns == 0 && more.overrun_ns == 0) return;
  if (half_life_ns_ > 0)
    lately_.add(account_of(task.load), static_cast<double>(more.harvested_ns) / kNsPerSec, clock_.now_ns());
  unix_ms_ = unix_ms;
  const TaskUsageKey key{unix_ms / kMsPerHour, task.state.task, task.load.user, job, account_of(task.load)};
  if (tasks_.size() >= kMostUnsaved && tasks_.count(key) == 0) return;
  tasks_[key] += more;
}

void Usage::placed(const bus::Load& load) {
  if (half_life_ns_ > 0) lately_.add(account_of(load), kTurnS, clock_.now_ns());
}

policy::AccountTurns Usage::turns() const {
  if (half_life_ns_ <= 0) return {};
  return {lately_.at(clock_.now_ns()), kTurnS};
}

Status Usage::restore(int64_t unix_ms) {
  unix_ms_ = unix_ms;
  if (half_life_ns_ <= 0) return {};
  const int64_t now_hour = unix_ms / kMsPerHour;
  const int64_t hours = std::min(kHalfLivesKept * (half_life_ns_ / kNsPerHour + 1), now_hour);
  const auto rows = store_.account_usage(now_hour - hours);
  if (!rows) return rows.error();
  for (const auto& row : *rows) {
    lately_.add(row.account, static_cast<double>(row.harvested_ns) / kNsPerSec, clock_.now_ns(),
                std::max<int64_t>(0, now_hour - row.hour) * kNsPerHour);
  }
  return {};
}

void Usage::add(const bus::WorkerReport& report, int64_t unix_ms) {
  unix_ms_ = unix_ms;
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
  const int64_t begin_ns = clock_.now_ns();
  if (!saved_to_) {
    if (saved_ns_ != 0 && begin_ns - saved_ns_ < kSavePause) return;
    saved_ns_ = begin_ns;
    saved_to_.emplace();
    thin();
  }
  save_slice();
}

void Usage::save_slice() {
  const int64_t begin_ns = clock_.now_ns();
  if (!save_part(rows_at_once_)) return;
  const int64_t took_ns = std::max<int64_t>(1, clock_.now_ns() - begin_ns);
  const auto fit = static_cast<size_t>(kSaveSlice * static_cast<int64_t>(rows_at_once_) / took_ns);
  rows_at_once_ = std::clamp(fit, kFirstRows, std::min(2 * rows_at_once_, kMostUnsaved));
}

// In the order of their keys, each once: those that have grown again meanwhile are the next minute's. False: the disk
// refuses; it is asked again then.
bool Usage::save_part(size_t most) {
  std::map<TaskUsageKey, TaskUsage> part;
  auto next = tasks_.lower_bound(*saved_to_);
  while (next != tasks_.end() && part.size() < most) part.insert(tasks_.extract(next++));
  if (next != tasks_.end()) {
    saved_to_ = next->first;
  } else {
    saved_to_.reset();
  }
  std::vector<TrainingUsageRow> trainings;
  if (!saved_to_) {
    for (const auto& [key, exposed] : trainings_) trainings.push_back(row_of(key.second, key.first, exposed));
  }
  if (part.empty() && trainings.empty()) return true;
  if (auto saved = store_.add_usage(part, trainings); !saved) {
    tasks_.merge(part);
    saved_to_.reset();
    trouble_.say(saved.error());
    return false;
  }
  if (!saved_to_) trainings_.clear();
  return true;
}

void Usage::flush() {
  saved_to_.emplace();
  (void)save_part(SIZE_MAX);
}

// Once an hour, and not under somebody who reads: rows would be counted twice, or never. What a manager finds at its
// start is not too old, whatever the wall clock says then.
void Usage::thin() {
  if (unix_ms_ == 0 || (!readings_.empty() && readings_.front().sum)) return;
  if (!drop_age_) {
    const auto hours = store_.usage_hours();
    if (!hours) return trouble_.say(hours.error());
    const auto [oldest, newest] = *hours;
    thin_age_ = policy::AgeClock(newest * kMsPerHour);
    // No earlier than the newest, else a clock that is behind now would never be caught up with.
    const int64_t present_ms = std::max(unix_ms_, newest * kMsPerHour);
    drop_age_.emplace(oldest == 0 ? 0 : std::min((oldest + kHoursKept) * kMsPerHour, present_ms));
  }
  const int64_t now_ns = clock_.now_ns();
  const int64_t hour = thin_age_.at(unix_ms_, now_ns) / kMsPerHour;
  const int64_t drop_hour = drop_age_->at(unix_ms_, now_ns) / kMsPerHour;
  if (hour == thinned_hour_) return;
  if (auto thinned = store_.thin_usage(hour - kHoursInDetail, drop_hour - kHoursKept); !thinned)
    return trouble_.say(thinned.error());
  thinned_hour_ = hour;
}

Status Usage::ask(Ticket ticket, const bus::GetUsage& wish) {
  if (wish.by != "user" && wish.by != "account" && wish.by != "job" && wish.by != "task") {
    return Error{Code::kInvalidArgument, "usage is added up by user, account, job or task", {}};
  }
  const std::pair meant{wish.by, std::max<int64_t>(0, wish.since_unix_ms) / kMsPerHour};
  const auto same = std::find_if(readings_.begin(), readings_.end(),
                                 [&](const Reading& one) { return one.wish == meant && !one.sum; });
  if (same != readings_.end()) {
    same->tickets.push_back(ticket);
  } else {
    readings_.push_back({meant, std::nullopt, {ticket}});
  }
  return {};
}

// First it saves, in parts as well, what is not on the disk yet.
std::optional<Usage::Answer> Usage::go_on() {
  if (!asked()) return std::nullopt;
  Reading& reading = readings_.front();
  if (!reading.sum) {
    const int64_t now = clock_.now_ns();
    if (!saved_to_ && (asked_saved_ns_ == 0 || now - asked_saved_ns_ >= kAskedSavePause)) {
      asked_saved_ns_ = now;
      saved_to_.emplace();
    }
    if (saved_to_) save_slice();
    if (saved_to_) return std::nullopt;
    thin();
    reading.sum.emplace(reading.wish.first, reading.wish.second);
    return std::nullopt;
  }
  const Status read = store_.go_on(*reading.sum);
  if (read && !reading.sum->done()) return std::nullopt;
  Result<UsageSum> sum = read ? Result<UsageSum>(std::move(*reading.sum)) : Result<UsageSum>(read.error());
  Answer answer{std::move(reading.tickets), std::move(sum)};
  readings_.pop_front();
  answering_ = true;
  return answer;
}

}  // namespace freeride::manager
