#include "daemon/report_news.hpp"

#include <iterator>
#include <utility>

namespace freeride::worker {
namespace {

constexpr size_t kMostIterations = 1024;
constexpr size_t kMostOverruns = 4096;
constexpr size_t kMostNews = 4096;

}  // namespace

void ReportNews::add_bubble(const AttachedRank& rank, const ActEvent& event) {
  bus::BubbleTotals& totals = totals_[rank.id];
  totals.job = rank.identity.job;
  totals.rank = rank.identity.rank;
  totals.stage = rank.identity.stage;
  totals.replica = rank.identity.replica;
  totals.bubbles += 1;
  if (event.holdout) {
    totals.holdout_bubble_ns += event.end_ns - event.begin_ns;
  } else {
    totals.bubble_ns += event.end_ns - event.begin_ns;
    totals.harvested_ns += event.harvested_ns;
  }
  if (event.leased && totals.overruns_ns.size() < kMostOverruns) totals.overruns_ns.push_back(event.overrun_ns);
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
