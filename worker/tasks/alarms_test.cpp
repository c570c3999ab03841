#include "tasks/alarms.hpp"

#include <catch2/catch.hpp>
#include <limits>

using freeride::worker::Alarms;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

TEST_CASE("a rise of an alarm's count is told, nothing else is", "[alarms]") {
  Alarms alarms;
  CHECK(alarms.note("t", {{"alarm.wrong", 0}, {"alarm", 5}, {"alarm.", 7}, {"rounds", 3}, {"false.alarm.x", 2}}, 0)
            .empty());
  const auto first = alarms.note("t", {{"alarm.slow", 1}, {"alarm.wrong", 2}, {"rounds", 9}}, kSecond);
  REQUIRE(first.size() == 2);
  CHECK((first[0].name == "slow" && first[0].count == 1 && first[0].rise == 1));
  CHECK((first[1].name == "wrong" && first[1].count == 2 && first[1].rise == 2));
  CHECK(alarms.note("t", {{"alarm.slow", 1}, {"alarm.wrong", 2}}, 200 * kSecond).empty());
  CHECK(alarms.note("other", {{"alarm.wrong", 1}}, 200 * kSecond).size() == 1);
}

TEST_CASE("whoever cries without end is heard once a minute, and no count is lost", "[alarms]") {
  Alarms alarms;
  uint64_t told = 0, events = 0;
  for (int64_t second = 0; second <= 600; ++second) {
    for (const auto& one : alarms.note("t", {{"alarm.wrong", static_cast<double>(second)}}, second * kSecond)) {
      told += one.rise;
      ++events;
    }
  }
  CHECK(events == 10);
  CHECK(told == 541);
  CHECK(alarms.note("t", {{"alarm.wrong", 600.0}}, 700 * kSecond).front().rise == 59);
}

TEST_CASE("a task that begins anew counts anew, and what is no count is nothing", "[alarms]") {
  Alarms alarms;
  CHECK(alarms.note("t", {{"alarm.wrong", 5}}, 0).front().rise == 5);
  CHECK(alarms.note("t", {{"alarm.wrong", 2}}, 61 * kSecond).front().rise == 2);
  alarms.forget("t");
  CHECK(alarms.note("t", {{"alarm.wrong", 2}}, 62 * kSecond).front().rise == 2);
  const double nothing = GENERATE(-1.0, 1e300, std::numeric_limits<double>::quiet_NaN());
  CHECK(alarms.note("t", {{"alarm.wrong", nothing}}, 500 * kSecond).empty());
}
