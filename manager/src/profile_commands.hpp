// ProfileCommands: what users ask of profiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "capacity.hpp"
#include "contents.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "load_check.hpp"
#include "outside.hpp"
#include "profile_book.hpp"
#include "profile_runs.hpp"
#include "profiler.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Every command is answered through Outside::answer(ticket). One thread; blocks on the disk.
class ProfileCommands {
 public:
  struct Parts {
    Outside& outside;
    const Clock& clock;
    const Workers& workers;
    ProfileRuns& runs;
    ProfileBook& profiles;
    Contents& contents;
    const Capacity& capacity;
    const LoadCheck& check;
    Profiler& profiler;
  };
  explicit ProfileCommands(const Parts& parts) : the_(parts) {}

  void take(Ticket ticket, const bus::TakeProfile& wish);
  void stop(Ticket ticket, const std::string& run);
  void list(Ticket ticket, const bus::ListProfiles& wish);
  /// Answers followers; gives up the runs that a client asked for who is gone.
  void look_at_followers(int64_t now);

 private:
  Result<std::vector<policy::ProfileDevice>> candidates(const bus::TakeProfile& wish) const;

  Parts the_;
};

}  // namespace freeride::manager
