#include "freeride/policy/hold_rule.hpp"

#include <catch2/catch.hpp>

namespace freeride::policy {
namespace {

HoldRule planned(double share_pct, double duty_pct, uint32_t baseline_one_in = 0, uint32_t off_duty_one_in = 0) {
  HoldRule rule;
  rule.kind = HoldRule::Kind::kPlanned;
  rule.plans = {{"gpt 2", 7, 4, 100, share_pct, duty_pct}};
  rule.baseline_one_in = baseline_one_in;
  rule.off_duty_one_in = off_duty_one_in;
  return rule;
}

TEST_CASE("exactly the iterations whose bubbles may get leases are held") {
  const HoldRule rule = planned(25, 40);
  int held = 0;
  for (uint64_t i = 0; i < 4100; ++i) {
    INFO(i);
    const bool leases = i < 100 || (!is_held_out(rule.plans[0], i) && is_on_duty(rule.plans[0], i));
    CHECK(is_held(rule, i) == leases);
    held += i >= 100 && is_held(rule, i) ? 1 : 0;
  }
  CHECK(held > 1000);
  CHECK(held < 1400);  // 40 % of three quarters of 4000
}

TEST_CASE("without a side task nothing is held, and without plans every iteration") {
  HoldRule rule;
  CHECK_FALSE(is_held(rule, 5));
  rule.kind = HoldRule::Kind::kPlanned;
  CHECK(is_held(rule, 5));
  rule.kind = HoldRule::Kind::kAlways;
  CHECK(is_held(rule, 5));
}

TEST_CASE("of the iterations without leases one in so many is held for probes") {
  const auto count = [](const HoldRule& rule) {
    int held = 0;
    for (uint64_t i = 100; i < 8100; ++i) held += is_held(rule, i) ? 1 : 0;
    return held;
  };
  CHECK(count(planned(100, 100, 8)) > 850);  // all are baseline iterations
  CHECK(count(planned(100, 100, 8)) < 1150);
  CHECK(count(planned(0, 0, 8, 32)) > 190);  // all are open, and off duty
  CHECK(count(planned(0, 0, 8, 32)) < 310);
  CHECK(count(planned(100, 0, 0, 32)) == 0);
  CHECK(count(planned(0, 0, 8, 0)) == 0);
}

TEST_CASE("a newer plan counts from its iteration on") {
  HoldRule rule = planned(0, 100);
  rule.plans.push_back({"gpt 2", 8, 4, 200, 0, 0});
  CHECK(is_held(rule, 199));
  CHECK_FALSE(is_held(rule, 200));
}

TEST_CASE("a rule comes back from its text") {
  HoldRule rule = planned(12.5, 100.0 / 3, 8, 32);
  rule.plans.insert(rule.plans.begin(), {{"gpt 2", 5, 3, 40, 10, 100}, {"gpt 2", 6, 3, 50, 10, 100}});
  const std::string text = text_of(rule);
  CHECK(text.size() <= 400);
  const auto back = parse_hold_rule(text);
  REQUIRE(back.ok());
  REQUIRE(back->plans.size() == 2);  // the newest
  CHECK(back->plans[0].from_iteration == 50);
  CHECK(back->plans[1].job == "gpt 2");
  CHECK(back->plans[1].duty_pct == rule.plans[2].duty_pct);
  for (uint64_t i = 50; i < 3000; ++i) CHECK(is_held(*back, i) == is_held(rule, i));
  for (const char* kind : {"never", "always"}) {
    const auto one = parse_hold_rule(kind);
    REQUIRE(one.ok());
    CHECK(text_of(*one) == kind);
  }
}

TEST_CASE("what is no rule is refused") {
  for (const char* text :
       {"", "OK", "sometimes", "planned", "planned 8", "planned 8 1 3 job", "planned 8 1 1 7 4 100 101 100 job",
        "planned 8 1 1 7 4 100 nan 100 job", "planned 8 1 1 7 4 x 10 100 job", "planned -1 1 0 job",
        "planned 8 1 18446744073709551615 job"}) {
    INFO(text);
    CHECK_FALSE(parse_hold_rule(text).ok());
  }
}

}  // namespace
}  // namespace freeride::policy
