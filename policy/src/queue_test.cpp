#include "freeride/policy/queue.hpp"

#include <catch2/catch.hpp>

#include "freeride/policy/account_use.hpp"

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

TEST_CASE("accounts: with one of them the order is as without") {
  const std::vector<QueuedTask> tasks{{3, 0, "a", "x"}, {1, 0, "b", "x"}, {4, 5, "a", "x"},
                                      {2, 0, "a", "x"}, {5, 0, "c", "x"}, {6, 5, "b", "x"}};
  for (const auto order : {QueueOrder::kSubmission, QueueOrder::kFairShare}) {
    for (const double had : {0.0, 1e12}) {
      CHECK(order_queue(tasks, order, {{"b", 1}}, {{{"x", had}, {"y", 1}}, 60}) ==
            order_queue(tasks, order, {{"b", 1}}));
    }
  }
}

TEST_CASE("accounts: who has had least comes first, and then they take turns") {
  const std::vector<QueuedTask> tasks{{1, 0, "a", "x"}, {2, 0, "a", "x"}, {3, 0, "b", "y"},
                                      {4, 0, "b", "y"}, {5, 0, "b", "y"}, {6, 0, "b", "y"}};
  CHECK(order_queue(tasks, QueueOrder::kSubmission, {}, {{}, 60}) == Ids{1, 3, 2, 4, 5, 6});
  CHECK(order_queue(tasks, QueueOrder::kSubmission, {}, {{{"x", 150}}, 60}) == Ids{3, 4, 5, 1, 6, 2});
  // Priority goes before, and what is dealt there counts.
  CHECK(order_queue({{1, 0, "a", "x"}, {2, 0, "b", "y"}, {3, 1, "a", "x"}, {4, 1, "a", "x"}}, QueueOrder::kSubmission,
                    {}, {{{"y", 61}}, 60}) == Ids{3, 4, 2, 1});
  // Where accounts do not count, they are not looked at.
  CHECK(order_queue(tasks, QueueOrder::kSubmission, {}, {{{"x", 150}}, 0}) == Ids{1, 2, 3, 4, 5, 6});
}

TEST_CASE("accounts: within one its users alternate, where that is asked for") {
  CHECK(order_queue({{1, 0, "a", "x"}, {2, 0, "a", "x"}, {3, 0, "b", "x"}, {4, 0, "c", "y"}}, QueueOrder::kFairShare,
                    {}, {{{"y", 30}}, 60}) == Ids{1, 4, 3, 2});
}

TEST_CASE("accounts: of a million tasks none is lost, and none waits for longer than its account has had more") {
  constexpr uint64_t kTasks = 1'000'000, kAccounts = 1000;
  constexpr double kTurn = 60;
  std::vector<QueuedTask> tasks;
  AccountTurns accounts{{}, kTurn};
  uint64_t random = 88172645463325252ULL;
  const auto next = [&random](uint64_t below) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random % below;
  };
  for (uint64_t a = 0; a < kAccounts; ++a) accounts.had["a" + std::to_string(a)] = static_cast<double>(next(100'000));
  // Nine tenths are one account's.
  std::vector<uint64_t> account_of(kTasks + 1);
  for (uint64_t id = 1; id <= kTasks; ++id) {
    account_of[id] = next(10) == 0 ? next(kAccounts) : 0;
    tasks.push_back({id, 0, "u", "a" + std::to_string(account_of[id])});
  }
  const Ids ids = order_queue(std::move(tasks), QueueOrder::kSubmission, {}, accounts);
  REQUIRE(ids.size() == kTasks);
  std::vector<bool> seen(kTasks + 1);
  std::vector<uint64_t> last(kAccounts);
  std::vector<double> had(kAccounts);
  for (uint64_t a = 0; a < kAccounts; ++a) had[a] = accounts.had["a" + std::to_string(a)];
  std::vector<uint64_t> left(kAccounts);
  for (uint64_t id = 1; id <= kTasks; ++id) ++left[account_of[id]];
  bool once = true, in_order = true, fair = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t account = account_of[ids[i]];
    once = once && !seen[ids[i]];
    seen[ids[i]] = true;
    in_order = in_order && ids[i] > last[account];
    last[account] = ids[i];
    if (i % 997 == 0) {
      for (uint64_t other = 0; other < kAccounts; ++other)
        fair = fair && (left[other] == 0 || had[account] <= had[other]);
    }
    had[account] += kTurn;
    --left[account];
  }
  CHECK(once);
  CHECK(in_order);
  CHECK(fair);
}

TEST_CASE(
    "accounts: one that has had much gets its turn beside others that never stop to load tasks which do nothing") {
  constexpr double kTurn = 60;
  constexpr int64_t kHalfLife = 3'600'000'000'000, kPause = 1'000'000'000;
  AccountUse use(kHalfLife);
  use.add("heavy", 1e6, 0);
  int64_t now = 0;
  uint64_t id = 2;
  // Whoever is placed is charged for a turn, and for nothing more: none of these tasks harvests anything.
  for (bool served = false; !served; now += kPause) {
    REQUIRE(id < 1'000'000);
    const auto ids = order_queue({{1, 0, "h", "heavy"}, {id, 0, "l", "light"}, {id + 1, 0, "o", "other"}},
                                 QueueOrder::kSubmission, {}, {use.at(now), kTurn});
    served = ids.front() == 1;
    use.add(ids.front() == 1 ? "heavy" : ids.front() == id ? "light" : "other", kTurn, now);
    id += 2;
  }
  CHECK(now > 0);
}
