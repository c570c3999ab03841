// RankBook: what is known of each training rank, also of those that have ended or were lost.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "freeride/bus/commands.hpp"

namespace freeride::manager {

/// The latest of each rank, as its worker has said it. Ranks that are not there any more are bounded, and those that
/// went first are forgotten first. One thread.
class RankBook {
 public:
  static constexpr size_t kMostAway = 4096;
  static constexpr int64_t kForgetAfterNs = 600'000'000'000;

  /// `rank` is there, or its worker says how it has ended. Not believed of a rank that another worker has meanwhile.
  void see(const bus::TrainingState& rank, const std::string& host, int64_t now_ns);
  /// Its worker is gone, or names it no more.
  void lose(const bus::TrainingState& rank, int64_t now_ns);
  /// A job is forgotten when all of its ranks have ended in good order; else each rank ten minutes after it has gone.
  void forget_old(int64_t now_ns);

  /// Of one job, or of all with an empty name.
  std::vector<bus::RankInfo> list(const std::string& job, int64_t now_ns) const;
  std::vector<std::string> jobs() const;

 private:
  struct Row {
    bus::TrainingState state;
    std::string host;
    bool there = false;
    int64_t heard_ns = 0;  // when its worker has said it
    int64_t gone_ns = 0;   // unless it is there
  };
  using Rows = std::map<std::pair<std::string, uint32_t>, Row>;  // by job and number
  void leave(Row& row, int64_t now_ns);
  void drop_oldest();

  Rows rows_;
  size_t away_ = 0;
};

}  // namespace freeride::manager
