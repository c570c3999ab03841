#include "freeride/policy/orders.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

using namespace freeride::policy;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSec = 1000 * kMs;

// A host's clock: its own zero, its own rate.
struct Clock {
  int64_t zero_ns;
  double rate;
  int64_t at(int64_t true_ns) const {
    return zero_ns + static_cast<int64_t>(std::llround(static_cast<double>(true_ns) * rate));
  }
};

}  // namespace

TEST_CASE("an order counts from when the report was sent that it answers", "[orders]") {
  const OrderLimits limits;
  CHECK(term_of(100 * kSec, limits).until_ns == 115 * kSec);
  CHECK(term_of(100 * kSec, limits).end_ns == 220 * kSec);
  CHECK(place_again_ns(100 * kSec, limits) == 121 * kSec);
}

TEST_CASE("two workers never execute at once, whatever is late and however the clocks drift", "[orders]") {
  std::mt19937 random(7);
  const auto draw = [&](int64_t most_ns) { return std::uniform_int_distribution<int64_t>(0, most_ns)(random); };
  OrderLimits limits;
  for (int round = 0; round < 20'000; ++round) {
    const auto drift = [&] { return 1 + 500e-6 * (2.0 * static_cast<double>(draw(1000)) / 1000 - 1); };
    const Clock worker{draw(1'000'000 * kSec), drift()}, manager{draw(1'000'000 * kSec), drift()};
    // In true time. Reports are sent, held up, and taken or lost; answers are held up, lost or doubled.
    int64_t now_ns = 0, heard_ns = 0, until_true_ns = 0;
    for (int n = 0; n < 10; ++n) {
      const int64_t sent_ns = now_ns += draw(2 * kSec);
      if (draw(3) == 0) continue;  // lost
      const int64_t taken_ns = sent_ns + draw(30 * kSec);
      heard_ns = std::max(heard_ns, taken_ns);
      if (draw(3) == 0) continue;  // its answer is
      // Whenever the answer comes: the term is that of the report.
      const int64_t until_ns = term_of(worker.at(sent_ns), limits).until_ns;
      int64_t end_ns = sent_ns + limits.pause_ns;
      while (worker.at(end_ns) < until_ns) end_ns += kMs;
      until_true_ns = std::max(until_true_ns, end_ns);
    }
    if (until_true_ns == 0) continue;
    const int64_t again_ns = place_again_ns(manager.at(heard_ns), limits);
    int64_t placed_ns = heard_ns;
    while (manager.at(placed_ns) < again_ns) placed_ns += 10 * kMs;
    // What is left of the margin is for a step that is under way: a worker's --hang-ms.
    REQUIRE(placed_ns - until_true_ns >= 5 * kSec + 900 * kMs);
  }
}

TEST_CASE("only the copy that was ordered last counts", "[orders]") {
  CopyView copy;
  copy.has_epochs = true;
  copy.reported = 7;
  CHECK(standing_of(copy) == Standing::kUnknown);
  copy.ended = true;
  CHECK(standing_of(copy) == Standing::kEnded);
  copy.ended = false;
  copy.live = copy.here = true;
  copy.epoch = 7;
  CHECK(standing_of(copy) == Standing::kOrdered);
  copy.epoch = 8;
  CHECK(standing_of(copy) == Standing::kSuperseded);
  copy.epoch = 6;
  CHECK(standing_of(copy) == Standing::kNewer);
  copy.epoch = 7;
  copy.here = false;  // it is somewhere else, by the same epoch
  CHECK(standing_of(copy) == Standing::kSuperseded);
  copy.queued = true;
  CHECK(standing_of(copy) == Standing::kOrdered);
  copy.epoch = 8;
  CHECK(standing_of(copy) == Standing::kSuperseded);
}

TEST_CASE("of a worker that tells no epochs the place counts", "[orders]") {
  CopyView copy;
  CHECK(standing_of(copy) == Standing::kUnknown);
  copy.live = true;
  copy.epoch = 8;
  CHECK(standing_of(copy) == Standing::kSuperseded);
  copy.here = true;
  CHECK(standing_of(copy) == Standing::kOrdered);
}
