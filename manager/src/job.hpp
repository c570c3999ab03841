// Job: what the manager knows of one training job: its holdout plan, its measures, its slowdown budget.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"
#include "freeride/policy/budget.hpp"
#include "freeride/policy/holdout.hpp"
#include "freeride/policy/time_increase.hpp"
#include "overrun_sample.hpp"
#include "phase_book.hpp"
#include "state_store.hpp"

namespace freeride::manager {

struct JobConfig {
  double baseline_pct = 10;
  int64_t baseline_block_ns = 3'000'000'000;
  policy::Budget budget{1.0, 1.0};
  size_t most_ranks = 4096;  ///< of a job
};

/// Fed with what the workers of the job's ranks report, all of it unchecked: numbers that make no sense are dropped.
/// Time comes in with the calls. Not thread-safe; never blocks; memory bounded by the constants below and by
/// JobConfig::most_ranks.
class Job {
 public:
  static constexpr size_t kMaxStages = 1024;
  static constexpr size_t kOverrunSample = 4096;

  Job(const std::string& name, uint64_t seed, const JobConfig& config);
  /// Continues from what was kept.
  Job(JobRow row, const JobConfig& config);

  /// Which side tasks are there to run beside the job (a hash of what, where); 0: none, and iterations are then neither
  /// treatment nor control. What others cost tells of these only until they have been measured.
  void see_side_tasks(uint64_t which);
  /// A rank is there, in this iteration.
  void see_rank(const bus::TrainingState& rank, int64_t now_ns);
  /// One iteration of one rank.
  void add_iteration(const bus::TrainingIteration& iteration, int64_t now_ns);
  void add_bubbles(const bus::BubbleTotals& totals);
  /// Makes or changes the plan where that is due: once iterations have been timed, when their length has changed by
  /// half, or when the budget asks for another duty. True: the plan is new and must be sent to the job's workers.
  bool replan(int64_t now_ns);

  const policy::HoldoutPlan& plan() const { return plan_; }
  /// The plan and the one before it, as workers get them: they need both until the newer has begun.
  std::vector<bus::HoldoutPlan> wire_plans() const;
  bus::JobMeasures measures() const;
  bool has_rank_since(int64_t ns) const;  ///< some rank was seen at or after `ns`
  int64_t last_seen_ns() const;

  /// Whether measures have changed since the last take_changed().
  bool take_changed();
  /// What to save: plan, totals and the blocks since the last call.
  JobRow take_row(bool& forget_blocks);
  /// take_row() could not be saved: its blocks belong into the next one.
  void put_back(JobRow row, bool forget_blocks);
  /// How many ranks were looked at to know which iterations all have told of.
  uint64_t rank_looks() const { return rank_looks_; }

 private:
  /// An iteration of the leading rank, until the others' word of it has come.
  struct Pending {
    uint64_t iteration = 0, block = 0;
    double duration_ns = 0;
    int64_t since_ns = 0;
    bool on_duty = false;
    policy::IterationSnapshot known;
  };
  /// What ranks have said of one iteration.
  struct Said {
    bool held_out = false, not_held_out = false, harvested = false, transitions = false;
  };
  struct Rank {
    uint32_t stage = 0;
    uint64_t last_iteration = 0;
    bool any = false;
    int64_t seen_ns = 0;
    double budget_pct = -1;  // that it asks for; negative: none
    bus::HoldCost held, held_with_leases;
  };
  std::optional<double> asked_budget_pct() const;
  policy::Budget budget() const { return policy::lowered(config_.budget, asked_budget_pct()); }
  bool is_lead(uint32_t rank, int64_t now_ns) const;
  const policy::HoldoutPlan& plan_of(uint64_t iteration) const {
    return iteration < plan_.from_iteration ? previous_plan_ : plan_;
  }
  void restart_run();
  void note_said(const bus::TrainingIteration& iteration);
  void note_lead(const bus::TrainingIteration& iteration, double duration_ns, int64_t now_ns);
  void add_known(int64_t now_ns);
  bool all_told(uint64_t iteration, int64_t now_ns);
  std::vector<policy::BlockMean> latest_blocks(uint64_t count) const;
  std::vector<policy::BlockMean> blocks_of_these() const;
  policy::DutyCost cost() const;
  double next_duty_pct() const;
  /// About how long until I is measured, as long as there are side tasks; 0: there is no plan yet.
  int64_t time_to_measure_ms(const policy::TimeIncrease& so_far) const;
  uint64_t first_safe_iteration(double iteration_ns) const;

  JobConfig config_;
  policy::HoldoutPlan plan_, previous_plan_;
  uint64_t generation_ = 0;
  std::map<uint32_t, Rank> ranks_;
  uint32_t awaited_rank_ = 0;  // by all_told()
  uint64_t rank_looks_ = 0;
  std::map<uint32_t, StageTotals> stages_;
  std::deque<Pending> pending_;
  std::map<uint64_t, Said> said_;  // by iteration; those before a pending one go with it
  policy::BlockSeries series_;
  std::vector<policy::BlockMean> unsaved_;
  uint64_t blocks_finished_ = 0;
  double known_duty_pct_ = 100;                       // the last duty that followed from the side tasks' own blocks
  uint64_t duty_since_block_ = 0;                     // blocks finished when the duty was changed last
  uint64_t side_tasks_ = 0, side_tasks_before_ = 0;   // as seen last; the last that were any
  uint64_t same_since_block_ = 0;                     // blocks finished when the side tasks changed
  double on_duty_ns_ = 0, harvested_on_duty_ns_ = 0;  // GPU time of iterations on duty; what side tasks had of it
  int64_t planned_ns_ = 0;                            // when the plan was changed last
  double planned_iteration_ns_ = 0;
  uint32_t stage_count_ = 0;
  uint64_t iterations_ = 0, holdout_iterations_ = 0;
  double holdout_sum_ns_ = 0;
  OverrunSample overruns_{kOverrunSample};
  PhaseBook phases_;
  bus::BubbleTotals probes_;  // only what it says of probes
  bool changed_ = false, forget_blocks_ = false, plan_withdrawn_ = false;
};

}  // namespace freeride::manager
