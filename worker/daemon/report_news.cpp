#include "daemon/report_news.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "freeride/pages.h"

namespace freeride::worker {
namespace {

constexpr size_t kMostIterations = 1024;
constexpr size_t kMostOverruns = 4096;
constexpr size_t kMostNews = 4096;
constexpr size_t kMostPhaseOverruns = 256;  // of a name

void add_phase(std::vector<bus::PhaseTotals>& phases, const bus::BubbleEnd& phase) {
  auto totals =
      std::find_if(phases.begin(), phases.end(), [&](const auto& known) { return known.phase == phase.phase; });
  if (totals == phases.end()) {
    if (phases.size() >= FREERIDE_MAX_PHASES) return;
    totals = phases.insert(phases.end(), bus::PhaseTotals{});
    totals->phase = phase.phase;
  }
  totals->count += 1;
  (phase.holdout ? totals->holdout_idle_ns : totals->idle_ns) += phase.end_ns - phase.begin_ns;
  if (!phase.holdout) totals->harvested_ns += phase.harvested_ns;
  if (phase.leased && totals->overruns_ns.size() < kMostPhaseOverruns) totals->overruns_ns.push_back(phase.overrun_ns);
}

}  // namespace

void ReportNews::add_bubble(uint64_t rank, const bus::BubbleEnd& bubble) {
  bus::BubbleTotals& totals = totals_[rank];
  totals.job = bubble.job;
  totals.rank = bubble.rank;
  totals.stage = bubble.stage;
  totals.replica = bubble.replica;
  totals.bubbles += 1;
  if (bubble.holdout) {
    totals.holdout_bubble_ns += bubble.end_ns - bubble.begin_ns;
  } else {
    totals.bubble_ns += bubble.end_ns - bubble.begin_ns;
    totals.harvested_ns += bubble.harvested_ns;
  }
  if (bubble.leased && totals.overruns_ns.size() < kMostOverruns) totals.overruns_ns.push_back(bubble.overrun_ns);
  if (!bubble.phase.empty()) add_phase(totals.phases, bubble);
}

void ReportNews::add_iteration(bus::TrainingIteration iteration) {
  if (iterations_.size() >= kMostIterations) iterations_.pop_front();
  iterations_.push_back(std::move(iteration));
}

void ReportNews::add_plugin(const bus::PluginState& state) {
  if (plugins_.size() < kMostNews) plugins_.push_back(state);
}

void ReportNews::add_departed(const bus::TrainingState& state) {
  if (departed_.size() < kMostNews) departed_.push_back(state);
}

void ReportNews::take_into(bus::WorkerReport& report) {
  for (auto& state : departed_) report.ranks.push_back(std::move(state));
  departed_.clear();
  report.plugins = std::exchange(plugins_, {});
  report.iterations.assign(std::make_move_iterator(iterations_.begin()), std::make_move_iterator(iterations_.end()));
  iterations_.clear();
  for (auto& [id, totals] : totals_) report.bubbles.push_back(std::move(totals));
  totals_.clear();
}

void ProbeNews::take_into(bus::BubbleTotals& totals, const ProbeCounts& counts) {
  const auto take = [](uint64_t& into, uint64_t& told, const std::atomic<uint64_t>& now) {
    into = now.load(std::memory_order_relaxed) - told;
    told += into;
  };
  take(totals.probes, told_.probes, counts.probes);
  take(totals.probe_findings, told_.probe_findings, counts.findings);
  take(totals.probes_unknown, told_.probes_unknown, counts.unknown);
  take(totals.holdout_probes, told_.holdout_probes, counts.holdout_probes);
  take(totals.holdout_findings, told_.holdout_findings, counts.holdout_findings);
}

}  // namespace freeride::worker
