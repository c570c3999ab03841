#include "freeride/policy/rights.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace freeride::policy;

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr RightsLimits kLimits{100 * kMs, 10'000 * kMs};
const std::vector<Claim> kClaims{Claim::kCreating, Claim::kPaused, Claim::kExecuting, Claim::kStopping};

}  // namespace

TEST_CASE("rights: a phase that was left never comes back, whatever is said", "[rights]") {
  for (const Claim first : kClaims) {
    for (const Claim second : kClaims) {
      for (const Claim third : kClaims) {
        for (const bool leased : {false, true}) {
          Rights rights(kLimits);
          Phase before = rights.phase();
          for (const Claim claim : {first, second, third}) {
            const Claim taken = rights.see(claim, leased);
            CHECK(rights.phase() >= before);
            before = rights.phase();
            CHECK((taken == Claim::kCreating) == (before == Phase::kCreating));
            CHECK((taken == Claim::kStopping) == (before == Phase::kStopping));
          }
        }
      }
    }
  }
}

TEST_CASE("rights: creation is over with the first lease, though the page says otherwise", "[rights]") {
  Rights rights(kLimits);
  CHECK(rights.see(Claim::kCreating, false) == Claim::kCreating);
  CHECK(rights.see(Claim::kCreating, true) == Claim::kExecuting);
  CHECK(rights.phase() == Phase::kLeased);
}

TEST_CASE("rights: a pause of hours saves up no execution", "[rights]") {
  Rights rights(kLimits);
  rights.rest(0, 0);
  int64_t now_ns = 0, cpu_ns = 0;
  for (int second = 0; second < 4 * 3600; ++second) {  // it answers wakes
    now_ns += 1000 * kMs;
    cpu_ns += 5 * kMs;
    REQUIRE_FALSE(rights.charge(now_ns, cpu_ns));
  }
  CHECK(rights.charged_ns() == 0);
  CHECK(rights.charge(now_ns + 200 * kMs, cpu_ns + 200 * kMs));
}

TEST_CASE("rights: what was executed in a pause is not forgiven by the next lease", "[rights]") {
  Rights rights(kLimits);
  int64_t now_ns = 0, cpu_ns = 0;
  bool caught = false;
  for (int lease = 0; lease < 4 && !caught; ++lease) {
    rights.rest(now_ns, cpu_ns);
    now_ns += 40 * kMs;
    cpu_ns += 40 * kMs;
    caught = rights.charge(now_ns, cpu_ns);
    rights.wake(now_ns, cpu_ns);
    now_ns += 500 * kMs;  // under a lease
    cpu_ns += 500 * kMs;
  }
  CHECK(caught);
  CHECK(rights.charged_ns() < 200 * kMs);
}

TEST_CASE("rights: going to sleep after each pause is free, however short the bubbles are", "[rights]") {
  Rights rights(kLimits);
  int64_t now_ns = 0, cpu_ns = 0;
  for (int bubble = 0; bubble < 100'000; ++bubble) {
    rights.rest(now_ns, cpu_ns);
    cpu_ns += kMs / 50;
    now_ns += kMs / 2;
    rights.wake(now_ns, cpu_ns);
    now_ns += kMs / 2;
    cpu_ns += kMs / 2;
  }
  CHECK(rights.charged_ns() == 0);
}

TEST_CASE("rights: a clock that cannot be read charges nothing", "[rights]") {
  Rights rights(kLimits);
  rights.rest(0, -1);
  CHECK_FALSE(rights.rests());
  CHECK_FALSE(rights.charge(1000 * kMs, -1));
  rights.rest(0, 500 * kMs);
  CHECK_FALSE(rights.charge(1000 * kMs, -1));
  CHECK(rights.charge(1000 * kMs, 700 * kMs));
}

TEST_CASE("rights: to stop by itself is worth a tenth of a stop, and no time but a stop's", "[rights]") {
  const Rights rights(kLimits);
  CHECK(rights.stop_execution_ns(false) == 1000 * kMs);
  CHECK(rights.stop_execution_ns(true) == INT64_MAX);
}
