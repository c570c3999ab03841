// Profiler: takes profiles: begins runs on workers and makes of what they report a profile or a verdict.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "capacity.hpp"
#include "config.hpp"
#include "contents.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "freeride/policy/why.hpp"
#include "lifecycle.hpp"
#include "orders.hpp"
#include "placement_due.hpp"
#include "profile_book.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// One thread; blocks on the disk.
class Profiler {
 public:
  struct Parts {
    const Clock& clock;
    TaskBook& tasks;
    Workers& workers;
    Orders& orders;
    ProfileRuns& runs;
    ProfileBook& profiles;
    Contents& contents;
    const Capacity& capacity;
    Lifecycle& lifecycle;
    PlacementDue& due;
    const CoreConfig& config;
  };
  explicit Profiler(const Parts& parts) : the_(parts) {}

  /// The same devices, with whether a profile is being taken there.
  std::vector<policy::ProfileDevice> devices(const std::vector<policy::DeviceView>& devices) const;
  /// Begins a run and tells its worker. `asked`: by a client, who follows it.
  ProfileRun& begin(const bus::Load& load, const std::string& sha256, const Worker& worker, uint64_t wanted_steps,
                    bool asked);

  struct Outcome {
    bool begun = false;     ///< memory has been promised: what is known of devices is out of date
    policy::Why why;        ///< what the task waits for: kProfiling or kProfileWait
    std::string what = {};  ///< WhyDetail::what
  };
  /// For a task in the queue: takes its profile if that can be done now and is not being done. `preferred`: the worker
  /// whose device model it is to be, and which is to take it if all others are as good; empty: any.
  Outcome take_for(const Task& task, const std::string& preferred, const std::vector<policy::DeviceView>& devices);
  /// Whether the task waits in the queue for what this run will tell.
  static bool is_for(const ProfileRun& run, const Task& task);
  /// Whether any does.
  bool wanted(const ProfileRun& run) const;

  /// A worker reports a task that is a profile. `leaving`: the worker goes down.
  void take_report(Worker& worker, const bus::TaskReport& report, bool leaving = false);
  /// The worker's answer to the order to create it.
  void create_reply(const std::string& run, const std::optional<Error>& error);
  /// Ends it for those who asked; its worker stops it.
  void give_up(const std::string& run, const std::string& why);
  /// Sends again what was not taken, ends what has been going on for too long or is lost.
  void expire(int64_t now);

 private:
  bool may_run_on(const Task& task, const std::string& worker) const;
  void send(ProfileRun& run);
  void finish(const ProfileRun& run, const bus::TaskReport& report);
  void failed(const ProfileRun& run, bus::Verdict verdict, bool again);
  void end(const ProfileRun& run, bus::ProfileReply reply);

  Parts the_;
};

}  // namespace freeride::manager
