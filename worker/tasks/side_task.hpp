// SideTask: one side task on this worker, from the order to create it until its verdict.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "acting/acting_thread.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/orders.hpp"
#include "freeride/policy/verdict.hpp"
#include "freeride/policy/why.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"
#include "tasks/launch.hpp"
#include "tasks/leftovers.hpp"
#include "tasks/profile_run.hpp"
#include "tasks/report_reader.hpp"
#include "tasks/shim_watch.hpp"
#include "tasks/state_saver.hpp"
#include "tasks/task_log.hpp"
#include "tasks/task_memory.hpp"

namespace freeride::worker {

/// Main thread; everything it opens is closed when it has ended. The pages live on as long as the acting thread holds
/// them.
class SideTask {
 public:
  /// Called when the state that people see has changed; once with the verdict.
  using Changed = std::function<void(SideTask&)>;

  SideTask(bus::CreateTask spec, uint64_t id, const SideTaskOptions& options, Sandbox& sandbox, Loop& loop,
           ActingThread& acting, Changed changed);
  ~SideTask();
  SideTask(const SideTask&) = delete;
  SideTask& operator=(const SideTask&) = delete;

  /// Starts supervisor and runner on `plugin`, with `folder` for its log and scratch data and with `grants`. On an
  /// error the task has ended with a verdict that says so.
  void start(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants = {});

  // ---- for one that takes another's place, or gives up its own
  /// Before start(): the state file it goes on from, and what the task has done so far.
  void go_on_from(Fd state, const bus::TaskCounters& earlier);
  /// Before start(): a line for its log.
  void note_at_start(std::string line) { first_line_ = std::move(line); }
  void count_from(const bus::TaskCounters& earlier) { earlier_ = earlier; }
  /// Keeps it from running, whatever it is ordered meanwhile; release() puts the latest order into force.
  void hold();
  void release();
  /// Initialises one that is held or ordered to pause.
  void initialise_paused() { acting_.initialise_paused(id_); }
  /// Lets one that is held save its state into `file`, the caller's; `saved` is called once, unless stop_saving() comes
  /// first.
  void save(StateFile& file, StateSaver::Saved saved);
  void stop_saving() { saver_.stop(); }
  const std::string& ordered() const { return order_; }
  uint32_t answered_state() const;
  uint32_t answered_transition() const;
  /// InitSideTask is over, and it has not stopped.
  bool initialised() const;
  /// It is being started, saved or ended, as the worker sees it: not by its word.
  bool in_transition() const;
  bool restored() const;
  bus::TaskCounters counters_now();
  /// Its saved state outlives it: it is stopped here only to go on elsewhere.
  void keep_state() { keeps_state_ = true; }
  bool keeps_state() const { return keeps_state_; }

  /// The manager's orders for it hold so long; before start(), too.
  void renew(const policy::OrderTerm& term);
  const policy::OrderTerm& term() const { return term_; }
  /// The manager has no record of it: it is to be kept, paused. False takes that back.
  void set_unknown(bool unknown) { unknown_ = unknown; }
  bool unknown() const { return unknown_; }

  /// run, pause or stop. Idempotent; stop is final. Errors: kInvalidArgument (another word).
  Status order(const std::string& order);
  /// Ends it at once, with this verdict if there is none yet, and in the transition that it is in.
  void kill(policy::Verdict verdict);
  /// What it is to do next, for its plugin. What it has been told already is not written again.
  void give_work(const std::string& text);
  /// It has made its GPU fault, whatever it says of it. `xid`: the driver's number; 0: it has said none.
  void note_gpu_fault(uint32_t xid);
  /// The acting thread has killed it.
  void killed() {
    if (!parts_.pages->failed_before_kill) note({});  // else what its supervisor has heard comes first
  }

  bool ended() const { return ended_; }
  bool stopping() const { return stopping_; }
  uint64_t id() const { return id_; }
  const bus::CreateTask& spec() const { return spec_; }
  /// Nothing for sure before it has ended.
  const policy::Verdict& verdict() const { return verdict_; }
  /// As it goes to the manager. Reads /proc.
  bus::TaskReport report();
  std::string log_tail(size_t bytes) const { return log_ == nullptr ? "" : log_->tail(bytes); }
  /// Bytes at its log's beginning that are not kept any more.
  uint64_t log_forgotten() const { return log_ == nullptr ? 0 : log_->forgotten(); }
  /// Its scratch folder while it lives in a sandbox; -1: see its folder.
  int scratch_fd() const { return scratch_fd_.get(); }
  /// Its memory on a GPU device, as the driver says.
  void set_device_memory(int64_t bytes) { memory_.note_device(bytes); }
  /// The process that all of its processes come from; 0: there is none.
  /// Whether it has had a lease yet, of whichever kind.
  bool leased() const { return parts_.pages != nullptr && parts_.pages->leased.load(std::memory_order_relaxed); }
  pid_t root_pid() const { return parts_.supervisor.pid; }
  int64_t resident_bytes() const { return memory_.resident_bytes(); }
  int64_t ended_ns() const { return ended_ns_; }

 private:
  Status launch(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants,
                std::string python);
  Status watch();
  void on_started(Fd process, Fd scratch);
  void on_log();
  void on_supervisor_exit();
  void note(const policy::Verdict& seen);
  void give_order();
  bool ask_to_end();
  void write_work();
  void kill_group();
  void end(const policy::Verdict& seen);
  void let_go();
  bool keeps_scratch() const;
  void on_gone();
  const TaskMemory& look_at_memory();
  policy::Why why() const;

  const bus::CreateTask spec_;
  const uint64_t id_;
  const SideTaskOptions& options_;
  Sandbox& sandbox_;
  Loop& loop_;
  ActingThread& acting_;
  Changed changed_;

  Fd state_in_;
  Launched parts_;
  int runner_fd() const { return runner_pidfd_ == nullptr ? -1 : runner_pidfd_->get(); }
  std::shared_ptr<const Fd> runner_pidfd_;  ///< shared with the acting thread, so that neither needs another
  int runner_pid_ = 0;
  Fd scratch_fd_;  ///< of a sandbox's scratch folder, which is nowhere in this process's mounts
  std::unique_ptr<TaskLog> log_;
  std::string first_line_;
  std::unique_ptr<ReportReader> reader_;
  std::unique_ptr<ProfileRun> profile_;  ///< of a task that is profiled
  StateSaver saver_;
  TaskMemory memory_;
  ShimWatch shim_;
  bus::TaskCounters earlier_;  // of the task's contents before this one
  Loop::Timer stop_timer_ = 0, end_timer_ = 0, log_timer_ = 0;
  std::string order_ = "run";
  /// All of its processes are dead, or are about to be; what it leaves may still be put away, and then it has ended.
  bool dead_ = false;
  bool stopping_ = false, ended_ = false, held_ = false, keeps_state_ = false, unknown_ = false;
  policy::OrderTerm term_;
  std::string work_, written_work_;
  bool work_failed_ = false;
  std::unique_ptr<Leftovers> leftovers_;
  policy::Verdict verdict_;
  std::string log_tail_;  // at its end
  int64_t ended_ns_ = 0;
};

}  // namespace freeride::worker
