// The model as Prometheus reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model.hpp"

namespace freeride::web {

/// What is known of this program itself.
struct OwnFigures {
  std::string version;
  size_t viewers = 0;
  uint64_t viewers_dropped = 0;
};

/// Prometheus' text format 0.0.4, or OpenMetrics 1.0. Series are bounded: running tasks up to `task_series`, by name,
/// the rest summed up as task="other"; ended tasks are counted by verdict only.
std::string metrics_text(const Model& model, const OwnFigures& own, size_t task_series, bool open_metrics = false);

/// Whether an Accept header prefers OpenMetrics 1.0 to the text format.
bool wants_open_metrics(std::string_view accept);

}  // namespace freeride::web
