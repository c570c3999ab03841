#include "freeride/policy/why.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;

TEST_CASE("every reason has one name and a sentence, and the name leads back", "[why]") {
  int whys = 0;
  for (int i = 0; i < 100; ++i) {
    if (const auto why = static_cast<Why>(i); *why_name(why) != '\0') {
      ++whys;
      CHECK(why_of(why_name(why)) == why);
      CHECK_FALSE(render_why(why, {}).empty());
    }
  }
  CHECK(whys == static_cast<int>(Why::kStarved));
}

TEST_CASE("a task whose steps do not fit is told both lengths", "[why]") {
  CHECK_FALSE(steps_do_not_fit(10, 10));
  CHECK_FALSE(steps_do_not_fit(100, 30));
  CHECK(steps_do_not_fit(30, 25));
  WhyDetail detail;
  detail.step_ns = 15'000'000;
  detail.bubble_ns = 9'040'000;
  detail.leases = 30;
  detail.skipped = 25;
  CHECK(render_why(Why::kStepTooLong, detail) ==
        "its next step, 15 ms, does not fit the bubbles, the longest of which is 9 ms (25 of 30 leases unused); give "
        "it shorter steps, or yield points");
}

TEST_CASE("a task whose cores are busy is not told to make its steps shorter", "[why]") {
  WhyDetail detail;
  detail.step_ns = 80'000'000;
  CHECK(render_why(Why::kStarved, detail) ==
        "its steps execute for less than half of their time, so that the next one is expected to take 80 ms: other "
        "processes have its cores, or it waits for something; see what else runs on them");
}

TEST_CASE("a program whose GPU work is longer than its leases is told its kernel and both lengths", "[why]") {
  WhyDetail detail;
  detail.what = "gemm";
  detail.step_ns = 80'000'000;
  detail.bubble_ns = 50'000'000;
  CHECK(render_why(Why::kWorkTooLong, detail) ==
        "its GPU work gemm, 80 ms, is longer than its leases, the longest of which was 50 ms; it waits for a longer "
        "one, and is tried at the begin of some");
}

TEST_CASE("what is waited for and why it was queued again are in the sentence", "[why]") {
  WhyDetail detail;
  CHECK(render_why(Why::kNoTrainer, detail) == "waiting for a trainer");
  detail.what = "w";
  CHECK(render_why(Why::kWorkerSilent, detail) == "waiting for worker w to report");
  CHECK(render_why(Why::kInactive, detail) ==
        "the training hook of w is off, so its bubbles cannot be used; see the trainer's log");
  detail.since = "worker w was lost";
  CHECK(render_why(Why::kQueued, detail) == "worker w was lost");
  CHECK(render_why(Why::kProfileWait, detail) == "worker w was lost; waiting to be profiled: w");
}
