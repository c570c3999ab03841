// What holding receives costs training, from iterations of three arms by turns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "freeride/policy/remote_wait.hpp"

namespace freeride::policy {

/// By how much iterations of one arm are longer than plain ones, percent, with the 95 % interval of the mean.
struct ArmCost {
  bool measured = false;  ///< false: fewer than HoldCost::kLeastPeriods
  double increase_pct = 0, ci95_low_pct = 0, ci95_high_pct = 0;
  size_t periods = 0;
};

/// Each period of ArmPlan has plain iterations, held ones and held ones with leases beside each other. Their durations
/// are compared within the period, so that what drifts slowly is in all of them. The last kMostPeriods count. Pure: no
/// clock. Not thread-safe; no allocation.
class HoldCost {
 public:
  static constexpr size_t kLeastPeriods = 8;
  static constexpr size_t kMostPeriods = 64;
  static constexpr double kMostPct = 0.5;    ///< holds may cost so much
  static constexpr double kStallFactor = 3;  ///< a period with an iteration so much longer than a plain one is left out

  /// One timed iteration of arm `arm` in period `period`, in order; `duration_ns` that are not positive are ignored.
  void add(uint64_t period, Arm arm, double duration_ns);
  ArmCost held() const { return cost(held_); }
  ArmCost leased() const { return cost(leased_); }
  /// Whether holds are to be off for the job: held iterations are longer than plain ones by more than kMostPct, and
  /// that they are longer at all is no chance (the interval's lower end is above 0).
  bool hurts() const;
  void forget();

 private:
  struct Ring {
    std::array<double, kMostPeriods> pct{};
    size_t used = 0, next = 0;
  };
  struct Sum {
    double ns = 0, most_ns = 0;
    size_t count = 0;
  };
  static ArmCost cost(const Ring& ring);
  static void note(Ring& ring, const Sum& of, const Sum& plain);
  void finish();

  uint64_t period_ = 0;
  std::array<Sum, 3> sums_{};  // by arm, of the present period
  Ring held_, leased_;
};

}  // namespace freeride::policy
