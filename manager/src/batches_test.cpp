#include "batches.hpp"

#include <random>
#include <sstream>

#include "test_support.hpp"

namespace freeride::manager {
namespace {

struct Range {
  uint64_t number = 0, first = 0, count = 0;
};

// A house with two workers on which a batch runs.
struct BatchHouse : House {
  BatchHouse() {
    join(one);
    join(two);
  }

  Result<bus::BatchInfo> submit(uint64_t items, const std::string& name = "score", const std::string& id = "a1") {
    bus::SubmitBatch wish;
    wish.load = load_of(name);
    wish.load.when_idle = true;
    wish.load.user = "ann";
    wish.id = id;
    wish.items = items;
    core->submit_batch(++tickets, wish, plugin_bytes());
    return info_of(tickets);
  }
  Result<bus::BatchInfo> info_of(Ticket ticket) {
    auto answer = answer_of(ticket);
    if (!answer) return answer.error();
    return std::get<bus::BatchReply>(*answer).batch;
  }
  bus::BatchInfo batch(const std::string& name = "score") {
    core->show_batch(++tickets, name);
    auto info = info_of(tickets);
    REQUIRE(info.ok());
    return *info;
  }
  // What the plan tells the worker's member to do; empty: it has none, or nothing to do.
  std::string text(FakeWorker& worker) {
    const auto plan = renewal(worker);
    if (plan.work.empty()) return "";
    const std::string& all = plan.work.front().text;
    REQUIRE(all.rfind("batch a1\n", 0) == 0);
    return all.substr(all.find('\n') + 1);
  }
  std::vector<Range> ranges(FakeWorker& worker) {
    std::istringstream lines(text(worker));
    std::vector<Range> found;
    std::string word;
    for (Range one; lines >> word >> one.number >> one.first >> one.count;) {
      REQUIRE(word == "range");
      found.push_back(one);
    }
    return found;
  }
  bus::TaskReport& member(FakeWorker& worker) {
    for (auto& [name, task] : worker.tasks) {
      if (task.state != "STOPPED") return task;
    }
    FAIL("the worker has no member");
    return worker.tasks.begin()->second;
  }
  void say(FakeWorker& worker, uint64_t number, uint64_t done) {
    member(worker).counters.metrics["batch.done"] = static_cast<double>((number << 26) + done);
    report(worker);
  }
  // Does all that it is given, up to `item`, which ends it.
  void crash_at(FakeWorker& worker, const Range& range, uint64_t offset, uint64_t count) {
    auto& task = member(worker);
    task.counters.metrics["batch.range"] = static_cast<double>(range.number);
    task.counters.metrics["batch.doing"] = static_cast<double>((offset << 16) + count);
    end(worker, task.task, "crashed");
    report(worker);
  }
  // All items of what the members are given, until the batch runs no more; a poison item ends its member.
  void work_off(uint64_t poison = UINT64_MAX) {
    for (int turn = 0; batch().state == "running"; ++turn) {
      REQUIRE(turn < 500);
      pass(1, {&one, &two});
      for (FakeWorker* worker : {&one, &two}) {
        for (const Range& range : ranges(*worker)) {
          if (poison >= range.first && poison < range.first + range.count) {
            crash_at(*worker, range, poison - range.first, 1);
            break;
          }
          say(*worker, range.number, range.count);
        }
      }
    }
  }

  FakeWorker one{"host-1:cpu-0"}, two{"host-2:cpu-0"};
};

TEST_CASE("a batch gets a member on each worker, is done, put together and cleared away") {
  BatchHouse house;
  REQUIRE(house.submit(10'000).ok());
  house.pass(3, {&house.one, &house.two});
  CHECK(house.batch().members == 2);
  CHECK(house.task("score-1").load.no_profile);
  house.work_off();
  CHECK(house.batch().state == "assembling");
  CHECK(house.batch().done == 10'000);
  house.pass(3, {&house.one, &house.two});
  CHECK(house.batch().members == 1);
  FakeWorker& last = house.text(house.one).empty() ? house.two : house.one;
  CHECK(house.text(last) == "assemble\n");
  house.member(last).counters.metrics["batch.failed"] = 2;
  house.member(last).counters.metrics["batch.phase"] = 1;
  CHECK(house.text(last) == "clear\n");
  house.member(last).counters.metrics["batch.phase"] = 2;
  house.report(last);
  CHECK(house.batch().state == "finished");
  CHECK(house.batch().done == 9'998);
  CHECK(house.batch().failed == 2);
  house.pass(3, {&house.one, &house.two});
  CHECK(house.batch().members == 0);
  CHECK(house.text(last).empty());
}

TEST_CASE("a batch tells how far it is: each state, its items at most once a second, and that it is removed") {
  BatchHouse house;
  REQUIRE(house.submit(10'000).ok());
  house.pass(3, {&house.one, &house.two});
  house.work_off();
  house.pass(3, {&house.one, &house.two});
  const auto& told = house.out.batches;
  REQUIRE(told.size() > 3);
  CHECK(told.front().state == "running");
  CHECK(told.front().items == 10'000);
  CHECK(told.front().user == "ann");
  CHECK(told.back().state == "assembling");
  CHECK(told.back().done == 10'000);
  uint64_t done = 0;
  bool paced = false;
  for (const auto& event : told) {
    CHECK(event.done >= done);
    done = event.done;
    paced = paced || event.items_per_s > 0;
  }
  CHECK(paced);
  const size_t before = told.size();
  for (int i = 0; i < 20; ++i) house.core->tick();  // no time passes
  CHECK(told.size() == before);
  house.restart(false);
  house.pass(1);
  REQUIRE(told.size() > before);  // whoever comes after it is told, too
  CHECK(told.back().done == 10'000);
  house.core->remove_batch(++house.tickets, "score");
  CHECK(told.back().state == bus::BatchState::kRemoved);
}

TEST_CASE("a pace is that of the last half minute, and falls while nothing is done") {
  Pace pace;
  CHECK(pace.per_s(5, 0) == 0);
  for (int second = 0; second <= 100; ++second) pace.note(static_cast<uint64_t>(10 * second), second * kNsPerSec);
  CHECK(pace.per_s(1000, 100 * kNsPerSec) == Approx(10).epsilon(0.05));
  CHECK(pace.per_s(1000, 130 * kNsPerSec) < 6);
  pace.note(1000, 200 * kNsPerSec);
  pace.note(1000, 240 * kNsPerSec);
  CHECK(pace.per_s(1000, 240 * kNsPerSec) == 0);
}

TEST_CASE("a batch's range goes on where it was after a manager is killed, and no number is used again") {
  BatchHouse house;
  REQUIRE(house.submit(100).ok());
  house.pass(3, {&house.one, &house.two});
  const auto before = house.ranges(house.one);
  REQUIRE_FALSE(before.empty());
  house.say(house.one, before.front().number, 1);
  house.pass(1);
  house.restart(false);
  house.join(house.one);
  house.join(house.two);
  CHECK(house.batch().done == 1);
  const auto after = house.ranges(house.one);
  REQUIRE_FALSE(after.empty());
  CHECK(after.front().number == before.front().number);
  CHECK(after.front().first == before.front().first);
  house.work_off();
  CHECK(house.batch().done == 100);
}

TEST_CASE("an item that ends its member three times has failed, with the reason, and the others are done") {
  BatchHouse house;
  REQUIRE(house.submit(500).ok());
  house.work_off(123);
  CHECK(house.batch().state == "assembling");
  CHECK(house.batch().failed == 1);
  CHECK(house.batch().crashes == 3);
  house.pass(3, {&house.one, &house.two});
  const std::string text = house.text(house.one) + house.text(house.two);
  CHECK(text == "failed 123 3 crashed\nassemble\n");
}

TEST_CASE("a batch never tells of more items than it has, however often members and managers are killed") {
  std::mt19937 random(3);
  BatchHouse house;
  constexpr uint64_t kItems = 3000;
  REQUIRE(house.submit(kItems).ok());
  for (int turn = 0; house.batch().state == "running"; ++turn) {
    REQUIRE(turn < 3000);
    house.pass(1, {&house.one, &house.two});
    for (FakeWorker* worker : {&house.one, &house.two}) {
      const auto given = house.ranges(*worker);
      if (given.empty()) continue;
      auto& metrics = house.member(*worker).counters.metrics;
      // One in a hundred items fails by an exception, and is told with what is on disk.
      metrics["batch.failed"] += random() % 100 == 0 ? 1 : 0;
      house.say(*worker, given.front().number, 1 + random() % given.front().count);
      if (random() % 8 == 0) {
        house.end(*worker, house.member(*worker).task, random() % 2 == 0 ? "crashed" : "lost");
        house.report(*worker);
      }
    }
    if (random() % 20 == 0) {
      house.restart(random() % 2 == 0);
      house.join(house.one);
      house.join(house.two);
    }
    const auto batch = house.batch();
    REQUIRE(batch.done + batch.failed <= kItems);
  }
  CHECK(house.batch().done + house.batch().failed == kItems);
}

TEST_CASE("what a lost worker's member had is given to another") {
  BatchHouse house;
  REQUIRE(house.submit(200).ok());
  house.pass(3, {&house.one, &house.two});
  REQUIRE_FALSE(house.ranges(house.one).empty());
  house.pass(10, {&house.two});  // the first falls silent
  for (int turn = 0; house.batch().state == "running"; ++turn) {
    REQUIRE(turn < 200);
    house.pass(1, {&house.two});
    for (const bus::TaskWork& work : house.renewal(house.two).work) {  // both members are there now
      std::istringstream lines(work.text);
      std::string word;
      std::getline(lines, word);  // which batch it is
      for (Range one; lines >> word >> one.number >> one.first >> one.count;) {
        auto& metrics = house.two.tasks.at(work.task).counters.metrics;
        metrics["batch.done"] = static_cast<double>((one.number << 26) + one.count);
        house.report(house.two);
      }
    }
  }
  CHECK(house.batch().done == 200);
}

TEST_CASE("a member whose supervisor was killed is replaced with the report that says so") {
  BatchHouse house;
  REQUIRE(house.submit(10'000).ok());
  house.pass(3, {&house.one, &house.two});
  const std::string name = house.member(house.one).task;
  const auto before = house.batch().members;
  house.end(house.one, name, "lost");
  house.report(house.one);
  CHECK(house.batch().members == before);
}

TEST_CASE("a member that waits for its init lease has items already, which others get if it ends there") {
  BatchHouse house;
  REQUIRE(house.submit(1000).ok());
  house.one.begins_as = "CREATED";
  house.pass(2, {&house.one});
  const auto given = house.ranges(house.one);
  REQUIRE_FALSE(given.empty());
  House::end(house.one, house.member(house.one).task, "failed");
  house.one.begins_as = "PAUSED";
  house.report(house.one);
  house.work_off();
  CHECK(house.batch().done == 1000);
  CHECK(house.batch().failed == 0);
}

TEST_CASE("a member that is being created has items already, but for the last ones of its batch") {
  BatchHouse house;
  REQUIRE(house.submit(10'000).ok());
  house.one.begins_as = "SUBMITTED";
  house.pass(1, {&house.one});
  CHECK_FALSE(house.ranges(house.one).empty());

  BatchHouse small;
  REQUIRE(small.submit(100).ok());
  small.one.begins_as = "SUBMITTED";
  small.pass(1, {&small.one});
  CHECK(small.ranges(small.one).empty());
}

TEST_CASE("a member whose items are under way side by side has as many as it wants, within bounds") {
  BatchHouse house;
  REQUIRE(house.submit(100'000).ok());
  house.pass(3, {&house.one, &house.two});
  const auto given = [&](FakeWorker& worker) {
    uint64_t items = 0;
    for (const Range& range : house.ranges(worker)) items += range.count;
    return items;
  };
  const uint64_t before = given(house.one);
  CHECK(before < 200);
  house.member(house.one).counters.metrics["batch.wants"] = 200;
  house.member(house.two).counters.metrics["batch.wants"] = 1e12;
  house.pass(2, {&house.one, &house.two});
  CHECK(given(house.one) >= 200);
  CHECK(given(house.one) <= 200 + before);
  CHECK(given(house.two) >= 200);
  CHECK(given(house.two) <= 4096 + before);
  house.work_off();
  CHECK(house.batch().done == 100'000);
}

TEST_CASE("a member that makes no step holds its batch up for half a minute, and no longer") {
  BatchHouse house;
  REQUIRE(house.submit(100).ok());
  house.pass(3, {&house.one, &house.two});
  REQUIRE_FALSE(house.ranges(house.one).empty());
  // Its training has ended; the other works all off, and has nothing left.
  for (int turn = 0; house.batch().state == "running"; ++turn) {
    REQUIRE(turn < 200);
    house.pass(1, {&house.one, &house.two});
    for (const Range& range : house.ranges(house.two)) house.say(house.two, range.number, range.count);
  }
  CHECK(house.batch().done == 100);
  // Who has bubbles puts it together.
  house.pass(2, {&house.one, &house.two});
  CHECK(house.text(house.two) == "assemble\n");
  CHECK(house.text(house.one).empty());
}

TEST_CASE("a host on which every member ends does not end the batch of others") {
  BatchHouse house;
  REQUIRE(house.submit(1000).ok());
  for (int turn = 0; turn < 12; ++turn) {
    house.pass(2, {&house.one, &house.two});
    for (auto& [name, task] : house.one.tasks) {
      if (task.state != "STOPPED") House::end(house.one, name, "failed");
    }
    house.report(house.one);
  }
  CHECK(house.batch().state == "running");
}

TEST_CASE("ends at an item do not count as the plugin's own") {
  BatchHouse house;
  REQUIRE(house.submit(10'000).ok());
  const auto end_all = [&](bool at_an_item) {
    int ended = 0;
    house.pass(3, {&house.one, &house.two});
    for (FakeWorker* worker : {&house.one, &house.two}) {
      const auto has = house.ranges(*worker);
      if (has.empty()) continue;
      house.crash_at(*worker, has.front(), 0, at_an_item ? 1 : 0);
      ++ended;
    }
    return ended;
  };
  int at_items = 0;
  for (int turn = 0; turn < 6; ++turn) at_items += end_all(true);
  CHECK(at_items >= 8);
  CHECK(end_all(false) == 2);
  CHECK(house.batch().state == "running");
  for (int turn = 0; turn < 3; ++turn) end_all(false);
  CHECK(house.batch().state == "failed");
}

TEST_CASE("a plugin that ends before it has begun an item ends its batch, soon") {
  BatchHouse house;
  REQUIRE(house.submit(200).ok());
  for (int turn = 0; house.batch().state == "running"; ++turn) {
    REQUIRE(turn < 60);
    house.pass(1, {&house.one, &house.two});
    for (FakeWorker* worker : {&house.one, &house.two}) {
      for (auto& [name, task] : worker->tasks) {
        if (task.state != "STOPPED") House::end(*worker, name, "failed");
      }
      house.report(*worker);
    }
  }
  CHECK(house.batch().state == "failed");
  CHECK(contains(house.batch().reason, "nothing is done: failed"));
  house.pass(5, {&house.one, &house.two});
  CHECK(house.batch().members == 0);
}

TEST_CASE("a batch is submitted once, under a name that is free") {
  BatchHouse house;
  REQUIRE(house.submit(10).ok());
  CHECK(house.submit(10).ok());  // the same once more
  auto other = house.submit(10, "score", "b2");
  REQUIRE_FALSE(other.ok());
  CHECK(other.error().code == Code::kAlreadyExists);
  CHECK_FALSE(house.submit(0, "none", "c").ok());
  CHECK_FALSE(house.submit(10, "bad name", "d").ok());
  house.core->list_batches(++house.tickets);
  CHECK(std::get<bus::BatchesReply>(*house.answer_of(house.tickets)).batches.size() == 1);
  CHECK(house.core->user_of_batch("score") == "ann");
  CHECK_FALSE(house.core->user_of_batch("none"));
}

TEST_CASE("a batch that is removed stops its members and stays away") {
  BatchHouse house;
  REQUIRE(house.submit(1000).ok());
  house.pass(3, {&house.one, &house.two});
  house.core->remove_batch(++house.tickets, "score");
  CHECK(house.answer_of(house.tickets).ok());
  house.pass(3, {&house.one, &house.two});
  CHECK(house.verdict("score-1").kind == "stopped");
  house.restart();
  house.core->show_batch(++house.tickets, "score");
  CHECK_FALSE(house.answer_of(house.tickets).ok());
}

}  // namespace
}  // namespace freeride::manager
