#include "profile_check.hpp"

#include <algorithm>

#include "freeride/base/plugin_store.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kLongestNs = 86'400LL * 1'000'000'000;
constexpr size_t kMostPieces = 64, kMostSteps = 1024, kMostLooks = 512;

Error wrong(std::string what) {
  return {Code::kInvalidArgument, std::move(what), {}};
}

bool all_within(const std::vector<int64_t>& values, int64_t most) {
  return std::all_of(values.begin(), values.end(), [most](int64_t value) { return value >= 0 && value <= most; });
}

bool in_order(const bus::Durations& d) {
  return d.p50_ns >= 0 && d.p50_ns <= d.p90_ns && d.p90_ns <= d.p99_ns && d.p99_ns <= d.max_ns &&
         d.max_ns <= kLongestNs;
}

}  // namespace

Status check_profile(const bus::Profile& profile) {
  if (!is_sha256(profile.sha256)) return wrong("its sha256 is none");
  if (!is_plain(profile.plugin, kMaxFileName) || profile.plugin.find('/') != std::string::npos)
    return wrong("its plugin's name will not do");
  if (!is_plain(profile.device_model)) return wrong("its device_model will not do");
  if (!profile.worker.empty() && !is_plain(profile.worker)) return wrong("its worker's name will not do");
  if (profile.conditions != "idle" && profile.conditions != "bubbles")
    return wrong("its conditions are neither idle nor bubbles");
  if (profile.ended.size() > kMaxReason || profile.params.size() > 64) return wrong("it is too large");
  for (const auto& [name, value] : profile.params) {
    if (!is_plain(name) || value.size() > 4096) return wrong("its parameters will not do");
  }
  for (const auto& [where, bytes] : profile.peak_bytes) {
    if (where != "host" && where != "gpu") return wrong("it has memory in " + in_quotes(where));
    if (bytes < 0 || bytes > kMostBytes) return wrong("its peak_bytes are out of range");
  }
  if (profile.peak_bytes.empty()) return wrong("it says nothing of memory");
  if (!all_within({profile.create_ns, profile.init_ns, profile.stop_ns}, kLongestNs) || profile.taken_unix_ms < 0)
    return wrong("one of its times is out of range");
  if (!in_order(profile.starts) || !in_order(profile.steps) || !in_order(profile.pauses) ||
      !std::all_of(profile.pieces.begin(), profile.pieces.end(), in_order))
    return wrong("its durations are out of order or out of range");
  if (profile.pieces.size() > kMostPieces || profile.step_ns.size() > kMostSteps ||
      profile.memory_t_ns.size() > kMostLooks)
    return wrong("it is too large");
  const size_t looks = profile.memory_t_ns.size();
  if (profile.host_bytes.size() != looks || (!profile.gpu_bytes.empty() && profile.gpu_bytes.size() != looks))
    return wrong("its memory over time is not of one length");
  if (!all_within(profile.step_ns, kLongestNs) || !all_within(profile.memory_t_ns, kLongestNs) ||
      !all_within(profile.host_bytes, kMostBytes) || !all_within(profile.gpu_bytes, kMostBytes))
    return wrong("one of its values is out of range");
  return {};
}

}  // namespace freeride::manager
