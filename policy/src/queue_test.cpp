#include "freeride/policy/queue.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;
using Ids = std::vector<uint64_t>;

TEST_CASE("higher priority first, then first come, first served") {
  CHECK(order_queue({{3, 0, "a"}, {1, 0, "b"}, {4, 5, "a"}, {2, -1, "c"}, {5, 5, "b"}}, QueueOrder::kSubmission) ==
        Ids{4, 5, 1, 3, 2});
  CHECK(order_queue({}, QueueOrder::kSubmission).empty());
}

TEST_CASE("fair share alternates between users within a priority") {
  CHECK(order_queue({{1, 0, "a"}, {2, 0, "a"}, {3, 0, "a"}, {4, 0, "b"}, {5, 0, "b"}, {6, 1, "a"}},
                    QueueOrder::kFairShare) == Ids{6, 4, 1, 5, 2, 3});
}

TEST_CASE("fair share counts what users already have on workers") {
  CHECK(order_queue({{1, 0, "a"}, {2, 0, "a"}, {3, 0, "b"}}, QueueOrder::kFairShare, {{"a", 2}, {"b", 3}}) ==
        Ids{1, 2, 3});
  CHECK(order_queue({{1, 0, "a"}, {2, 0, "a"}, {3, 0, "b"}}, QueueOrder::kFairShare, {{"a", 2}}) == Ids{3, 1, 2});
}
