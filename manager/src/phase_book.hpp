// PhaseBook: what is known of the idle phases of a job, by their name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "overrun_sample.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// Fed with what workers report, unchecked. Bounded: later names are left out. Not thread-safe.
class PhaseBook {
 public:
  static constexpr size_t kMostNames = 64;  ///< of a job; a rank has at most 16
  static constexpr size_t kMostNameBytes = 31;
  static constexpr size_t kOverrunSample = 512;  ///< of a name

  /// Continues from what was kept.
  explicit PhaseBook(const std::map<std::string, PhaseRow>& kept = {});

  /// `with_side_tasks`: there were side tasks that could use them. True: something is new.
  bool add(const std::vector<bus::PhaseTotals>& phases, bool with_side_tasks);
  /// By name.
  std::vector<bus::PhaseMeasures> measures() const;
  std::map<std::string, PhaseRow> rows() const;
  void clear() { phases_.clear(); }

 private:
  struct Phase {
    uint64_t count = 0;
    int64_t idle_ns = 0, offered_ns = 0, harvested_ns = 0;
    OverrunSample overruns{kOverrunSample};
  };
  Phase* known(const std::string& name);

  std::map<std::string, Phase> phases_;
};

}  // namespace freeride::manager
