// SideTask: one side task on this worker: its process, its pages, its log, its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "acting/acting_thread.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"
#include "tasks/profile_watch.hpp"
#include "tasks/state_file.hpp"
#include "tasks/task_log.hpp"

namespace freeride::worker {

/// What of the worker's options concerns a task.
struct SideTaskOptions {
  std::string device;
  std::vector<int> cores;
  bool cpu_device = true;
  int64_t host_memory_bytes =
      0;  ///< ceiling of a GPU's task in the host's memory; on a CPU device the task's own counts
  int64_t grace_ns = 0, hang_ns = 0;
  int64_t create_ns = 60'000'000'000;   ///< for loading and CreateSideTask
  int64_t profile_ns = 30'000'000'000;  ///< for a profile's steps
  int64_t stop_ns =
      10'000'000'000;  ///< for StopSideTask as seen from here; the supervisor has a shorter bound of its own
};

/// A task from the order to create it until its verdict. Main thread; everything it opens is closed when it has ended.
/// The pages live on as long as the acting thread holds them.
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
  void count_from(const bus::TaskCounters& earlier) { earlier_ = earlier; }
  /// Keeps it from running, whatever it is ordered meanwhile; release() puts the latest order into force.
  void hold();
  void release();
  /// Initialises one that is held or ordered to pause.
  void initialise_paused() { acting_.initialise_paused(id_); }
  /// Lets one that is held save its state into `file`, the caller's; `saved` is called once, unless stop_saving() comes
  /// first.
  using Saved = std::function<void(Status)>;
  void save(StateFile& file, Saved saved);
  void stop_saving();
  const std::string& ordered() const { return order_; }
  uint32_t answered_state() const;
  uint32_t answered_transition() const;
  bool restored() const;
  bus::TaskCounters counters_now();
  /// Its saved state outlives it: it is stopped here only to go on elsewhere.
  void keep_state() { keeps_state_ = true; }
  bool keeps_state() const { return keeps_state_; }

  /// Ends a task that has no process yet.
  void refuse(const std::string& kind, const std::string& reason, const std::string& limit = {});
  /// run, pause or stop. Idempotent; stop is final. Errors: kInvalidArgument (another word).
  Status order(const std::string& order);
  /// Kills at once. `kind`, `reason` and `limit` make the verdict, if there is none.
  void kill(const std::string& kind, const std::string& reason, const std::string& limit = {});
  /// The acting thread has killed it.
  void killed(const Kill& kill);

  bool ended() const { return ended_; }
  bool stopping() const { return stopping_; }
  uint64_t id() const { return id_; }
  const bus::CreateTask& spec() const { return spec_; }
  /// As it goes to the manager. Reads /proc.
  bus::TaskReport report();
  std::string log_tail(size_t bytes) const { return log_ == nullptr ? "" : log_->tail(bytes); }
  /// Its memory on a GPU device, as the driver says.
  void set_device_memory(int64_t bytes);
  /// The process that all of its processes come from; 0: there is none.
  pid_t root_pid() const { return supervisor_.pid; }
  int64_t resident_bytes() const { return resident_bytes_; }
  int64_t ended_ns() const { return ended_ns_; }

 private:
  Status prepare(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants);
  void on_report();
  void on_started(Fd process, Fd scratch);
  void on_log();
  void on_state();
  void on_supervisor_exit();
  void kill_group();
  void end(bus::Verdict verdict);
  void let_go();
  void on_gone();
  void look_at_memory();
  void look_at_profile();
  void on_profile();
  bus::Profile profile() const;
  bus::TaskCounters counters();

  struct Leftovers;

  const bus::CreateTask spec_;
  std::string python_;  ///< the interpreter of a task in Python
  const uint64_t id_;
  const SideTaskOptions& options_;
  Sandbox& sandbox_;
  Loop& loop_;
  ActingThread& acting_;
  Changed changed_;

  std::shared_ptr<TaskSource> pages_;
  Fd lifeline_, report_, runner_pidfd_;
  Fd state_in_, state_pipe_;
  StateReceiver receiver_;
  StateFile* saving_ = nullptr;
  Saved saved_;
  bus::TaskCounters earlier_;  // of the task's contents before this one
  Fd folder_;                  ///< the task's, held so that nobody removes it
  Fd scratch_fd_;              ///< of a sandbox's scratch folder, which is nowhere in this process's mounts
  Child supervisor_;
  std::string sandbox_text_;
  int runner_pid_ = 0;
  std::unique_ptr<TaskLog> log_;
  std::filesystem::path profile_scratch_;
  std::string granted_limits_;
  Loop::Timer stop_timer_ = 0, log_timer_ = 0, profile_timer_ = 0;
  std::unique_ptr<ProfileWatch> profile_;  ///< of a task that is profiled
  int64_t initialised_ns_ = 0;             ///< of such a one: when it was first seen to be
  std::string order_ = "run";
  /// All of its processes are dead, or are about to be; what it leaves may still be put away, and then it has ended.
  bool dead_ = false;
  bool stopping_ = false, ended_ = false, held_ = false, keeps_state_ = false;
  std::unique_ptr<Leftovers> leftovers_;
  bus::Verdict verdict_;                                   // of the supervisor, until the end
  bus::Verdict own_verdict_;                               // of this worker: goes first
  int64_t resident_bytes_ = 0, peak_bytes_ = 0;            // of the device's memory; on a CPU that is the host's
  int64_t host_resident_bytes_ = 0, host_peak_bytes_ = 0;  // of its process
  int64_t ended_ns_ = 0;
};

}  // namespace freeride::worker
