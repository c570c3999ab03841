// Core: takes the messages that come in to the manager's parts, and joins those parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "batches.hpp"
#include "capacity.hpp"
#include "config.hpp"
#include "contents.hpp"
#include "copies.hpp"
#include "disk_trouble.hpp"
#include "drains.hpp"
#include "fault_budget.hpp"
#include "freeride/base/clock.hpp"
#include "jobs.hpp"
#include "lifecycle.hpp"
#include "listings.hpp"
#include "load_check.hpp"
#include "load_plan.hpp"
#include "orders.hpp"
#include "outside.hpp"
#include "placement_due.hpp"
#include "plans.hpp"
#include "profile_book.hpp"
#include "profile_commands.hpp"
#include "profile_runs.hpp"
#include "profiler.hpp"
#include "replacements.hpp"
#include "scheduler.hpp"
#include "state_store.hpp"
#include "task_book.hpp"
#include "task_commands.hpp"
#include "task_data.hpp"
#include "usage.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Takes decoded messages and lets answers, orders and events out through Outside. Everything that comes in is data of
/// somebody else's: bounded, checked, never trusted. One thread; no call waits for anything but the disk.
class Core {
 public:
  /// Takes over what `store` holds. `unix_ms` gives the wall clock, for dates shown to people only. Errors: the
  /// store's.
  static Result<std::unique_ptr<Core>> start(const CoreConfig& config, std::unique_ptr<StateStore> store,
                                             Outside& outside, const Clock& clock, std::function<int64_t()> unix_ms);

  // ---- from clients. Each is answered through Outside::answer(ticket), most of them before the call returns.
  void load(Ticket ticket, const std::string& request_id, const bus::Load& load, std::string attachment);
  /// The same, of a content that is known by load_waiting(): many at once wait for the disk once.
  void load_later(Ticket ticket, const std::string& request_id, const bus::Load& load, std::string attachment = {});
  /// Makes and answers those. Call it before anything else that a client asks for, and when no more is there.
  void load_waiting();
  bool enough_waiting() const { return task_commands_.enough_waiting(); }  ///< load_waiting() is to come first
  /// Answered when the new plugin has taken over, or cannot.
  void replace(Ticket ticket, const std::string& request_id, const std::string& task, const bus::Load& load,
               std::string attachment);
  void stop(Ticket ticket, const std::string& task) { task_commands_.stop(ticket, task); }
  void remove(Ticket ticket, const std::string& task) { task_commands_.remove(ticket, task); }
  void pause(Ticket ticket, const std::string& task) { task_commands_.pause(ticket, task); }
  void resume(Ticket ticket, const std::string& task) { task_commands_.resume(ticket, task); }
  void show(Ticket ticket, const std::string& task);
  void list_tasks(Ticket ticket) { listings_.tasks(ticket); }
  void list_workers(Ticket ticket) { listings_.workers(ticket); }
  void list_ranks(Ticket ticket, const std::string& job) { listings_.ranks(ticket, job); }
  void list_plugins(Ticket ticket) { listings_.plugins(ticket); }
  void status(Ticket ticket) { listings_.status(ticket); }
  void report(Ticket ticket, const std::string& job) { listings_.report(ticket, job); }
  void plan_load(Ticket ticket, const bus::Load& load);
  void take_profile(Ticket ticket, const bus::TakeProfile& wish, std::string attachment);
  void follow_profile(Ticket ticket, const bus::FollowProfile& follow) { runs_.follow(ticket, follow); }
  void stop_profile(Ticket ticket, const std::string& run);
  void list_profiles(Ticket ticket, const bus::ListProfiles& wish) { profile_commands_.list(ticket, wish); }
  void list_faults(Ticket ticket);
  void lift_faults(Ticket ticket, const bus::LiftFaults& wish);
  /// Answered when the task's worker has answered.
  void read_log(Ticket ticket, const bus::ReadLog& wish);
  void read_file(Ticket ticket, const bus::ReadFile& wish);
  void read_plugin(Ticket ticket, const bus::ReadPlugin& wish);
  void write_plugin(Ticket ticket, const std::string& account, const bus::WritePlugin& wish, const std::string& piece);
  /// Answered by go_on().
  void usage(Ticket ticket, const bus::GetUsage& wish);
  void drain(Ticket ticket, const bus::Drain& wish);
  void uncordon(Ticket ticket, const std::string& subject);

  void submit_batch(Ticket ticket, const bus::SubmitBatch& wish, std::string attachment);
  void show_batch(Ticket ticket, const std::string& name) { batches_.show(ticket, name); }
  void list_batches(Ticket ticket) { batches_.list(ticket); }
  void remove_batch(Ticket ticket, const std::string& name);

  // ---- whose something is; nothing: there is no such
  /// The task of that name that is live, or else was the last.
  std::optional<std::string> user_of_task(const std::string& task) const;
  std::optional<std::string> user_of_profile(const std::string& run) const;
  std::optional<std::string> user_of_batch(const std::string& name) const { return batches_.user_of(name); }

  // ---- from workers; `peer` is where the message came from.
  /// `here`: the kernel says that it is on this host.
  void register_worker(Ticket ticket, const std::string& peer, const bus::RegisterWorker& worker, bool here = false);
  void worker_report(Ticket ticket, const std::string& peer, const bus::WorkerReport& report);
  void fetch_plugin(Ticket ticket, const bus::FetchPlugin& wish);
  /// Answered when the worker that has the state has answered.
  void fetch_state(Ticket ticket, const bus::FetchState& wish) { task_data_.fetch_state(ticket, wish); }
  /// A worker has answered an order. `log` is the text of a GetLog's answer; `data` the whole answer to that or a
  /// GetFile, with what was attached.
  void worker_reply(const std::string& peer, const std::string& id, const std::optional<Error>& error,
                    const std::string& log, const Reply* data = nullptr, const std::string& bytes = {});

  /// Timeouts, retries, plans, measures, saving. Call it when next_tick_ns() has come, after all messages that are
  /// there. `behind`: since the last call more messages have waited than were taken, at every moment; then nobody's
  /// silence means anything, since whatever they said may still wait.
  void tick(bool behind = false);
  int64_t next_tick_ns() const { return next_tick_ns_; }
  /// Goes on with what is done in slices: placing tasks, adding up usage. Call it when next_slice_ns() has come,
  /// likewise.
  void go_on();
  int64_t next_slice_ns() const { return usage_.asked() ? 0 : scheduler_.next_ns(); }
  uint64_t device_looks() const { return scheduler_.device_looks(); }  ///< that placing has taken so far
  /// Saves what the disk has not taken yet. For the end of the program.
  void flush();

 private:
  Core(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside, const Clock& clock,
       std::function<int64_t()> unix_ms);
  Status restore();
  /// `then` of the load with its content's SHA-256, at once or later; `waited`: later.
  void with_content(Ticket ticket, const bus::Load& load, std::string attachment,
                    std::function<void(const bus::Load& meant, bool waited)> then);
  void feed_members(const Worker* answered);
  void take_tasks(Worker& worker, bool leaving);
  void worker_gone(Worker& worker, Worker::State state, const std::string& reason, bool count);
  void expire_orders(int64_t now);
  void excuse_own_stall(int64_t now, bool behind);
  void announce();
  void tick_soon();

  // In the order of who uses whom: each knows only those above it.
  CoreConfig config_;
  std::unique_ptr<StateStore> store_;
  Outside& outside_;
  const Clock& clock_;
  DiskTrouble trouble_;
  PlacementDue due_;
  TaskBook tasks_;
  Jobs jobs_;
  Usage usage_;
  Workers workers_;
  Copies copies_;
  Orders orders_;
  ProfileBook profiles_;
  ProfileRuns runs_;
  Capacity capacity_;
  Contents contents_;
  FaultBudget faults_;
  LoadCheck check_;
  LoadPlanner load_planner_;
  Replacements replacements_;
  Lifecycle lifecycle_;
  Plans plans_;
  Profiler profiler_;
  Scheduler scheduler_;
  TaskCommands task_commands_;
  ProfileCommands profile_commands_;
  TaskData task_data_;
  Drains drains_;
  Batches batches_;
  Listings listings_;

  int64_t started_ns_, last_tick_ns_, next_tick_ns_;
  bool announced_ = false;
};

}  // namespace freeride::manager
