#include "freeride/base/background.hpp"

#include <poll.h>

#include <catch2/catch.hpp>
#include <future>
#include <string>

namespace freeride {
namespace {

TEST_CASE("background: what is short waits for one long piece at most, and long ones have their turn") {
  const auto background = Background::create().value();
  std::promise<void> begun, all_wait;
  std::string order;
  size_t done = 0;
  const auto piece = [&](char name) {
    return std::pair<std::function<void()>, std::function<void()>>([&, name] { order += name; }, [&] { ++done; });
  };
  const auto first = [&] {
    begun.set_value();
    all_wait.get_future().wait();
  };
  background->run(first, [&] { ++done; });
  begun.get_future().wait();
  for (const char name : {'a', 'b', 'c', 'd'}) std::apply([&](auto... p) { background->run(p...); }, piece(name));
  for (const char name : {'1', '2'}) std::apply([&](auto... p) { background->run_soon(p...); }, piece(name));
  all_wait.set_value();
  while (done < 7) {
    pollfd item = {background->fd(), POLLIN, 0};
    REQUIRE(poll(&item, 1, 60'000) == 1);
    background->finish();
  }
  CHECK(order == "1a2bcd");
}

}  // namespace
}  // namespace freeride
