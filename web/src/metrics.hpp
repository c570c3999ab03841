// The model as Prometheus reads it.
#pragma once

#include <cstdint>
#include <string>

#include "model.hpp"

namespace freeride::web {

/// What is known of this program itself.
struct OwnFigures {
  std::string version;
  size_t viewers = 0;
  uint64_t viewers_dropped = 0;
};

/// Prometheus' text format. Series are bounded: running tasks up to `task_series`, by name, the rest summed up as
/// task="other"; ended tasks are counted by verdict only.
std::string metrics_text(const Model& model, const OwnFigures& own, size_t task_series);

}  // namespace freeride::web
