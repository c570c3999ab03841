// Orders: the commands to workers that have not been answered yet.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "outside.hpp"
#include "workers.hpp"

namespace freeride::manager {

constexpr int64_t kOrderPatience = 2 * kNsPerSec;  ///< then an order is sent again

/// A command that a worker has not answered yet.
struct Pending {
  enum class Kind { kCreate, kOrder, kPlan, kLog, kReplace, kData };
  Kind kind;
  int64_t task = 0;          ///< kCreate, kOrder, kLog, kReplace, kData
  std::string profile = {};  ///< kCreate of a profile run: its name
  Ticket ticket = 0;         ///< kLog, kData: who asked
  std::string peer = {}, worker = {};
  int64_t sent_ns = 0;
};

/// Sends commands and keeps them until they are answered or their time has passed. One thread; never blocks.
class Orders {
 public:
  Orders(Outside& outside, const Clock& clock) : outside_(outside), clock_(clock) {}

  /// Returns the request's id. `about` says what it is for; peer, worker and time are filled in. Errors: kUnavailable:
  /// the worker is gone, and nothing is kept.
  Result<std::string> send(const Worker& worker, const Order& order, Pending about);
  /// The answer to a request has come from `peer`. Nothing: it was not asked, or not any more.
  std::optional<Pending> answered(const std::string& peer, const std::string& id);
  /// Takes out those that were not answered in time, by request id.
  std::vector<std::pair<std::string, Pending>> take_expired(int64_t now);
  /// Counts every one as sent at `now_ns` at least, since its answer may still wait to be read; but not those for whose
  /// answer a client waits, who is told in time that there is none.
  void excuse(int64_t now_ns);
  bool empty() const { return pending_.empty(); }

 private:
  Outside& outside_;
  const Clock& clock_;
  std::map<std::string, Pending> pending_;  // by request id
};

}  // namespace freeride::manager
