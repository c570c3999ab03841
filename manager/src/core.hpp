// Core: the manager's decisions about tasks, workers and jobs, without sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/policy/placement.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "freeride/policy/queue.hpp"
#include "job.hpp"
#include "outside.hpp"
#include "records.hpp"
#include "state_store.hpp"

namespace freeride::manager {

struct CoreConfig {
  Paths paths;
  std::string version;
  JobConfig job;
  int64_t default_memory_bytes = 2048LL << 20;  ///< cap of an undeclared task until it has been profiled
  int64_t worker_timeout_ns = 5 * kNsPerSec;    ///< silence after which a worker is lost
  int64_t profile_timeout_ns = 180 * kNsPerSec;
  uint32_t max_restarts = 3;  ///< of a task whose worker was lost while it ran
  size_t history = 1000;      ///< ended tasks that are kept
  policy::QueueOrder queue_order = policy::QueueOrder::kSubmission;
};

/// Takes decoded messages, keeps the books and lets answers, orders and events out through Outside. Everything that
/// comes in is data of somebody else's: bounded, checked, never trusted. One thread; no call waits for anything but the
/// disk.
class Core {
 public:
  static constexpr size_t kMaxLiveTasks = 10'000;
  static constexpr size_t kMaxWorkers = 1024;
  static constexpr size_t kMaxJobs = 64;
  static constexpr size_t kMaxProfiles = 1024;  // the oldest go first

  /// Takes over what `store` holds. `unix_ms` gives the wall clock, for dates shown to people only. Errors: the
  /// store's.
  static Result<std::unique_ptr<Core>> start(const CoreConfig& config, std::unique_ptr<StateStore> store,
                                             Outside& outside, const Clock& clock, std::function<int64_t()> unix_ms);

  // ---- from clients. Each is answered through Outside::answer(ticket), most of them before the call returns.
  void load(Ticket ticket, const std::string& request_id, const bus::Load& load, const std::string& attachment);
  /// Answered when the new plugin has taken over, or cannot.
  void replace(Ticket ticket, const std::string& request_id, const std::string& task, const bus::Load& load,
               const std::string& attachment);
  void stop(Ticket ticket, const std::string& task);
  void pause(Ticket ticket, const std::string& task);
  void resume(Ticket ticket, const std::string& task);
  void show(Ticket ticket, const std::string& task);
  void list_tasks(Ticket ticket);
  void list_workers(Ticket ticket);
  void list_plugins(Ticket ticket);
  void status(Ticket ticket);
  void report(Ticket ticket, const std::string& job);
  void take_profile(Ticket ticket, const bus::TakeProfile& wish, const std::string& attachment);
  void follow_profile(Ticket ticket, const bus::FollowProfile& follow);
  void stop_profile(Ticket ticket, const std::string& run);
  void list_profiles(Ticket ticket, const bus::ListProfiles& wish);
  void import_profiles(Ticket ticket, const bus::ImportProfiles& wish);

  // ---- from workers; `peer` is where the message came from.
  void register_worker(Ticket ticket, const std::string& peer, const bus::RegisterWorker& worker);
  void worker_report(Ticket ticket, const std::string& peer, const bus::WorkerReport& report);
  void fetch_plugin(Ticket ticket, const std::string& sha256);
  /// A worker has answered an order. `log` is the text of a GetLog's answer.
  void worker_reply(const std::string& peer, const std::string& id, const std::optional<Error>& error,
                    const std::string& log);

  /// Timeouts, retries, plans, measures, saving. Call it when next_tick_ns() has come, after all messages that are
  /// there.
  void tick();
  int64_t next_tick_ns() const { return next_tick_ns_; }
  /// Saves what the disk has not taken yet. For the end of the program.
  void flush();

 private:
  Core(const CoreConfig& config, std::unique_ptr<StateStore> store, Outside& outside, const Clock& clock,
       std::function<int64_t()> unix_ms);
  Status restore();

  // core_tasks.cpp: the books of tasks
  Task* live_task(const std::string& name);
  const Task* latest_task(const std::string& name) const;
  Result<Task*> task_to_order(const std::string& name, const char* verb);
  void end_task(Task& task, bus::Verdict verdict);
  void requeue(Task& task, const std::string& reason, bool count);
  void set_state(Task& task, const std::string& state, const std::string& reason);
  void update_from_report(Task& task, const Worker& worker, const bus::TaskReport& report);
  void save(Task& task);
  void trim_history();
  void answer_task(Ticket ticket, const Task& task, const std::string& log_tail = {});
  void send_task_order(Task& task);

  // core_client.cpp
  Status check_load(const bus::Load& load) const;
  Result<std::string> resolve_plugin(bus::Load& load, const std::string& attachment);
  Result<std::string> choose_name(const bus::Load& load) const;
  Status check_job(const bus::Load& load) const;
  void apply_order(Ticket ticket, Task& task, const char* doing, const std::function<void(Task&)>& change,
                   bool even_unsaved);

  // core_replace.cpp
  static constexpr int64_t kContentPatience = 5 * kNsPerSec;
  static std::string instance_of(const Task& task);
  void repeat_replace(Ticket ticket, const std::string& request_id, int64_t id);
  Status check_room_for(const Task& task, const bus::Load& load) const;
  void send_replace(Task& task);
  void replace_reply(const Pending& pending, const std::optional<Error>& error);
  void update_replacement(Task& task, const bus::TaskReport& report);
  void replaced(Task& task, const std::string& how, uint64_t steps);
  void replace_failed(Task& task, const std::string& why, Code code);
  bool content_needed(const std::string& sha256) const;
  void release_content(const std::string& sha256);
  void drop_contents(int64_t now);

  // core_worker.cpp
  Worker* worker_of(const std::string& name);
  void take_tasks(Worker& worker, const std::vector<bus::TaskReport>& reports, bool leaving);
  void take_task(Worker& worker, const bus::TaskReport& report, bool leaving);
  void take_ranks(Worker& worker, const std::vector<bus::TrainingState>& ranks);
  void take_plugins(Worker& worker, const std::vector<bus::PluginState>& plugins);
  void take_measures(const bus::WorkerReport& report);
  void worker_gone(Worker& worker, Worker::State state, const std::string& reason, bool count);
  void requeue_missing(Worker& worker, const std::string& reason, bool creating_too);
  bus::WorkerPlan plan_of(const Worker& worker) const;
  void publish(Worker& worker);
  bus::WorkerState state_of(const Worker& worker) const;
  bus::WorkerInfo info_of(const Worker& worker) const;
  std::vector<bus::WorkerInfo> workers_info() const;

  // core_schedule.cpp
  void schedule();
  bool place(Task& task, const std::vector<policy::DeviceView>& devices);  // true: `devices` is out of date
  void create(Task& task, Worker& worker, int64_t reserved_bytes);
  bus::CreateTask create_order(const Task& task, const Worker& worker) const;
  void create_reply(const Pending& pending, const std::optional<Error>& error);
  std::vector<policy::DeviceView> device_views() const;
  policy::PlacementRequest request_of(const Task& task) const;
  int64_t memory_need(const Task& task) const;
  int64_t memory_cap(const bus::Load& load) const;
  void wait(Task& task, const std::string& reason);
  uint64_t side_tasks_of(const std::string& job) const;

  // core_profile.cpp
  const bus::Profile* profile_for(const Task& task, const std::string& model) const;
  std::vector<policy::ProfileDevice> profile_devices(const std::vector<policy::DeviceView>& devices) const;
  bool take_profile_for(Task& task, const std::string& preferred, const std::vector<policy::DeviceView>& devices);
  Result<std::vector<policy::ProfileDevice>> profile_candidates(const bus::TakeProfile& wish) const;
  ProfileRun& begin_profile(const bus::Load& load, const std::string& sha256, const Worker& worker);
  void send_profile(ProfileRun& run);
  void profile_report(ProfileRun& run, const bus::TaskReport& report);
  void profile_failed(const ProfileRun& run, bus::Verdict verdict, bool again);
  bool profile_wanted(const ProfileRun& run) const;  // by a task in the queue
  void keep_profile(const std::string& key, const bus::Profile& profile);
  bus::ProfileReply reply_of(const ProfileRun& run) const;
  void tell_followers(ProfileRun& run, bool all);
  void end_run(const ProfileRun& run, bus::ProfileReply reply);
  void give_up_profile(const std::string& run, const std::string& why);
  void look_at_followers(int64_t now);

  // core.cpp: the clock's part
  void expire_workers(int64_t now);
  void expire_pending(int64_t now);
  void expire_tasks(int64_t now);
  void expire_profiles(int64_t now);
  void forget_old(int64_t now);
  void send_plans(int64_t now);
  void replan_jobs(int64_t now);
  void save_jobs(int64_t now);
  void save_unsaved(int64_t now);
  void announce();
  Job& job(const std::string& name);
  void disk_trouble(const Error& error);

  CoreConfig config_;
  std::unique_ptr<StateStore> store_;
  PluginStore content_;
  Outside& outside_;
  const Clock& clock_;
  std::function<int64_t()> unix_ms_;

  std::map<int64_t, Task> tasks_;        // by id: by submission
  std::map<std::string, int64_t> live_;  // names of tasks that have not ended
  std::map<std::string, Worker> workers_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, bus::Profile> profiles_;    // by key
  std::map<std::string, ProfileRun> profile_runs_;  // by name
  std::map<std::string, EndedRun> ended_runs_;      // by name, for a minute
  std::map<std::string, Pending> pending_;          // by request id
  std::vector<int64_t> forgotten_;           // ended tasks that are off the disk and leave memory at the next tick
  std::map<std::string, int64_t> released_;  // contents that may have lost their last user, and when to look
  int64_t next_id_ = 1;
  uint64_t seed_ = 0;
  uint32_t profile_count_ = 0;
  int64_t started_ns_ = 0, last_tick_ns_ = 0, next_tick_ns_ = 0, jobs_saved_ns_ = 0, retry_saved_ns_ = 0;
  int64_t disk_trouble_ns_ = 0;
  bool announced_ = false, schedule_due_ = true;
};

}  // namespace freeride::manager
