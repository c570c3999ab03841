// SideTask: one side task on this worker: its process, its pages, its log, its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "acting_thread.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "loop.hpp"
#include "sandbox.hpp"
#include "task_log.hpp"

namespace freeride::worker {

/// What of the worker's options concerns a task.
struct SideTaskOptions {
  std::string runner;  ///< path of freeride-runner
  std::string device;
  std::vector<int> cores;
  bool cpu_device = true;
  int64_t grace_ns = 0, hang_ns = 0;
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
  /// Ends a task that has no process yet.
  void refuse(const std::string& kind, const std::string& reason);
  /// run, pause or stop. Idempotent; stop is final. Errors: kInvalidArgument (another word).
  Status order(const std::string& order);
  /// Kills at once. `kind` and `reason` make the verdict, if there is none.
  void kill(const std::string& kind, const std::string& reason);
  /// The acting thread has killed it.
  void killed(const Kill& kill);

  bool ended() const { return ended_; }
  bool stopping() const { return stopping_; }
  uint64_t id() const { return id_; }
  const bus::CreateTask& spec() const { return spec_; }
  /// As it goes to the manager. Reads /proc.
  bus::TaskReport report();
  std::string log_tail(size_t bytes) const { return log_ == nullptr ? "" : log_->tail(bytes); }
  int64_t resident_bytes() const { return resident_bytes_; }
  int64_t ended_ns() const { return ended_ns_; }

 private:
  Status prepare(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants);
  void on_report();
  void on_started(int pid);
  void on_log();
  void on_supervisor_exit();
  void kill_group();
  void end(bus::Verdict verdict);
  void look_at_memory();
  bus::TaskCounters counters();

  const bus::CreateTask spec_;
  const uint64_t id_;
  const SideTaskOptions& options_;
  Sandbox& sandbox_;
  Loop& loop_;
  ActingThread& acting_;
  Changed changed_;

  std::shared_ptr<TaskSource> pages_;
  Fd lifeline_, report_, runner_pidfd_;
  Child supervisor_;
  int runner_pid_ = 0;
  std::unique_ptr<TaskLog> log_;
  std::filesystem::path profile_scratch_;
  Loop::Timer stop_timer_ = 0, log_timer_ = 0;
  std::string order_ = "run";
  bool stopping_ = false, ended_ = false;
  bus::Verdict verdict_;      // of the supervisor, until the end
  bus::Verdict own_verdict_;  // of this worker: goes first
  int64_t resident_bytes_ = 0, peak_bytes_ = 0;
  int64_t ended_ns_ = 0;
};

/// The paper's name of a FREERIDE_STATE_* / FREERIDE_IN_* value; any other value gives a text too.
const char* state_name(uint32_t state);
const char* transition_name(uint32_t transition);

}  // namespace freeride::worker
