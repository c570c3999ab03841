#include "freeride/policy/heartbeat.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;

TEST_CASE("heartbeats keep their phase whatever is reported in between") {
  CHECK(next_heartbeat_ns(1000, 3, 10) == 1003);
  CHECK(next_heartbeat_ns(1003, 3, 10) == 1013);  // not the moment itself
  CHECK(next_heartbeat_ns(1004, 3, 10) == 1013);
  CHECK(next_heartbeat_ns(1012, 3, 10) == 1013);
  CHECK(next_heartbeat_ns(0, 3, 10) == 3);  // also before the first
  CHECK(next_heartbeat_ns(2, 13, 10) == 3);
}
