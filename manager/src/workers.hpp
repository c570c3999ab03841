// Workers: the registry of workers, as they have reported themselves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"
#include "jobs.hpp"
#include "outside.hpp"
#include "placement_due.hpp"
#include "task_book.hpp"

namespace freeride::manager {

struct Worker {
  enum class State { kUp, kDown, kLost };
  std::string name, incarnation, peer, host, device, model, sandbox;
  uint32_t pid = 0;
  int64_t memory_bytes = 0, usable_bytes = 0;
  int64_t context_bytes = 0;  ///< given to each task beside what it asks for
  State state = State::kUp;
  int64_t heard_ns = 0;
  std::map<std::string, bus::TaskReport> tasks;  ///< of its last report, by name
  std::vector<bus::TrainingState> ranks;
  std::map<std::string, bus::PluginState> plugins;  ///< by file name
  bool plan_due = false;                            ///< its plan has changed since it last took one
  std::string plan_id;                              ///< request id of the plan under way; empty: none
  uint64_t number = 0;                              ///< of its latest registration or report
  bus::WorkerState published;

  bool up() const { return state == State::kUp; }
  bool tells_epochs() const { return number != 0; }  ///< false: its version is from before there were any
  bool on_gpu() const { return device.rfind("GPU-", 0) == 0; }
  bool has_rank_of(const std::string& job) const;
  /// By its name, or by hostname and device, which another host's worker may have, too.
  bool is_called(const std::string& text) const { return text == name || text == host + ":" + device; }
};

/// Keeps what workers say of themselves, bounded and checked, and publishes their states. It shows their ranks to the
/// jobs; what they say of tasks is kept unread in Worker::tasks. One thread; never blocks.
class Workers {
 public:
  static constexpr size_t kMax = 1024;

  Workers(Outside& outside, const Clock& clock, const TaskBook& tasks, Jobs& jobs, PlacementDue& due)
      : outside_(outside), clock_(clock), tasks_(tasks), jobs_(jobs), due_(due) {}

  std::map<std::string, Worker>& all() { return workers_; }  ///< by name, with those that are down or lost
  const std::map<std::string, Worker>& all() const { return workers_; }
  Worker* find(const std::string& name);
  const Worker* find(const std::string& name) const;
  Worker* find_up(const std::string& name);
  Worker& at(const std::string& name) { return workers_.at(name); }
  const Worker& at(const std::string& name) const { return workers_.at(name); }
  bool any_up() const;
  /// Those that `text` means: the one of this name, else all that are called so.
  std::vector<const Worker*> called(const std::string& text) const;
  /// The worker's plan has changed, if there is such a worker.
  void plan_is_due(const std::string& name);

  struct Registered {
    Worker* worker;
    bool same;  ///< the process that was known before
  };
  /// Errors: kInvalidArgument (no name), kExhausted (too many).
  Result<Registered> register_worker(const std::string& peer, const bus::RegisterWorker& news);
  /// Errors: kNotFound: it must register (again).
  Result<Worker*> take_report(const std::string& peer, const bus::WorkerReport& report);
  /// It went down, or is lost: it has no rank and no task any more.
  void gone(Worker& worker, Worker::State state);
  /// Those that are up and have been silent for `silence_ns`.
  std::vector<Worker*> silent(int64_t silence_ns);
  /// Counts all as heard at `now_ns` at least: the manager itself was held up.
  void excuse(int64_t now_ns);
  void forget_old(int64_t now);

  /// Publishes its state if that is news.
  void publish(Worker& worker);
  std::vector<bus::WorkerInfo> infos() const;

 private:
  void take_ranks(Worker& worker, const std::vector<bus::TrainingState>& ranks);
  static void take_plugins(Worker& worker, const std::vector<bus::PluginState>& plugins);
  static void take_tasks(Worker& worker, const std::vector<bus::TaskReport>& reports);
  bus::WorkerState state_of(const Worker& worker) const;

  Outside& outside_;
  const Clock& clock_;
  const TaskBook& tasks_;
  Jobs& jobs_;
  PlacementDue& due_;
  std::map<std::string, Worker> workers_;
};

}  // namespace freeride::manager
