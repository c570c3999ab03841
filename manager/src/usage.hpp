// Usage: what side tasks have had of GPUs, and what it has cost their trainings, by the hour.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "disk_trouble.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/account_use.hpp"
#include "freeride/policy/age_clock.hpp"
#include "freeride/policy/queue.hpp"
#include "outside.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// Adds up in memory, and to the disk once a minute, in parts: what a crash loses is little more than that. One thread;
/// save(), flush() and go_on() block on the disk.
class Usage {
 public:
  /// `measures`: a job's, as they stand now; nothing of a job that is not known. All outlive it.
  using Measures = std::function<std::vector<bus::JobMeasures>(const std::string& job)>;
  /// `half_life_ns`: CoreConfig::account_half_life_ns.
  Usage(StateStore& store, const Clock& clock, DiskTrouble& trouble, Measures measures, int64_t half_life_ns = 0)
      : store_(store),
        clock_(clock),
        trouble_(trouble),
        measures_(std::move(measures)),
        half_life_ns_(half_life_ns),
        lately_(half_life_ns),
        rows_at_once_(kFirstRows) {}
  /// Takes over from the store what accounts have had lately. Errors: the store's.
  Status restore(int64_t unix_ms);

  /// A task's counters have grown beside the training `job`; empty: beside none. `unix_ms`: now.
  void add(const bus::TaskInfo& task, const std::string& job, const bus::TaskCounters& before,
           const bus::TaskCounters& after, int64_t unix_ms);
  /// The iterations in it are training's GPU time.
  void add(const bus::WorkerReport& report, int64_t unix_ms);
  /// A task has been placed: whatever it comes to, its account has had a turn.
  void placed(const bus::Load& load);
  /// What accounts have had lately, s of bubbles, for the order of the queue.
  policy::AccountTurns turns() const;
  /// Saves a part of it where that is due: as many rows as the disk takes in a short while. Also makes days of old
  /// hours, and drops what is older than 400 days, by a clock that no step of the wall clock moves.
  void save();
  /// Saves all at once. For the end of the program.
  void flush();

  /// Asks what has been since `wish.since_unix_ms`, by its hour; go_on() has the answer for `ticket`. Errors:
  /// kInvalidArgument (no such grouping).
  Status ask(Ticket ticket, const bus::GetUsage& wish);
  bool asked() const { return !answering_ && !readings_.empty(); }  ///< go_on() has something to do
  struct Answer {
    std::vector<Ticket> tickets;
    Result<UsageSum> sum;  ///< whose reply() may take seconds
  };
  /// Adds up some thousand rows of what was asked, since years of them take seconds. After an answer it does nothing
  /// until answered(), since a sum of millions of tasks is large. Errors in it: the store's.
  std::optional<Answer> go_on();
  void answered() { answering_ = false; }

 private:
  static constexpr size_t kFirstRows = 64;
  struct Exposed {
    int64_t gpu_ns = 0, bubble_ns = 0, not_held_out_ns = 0;
    bool harvested = false;
  };
  // What is asked for, with all who ask for it.
  struct Reading {
    std::pair<std::string, int64_t> wish;  // by what, from which hour on
    std::optional<UsageSum> sum;           // once it has begun
    std::vector<Ticket> tickets;
  };
  void save_slice();
  bool save_part(size_t most);
  void thin();
  TrainingUsageRow row_of(const std::string& job, int64_t hour, const Exposed& exposed) const;

  StateStore& store_;
  const Clock& clock_;
  DiskTrouble& trouble_;
  const Measures measures_;
  const int64_t half_life_ns_;
  policy::AccountUse lately_;
  std::map<TaskUsageKey, TaskUsage> tasks_;
  std::map<std::pair<int64_t, std::string>, Exposed> trainings_;  // by hour and job
  std::deque<Reading> readings_;
  bool answering_ = false;
  policy::AgeClock thin_age_;
  std::optional<policy::AgeClock> drop_age_;
  int64_t unix_ms_ = 0;  // when something was added last
  int64_t thinned_hour_ = 0;
  int64_t saved_ns_ = 0, asked_saved_ns_ = 0;
  std::optional<TaskUsageKey> saved_to_;  // where the save under way goes on
  size_t rows_at_once_;                   // by how long the last part took
};

}  // namespace freeride::manager
