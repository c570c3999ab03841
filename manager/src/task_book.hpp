// TaskBook: the tasks that the manager knows, live and ended, in memory and on the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "disk_trouble.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"
#include "freeride/policy/age_clock.hpp"
#include "freeride/policy/why.hpp"
#include "outside.hpp"
#include "restarts.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// A task. row.info.state.state tells users where it is; phase tells the manager what to do next.
struct Task {
  enum class Phase {
    kQueued,    ///< to be profiled or placed
    kCreating,  ///< its worker has been told to make it, and has not reported it yet
    kPlaced,    ///< its worker has reported it (or did so to the manager before a restart)
    kEnded,
  };
  TaskRow row;
  Phase phase = Phase::kQueued;
  policy::Why why = policy::Why::kNone;  ///< why it makes no step; state().reason is the sentence of it
  policy::WhyDetail why_detail;
  std::string queued_since;  ///< why it was queued again; empty: it was not
  std::string create_id;     ///< request id of the CreateTask under way
  int64_t create_sent_ns = 0;
  uint32_t create_tries = 0;
  uint32_t profile_failures = 0;
  bool profile_here = false;         ///< only on devices it may run on: on another its profile has failed
  Restarts restarts;                 ///< those of late; row.info.restarts are all
  int64_t not_before_ns = 0;         ///< queued: not to be placed earlier, since a worker has just said no
  int64_t fenced_until_ns = 0;       ///< queued: until then there may be another copy that executes
  uint64_t claimed_epoch = 0;        ///< the newest under which a worker has it, where that is newer than ours
  int64_t claimed_ns = 0;            ///< when a worker last said so
  bool claimed = false;              ///< its present epoch is a worker's word, and not this manager's
  int64_t reported_ns = 0;           ///< placed: when its worker last named it
  int64_t begun_ns = 0;              ///< of row.info.placed_unix_ms, by the clock that nobody sets
  bus::TaskCounters earlier_before;  ///< row.earlier as it was before it was queued again
  mutable std::map<std::string, std::string> profile_keys;  ///< by device model; hashing is not free
  std::vector<Ticket> replace_waiting;                      ///< of those who wait for the replacement under way
  int64_t replace_sent_ns = 0;
  bool unsaved = false;   ///< the disk has not taken the present state yet
  std::string listed_on;  ///< TaskBook's: whose list of tasks it is in

  bus::TaskState& state() { return row.info.state; }
  const bus::TaskState& state() const { return row.info.state; }
  const bus::Load& load() const { return row.info.load; }
  const std::string& name() const { return row.info.state.task; }
  bool replacing() const { return row.info.replacement.state == "pending"; }
  bool live() const { return phase != Phase::kEnded; }
  bool on_worker() const { return phase == Phase::kCreating || phase == Phase::kPlaced; }
  bool on(const std::string& worker) const { return on_worker() && state().worker == worker; }
  const char* order() const { return row.stopping ? "stop" : state().paused_by_user ? "pause" : "run"; }
};

/// Of all tasks that there ever were, this one: names are used again.
std::string instance_of(const TaskRow& row);

/// Keeps the tasks, saves them, publishes their states. A Task stays where it is in memory until forget(), which nobody
/// calls while going through tasks. One thread; what saves blocks on the disk.
class TaskBook {
 public:
  /// `unix_ms` gives the wall clock, for dates shown to people only; `history`: ended tasks that are kept.
  TaskBook(StateStore& store, Outside& outside, const Clock& clock, DiskTrouble& trouble,
           std::function<int64_t()> unix_ms, size_t history);
  /// Takes over what the store holds. Tasks on a worker count as placed there: the worker outlives the manager, and
  /// will say so when it registers. Those in the queue wait until `fenced_until_ns`, since the store may be older than
  /// what was ordered last. Errors: the store's.
  Status restore(int64_t fenced_until_ns);

  std::map<int64_t, Task>& all() { return tasks_; }  ///< by id: by submission
  const std::map<int64_t, Task>& all() const { return tasks_; }
  const std::map<std::string, Task*>& live() const { return live_; }  ///< those that have not ended, by name
  Task* by_id(int64_t id);
  Task* live(const std::string& name);
  /// That a worker's report is of, live or ended; nullptr: there is no record of it.
  const Task* of_report(const bus::TaskReport& report) const;

  /// The epoch of a new placement: greater than all before.
  ///
  /// It is at least the wall clock's milliseconds, and greater than every epoch in the database and in any worker's
  /// report. Each row is on disk before its epoch is sent, so a restart goes on from there. After a start on an older
  /// database the wall clock is ahead of every epoch that was given since that one was current, unless it was set back
  /// in between; then what workers report is, and every worker that can be reached has reported before the first
  /// placement (OrderLimits). What is left is a copy on a worker that cannot be reached, of an epoch that is given
  /// again by the millisecond: even that is not renewed, unless task, instance and worker are the same as well.
  uint64_t next_epoch();
  void see_epoch(uint64_t epoch);
  /// The live one of that name, else the last that has ended; nullptr: there is none.
  const Task* latest(const std::string& name) const;
  /// nullptr: there is no record of it.
  const Task* of_instance(const std::string& instance) const;
  /// A live task, for an order. Errors, with `verb` in the sentence: kNotFound, kInvalidArgument (it has ended).
  Result<Task*> to_order(const std::string& name, const char* verb);
  /// Those on a worker, by id. Whoever changes a task's phase or worker says so with moved().
  const std::map<int64_t, Task*>& on(const std::string& worker) const;
  void moved(Task& task);
  uint32_t count_on(const std::string& worker) const { return static_cast<uint32_t>(on(worker).size()); }
  /// While it lives, what is saved goes to the disk together, at its end.
  class Together;

  /// A new task of row.info in the queue, saved together with the request that asked for it, and published. Errors: the
  /// disk's; there is no task then.
  Result<Task*> add(TaskRow row, const std::string& request_id);
  /// A task that was added in a batch which the disk has not taken: there never was one.
  void take_back(int64_t id);
  /// The task that a request made or changed, if it was one of the last day.
  Result<std::optional<int64_t>> of_request(const std::string& request_id) {
    return store_.task_of_request(request_id);
  }
  /// Saves the task together with a request that changes it.
  Status save_with(const Task& task, const std::string& request_id);
  /// Saves the task; where the disk refuses, tells the log and keeps it as unsaved.
  void save(Task& task) { (void)try_save(task); }
  /// The same, and says whether the disk has taken it.
  Status try_save(Task& task);

  /// Sets why the task makes no step, for users: the one place where that becomes a sentence.
  static void explain(Task& task, policy::Why why, policy::WhyDetail detail = {});
  /// Sets what users see, and publishes it if it has changed by more than figures.
  void set_state(Task& task, const std::string& state, policy::Why why, policy::WhyDetail detail = {});
  /// The same for a task in the queue; `what`: WhyDetail::what. Why it was queued again comes first.
  void wait(Task& task, policy::Why why, const std::string& what = {});
  void publish(const Task& task) { outside_.publish(task.state()); }
  void publish_all();
  /// Answers a request with the task.
  void answer(Ticket ticket, const Task& task, const std::string& log_tail = {});

  /// The task has ended: its name is free. What a worker says of the end is checked and bounded.
  void end(Task& task, bus::Verdict verdict);
  /// Drops the oldest ended tasks from the disk when there are too many. They leave memory with forget().
  void trim_history();
  void forget();
  /// Forgets an ended task now; nobody may be going through tasks. Errors: the disk's; it is kept then.
  Status remove(const Task& task);

  /// The disk may take it later, with others: what a manager that is killed before that learns anew from workers.
  static void save_later(Task& task) { task.unsaved = true; }
  /// Some of what the disk has not taken yet: it is done at the next call where this would take long.
  void save_unsaved(int64_t now);
  /// Saves what the disk has not taken yet, and the counters of those that run. For the end of the program.
  void flush();
  /// Counts every task as reported at `now_ns` at least: the manager itself was held up.
  void excuse(int64_t now_ns);
  /// Counts every order to create one as sent at `now_ns` at least: its answer may still wait to be read.
  void excuse_orders(int64_t now_ns);
  int64_t unix_ms() const { return unix_ms_(); }

 private:
  void erase(int64_t id);
  void save_some(int64_t until_ns);
  StateStore& store_;
  Outside& outside_;
  const Clock& clock_;
  DiskTrouble& trouble_;
  std::function<int64_t()> unix_ms_;
  size_t history_;
  std::map<int64_t, Task> tasks_;
  std::map<std::string, Task*> live_;
  std::unordered_map<std::string, std::map<int64_t, Task*>> on_;  // by worker
  std::vector<int64_t> forgotten_;  // ended tasks that are off the disk and leave memory at the next tick
  int64_t next_id_ = 1;
  uint64_t highest_epoch_ = 0;
  int64_t retry_saved_ns_ = 0, trim_requests_ns_ = 0;
  policy::AgeClock requests_age_;
  std::vector<int64_t> together_;  // saved in the present batch
};

class TaskBook::Together {
 public:
  explicit Together(TaskBook& book) : book_(book), batch_(book.store_.begin_batch()) {}
  ~Together() { (void)end(); }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  /// From now on it is on the disk, or counts as unsaved. Errors: the disk's.
  Status end();
  /// Nothing of it is on the disk.
  void drop();
  bool open() const { return batch_; }  ///< false: what is saved goes to the disk by itself

 private:
  TaskBook& book_;
  bool batch_;
};

}  // namespace freeride::manager
