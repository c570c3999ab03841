// SpeedHistory on made lengths: what must be told, and what must not.
#include "canary/speed.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

using canary::SpeedHistory;
using News = SpeedHistory::News;

namespace {

/// Lengths of about 100 µs: log-normal, one in fifty much longer, and phases that come and go.
class Lengths {
 public:
  explicit Lengths(unsigned seed, double spread = 0.01) : random_(seed), spread_(spread) {}
  double next() {
    ++count_;
    const double phase = count_ / 700 % 5 == 0 ? 1.5 * spread_ : 0;  // as beside a busier training
    const double tail = random_() % 50 == 0 ? 3 : 1;
    return 1e5 * factor * tail * std::exp(phase + spread_ * normal_(random_));
  }
  double factor = 1;

 private:
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  double spread_;
  uint64_t count_ = 0;
};

/// Pieces until the first news; `most`: there was none.
uint64_t until_news(SpeedHistory& history, Lengths& lengths, uint64_t most, News* news = nullptr) {
  for (uint64_t n = 1; n <= most; ++n) {
    const News one = history.note(lengths.next());
    if (one == News::kNone) continue;
    if (news != nullptr) *news = one;
    return n;
  }
  return most;
}

}  // namespace

TEST_CASE("a device that is as it was is never called slow") {
  const unsigned seed = GENERATE(range(1u, 9u));
  const double spread = GENERATE(0.001, 0.01, 0.1);
  SpeedHistory history;
  Lengths lengths(seed, spread);
  CHECK(until_news(history, lengths, 100'000) == 100'000);
  CHECK_FALSE(history.slow());
}

TEST_CASE("a device that becomes slower is told of, once, and again when it is as before") {
  const unsigned seed = GENERATE(range(1u, 9u));
  const double factor = GENERATE(1.2, 2.0, 10.0);
  SpeedHistory history;
  Lengths lengths(seed);
  REQUIRE(until_news(history, lengths, 20'000) == 20'000);
  lengths.factor = 3 * factor;  // a change within the tail of one in fifty is none to be told
  News news = News::kNone;
  CHECK(until_news(history, lengths, 1'000, &news) <= SpeedHistory::kWindow * (SpeedHistory::kWindowsInARow + 1));
  CHECK(news == News::kSlow);
  CHECK(history.slow());
  CHECK(until_news(history, lengths, 50'000) == 50'000);  // it does not become normal by lasting
  lengths.factor = 1;
  CHECK(until_news(history, lengths, 1'000, &news) < 1'000);
  CHECK(news == News::kNormal);
}

TEST_CASE("on a steady device a twentieth is enough") {
  SpeedHistory history;
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  const auto length = [&](double factor) { return 1e5 * factor * (1 + 0.005 * normal(random)); };
  for (int i = 0; i < 10'000; ++i) REQUIRE(history.note(length(1)) == News::kNone);
  int told = 0;
  for (int i = 0; i < 1'000; ++i) told += history.note(length(1.05)) == News::kSlow ? 1 : 0;
  CHECK(told == 1);
}

TEST_CASE("a burst that is shorter than some windows is none to be told") {
  SpeedHistory history;
  Lengths lengths(5);
  for (int round = 0; round < 50; ++round) {
    lengths.factor = 1;
    CHECK(until_news(history, lengths, 1'000) == 1'000);
    lengths.factor = 20;
    CHECK(until_news(history, lengths, 100) == 100);
  }
}

TEST_CASE("nothing is judged before there is a history") {
  SpeedHistory history;
  Lengths lengths(7);
  for (uint64_t i = 0; i < SpeedHistory::kLeast / 2; ++i) history.note(lengths.next());
  lengths.factor = 100;
  for (uint64_t i = 0; i < SpeedHistory::kLeast / 4; ++i) CHECK(history.note(lengths.next()) == News::kNone);
}

TEST_CASE("a history that was saved goes on, and a damaged one is refused") {
  SpeedHistory history;
  Lengths lengths(11);
  REQUIRE(until_news(history, lengths, 20'000) == 20'000);
  const std::string state = history.save();
  SpeedHistory other;
  REQUIRE(other.restore(state));
  CHECK(other.limit_ns() == history.limit_ns());
  CHECK(other.pieces() == history.pieces());
  lengths.factor = 50;
  CHECK(until_news(other, lengths, 1'000) < 1'000);
  for (const size_t size : {size_t{0}, size_t{7}, size_t{31}, size_t{40}, state.size() - 1})
    CHECK_FALSE(other.restore(state.substr(0, size)));
  std::string damaged = state;
  damaged.replace(40, 8, 8, '\xff');  // no number
  CHECK_FALSE(other.restore(damaged));
  CHECK(other.restore(SpeedHistory().save()));
}
