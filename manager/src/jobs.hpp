// Jobs: the training jobs that the manager measures.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "disk_trouble.hpp"
#include "freeride/bus/commands.hpp"
#include "job.hpp"
#include "outside.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// Keeps a Job by its name, saves it and publishes its measures. One thread; what saves blocks on the disk.
class Jobs {
 public:
  static constexpr size_t kMax = 64;  ///< that are kept; those not seen for longest are forgotten first
  /// Of these, of one user other than a worker's own: one user's runs do not take the place of others'.
  static constexpr size_t kMostOfOne = 16;

  Jobs(StateStore& store, Outside& outside, const Clock& clock, DiskTrouble& trouble, const JobConfig& config);
  /// Takes over what the store holds. Errors: the store's.
  Status restore();

  bool known(const std::string& name) const { return jobs_.count(name) != 0; }
  /// A rank is there. False: its job is new, and there are too many, or its user has too many at once.
  bool see_rank(const bus::TrainingState& rank);
  void take_measures(const bus::WorkerReport& report);
  /// The job's plans as workers get them; none of a job that is not known.
  std::vector<bus::HoldoutPlan> wire_plans(const std::string& name) const;
  /// Of one job, or of all with an empty name.
  std::vector<bus::JobMeasures> measures(const std::string& name = {}) const;
  std::vector<std::string> names() const;
  double duty_pct(const std::string& name) const;  ///< of its plan; 100 of a job that is not known

  /// Makes the plans that are due of the jobs with a rank seen at or after `since_ns`, and names those jobs.
  /// `side_tasks` tells a job's (Job::see_side_tasks()).
  std::vector<std::string> replan(int64_t now, int64_t since_ns,
                                  const std::function<uint64_t(const std::string&)>& side_tasks);
  void publish_changed();
  void publish_all();
  void save(int64_t now);
  /// Saves at once. For the end of the program.
  void flush();
  void forget_old();

 private:
  using ByName = std::map<std::string, Job>;
  bool make_room(const std::string& name);
  void publish_plan(const Job& job);
  void forget(ByName::const_iterator job);
  StateStore& store_;
  Outside& outside_;
  const Clock& clock_;
  DiskTrouble& trouble_;
  JobConfig config_;
  ByName jobs_;
  uint64_t seed_ = 0;
  int64_t saved_ns_ = 0;
};

}  // namespace freeride::manager
