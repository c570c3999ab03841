#include "daemon/measures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "daemon/phase_name.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::worker {
namespace {

template <class Event>
void identify(Event& event, const AttachedRank& rank) {
  event.job = rank.identity.job;
  event.device = rank.identity.device;
  event.rank = rank.identity.rank;
  event.stage = rank.identity.stage;
  event.replica = rank.identity.replica;
}

double share(double pct, double otherwise) {
  return std::isfinite(pct) ? std::clamp(pct, 0.0, 100.0) : otherwise;
}

}  // namespace

bus::BubbleBegin bubble_begin(const AttachedRank& rank, const ActEvent& event) {
  bus::BubbleBegin begin;
  identify(begin, rank);
  begin.wait = event.wait;
  begin.iteration = event.iteration;
  begin.begin_ns = event.begin_ns;
  begin.learned_ns = event.learned_ns;
  begin.phase = phase_name(*rank.source->page, event.wait);
  return begin;
}

bus::BubbleEnd bubble_end(const AttachedRank& rank, const ActEvent& event) {
  bus::BubbleEnd end;
  identify(end, rank);
  end.wait = event.wait;
  end.iteration = event.iteration;
  if (event.type >= 'A' && event.type <= 'C') end.type = std::string(1, static_cast<char>(event.type));
  end.begin_ns = event.begin_ns;
  end.end_ns = event.end_ns;
  end.learned_ns = event.learned_ns;
  end.harvested_ns = event.harvested_ns;
  end.overrun_ns = event.overrun_ns;
  end.leased = event.leased;
  end.holdout = event.holdout;
  end.side_begin_ns = event.side_begin_ns;
  end.side_end_ns = event.side_end_ns;
  end.phase = phase_name(*rank.source->page, event.wait);
  return end;
}

bus::TrainingIteration training_iteration(const AttachedRank& rank, const ActEvent& event) {
  bus::TrainingIteration iteration;
  identify(iteration, rank);
  iteration.iteration = event.iteration;
  iteration.begin_ns = event.begin_ns;
  iteration.end_ns = event.end_ns;
  iteration.bubble_ns = event.bubble_ns;
  iteration.harvested_ns = event.harvested_ns;
  iteration.holdout = event.holdout;
  iteration.harvested = event.leased;
  iteration.transitions = event.transitions;
  return iteration;
}

// Any number that a page can hold is one that may be shown.
bus::HoldCost hold_cost(const freeride_hold_cost& on_page) {
  constexpr double kPpmPerPct = 1e4;
  bus::HoldCost cost;
  cost.periods = pages::load_relaxed(on_page.periods);
  if (cost.periods == 0) return cost;
  cost.increase_pct = pages::load_relaxed(on_page.increase_ppm) / kPpmPerPct;
  cost.ci95_low_pct = pages::load_relaxed(on_page.low_ppm) / kPpmPerPct;
  cost.ci95_high_pct = pages::load_relaxed(on_page.high_ppm) / kPpmPerPct;
  return cost;
}

bus::TrainingState training_state(const AttachedRank& rank, int64_t now_ns) {
  const freeride_bubble_page& page = *rank.source->page;
  bus::TrainingState state;
  identify(state, rank);
  state.framework = rank.identity.framework;
  state.stages = rank.identity.stages;
  state.replicas = rank.identity.replicas;
  state.budget_pct = rank.identity.budget_pct.value_or(-1);
  state.held = hold_cost(page.held);
  state.held_with_leases = hold_cost(page.held_with_leases);
  state.guessed = (pages::load_relaxed(page.flags) & FREERIDE_BUBBLE_GUESSED) != 0;
  state.waits = pages::load_relaxed(page.waits);
  state.iteration = pages::load_relaxed(page.iteration);
  switch (pages::load_relaxed(page.hook_state)) {
    case FREERIDE_HOOK_STARTING:
      state.state = "attached";
      break;
    case FREERIDE_HOOK_ACTIVE:
      state.state = "active";
      break;
    case FREERIDE_HOOK_GONE:
      state.state = "gone";
      break;
    default:
      state.state = "disabled";
      break;
  }
  if (state.state != "attached" && state.state != "active") return state;
  if (const auto phase = present_phase(page, now_ns)) {
    state.phase = phase->name;
    state.phase_ms = phase->length_ns / kNsPerMs;
  }
  return state;
}

bus::TaskProgress task_progress(const std::string& worker, const bus::TaskReport& report) {
  bus::TaskProgress progress;
  progress.task = report.task;
  progress.worker = worker;
  progress.state = report.state;
  progress.counters = report.counters;
  return progress;
}

policy::HoldoutPlan holdout_plan(const bus::HoldoutPlan& plan) {
  policy::HoldoutPlan out;
  out.job = plan.job;
  out.seed = plan.seed;
  out.block_iterations = plan.block_iterations;
  out.from_iteration = plan.from_iteration;
  out.share_pct = share(plan.share_pct, 0);
  // A duty that is no number gives no leases: when in doubt, training.
  out.duty_pct = share(plan.duty_pct, 0);
  return out;
}

int64_t host_memory_bytes(const char* key) {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.rfind(key, 0) == 0) return std::strtoll(line.c_str() + std::strlen(key), nullptr, 10) * 1024;
  }
  return 0;
}

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

}  // namespace freeride::worker
