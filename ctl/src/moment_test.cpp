// Moments and lengths as people write them.
#include "moment.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <ctime>

#include "freeride/base/clock.hpp"

namespace freeride::ctl {

TEST_CASE("moments: a time of day is the last such time, dates by the zone or UTC, and lengths ago") {
  setenv("TZ", "UTC-2", 1);  // two hours east, whatever the machine's zone
  tzset();
  const int64_t now = 1'700'000'000 * kNsPerSec;  // 2023-11-14 22:13:20 UTC, the 15th 00:13:20 there
  CHECK(*parse_moment("now", now) == now);
  CHECK(*parse_moment("10m ago", now) == now - 600 * kNsPerSec);
  CHECK(*parse_moment("00:13", now) == now - 20 * kNsPerSec);
  CHECK(*parse_moment("00:13:21", now) == now - 86'399 * kNsPerSec);  // of the day before
  CHECK(*parse_moment("23:13:20", now) == now - 3600 * kNsPerSec);
  CHECK(*parse_moment("2023-11-15T00:13:20", now) == now);
  CHECK(*parse_moment("2023-11-15 00:13", now) == now - 20 * kNsPerSec);
  CHECK(*parse_moment("2023-11-14T22:13:20Z", now) == now);
  CHECK(moment_text(now + 5 * kNsPerMs) == "2023-11-15 00:13:20.005");
  for (const char* wrong : {"", "noon", "25:00", "03:14x", "2023-13-01T00:00", "ago", " ago", "-5m ago", "1e9d ago"}) {
    INFO(wrong);
    const auto parsed = parse_moment(wrong, now);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.error().code == Code::kInvalidArgument);
  }
  unsetenv("TZ");
  tzset();
}

TEST_CASE("lengths of time") {
  CHECK(*parse_length("90") == 90 * kNsPerSec);
  CHECK(*parse_length("1.5m") == 90 * kNsPerSec);
  CHECK(*parse_length("2h") == 7200 * kNsPerSec);
  CHECK(*parse_length("1d") == 86'400 * kNsPerSec);
  for (const char* wrong : {"", "m", "0", "5x", "1m2", "999999d", "1..2"}) {
    INFO(wrong);
    CHECK_FALSE(parse_length(wrong).ok());
  }
}

}  // namespace freeride::ctl
