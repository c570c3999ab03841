// ReportNews: what happened on this worker since its last report to the manager.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "acting/probe_page.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::worker {

/// Bounded: a manager may be away for long. Main thread.
class ReportNews {
 public:
  /// `rank`: its id.
  void add_bubble(uint64_t rank, const bus::BubbleEnd& bubble);
  void add_iteration(bus::TrainingIteration iteration);
  void add_plugin(const bus::PluginState& state);
  void add_departed(const bus::TrainingState& state);
  /// All plugins have just been told of.
  void forget_plugins() { plugins_.clear(); }
  /// Moves everything into the report.
  void take_into(bus::WorkerReport& report);

 private:
  std::deque<bus::TrainingIteration> iterations_;
  std::map<uint64_t, bus::BubbleTotals> totals_;  // by rank id
  std::vector<bus::PluginState> plugins_;
  std::vector<bus::TrainingState> departed_;
};

/// What probes have shown since the last report.
class ProbeNews {
 public:
  /// Adds it to a rank's totals.
  void take_into(bus::BubbleTotals& totals, const ProbeCounts& counts);

 private:
  bus::BubbleTotals told_;
};

}  // namespace freeride::worker
