// Workers: the registry of workers, as they have reported themselves.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"
#include "jobs.hpp"
#include "outside.hpp"
#include "placement_due.hpp"
#include "rank_book.hpp"
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
  std::string file_users;                           ///< as in its registration
  bool programs = false;                            ///< the same: it runs programs
  bool here = false;                                ///< it is on the manager's host
  uint64_t drain = 0;                               ///< WorkerPlan::drain; 0: it is not to be drained
  uint64_t drained = 0;                             ///< the latest of these that it has carried out
  std::string not_empty;                            ///< what it says is still there
  bool other_process = false;                       ///< on its GPU is a process that is no attached rank
  bus::WorkerState published;

  bool up() const { return state == State::kUp; }
  /// Its drop folder has it.
  bool has_content(const std::string& sha256) const;
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
  /// `most`: that are kept.
  Workers(Outside& outside, const Clock& clock, const TaskBook& tasks, Jobs& jobs, PlacementDue& due, size_t most)
      : outside_(outside), clock_(clock), tasks_(tasks), jobs_(jobs), due_(due), most_(most) {}

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
  /// Names of those whose last report has a task or profile of that name.
  std::vector<std::string> reporting(const std::string& task) const;
  /// Another one whenever a worker or a rank has come, gone or changed, or a worker's drain has.
  uint64_t version() const { return version_; }
  void changed() { ++version_; }
  /// Of those that are up, one for each kind: device model, memory of a context, and whether it is a GPU. For
  /// questions that have the same answer for all of a kind.
  const std::vector<const Worker*>& kinds() const;
  int64_t largest_bytes() const;  ///< memory of the largest that is up; 0: none is
  /// The worker's plan has changed, if there is such a worker.
  void plan_is_due(const std::string& name);

  struct Registered {
    Worker* worker;
    bool same;  ///< the process that was known before
  };
  /// Errors: kInvalidArgument (no name), kExhausted (too many).
  Result<Registered> register_worker(const std::string& peer, const bus::RegisterWorker& news, bool here);
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
  /// Of all jobs, or of those that `job` means; also those that have ended or were lost lately.
  std::vector<bus::RankInfo> ranks(const std::string& job) const;

 private:
  void take_ranks(Worker& worker, const std::vector<bus::TrainingState>& ranks);
  static void take_plugins(Worker& worker, const std::vector<bus::PluginState>& plugins);
  void take_tasks(Worker& worker, const std::vector<bus::TaskReport>& reports);
  void forget_tasks(Worker& worker);
  void look_at_kinds() const;
  bus::WorkerState state_of(const Worker& worker) const;

  Outside& outside_;
  const Clock& clock_;
  const TaskBook& tasks_;
  Jobs& jobs_;
  PlacementDue& due_;
  size_t most_;
  std::map<std::string, Worker> workers_;
  RankBook ranks_;
  std::unordered_map<std::string, std::set<std::string>> reporting_;  // by task
  uint64_t version_ = 1;
  mutable uint64_t kinds_of_version_ = 0;
  mutable std::vector<const Worker*> kinds_;
  mutable int64_t largest_bytes_ = 0;
};

}  // namespace freeride::manager
