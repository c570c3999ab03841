#include "tasks/task_report.hpp"

#include <cmath>
#include <cstring>
#include <string>

#include "freeride/base/names.hpp"
#include "freeride/base/time.hpp"

namespace freeride::worker {

using pages::load_relaxed;

bus::TaskCounters counters_of(const TaskSource& pages, bus::TaskCounters counters) {
  const freeride_answer_page& answer = *pages.answer;
  counters.steps += load_relaxed(answer.steps);
  counters.step_ns += sane(load_relaxed(answer.step_ns));
  counters.harvested_ns += pages.harvested_ns.load(std::memory_order_relaxed);
  counters.overrun_ns += pages.overrun_ns.load(std::memory_order_relaxed);
  counters.predicted_ns = sane(load_relaxed(answer.predicted_ns));
  counters.leases += pages.leases.load(std::memory_order_relaxed);
  counters.skipped += load_relaxed(answer.skipped);
  for (const freeride_metric& metric : answer.metrics) {
    freeride_metric copy;
    std::memcpy(&copy, &metric, sizeof(copy));
    const std::string name(copy.name, strnlen(copy.name, sizeof(copy.name)));
    if (is_metric_name(name) && std::isfinite(copy.value)) counters.metrics[name] = copy.value;
  }
  return counters;
}

}  // namespace freeride::worker
