#include "freeride/policy/holdout.hpp"

#include <cmath>

#include "mix.hpp"

namespace freeride::policy {
namespace {

constexpr uint64_t kWhole = 1'000'000;  // shares are handled in millionths, so that all ranks round alike

uint64_t base_hash(const HoldoutPlan& plan, uint64_t purpose) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over the name
  for (const char c : plan.job) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mixed(mixed(hash ^ purpose) ^ plan.seed);
}

uint64_t millionths(double pct) {
  if (!(pct > 0)) return 0;  // also NaN
  if (pct >= 100) return kWhole;
  return static_cast<uint64_t>(std::llround(pct * (kWhole / 100.0)));
}

// Stratum g holds blocks [ceil(g·whole/share), ceil((g+1)·whole/share)): after n blocks, n·share of them have been
// chosen, give or take one.
bool is_chosen(const HoldoutPlan& plan, uint64_t share, uint64_t block) {
  using Wide = unsigned __int128;
  const Wide stratum = Wide{block} * share / kWhole;
  const auto first = static_cast<uint64_t>((stratum * kWhole + share - 1) / share);
  const auto past = static_cast<uint64_t>(((stratum + 1) * kWhole + share - 1) / share);
  return block == first + mixed(base_hash(plan, 1) ^ static_cast<uint64_t>(stratum)) % (past - first);
}

}  // namespace

uint64_t block_of(const HoldoutPlan& plan, uint64_t iteration) {
  if (plan.block_iterations == 0 || iteration < plan.from_iteration) return 0;
  return (iteration - plan.from_iteration) / plan.block_iterations;
}

bool is_held_out(const HoldoutPlan& plan, uint64_t iteration) {
  if (plan.block_iterations == 0 || iteration < plan.from_iteration) return false;
  const uint64_t share = millionths(plan.share_pct);
  if (share == 0) return false;
  if (share == kWhole) return true;
  const uint64_t block = block_of(plan, iteration);
  return share <= kWhole / 2 ? is_chosen(plan, share, block) : !is_chosen(plan, kWhole - share, block);
}

uint64_t next_seed(uint64_t seed) {
  return mixed(seed);
}

bool is_on_duty(const HoldoutPlan& plan, uint64_t iteration) {
  const uint64_t duty = millionths(plan.duty_pct);
  if (duty == kWhole) return true;
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // 2^64 ÷ golden ratio
  const uint64_t place = base_hash(plan, 2) + iteration * kGolden;
  return place / (UINT64_MAX / kWhole + 1) < duty;
}

}  // namespace freeride::policy
