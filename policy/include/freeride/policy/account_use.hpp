// AccountUse: what accounts have had lately, so that the queue can be fair between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace freeride::policy {

/// What `amount` counts for once it is `age_ns` old: half of it after each half-life. A negative age is none. Pure.
double decayed(double amount, int64_t age_ns, int64_t half_life_ns);

/// Sums that decay, by account. Not thread-safe; never blocks. At most kMost accounts: the least sum makes room.
class AccountUse {
 public:
  static constexpr size_t kMost = 10'000;

  /// `half_life_ns` above 0.
  explicit AccountUse(int64_t half_life_ns) : half_life_ns_(half_life_ns) {}

  /// The account has had so much, `age_ns` before `now_ns`. What is no number above 0 is left out.
  void add(const std::string& account, double amount, int64_t now_ns, int64_t age_ns = 0);
  /// What each has had, as it counts at `now_ns`.
  std::map<std::string, double> at(int64_t now_ns) const;

 private:
  struct Sum {
    double amount = 0;
    int64_t at_ns = 0;
  };
  void make_room(int64_t now_ns);
  int64_t half_life_ns_;
  std::map<std::string, Sum> sums_;
};

}  // namespace freeride::policy
