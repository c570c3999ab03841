// `top`: workers, bubbles and side tasks, live.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "session.hpp"

namespace freeride::ctl {

/// What side tasks are sorted by: names from A on, figures from the greatest on. Live ones come first.
enum class TopSort : uint8_t { kName, kState, kStage, kSteps, kRate, kHarvested, kMemory };
/// The words of --sort, and the key of each: its first letter, "t" for state, "g" for stage, "r" for steps a second.
const std::map<std::string, TopSort>& top_sorts();

/// What has been seen on the bus, and its picture. Not thread-safe.
class TopModel {
 public:
  /// Takes in an event; those that are of no use here or cannot be read are skipped. Memory is bounded, whatever comes.
  void apply(const bus::Event& event);

  /// The picture at `now_ns` (CLOCK_MONOTONIC), lines of at most `width` columns.
  std::string picture(int64_t now_ns, size_t width, bool ascii) const;
  void sort_by(TopSort sort) { sort_ = sort; }
  TopSort sorted_by() const { return sort_; }
  void colour(bool on) { colour_ = on; }
  /// What a key does: another order, or help instead of the picture until the next key. False: it ends `top`.
  bool key(char key);
  /// The same as {"batches", "jobs", "ranks", "tasks", "workers"}, each a list of what was last published.
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
  std::string batches_text(size_t width, bool ascii) const;
  std::vector<const Task*> sorted_tasks() const;
  std::string tasks_on(const std::string& worker) const;

  std::map<std::string, Rank> ranks_;
  std::map<std::string, Task> tasks_;
  std::map<std::string, bus::WorkerState> workers_;
  std::map<std::string, bus::JobMeasures> jobs_;
  std::map<std::string, bus::BatchState> batches_;
  int64_t last_event_ns_ = 0;
  TopSort sort_ = TopSort::kName;
  bool colour_ = false, help_ = false;
};

struct TopArguments {
  uint64_t count = 0;  ///< end after so many pictures; 0: until interrupted
  double interval_s = 1;
  std::string sort = "name";
};

/// Draws until `count` pictures are drawn or SIGINT/SIGTERM: in place on a terminal that can, else one below the other.
Result<int> run_top(Session& session, const TopArguments& arguments);

}  // namespace freeride::ctl
