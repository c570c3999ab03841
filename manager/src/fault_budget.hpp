// FaultBudget: how often side tasks may fault a GPU before they may not go on one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "disk_trouble.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/commands.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// Faults within an hour at which somebody is blocked; 0: never. A fault stalls training for some 0.16 s: with these,
/// faults cost a job at most 1.3 s an hour, 0.04 %, far less than the slowdown budget.
struct FaultLimits {
  uint32_t of_plugin = 2;  ///< one content
  uint32_t of_user = 4;
  uint32_t of_job = 8;  ///< in one job's bubbles, whosever they are
};

/// Counts faults by plugin content, user and job. Who has used up a budget is blocked on all workers, over restarts,
/// until an operator lifts it. Where the disk refuses, it goes on from memory. One thread; blocks on the disk only.
class FaultBudget {
 public:
  FaultBudget(StateStore& store, const Clock& clock, DiskTrouble& trouble, const FaultLimits& limits)
      : store_(store), clock_(clock), trouble_(trouble), limits_(limits) {}
  /// `unix_ms`: now, for the age of what is on the disk. From then on the monotonic clock says how old a fault is.
  Status restore(int64_t unix_ms);

  /// A task has faulted a GPU. True: somebody is blocked that was not before.
  bool note(const FaultRow& fault);
  /// Why a task of these may not go on a device, for people; nothing: it may. An empty job is none that is known.
  std::optional<std::string> blocked(const std::string& sha256, const std::string& user, const std::string& job) const;
  bool any_blocked() const { return !blocks_.empty(); }
  uint64_t version() const { return version_; }  ///< another one whenever blocked() may answer otherwise
  /// All who have faults of the last hour, and all who are blocked.
  bus::FaultsReply list() const;
  /// Unblocks and forgets the faults of `name` in `scope` ("plugin": a hash or the beginning of one; "user", "job").
  /// Errors: kNotFound, kInvalidArgument (no such scope, or several begin so), the store's.
  Status lift(const std::string& scope, const std::string& name);

 private:
  enum class Scope { kPlugin, kUser, kJob };
  static constexpr Scope kScopes[] = {Scope::kPlugin, Scope::kUser, Scope::kJob};
  static const char* name_of(Scope scope);
  static const std::string& key_of(Scope scope, const FaultRow& fault);
  uint32_t limit_of(Scope scope) const;
  struct Fault {
    FaultRow row;
    int64_t since_ns = 0;
  };
  bool is_old(const Fault& fault) const;
  uint32_t count(Scope scope, const std::string& key) const;
  void forget_old();

  StateStore& store_;
  const Clock& clock_;
  DiskTrouble& trouble_;
  FaultLimits limits_;
  std::vector<Fault> faults_;                                      // of the last hour, oldest first
  std::map<std::pair<std::string, std::string>, int64_t> blocks_;  // scope and name: since when, unix_ms
  uint64_t version_ = 1;
};

}  // namespace freeride::manager
