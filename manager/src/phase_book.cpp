#include "phase_book.hpp"

#include <algorithm>

#include "reported_time.hpp"
#include "text.hpp"

namespace freeride::manager {

PhaseBook::PhaseBook(const std::map<std::string, PhaseRow>& kept) {
  for (const auto& [name, row] : kept) {
    if (Phase* phase = known(name)) {
      *phase = {row.count, row.idle_ns, row.offered_ns, row.harvested_ns,
                OverrunSample(kOverrunSample, row.overruns_seen, row.overruns_ns)};
    }
  }
}

std::map<std::string, PhaseRow> PhaseBook::rows() const {
  std::map<std::string, PhaseRow> rows;
  for (const auto& [name, phase] : phases_) {
    rows[name] = {phase.count,        phase.idle_ns,         phase.offered_ns,
                  phase.harvested_ns, phase.overruns.seen(), phase.overruns.sample()};
  }
  return rows;
}

PhaseBook::Phase* PhaseBook::known(const std::string& name) {
  if (name.empty() || name.size() > kMostNameBytes || !is_utf8(name)) return nullptr;
  if (phases_.size() >= kMostNames && phases_.count(name) == 0) return nullptr;
  return &phases_[name];
}

bool PhaseBook::add(const std::vector<bus::PhaseTotals>& phases, bool with_side_tasks) {
  bool changed = false;
  for (const auto& totals : phases) {
    Phase* phase = known(totals.phase);
    if (phase == nullptr) continue;
    changed = true;
    phase->count += std::min(totals.count, uint64_t{UINT32_MAX});
    const int64_t idle = bounded_ns(totals.idle_ns);
    add_ns(phase->idle_ns, idle);
    add_ns(phase->idle_ns, bounded_ns(totals.holdout_idle_ns));
    for (const int64_t overrun : totals.overruns_ns) phase->overruns.add(bounded_ns(overrun));
    if (!with_side_tasks) continue;
    add_ns(phase->offered_ns, idle);
    add_ns(phase->harvested_ns, std::min(bounded_ns(totals.harvested_ns), idle));
  }
  return changed;
}

std::vector<bus::PhaseMeasures> PhaseBook::measures() const {
  std::vector<bus::PhaseMeasures> all;
  for (const auto& [name, phase] : phases_) {
    all.push_back({name, phase.count, phase.idle_ns, phase.offered_ns, phase.harvested_ns,
                   phase.overruns.percentile_us(0.50), phase.overruns.percentile_us(0.99)});
  }
  return all;
}

}  // namespace freeride::manager
