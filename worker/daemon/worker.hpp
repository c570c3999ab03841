// Worker: the main thread's side of freeride-worker; joins trainers, side tasks, plugins, manager and bus to the acting
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "acting/acting_thread.hpp"
#include "daemon/contents.hpp"
#include "daemon/draining.hpp"
#include "daemon/drop_folder.hpp"
#include "daemon/manager_link.hpp"
#include "daemon/options.hpp"
#include "daemon/rank_reasons.hpp"
#include "daemon/report_news.hpp"
#include "daemon/shutdown.hpp"
#include "daemon/trainers.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/sockets.hpp"
#include "gpu/gpu_guard.hpp"
#include "gpu/gpu_probe.hpp"
#include "loop/background.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"
#include "tasks/alarms.hpp"
#include "tasks/replacements.hpp"
#include "tasks/side_task.hpp"
#include "tasks/state_fetch.hpp"
#include "tasks/task_folders.hpp"

namespace freeride::worker {

/// One per process and device. All members are for one thread, which run() occupies.
class Worker : private Replacements::Host, private ManagerLink::Host {
 public:
  /// Opens everything. block_end_signals() has been called, before any thread was made. Errors: another worker has the
  /// device; the run folder cannot be written; the kernel is too old.
  static Result<std::unique_ptr<Worker>> create(const Options& options);
  ~Worker() override;

  /// Until one of end_signals(); then lets all tasks save their progress, within a third of Options::stop_ms, and stops
  /// them in good order, within Options::stop_ms. At a second signal it does not wait for them any more.
  void run();

 private:
  explicit Worker(Options options);
  Status open();
  Status open_signals();
  Status open_gpu();

  // Acting thread.
  void on_acting();
  void on_rank_event(const AttachedRank& rank, const ActEvent& event);

  // Trainers.
  void on_rank(const AttachedRank& rank, Trainers::Change change);
  void publish_rank(const AttachedRank& rank);
  void look_at_reasons(uint64_t but = 0);
  void note_others(const std::set<pid_t>& pids);
  bus::TrainingState state_of(const AttachedRank& rank) const;

  // Plugins.
  void on_file(const DroppedFile& file);
  bus::PluginState state_of(const DroppedFile& file) const;

  // Manager.
  bus::RegisterWorker registration() override;
  bus::WorkerReport report() override;
  bus::TaskReport report_of(SideTask& task);
  void reported() override;
  void registered() override;
  void on_plan(const bus::WorkerPlan& plan) override;
  Status on_create(const bus::CreateTask& spec) override;
  bool runs_programs() const;
  Status on_replace(const bus::ReplaceTask& replace) override;
  Status on_order(const bus::TaskOrder& order) override;
  Result<bus::LogReply> on_log(const bus::GetLog& wish) override;
  Result<FilePiece> on_file(const bus::GetFile& wish) override;
  Result<FilePiece> on_state(const bus::GetState& wish) override;
  Result<FilePiece> on_plugin(const bus::GetPlugin& wish) override;
  std::string still_there();
  void look_at_drain();
  void pause_unknown(SideTask& task);
  Status obey(SideTask& task, const bus::TaskOrder& order, const std::optional<policy::OrderTerm>& term);
  void renew(SideTask& task, const policy::OrderTerm& term);
  void settle(const bus::TaskOrder& order);
  void end_expired();
  void end_at_once(SideTask& task, policy::Verdict verdict);
  Error no_task(const std::string& name) const {
    return {Code::kNotFound, "worker " + id_ + " has no task " + name.substr(0, 80), ""};
  }
  Status check_room() const;

  // Tasks.
  void give_files(uint64_t task, const std::filesystem::path& plugin);
  void start(SideTask& task, const std::filesystem::path& plugin, SandboxGrants grants);
  void on_task(SideTask& task);
  void on_end(SideTask& task);
  void publish_progress();
  void publish_alarms(const bus::TaskProgress& progress, const SideTask& task);
  SideTask* task(uint64_t id);
  SideTask* live_task(uint64_t id);
  void forget_old_tasks();
  int64_t capacity_bytes() const;
  int64_t usable_bytes() const;

  // For replacements.
  SideTask* named(const std::string& name) override;
  std::unique_ptr<SideTask> put(const std::string& name, std::unique_ptr<SideTask> task) override;
  Status may_replace(const SideTask& task) override;
  std::unique_ptr<SideTask> make(bus::CreateTask spec) override;
  void launch(SideTask& task) override;
  void fetch_state(SideTask& task);
  void retire(std::unique_ptr<SideTask> task) override { retired_.push_back(std::move(task)); }
  void drop_content(const std::string& sha256) override;
  std::filesystem::path folder(const std::string& name) override { return options_.paths.task_dir(name); }
  void report_soon() override { link_->report_soon(); }

  void keep_host_id();
  void tick();
  void begin_stop();
  void stop_when_idle();

  Options options_;
  std::string host_, id_, incarnation_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<ActingThread> acting_;
  std::unique_ptr<Sandbox> sandbox_;
  std::unique_ptr<GpuGuard> gpu_;  // null on a CPU device
  std::unique_ptr<GpuProbe> probe_;
  std::shared_ptr<ProbeCounts> probe_counts_ = std::make_shared<ProbeCounts>();
  zmq::context_t context_{1};
  std::unique_ptr<bus::Publisher> publisher_;
  std::unique_ptr<PluginStore> store_;
  std::unique_ptr<DropFolder> drop_folder_;
  std::unique_ptr<Trainers> trainers_;
  std::unique_ptr<ManagerLink> link_;
  std::unique_ptr<Background> launches_;  // reads and hashes plugins that are to start
  std::unique_ptr<Contents> contents_;
  std::unique_ptr<StateFetch> states_;
  std::set<uint64_t> fetching_;  // tasks whose state is on its way; those that have ended meanwhile stay
  std::unique_ptr<TaskFolders> folders_;
  Fd signals_;

  std::map<std::string, std::unique_ptr<SideTask>> tasks_;  // by name; ended ones for a while
  std::map<uint64_t, std::string> acknowledged_;            // ended tasks (by id) that the manager knows of
  std::vector<uint64_t> told_ended_;                        // in the report under way
  std::map<std::string, uint64_t> epochs_;                  // by task: of the last order to create it that was answered
  Alarms alarms_;
  std::map<std::string, std::string> told_progress_;  // last published counters of a task, encoded
  std::unique_ptr<Replacements> replacements_;
  std::vector<std::unique_ptr<SideTask>> retired_;  // ended; they go after this turn of the loop
  uint64_t last_task_ = 0;
  std::shared_ptr<const PlanSet> plans_;
  ReportNews news_;
  RankReasons reasons_{policy::LeaseLimits{}.shortest_ns};
  ProbeNews probe_news_;
  uint64_t dropped_events_ = 0;
  bool host_id_written_ = false, host_id_failed_ = false;
  std::unique_ptr<Shutdown> shutdown_;
  std::unique_ptr<Draining> draining_;
  pid_t other_process_ = 0;  // on the GPU, and no attached rank; 0: there is none; -1: to be looked for
};

}  // namespace freeride::worker
