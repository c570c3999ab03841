// StateStore: what survives a restart of the manager, in one SQLite file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/holdout.hpp"
#include "freeride/policy/time_increase.hpp"
#include "usage_table.hpp"

struct sqlite3;

namespace freeride::manager {

class Transaction;

/// A task as kept: what users see of it, and what only the manager knows.
struct TaskRow {
  int64_t id = 0;  ///< counts submissions
  bus::TaskInfo info;
  bus::TaskCounters earlier;   ///< of the runs before the present one (restarts)
  bool stopping = false;       ///< the user has ordered its stop
  int64_t reserved_bytes = 0;  ///< memory counted for it on its worker
};

/// Sums of a job's stage since its run began.
struct StageTotals {
  int64_t iteration_ns = 0, bubble_ns = 0;           ///< of every iteration
  int64_t eligible_bubble_ns = 0, harvested_ns = 0;  ///< while side tasks were ready, holdout excluded
};

/// Sums of a job's idle phases of one name since its run began.
struct PhaseRow {
  uint64_t count = 0;
  int64_t idle_ns = 0, offered_ns = 0, harvested_ns = 0;
  uint64_t overruns_seen = 0;
  std::vector<int64_t> overruns_ns;  ///< a uniform sample of them
};

/// A job's holdout plan and totals.
struct JobRow {
  policy::HoldoutPlan plan, previous_plan;
  uint64_t generation = 0;  ///< of the plan
  uint64_t last_iteration = 0, iterations = 0, holdout_iterations = 0;
  double holdout_sum_ns = 0;
  uint64_t overruns_seen = 0;
  std::vector<int64_t> overruns_ns;  ///< a uniform sample of them
  std::map<uint32_t, StageTotals> stages;
  std::map<std::string, PhaseRow> phases;  ///< by name
  std::vector<policy::BlockMean> blocks;   ///< read: all. Written: only those to append.
};

/// A side task has faulted a GPU.
struct FaultRow {
  int64_t unix_ms = 0;
  std::string sha256, user, job;  ///< whose fault it counts as; empty: nobody's
  std::string task;
};

/// A batch as kept.
struct BatchRow {
  bus::BatchInfo info;
  std::string ledger;  ///< BatchLedger::encode()
};

/// One SQLite file in WAL mode with full synchronisation: what a call has returned success for is on the disk. The file
/// is held exclusively. Every call may block on the disk; one thread. Errors of all calls: kExhausted (disk full),
/// kPermission, kUnavailable (other trouble with the disk), kInternal (damaged); each says which file and what to do.
class StateStore {
 public:
  static constexpr int kSchemaVersion = 8;

  /// Opens or makes the file, which is its owner's alone to read, and its folder. A damaged file is kept under a name
  /// beside it, and a new one begins with all of its rows that can be read; the log says so in one line. A file of an
  /// earlier schema version N is brought to this one after a copy of it, FILE.schema-N, is on the disk, which an
  /// earlier manager can use as its file; of such copies the last one is kept. Without the copy the file is left as it
  /// is. Further errors: kAlreadyExists (another process has it open), kVersion (written by a newer version; the hint
  /// names the copy that this one can use, if there is one).
  static Result<std::unique_ptr<StateStore>> open(const std::filesystem::path& file);
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  /// A task that cannot be read is none: a copy of the file is kept with it, the log says so, and it is removed.
  Result<std::vector<TaskRow>> tasks();
  /// A new task together with the request that asked for it, in one transaction.
  Status add_task(const TaskRow& task, const std::string& request_id, int64_t unix_ms);
  Status save_task(const TaskRow& task);
  /// From here to end_batch() what is written goes to the disk together, or not at all: one wait for the disk instead
  /// of one each. False: there is one already, or the disk refuses; then each goes by itself.
  bool begin_batch();
  bool in_batch() const { return batch_ != nullptr; }
  Status end_batch();
  void drop_batch();  ///< nothing of it is on the disk
  Status remove_tasks(const std::vector<int64_t>& ids);
  /// Those of before; newest_request_ms(): the last one's, 0 of none.
  Status forget_requests(int64_t before_unix_ms);
  Result<int64_t> newest_request_ms();
  /// The task that a load request made, if it is not forgotten.
  Result<std::optional<int64_t>> task_of_request(const std::string& request_id);

  /// By key. Of those that were saved before schema version 2 no more than memory and step duration are known: they
  /// have no sha256, and their memory is under "" in peak_bytes.
  Result<std::map<std::string, bus::Profile>> profiles();
  /// All of them, or none.
  Status save_profiles(const std::map<std::string, bus::Profile>& profiles);
  Status remove_profile(const std::string& key);

  Result<std::vector<JobRow>> jobs();
  /// Saves plan and totals and appends row.blocks; `forget_blocks` first drops those of before (a new run of the job).
  Status save_job(const JobRow& row, bool forget_blocks);
  Status remove_job(const std::string& job);

  /// Oldest first.
  Result<std::vector<FaultRow>> faults();
  /// By scope and name: since when, unix_ms.
  using FaultBlocks = std::map<std::pair<std::string, std::string>, int64_t>;
  Result<FaultBlocks> fault_blocks();
  /// The fault, the blocks that it brings, and an end of what is older than `before_unix_ms`, in one transaction.
  Status add_fault(const FaultRow& fault, const FaultBlocks& blocks, int64_t before_unix_ms);
  /// And no fault counts as that one's any more. `scope`: "plugin", "user" or "job".
  Status remove_fault_block(const std::string& scope, const std::string& name);

  /// What is drained, by scope and name: the number of the order.
  using Drained = std::map<std::pair<std::string, std::string>, uint64_t>;
  Result<Drained> drains();
  Status save_drain(const std::string& scope, const std::string& name, uint64_t number);
  Status remove_drain(const std::string& scope, const std::string& name);

  /// Adds to the hours' sums (add_usage_rows()), in one transaction.
  Status add_usage(const std::map<TaskUsageKey, TaskUsage>& tasks, const std::vector<TrainingUsageRow>& trainings);
  /// thin_usage_rows(), in one transaction.
  Status thin_usage(int64_t thin_before, int64_t drop_before);
  Result<std::pair<int64_t, int64_t>> usage_hours();  ///< read_usage_hours()
  Status go_on(UsageSum& sum);
  Result<std::vector<AccountUsageRow>> account_usage(int64_t hour);
  /// Oldest first. One that cannot be read is left out, and the log says so.
  Result<std::vector<BatchRow>> batches();
  Status save_batch(const BatchRow& row);
  Status remove_batch(const std::string& name);

 private:
  bool save_phases(const JobRow& row);
  StateStore(sqlite3* db, std::filesystem::path file);
  static Result<std::unique_ptr<StateStore>> open_file(const std::filesystem::path& file);
  static Result<std::unique_ptr<StateStore>> open_anew(const std::filesystem::path& file, const Error& damage);
  void leave_out(const std::vector<int64_t>& tasks);
  Result<int64_t> version();
  Status keep_copy(int64_t version);
  Status migrate(int64_t version);
  Error error(const std::string& doing) const;
  sqlite3* db_;
  std::filesystem::path file_;
  std::unique_ptr<Transaction> batch_;
};

}  // namespace freeride::manager
