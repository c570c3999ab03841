#include "freeride/policy/ended_folders.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;

TEST_CASE("ended folders: what is old goes, oldest first", "[ended_folders]") {
  const KeepLimits limits{100, 1'000};
  CHECK(choose_outdated({}, 1'000, limits).empty());
  CHECK(choose_outdated({{10, 950}, {10, 899}, {10, 5'000}, {0, 700}}, 1'000, limits) == std::vector<size_t>{3, 1});
}

TEST_CASE("ended folders: a clock that is stepped forward makes nothing old", "[ended_folders]") {
  const KeepLimits limits{100, 1'000};
  CHECK(choose_outdated({{10, 950}}, believed_now_s(34'561'010, 1'000, 10), limits).empty());
  CHECK(believed_now_s(1'010, 1'000, 10) == 1'010);
  CHECK(believed_now_s(500, 1'000, 10) == 500);  // set back: counts as just used
  CHECK(choose_outdated({{10, 950}}, believed_now_s(1'060, 1'000, 60), limits) == std::vector<size_t>{0});
}

TEST_CASE("ended folders: the youngest that fit stay", "[ended_folders]") {
  const KeepLimits limits{1'000'000, 1'000};
  CHECK(choose_outdated({{500, 1}, {400, 3}, {500, 2}}, 10, limits) == std::vector<size_t>{0});
  // One that is too large by itself goes alone.
  CHECK(choose_outdated({{1, 1}, {2'000, 2}, {900, 3}}, 10, limits) == std::vector<size_t>{1});
  CHECK(choose_outdated({{0, 1}, {0, 2}}, 10, {1'000'000, 0}).empty());
}
