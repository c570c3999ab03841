// Limits: how large a cluster this manager takes.
#pragma once

#include <algorithm>
#include <cstddef>

namespace freeride::manager {

/// One figure is given; what grows with the number of GPUs follows from it, so that no limit is met before that one.
/// What each entry costs is in docs/scale.md. A plain value.
struct Limits {
  size_t workers = 1024;

  size_t live_tasks() const { return std::max<size_t>(10'000, 2 * workers); }
  size_t ranks_of_job() const { return std::max<size_t>(4096, workers); }
  size_t drains() const { return std::max<size_t>(1024, workers); }
  size_t open_requests() const { return std::max<size_t>(4096, workers); }
  size_t keys() const { return std::max<size_t>(4096, workers); }
  /// Last states that are kept for late joiners: of each worker, its rank, and its tasks.
  size_t kept_topics() const { return 4 * std::max<size_t>(1024, workers); }
  /// Requests that are remembered: each worker makes one a second, and repeats it after a second without an answer.
  size_t answers() const { return 8 * std::max<size_t>(1024, workers); }
};

}  // namespace freeride::manager
