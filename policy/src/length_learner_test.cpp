#include "freeride/policy/length_learner.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

namespace freeride::policy {
namespace {

constexpr int64_t kMs = 1'000'000;

// A small generator of its own: the same sequence with every library.
struct Noise {
  uint64_t state = 42;
  int64_t below(int64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(bound));
  }
};

void feed(LengthLearner& learner, const std::vector<int64_t>& lengths, int times) {
  for (int i = 0; i < times; ++i) learner.add_iteration(lengths);
}

}  // namespace

TEST_CASE("nothing is said before there are enough samples") {
  LengthLearner learner(8);
  CHECK(learner.length(1).low_ns == 0);
  learner.add_iteration(std::vector<int64_t>{10 * kMs, 5 * kMs});
  learner.add_iteration(std::vector<int64_t>{10 * kMs, 5 * kMs});
  CHECK(learner.length(1).low_ns == 0);
  CHECK(learner.length(1).samples == 2);
  learner.add_iteration(std::vector<int64_t>{10 * kMs, 5 * kMs});
  CHECK(learner.length(1).low_ns > 9 * kMs);
  CHECK(learner.length(1).low_ns < 10 * kMs);
  CHECK(learner.length(2).mid_ns == 5 * kMs);
  CHECK(learner.length(0).low_ns == 0);
  CHECK(learner.length(3).low_ns == 0);
  CHECK(learner.waits() == 2);
}

TEST_CASE("quantiles are ordered and hold under jitter, without relearning") {
  LengthLearner learner(4);
  Noise noise;
  int shorter_than_low = 0;
  constexpr int kRounds = 2000;
  for (int i = 0; i < kRounds; ++i) {
    const int64_t length = 20 * kMs + noise.below(4 * kMs);
    const auto known = learner.length(1);
    if (known.low_ns > length) ++shorter_than_low;
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{length}));
    const auto now = learner.length(1);
    if (now.low_ns == 0) continue;
    CHECK(now.low_ns <= now.mid_ns);
    CHECK(now.mid_ns <= now.high_ns);
    CHECK(now.low_ns > 19 * kMs);
    CHECK(now.high_ns < 24 * kMs);
  }
  CHECK(shorter_than_low < kRounds / 8);
}

TEST_CASE("regular bubbles are used to their end, irregular ones with a margin as wide as they vary") {
  LengthLearner regular(4), varying(4), wild(4);
  Noise noise;
  for (int i = 0; i < 16; ++i) {
    regular.add_iteration(std::vector<int64_t>{20 * kMs});
    varying.add_iteration(std::vector<int64_t>{20 * kMs + noise.below(kMs / 5)});
    wild.add_iteration(std::vector<int64_t>{20 * kMs + noise.below(10 * kMs)});
  }
  CHECK(regular.length(1).low_ns == 20 * kMs - LengthLearner::kLeastLowMarginNs);
  CHECK(varying.length(1).low_ns < 20 * kMs);
  CHECK(varying.length(1).low_ns > 20 * kMs - kMs / 5);
  CHECK(wild.length(1).low_ns > static_cast<int64_t>(19.6 * kMs));  // the most that is taken off
  CHECK(wild.length(1).mid_ns - wild.length(1).low_ns > 2 * kMs);
}

TEST_CASE("single stalls leave no trace") {
  LengthLearner learner(4);
  feed(learner, {20 * kMs}, 16);
  const auto before = learner.length(1);
  SECTION("a long one") {
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{3000 * kMs}));
  }
  SECTION("a short one") {
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{0}));
  }
  SECTION("a negative one") {
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{-5}));
  }
  CHECK(learner.length(1).low_ns == before.low_ns);
  CHECK(learner.length(1).mid_ns == before.mid_ns);
  CHECK(learner.length(1).high_ns == before.high_ns);
}

TEST_CASE("a lasting shift is learned within a few iterations") {
  LengthLearner learner(4);
  feed(learner, {20 * kMs, 7 * kMs}, 30);
  SECTION("shorter") {
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{10 * kMs, 7 * kMs}));
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{10 * kMs, 7 * kMs}));
    CHECK(learner.add_iteration(std::vector<int64_t>{10 * kMs, 7 * kMs}));
    CHECK(learner.length(1).high_ns <= 10 * kMs);
    CHECK(learner.length(1).samples == 3);
    CHECK(learner.length(1).low_ns > 9 * kMs);
  }
  SECTION("longer, with a stall in the window") {
    learner.add_iteration(std::vector<int64_t>{900 * kMs, 7 * kMs});
    learner.add_iteration(std::vector<int64_t>{20 * kMs, 7 * kMs});
    feed(learner, {40 * kMs, 7 * kMs}, 2);
    CHECK(learner.add_iteration(std::vector<int64_t>{40 * kMs, 7 * kMs}));
    CHECK(learner.length(1).low_ns > 39 * kMs);
  }
  CHECK(learner.length(2).samples >= 16);
  CHECK(learner.length(2).mid_ns == 7 * kMs);
  // It settles: the same lengths again change nothing.
  const int64_t now = learner.length(1).mid_ns;
  CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{now, 7 * kMs}));
}

TEST_CASE("a slow start is forgotten") {
  LengthLearner learner(4);
  feed(learner, {500 * kMs}, 1);
  feed(learner, {20 * kMs}, 5);
  CHECK(learner.length(1).low_ns < 20 * kMs);
  CHECK(learner.length(1).mid_ns == 20 * kMs);
  feed(learner, {20 * kMs}, 12);
  CHECK(learner.length(1).high_ns == 20 * kMs);
}

TEST_CASE("another number of waits: one iteration is set aside, two are a new schedule") {
  LengthLearner learner(8);
  feed(learner, {20 * kMs, 7 * kMs}, 10);
  CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{1 * kMs, 1 * kMs, 1 * kMs}));
  CHECK(learner.length(1).mid_ns == 20 * kMs);
  CHECK(learner.waits() == 2);
  SECTION("back to normal") {
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{20 * kMs, 7 * kMs}));
    CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{1 * kMs, 1 * kMs, 1 * kMs}));
    CHECK(learner.length(1).samples == 11);
  }
  SECTION("a new schedule") {
    CHECK(learner.add_iteration(std::vector<int64_t>{1 * kMs, 2 * kMs, 3 * kMs}));
    CHECK(learner.waits() == 3);
    CHECK(learner.length(1).low_ns == 0);
    feed(learner, {1 * kMs, 2 * kMs, 3 * kMs}, 2);
    CHECK(learner.length(3).mid_ns == 3 * kMs);
  }
  SECTION("fewer waits: the ones that are gone are unknown") {
    learner.add_iteration(std::vector<int64_t>{20 * kMs});
    CHECK(learner.add_iteration(std::vector<int64_t>{20 * kMs}));
    CHECK(learner.length(2).low_ns == 0);
  }
  SECTION("no waits at all teach nothing") {
    CHECK_FALSE(learner.add_iteration({}));
    CHECK_FALSE(learner.add_iteration({}));
    CHECK(learner.waits() == 2);
  }
}

TEST_CASE("a schedule that comes back is known at once, and of two that alternate the shorter lengths count") {
  LengthLearner learner(8);
  const std::vector<int64_t> four = {20 * kMs, 8 * kMs, 8 * kMs, 8 * kMs};
  const std::vector<int64_t> six = {30 * kMs, 5 * kMs, 9 * kMs, 9 * kMs, 9 * kMs, 9 * kMs};
  feed(learner, four, 20);
  CHECK(learner.length(2).high_ns == 8 * kMs);
  for (int i = 0; i < 4; ++i) {
    feed(learner, six, 1);
    feed(learner, four, 1);
  }
  CHECK(learner.waits() == 6);
  CHECK(learner.length(1).high_ns == 20 * kMs);
  CHECK(learner.length(2).high_ns == 5 * kMs);
  CHECK(learner.length(2).low_ns < 5 * kMs);
  CHECK(learner.length(2).low_ns > 4 * kMs);
  CHECK(learner.length(5).high_ns == 9 * kMs);
  feed(learner, four, 20);  // the other one is expected no more
  CHECK(learner.waits() == 4);
  CHECK(learner.length(2).high_ns == 8 * kMs);
  CHECK_FALSE(learner.add_iteration(six));
  CHECK(learner.length(2).high_ns == 5 * kMs);
}

TEST_CASE("of many schedules the last ones are kept") {
  LengthLearner learner(64);
  for (int64_t count = 1; count <= 64; ++count) {
    feed(learner, std::vector<int64_t>(static_cast<size_t>(count), count * kMs), 3);
  }
  CHECK(learner.waits() == 64);
  CHECK(learner.length(64).mid_ns == 64 * kMs);
  CHECK(learner.length(1).mid_ns >= 60 * kMs);
}

TEST_CASE("waits past the bound are ignored") {
  LengthLearner learner(2);
  feed(learner, {kMs, 2 * kMs, 3 * kMs, 4 * kMs}, 4);
  CHECK(learner.waits() == 2);
  CHECK(learner.length(2).mid_ns == 2 * kMs);
  CHECK(learner.length(3).low_ns == 0);
}

TEST_CASE("short waits that jitter by large factors are no shift") {
  LengthLearner learner(2);
  Noise noise;
  for (int i = 0; i < 500; ++i) CHECK_FALSE(learner.add_iteration(std::vector<int64_t>{1'000 + noise.below(40'000)}));
}

TEST_CASE("bubble types by position in 1F1B") {
  CHECK(bubble_type(0, 4, 4, 1) == 'B');
  CHECK(bubble_type(0, 4, 4, 2) == 'C');
  CHECK(bubble_type(3, 4, 4, 1) == 'A');
  CHECK(bubble_type(3, 4, 4, 4) == 'C');
  CHECK(bubble_type(1, 4, 8, 1) == 'A');
  CHECK(bubble_type(1, 4, 8, 4) == 'B');  // two forwards ahead, one in the pair, then the backward
  CHECK(bubble_type(1, 4, 8, 3) == 'C');
  CHECK(bubble_type(1, 8, 4, 3) == 'B');  // two micro-batches only: no pair
  CHECK(bubble_type(1, 4, 7, 2) == 0);
  CHECK(bubble_type(0, 1, 4, 1) == 0);
  CHECK(bubble_type(0, 4, 4, 5) == 0);
  CHECK(bubble_type(0, 4, 4, 0) == 0);
}

}  // namespace freeride::policy
