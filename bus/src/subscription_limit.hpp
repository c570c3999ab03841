// How much the broker remembers for its subscribers. libzmq keeps each subscription as a tree of its bytes, some thirty
// times their size, for as long as the connection lasts; and any user of the host may subscribe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace freeride::bus::detail {

/// Counts bytes of subscriptions by connection (its descriptor). What a subscriber takes back is not given back:
/// nothing says whether it had it. A closed connection's count is inherited by the next one of its number, or goes when
/// the sum is too large; who is closed for that connects again, with a count of 0.
class SubscriptionLimit {
 public:
  static constexpr size_t kMostOfOne = 64u << 10, kMostOfAll = 1u << 20;

  /// A subscription of `bytes` bytes came over `connection`. Returns which connections to close.
  std::vector<int> add(int connection, size_t bytes) {
    std::vector<int> close;
    sum_ += bytes;
    const auto one = held_.try_emplace(connection).first;
    if ((one->second += bytes) > kMostOfOne) take(one, close);
    while (sum_ > kMostOfAll) {
      const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
      take(std::max_element(held_.begin(), held_.end(), less), close);
    }
    return close;
  }

 private:
  using Held = std::map<int, size_t>;

  void take(Held::iterator it, std::vector<int>& close) {
    close.push_back(it->first);
    sum_ -= it->second;
    held_.erase(it);
  }

  Held held_;
  size_t sum_ = 0;
};

}  // namespace freeride::bus::detail
