// Times of publishers on several hosts, on one clock.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace freeride::web {

/// A publisher's times count from its host's start. Their distance to the receiver's clock is taken from the first
/// event of a host, and never changes, so that lanes do not jump. Publishers whose distances are within a second share
/// one: they are on one host, and their order is exact. Not thread-safe.
class ClockMap {
 public:
  /// What is to be added to a time of `source`'s, given one of its events and when that was received. ns.
  int64_t shift(const std::string& source, int64_t t_ns, int64_t received_ns) {
    if (const auto found = of_source_.find(source); found != of_source_.end()) return found->second;
    if (of_source_.size() >= kMost) {
      of_source_.clear();
      hosts_.clear();
    }
    const int64_t distance = received_ns - t_ns;
    for (const int64_t host : hosts_) {
      if (distance > host - kSameHost && distance < host + kSameHost) return of_source_[source] = host;
    }
    hosts_.push_back(distance);
    return of_source_[source] = distance;
  }

 private:
  static constexpr size_t kMost = 8192;
  static constexpr int64_t kSameHost = 1'000'000'000;
  std::unordered_map<std::string, int64_t> of_source_;
  std::vector<int64_t> hosts_;
};

}  // namespace freeride::web
