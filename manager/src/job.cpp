#include "job.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "freeride/base/clock.hpp"
#include "reported_time.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kRankSilent = 10 * kNsPerSec;  // then another rank leads
constexpr int64_t kPlanReach =
    3 * kNsPerSec;  // reports are up to a second old, and the plan must be everywhere in time
constexpr int64_t kReplanPause = 20 * kNsPerSec;  // between changes of block length
constexpr size_t kBudgetBlocks = 120;             // that the budget is reckoned for: training changes, too
constexpr double kWorthNs = 600e9;                // of each rank's time that tells what they get: likewise
constexpr double kWorthKnownNs = 3e9;             // before that it is not known, since reports are up to a second old
constexpr uint64_t kReordered = 2;                // iterations that may come again before it counts as a new run
constexpr int64_t kTellAll = 3 * kNsPerSec;       // that all ranks have to tell of an iteration
constexpr size_t kMostPending = 4096;             // iterations that wait for that

double share_pct(int64_t part, int64_t whole) {
  return whole <= 0 ? 0 : std::min(100.0, 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

Job::Job(const std::string& name, uint64_t seed, const JobConfig& config) : config_(config) {
  plan_.job = previous_plan_.job = name;
  plan_.seed = previous_plan_.seed = seed;
  plan_.share_pct = config.baseline_pct;
}

Job::Job(JobRow row, const JobConfig& config)
    : config_(config),
      plan_(row.plan),
      previous_plan_(row.previous_plan),
      generation_(row.generation),
      stages_(std::move(row.stages)),
      iterations_(row.iterations),
      holdout_iterations_(row.holdout_iterations),
      holdout_sum_ns_(row.holdout_sum_ns),
      overruns_(kOverrunSample, row.overruns_seen, std::move(row.overruns_ns)),
      phases_(row.phases) {
  known_duty_pct_ = plan_.duty_pct;
  // What was lost before is not paid back: the budget may be another one now.
  blocks_finished_ = same_since_block_ = row.blocks.size();
  series_.restore(std::move(row.blocks));
  if (iterations_ > 0) {
    Rank lead;  // enough to tell a continued run from a new one: its rank number comes with the first report
    lead.last_iteration = row.last_iteration;
    lead.any = true;
    ranks_[0] = lead;
  }
  stage_count_ = static_cast<uint32_t>(stages_.size());
  changed_ = true;
}

void Job::see_side_tasks(uint64_t which) {
  side_tasks_ = which;
  if (which == 0 || which == side_tasks_before_) return;
  // After a restart they are taken to be those that the kept blocks tell of.
  if (side_tasks_before_ != 0) same_since_block_ = blocks_finished_ + 1;  // the one under way has seen both
  side_tasks_before_ = which;
}

void Job::see_rank(const bus::TrainingState& rank, int64_t now_ns) {
  if (ranks_.count(rank.rank) == 0 && ranks_.size() >= config_.most_ranks) return;
  Rank& known = ranks_[rank.rank];
  known.stage = rank.stage;
  known.seen_ns = now_ns;
  changed_ = changed_ || known.budget_pct != rank.budget_pct;
  known.budget_pct = rank.budget_pct;
  const auto sane = [](const bus::HoldCost& cost) {
    const bool finite = std::isfinite(cost.increase_pct + cost.ci95_low_pct + cost.ci95_high_pct);
    return finite ? cost : bus::HoldCost{};
  };
  known.held = sane(rank.held);
  known.held_with_leases = sane(rank.held_with_leases);
  if (!known.any) known.last_iteration = std::max(known.last_iteration, rank.iteration);
  const uint32_t stages = std::min<uint32_t>(std::max(rank.stages, 1U), kMaxStages);
  if (stages != stage_count_) {
    stage_count_ = stages;
    changed_ = true;
  }
}

// The least that any of its ranks asks for.
std::optional<double> Job::asked_budget_pct() const {
  std::optional<double> least;
  for (const auto& [number, rank] : ranks_) {
    if (std::isfinite(rank.budget_pct) && rank.budget_pct >= 0 && (!least || rank.budget_pct < *least))
      least = rank.budget_pct;
  }
  return least;
}

bool Job::is_lead(uint32_t rank, int64_t now_ns) const {
  for (const auto& [number, known] : ranks_) {
    if (number >= rank) return true;
    if (known.seen_ns > 0 && now_ns - known.seen_ns < kRankSilent) return false;
  }
  return true;
}

void Job::restart_run() {
  series_ = {};
  stages_.clear();
  unsaved_.clear();
  overruns_ = OverrunSample(kOverrunSample);
  phases_.clear();
  iterations_ = holdout_iterations_ = blocks_finished_ = duty_since_block_ = same_since_block_ = 0;
  holdout_sum_ns_ = planned_iteration_ns_ = on_duty_ns_ = harvested_on_duty_ns_ = 0;
  planned_ns_ = 0;
  pending_.clear();
  said_.clear();
  plan_.block_iterations = plan_.from_iteration = 0;  // holds nothing out until the new run has been timed
  // What the last run's side tasks cost is forgotten with its blocks, and so is what it was throttled to.
  plan_.duty_pct = policy::first_duty_pct(budget());
  previous_plan_ = plan_;
  ++generation_;
  for (auto& [number, rank] : ranks_) {
    rank.any = false;
    rank.last_iteration = 0;
    rank.budget_pct = -1;  // those that are there say it each second
    rank.held = rank.held_with_leases = {};
  }
  forget_blocks_ = changed_ = plan_withdrawn_ = true;
}

void Job::add_iteration(const bus::TrainingIteration& iteration, int64_t now_ns) {
  if (iteration.begin_ns < 0 || iteration.end_ns < iteration.begin_ns || iteration.stage >= kMaxStages) return;
  const int64_t duration = iteration.end_ns - iteration.begin_ns;
  if (duration == 0 || duration > kLongestReportedNs) return;
  if (ranks_.count(iteration.rank) == 0 && ranks_.size() >= config_.most_ranks) return;
  const bool lead = is_lead(iteration.rank, now_ns);
  if (Rank& rank = ranks_[iteration.rank]; rank.any && iteration.iteration <= rank.last_iteration) {
    if (!lead || iteration.iteration + kReordered > rank.last_iteration) return;
    restart_run();
  }
  Rank& rank = ranks_[iteration.rank];
  rank.any = true;
  rank.last_iteration = iteration.iteration;
  rank.stage = iteration.stage;
  rank.seen_ns = now_ns;
  StageTotals& stage = stages_[iteration.stage];
  add_ns(stage.iteration_ns, duration);
  add_ns(stage.bubble_ns, std::min(bounded_ns(iteration.bubble_ns), duration));
  changed_ = true;
  if (side_tasks_ != 0 && !iteration.holdout && policy::is_on_duty(plan_of(iteration.iteration), iteration.iteration)) {
    on_duty_ns_ += static_cast<double>(duration);
    if (on_duty_ns_ > kWorthNs * static_cast<double>(ranks_.size())) {
      on_duty_ns_ /= 2;
      harvested_on_duty_ns_ /= 2;
    }
  }
  note_said(iteration);
  if (lead) note_lead(iteration, static_cast<double>(duration), now_ns);
  add_known(now_ns);
}

void Job::note_said(const bus::TrainingIteration& iteration) {
  Said& said = said_[iteration.iteration];
  (iteration.holdout ? said.held_out : said.not_held_out) = true;
  said.harvested = said.harvested || iteration.harvested;
  said.transitions = said.transitions || iteration.transitions;
  // The oldest is needed first.
  if (said_.size() > 2 * kMostPending) said_.erase(std::prev(said_.end()));
}

void Job::note_lead(const bus::TrainingIteration& iteration, double duration_ns, int64_t now_ns) {
  ++iterations_;
  if (iteration.holdout) {
    ++holdout_iterations_;
    holdout_sum_ns_ += duration_ns;
  }
  const bool before = iteration.iteration < plan_.from_iteration;
  const policy::HoldoutPlan& plan = plan_of(iteration.iteration);
  Pending pending;
  pending.iteration = iteration.iteration;
  pending.duration_ns = duration_ns;
  pending.since_ns = now_ns;
  pending.on_duty = policy::is_on_duty(plan, iteration.iteration);
  pending.known.planned_held_out = policy::is_held_out(plan, iteration.iteration);
  pending.known.side_tasks = side_tasks_ != 0;
  // Block numbers start again with every plan; the generation keeps them apart.
  const uint64_t generation = before && generation_ > 0 ? generation_ - 1 : generation_;
  pending.block = (generation << 40) + policy::block_of(plan, iteration.iteration);
  pending_.push_back(pending);
}

// Every report asks this: the one that was waited for last is looked at first, and then those after it.
bool Job::all_told(uint64_t iteration, int64_t now_ns) {
  const auto told = [&](const Rank& rank) {
    return rank.last_iteration >= iteration || rank.seen_ns == 0 || now_ns - rank.seen_ns >= kRankSilent;
  };
  const auto none_awaited = [&](auto rank, const auto end) {
    for (; rank != end; ++rank) {
      ++rank_looks_;
      if (told(rank->second)) continue;
      awaited_rank_ = rank->first;
      return false;
    }
    return true;
  };
  const auto first = ranks_.lower_bound(awaited_rank_);
  if (!none_awaited(first, ranks_.end()) || !none_awaited(ranks_.begin(), first)) return false;
  awaited_rank_ = 0;
  return true;
}

void Job::add_known(int64_t now_ns) {
  while (!pending_.empty()) {
    Pending& first = pending_.front();
    if (pending_.size() <= kMostPending && now_ns - first.since_ns < kTellAll && !all_told(first.iteration, now_ns))
      return;
    const Said said = said_[first.iteration];
    said_.erase(said_.begin(), said_.upper_bound(first.iteration));
    first.known.seen_held_out = said.held_out;
    first.known.seen_harvested = said.not_held_out;
    first.known.side_tasks = first.known.side_tasks || said.harvested;
    first.known.transitions = said.transitions;
    const auto kind = policy::block_kind(first.known);
    if (kind && series_.add(first.block, *kind, first.on_duty, first.duration_ns)) {
      unsaved_.push_back(series_.blocks().back());
      if (unsaved_.size() > policy::BlockSeries::kMaxBlocks) unsaved_.erase(unsaved_.begin());
      ++blocks_finished_;
    }
    pending_.pop_front();
  }
}

void Job::add_bubbles(const bus::BubbleTotals& totals) {
  if (totals.stage >= kMaxStages) return;
  for (const int64_t overrun : totals.overruns_ns) overruns_.add(bounded_ns(overrun));
  probes_.probes += totals.probes;
  probes_.probe_findings += totals.probe_findings;
  probes_.probes_unknown += totals.probes_unknown;
  probes_.holdout_probes += totals.holdout_probes;
  probes_.holdout_findings += totals.holdout_findings;
  const bool phases = phases_.add(totals.phases, side_tasks_ != 0);
  changed_ = changed_ || phases || !totals.overruns_ns.empty() || totals.probes != 0;
  if (side_tasks_ == 0) return;
  StageTotals& stage = stages_[totals.stage];
  const int64_t bubble = bounded_ns(totals.bubble_ns);
  add_ns(stage.eligible_bubble_ns, bubble);
  const int64_t harvested = std::min(bounded_ns(totals.harvested_ns), bubble);
  add_ns(stage.harvested_ns, harvested);
  harvested_on_duty_ns_ += static_cast<double>(harvested);
  changed_ = true;
}

uint64_t Job::first_safe_iteration(double iteration_ns) const {
  uint64_t latest = 0;
  for (const auto& [number, rank] : ranks_) latest = std::max(latest, rank.last_iteration);
  return latest + static_cast<uint64_t>(std::ceil(static_cast<double>(kPlanReach) / iteration_ns)) + 3;
}

std::vector<policy::BlockMean> Job::latest_blocks(uint64_t count) const {
  const auto& blocks = series_.blocks();
  const auto some = static_cast<std::ptrdiff_t>(std::min<uint64_t>({count, kBudgetBlocks, blocks.size()}));
  return {blocks.end() - some, blocks.end()};
}

std::vector<policy::BlockMean> Job::blocks_of_these() const {
  return latest_blocks(blocks_finished_ - std::min(blocks_finished_, same_since_block_));
}

policy::DutyCost Job::cost() const {
  const auto cost = policy::duty_cost(blocks_of_these());
  return cost.measured ? cost : policy::duty_cost(latest_blocks(kBudgetBlocks));
}

double Job::next_duty_pct() const {
  // The first block that has ended since may be of the duty before.
  if (blocks_finished_ < duty_since_block_ + 2) return plan_.duty_pct;
  // Who sees to it that nothing can be measured gets no more than a job that is seen to lose.
  if (policy::baseline_is_lost(series_.blocks(), plan_.share_pct)) return policy::kMinDutyPct;
  // Not known yet, as after a restart: they may be worth all that they could be.
  const bool known = on_duty_ns_ >= kWorthKnownNs * static_cast<double>(ranks_.size());
  const double harvested_pct = known ? 100 * harvested_on_duty_ns_ / on_duty_ns_ : 100;
  const policy::Duty duty{plan_.duty_pct, policy::mean_duty_pct(blocks_of_these())};
  const double next = policy::next_duty_pct(cost(), budget(), harvested_pct, duty);
  // What is known is of other side tasks, mixed with these ones' start: enough to be careful, not to give them more.
  return policy::duty_cost(blocks_of_these()).measured ? next : std::min(next, known_duty_pct_);
}

bool Job::replan(int64_t now_ns) {
  if (std::exchange(plan_withdrawn_, false)) return true;
  const double iteration_ns = series_.median_ns();
  if (iteration_ns <= 0 || config_.baseline_pct <= 0) return false;
  double duty = next_duty_pct();
  if (plan_.block_iterations == 0) duty = std::min(duty, policy::first_duty_pct(budget()));
  if (plan_.block_iterations == 0 || policy::duty_cost(blocks_of_these()).measured) known_duty_pct_ = duty;
  const bool other_duty = std::abs(duty - plan_.duty_pct) > 0.5;
  const double ratio = planned_iteration_ns_ > 0 ? iteration_ns / planned_iteration_ns_ : 1;
  const bool other_length = (ratio > 1.5 || ratio < 1 / 1.5) && now_ns - planned_ns_ > kReplanPause;
  const bool other_share = std::abs(plan_.share_pct - config_.baseline_pct) > 1e-9;
  if (plan_.block_iterations != 0 && planned_iteration_ns_ <= 0)
    planned_iteration_ns_ = iteration_ns;  // kept from before a restart
  if (plan_.block_iterations != 0 && !other_duty && !other_length && !other_share) return false;
  // The plan before the one under way is forgotten, so that one must have begun everywhere.
  const uint64_t from = first_safe_iteration(iteration_ns);
  if (plan_.block_iterations != 0) {
    for (const auto& [number, rank] : ranks_) {
      if (rank.seen_ns > 0 && now_ns - rank.seen_ns < kRankSilent && rank.last_iteration < plan_.from_iteration)
        return false;
    }
  }
  previous_plan_ = plan_;
  ++generation_;
  plan_.seed = policy::next_seed(plan_.seed);
  plan_.share_pct = config_.baseline_pct;
  plan_.duty_pct = duty;
  plan_.from_iteration = from;
  const double blocks = static_cast<double>(config_.baseline_block_ns) / iteration_ns;
  plan_.block_iterations = static_cast<uint64_t>(std::clamp(std::round(blocks), 1.0, 1e6));
  planned_iteration_ns_ = iteration_ns;
  planned_ns_ = now_ns;
  if (other_duty) duty_since_block_ = blocks_finished_;
  changed_ = true;
  return true;
}

std::vector<bus::HoldoutPlan> Job::wire_plans() const {
  std::vector<bus::HoldoutPlan> plans;
  for (const auto* plan : {&previous_plan_, &plan_}) {
    if (plan == &previous_plan_ && (plan->block_iterations == 0 || plan->from_iteration >= plan_.from_iteration))
      continue;
    bus::HoldoutPlan wire;
    wire.job = plan->job;
    wire.seed = plan->seed;
    wire.block_iterations = plan->block_iterations;
    wire.from_iteration = plan->from_iteration;
    wire.share_pct = plan->share_pct;
    wire.duty_pct = plan->duty_pct;
    plans.push_back(wire);
  }
  return plans;
}

int64_t Job::time_to_measure_ms(const policy::TimeIncrease& so_far) const {
  const double block_ns = static_cast<double>(plan_.block_iterations) * planned_iteration_ns_;
  const double share = plan_.share_pct / 100;
  if (block_ns <= 0 || share <= 0 || share >= 1) return 0;
  const auto missing = [](size_t blocks) {
    return static_cast<double>(policy::kMinBlocks - std::min(blocks, policy::kMinBlocks));
  };
  const double blocks =
      std::max({missing(so_far.heldout_blocks) / share, missing(so_far.harvested_blocks) / (1 - share), 1.0});
  return static_cast<int64_t>(std::ceil(blocks * block_ns / kNsPerMs));
}

bus::JobMeasures Job::measures() const {
  bus::JobMeasures measures;
  measures.job = plan_.job;
  measures.stages = stage_count_;
  measures.iterations = iterations_;
  measures.holdout_iterations = holdout_iterations_;
  const auto increase = policy::time_increase({series_.blocks().begin(), series_.blocks().end()});
  measures.measured = increase.measured;
  measures.time_increase_pct = increase.increase_pct;
  measures.time_increase_ci95_low_pct = increase.ci95_low_pct;
  measures.time_increase_ci95_high_pct = increase.ci95_high_pct;
  if (!increase.measured && side_tasks_ != 0) measures.measured_in_ms = time_to_measure_ms(increase);
  if (increase.measured) {
    measures.iteration_ms = increase.heldout_ms;
  } else if (holdout_iterations_ > 0) {
    measures.iteration_ms = holdout_sum_ns_ / static_cast<double>(holdout_iterations_) / kNsPerMs;
  } else {
    measures.iteration_ms = series_.median_ns() / kNsPerMs;
  }
  int64_t eligible = 0, harvested = 0;
  double bubble_shares = 0;
  size_t timed = 0;
  for (const auto& [stage, totals] : stages_) {
    const std::string name = std::to_string(stage);
    measures.stage_harvested_share_pct[name] = share_pct(totals.harvested_ns, totals.eligible_bubble_ns);
    eligible += totals.eligible_bubble_ns;
    harvested += totals.harvested_ns;
    if (totals.iteration_ns <= 0) continue;
    measures.stage_bubble_share_pct[name] = share_pct(totals.bubble_ns, totals.iteration_ns);
    bubble_shares += measures.stage_bubble_share_pct[name];
    ++timed;
  }
  measures.bubble_share_pct = timed == 0 ? 0 : bubble_shares / static_cast<double>(timed);
  measures.harvested_share_pct = share_pct(harvested, eligible);
  measures.overrun_p50_us = overruns_.percentile_us(0.50);
  measures.overrun_p99_us = overruns_.percentile_us(0.99);
  measures.duty_pct = plan_.duty_pct;
  measures.expected_cost_pct = policy::expected_cost_pct(cost());
  measures.budget_pct = budget().slowdown_pct.value_or(-1);
  measures.asked_budget_pct = asked_budget_pct().value_or(-1);
  for (const auto& [number, rank] : ranks_) {
    const bool longest = measures.held.periods == 0 || rank.held.increase_pct > measures.held.increase_pct;
    if (rank.held.periods == 0 || !longest) continue;
    measures.held = rank.held;
    measures.held_with_leases = rank.held_with_leases;
  }
  measures.probes = probes_.probes;
  measures.probe_findings = probes_.probe_findings;
  measures.probes_unknown = probes_.probes_unknown;
  measures.holdout_probes = probes_.holdout_probes;
  measures.holdout_findings = probes_.holdout_findings;
  measures.phases = phases_.measures();
  return measures;
}

int64_t Job::last_seen_ns() const {
  int64_t last = 0;
  for (const auto& [number, rank] : ranks_) last = std::max(last, rank.seen_ns);
  return last;
}
bool Job::has_rank_since(int64_t ns) const {
  return last_seen_ns() >= ns && last_seen_ns() > 0;
}

bool Job::take_changed() {
  return std::exchange(changed_, false);
}

JobRow Job::take_row(bool& forget_blocks) {
  JobRow row;
  row.plan = plan_;
  row.previous_plan = previous_plan_;
  row.generation = generation_;
  for (const auto& [number, rank] : ranks_) row.last_iteration = std::max(row.last_iteration, rank.last_iteration);
  row.iterations = iterations_;
  row.holdout_iterations = holdout_iterations_;
  row.holdout_sum_ns = holdout_sum_ns_;
  row.overruns_seen = overruns_.seen();
  row.overruns_ns = overruns_.sample();
  row.stages = stages_;
  row.phases = phases_.rows();
  row.blocks = std::exchange(unsaved_, {});
  forget_blocks = std::exchange(forget_blocks_, false);
  return row;
}

void Job::put_back(JobRow row, bool forget_blocks) {
  forget_blocks_ = forget_blocks_ || forget_blocks;
  row.blocks.insert(row.blocks.end(), unsaved_.begin(), unsaved_.end());
  unsaved_ = std::move(row.blocks);
  if (unsaved_.size() > policy::BlockSeries::kMaxBlocks) {
    unsaved_.erase(unsaved_.begin(), unsaved_.end() - static_cast<std::ptrdiff_t>(policy::BlockSeries::kMaxBlocks));
  }
}

}  // namespace freeride::manager
