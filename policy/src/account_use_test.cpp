#include "freeride/policy/account_use.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace freeride::policy;

namespace {
constexpr int64_t kDay = 86'400'000'000'000;
}

TEST_CASE("account use: half of it is forgotten in each half-life") {
  AccountUse use(kDay);
  use.add("vision", 100, 0);
  CHECK(use.at(0).at("vision") == Approx(100));
  CHECK(use.at(kDay).at("vision") == Approx(50));
  CHECK(use.at(3 * kDay).at("vision") == Approx(12.5));
  use.add("vision", 30, kDay);
  CHECK(use.at(kDay).at("vision") == Approx(80));
  CHECK(use.at(2 * kDay).at("vision") == Approx(40));
}

TEST_CASE("account use: what was had before counts by its age") {
  AccountUse use(kDay);
  use.add("vision", 100, 5 * kDay, 2 * kDay);
  use.add("text", 100, 5 * kDay);
  CHECK(use.at(5 * kDay).at("vision") == Approx(25));
  CHECK(use.at(5 * kDay).at("text") == Approx(100));
}

TEST_CASE("account use: what is no amount does no harm, nor does a clock that was set back") {
  AccountUse use(kDay);
  for (const double no : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    use.add("vision", no, kDay);
  CHECK(use.at(kDay).empty());
  use.add("vision", 10, kDay);
  CHECK(use.at(0).at("vision") == Approx(10));
  use.add("vision", 10, 0, -kDay);
  CHECK(use.at(0).at("vision") == Approx(20));
}

TEST_CASE("account use: of too many accounts the one that has had least is forgotten") {
  AccountUse use(kDay);
  for (size_t i = 0; i < AccountUse::kMost; ++i) use.add(std::to_string(i), i == 7 ? 0.5 : 1, 0);
  use.add("one more", 1, 0);
  const auto all = use.at(0);
  CHECK(all.size() == AccountUse::kMost);
  CHECK(all.count("7") == 0);
  CHECK(all.count("one more") == 1);
}
