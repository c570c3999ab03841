// `top`: workers, bubbles and side tasks, live.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "session.hpp"

namespace freeride::ctl {

/// What has been seen on the bus, and its picture. Not thread-safe.
class TopModel {
 public:
  /// Takes in an event; those that are of no use here or cannot be read are skipped. Memory is bounded, whatever comes.
  void apply(const bus::Event& event);

  /// The picture at `now_ns` (CLOCK_MONOTONIC), lines of at most `width` columns.
  std::string picture(int64_t now_ns, size_t width, bool ascii) const;
  /// The same as {"jobs", "ranks", "tasks", "workers"}, each a list of what was last published.
  nlohmann::json json() const;

 private:
  struct Rank {
    bus::TrainingState state;
    std::deque<bus::TrainingIteration> recent;
  };
  struct Task {
    bus::TaskState state;
    double steps_per_s = 0;
    uint64_t rate_steps = 0;
    int64_t rate_ns = 0;
  };
  void apply_progress(const bus::TaskProgress& progress, int64_t t_ns);
  std::string stages_text(size_t width, bool ascii) const;
  std::string tasks_text(size_t width) const;
  std::string tasks_on(const std::string& worker) const;

  std::map<std::string, Rank> ranks_;
  std::map<std::string, Task> tasks_;
  std::map<std::string, bus::WorkerState> workers_;
  std::map<std::string, bus::JobMeasures> jobs_;
  int64_t last_event_ns_ = 0;
};

struct TopArguments {
  uint64_t count = 0;  ///< end after so many pictures; 0: until interrupted
  double interval_s = 1;
};

/// Draws until `count` pictures are drawn or SIGINT/SIGTERM: in place on a terminal that can, else one below the other.
Result<int> run_top(Session& session, const TopArguments& arguments);

}  // namespace freeride::ctl
