#include "freeride/policy/mark_window.hpp"

#include <algorithm>

namespace freeride::policy {

Span usual_span(std::span<int64_t> times_ns) {
  if (times_ns.empty()) return {};
  std::sort(times_ns.begin(), times_ns.end());
  const int64_t middle = times_ns[(times_ns.size() - 1) / 2];
  return {*std::find_if(times_ns.begin(), times_ns.end(), [&](int64_t ns) { return ns >= middle / 2; }),
          *std::find_if(times_ns.rbegin(), times_ns.rend(), [&](int64_t ns) { return ns <= 2 * middle; })};
}

MarkWindow mark_window(const Span& usual) {
  constexpr int64_t kLeast = 200 * kNsPerUs, kMostBefore = 500 * kNsPerUs, kMostBehind = 1500 * kNsPerUs;
  constexpr int64_t kLongest = 4 * kNsPerMs, kPart = 25;
  if (usual.most_ns <= 0) return {};
  const int64_t spread_ns = usual.most_ns - usual.least_ns;
  const int64_t from_ns = usual.least_ns - std::clamp(spread_ns / 4, kLeast, kMostBefore);
  const int64_t to_ns = usual.most_ns + std::clamp(spread_ns, kLeast, kMostBehind);
  return {from_ns, std::min(to_ns, from_ns + std::max(kLongest, usual.least_ns / kPart))};
}

}  // namespace freeride::policy
