// LoadPlan: what would become of a task if it were loaded now.
#pragma once

#include <string>

#include "capacity.hpp"
#include "contents.hpp"
#include "jobs.hpp"
#include "load_check.hpp"
#include "profile_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Decides by the same functions as load and the scheduler, and changes nothing. One thread; may read a plugin's file
/// from the disk.
class LoadPlanner {
 public:
  struct Parts {
    const Workers& workers;
    const Jobs& jobs;
    const Capacity& capacity;
    const ProfileBook& profiles;
    Contents& contents;
    const LoadCheck& check;
  };
  explicit LoadPlanner(const Parts& parts) : the_(parts) {}

  /// Errors: as load's, of what is asked for.
  Result<bus::LoadPlan> plan(const bus::Load& load) const;

 private:
  Result<std::string> content_of(const bus::Load& load) const;
  bus::PlannedStage stage_of(const bus::Load& load, const bus::TrainingState& rank, const Worker& worker,
                             const bus::Profile* profile, int64_t memory_bytes) const;

  Parts the_;
};

}  // namespace freeride::manager
