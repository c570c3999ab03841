#include "loop/loop.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("the loop: timers in order, handlers may forget themselves", "[loop]") {
  auto loop = std::move(Loop::create().value());
  std::vector<int> order;
  const int64_t now = SteadyClock::now();
  loop->at(now + 2 * kNsPerMs, [&] { order.push_back(2); });
  loop->at(now + 1 * kNsPerMs, [&] { order.push_back(1); });
  const auto cancelled = loop->at(now + kNsPerMs, [&] { order.push_back(9); });
  loop->cancel(cancelled);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(loop->watch(ends[0], 1 /* EPOLLIN */,
                      [&](uint32_t) {
                        order.push_back(3);
                        loop->forget(ends[0]);
                        close(ends[0]);
                        loop->stop();
                      })
              .ok());
  loop->at(now + 3 * kNsPerMs, [&] { REQUIRE(write(ends[1], "x", 1) == 1); });
  loop->run();
  CHECK(order == std::vector<int>{1, 2, 3});
  close(ends[1]);
}
