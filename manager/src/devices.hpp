// Devices: what the Scheduler knows of the devices, kept from slice to slice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "capacity.hpp"
#include "fault_budget.hpp"
#include "freeride/policy/placer.hpp"
#include "placement_due.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// With ten thousand devices a look at all of them takes as long as a slice. So it is taken when workers, ranks, drains
/// or blocks have changed; else those alone are looked at of which there is news. One thread; never blocks.
class Devices {
 public:
  Devices(const Capacity& capacity, const Workers& workers, const FaultBudget& faults, PlacementDue& due)
      : capacity_(capacity), workers_(workers), faults_(faults), due_(due) {}

  /// The devices that some tasks may go on. Which tasks' they are depends on little: key_of().
  struct Choice {
    std::unique_ptr<policy::Placer> devices;
    std::optional<std::string> blocked;  ///< why one was left out for faults
    const Worker* left_out = nullptr;    ///< for another reason
  };

  /// From here on what is asked for is as it is now, and holds until the next call.
  void begin_slice() { looked_ = false; }
  policy::Placer& all();
  Choice& choice_for(const Task& task);
  /// So much was promised on a worker, to so many more tasks (0: to a profile).
  void promise(const std::string& worker, int64_t bytes, uint32_t tasks);
  uint64_t looks() const { return looks_; }  ///< devices looked at so far

 private:
  void look();
  void look_at_all();
  std::string key_of(const Task& task) const;

  const Capacity& capacity_;
  const Workers& workers_;
  const FaultBudget& faults_;
  PlacementDue& due_;
  std::unique_ptr<policy::Placer> all_;
  std::map<std::string, Choice> choices_;
  bool looked_ = false;
  uint64_t workers_version_ = 0, faults_version_ = 0, looks_ = 0;
};

}  // namespace freeride::manager
