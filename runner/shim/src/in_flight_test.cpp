#include "in_flight.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "freeride/base/clock.hpp"
#include "memory.hpp"

namespace freeride::shim {
namespace {

// Events that are done when the test says so.
class PlayedEvents final : public Events {
 public:
  struct Event {
    bool done = false;
    int64_t at_ns = 0;
  };
  void* context_of(void* stream) override { return stream == nullptr ? nullptr : &contexts_; }
  void* make(void*, bool) override {
    if (refuses) return nullptr;
    all.push_back(std::make_unique<Event>());
    return all.back().get();
  }
  bool record(void*, void* event, void*) override {
    if (refuses) return false;
    recorded.push_back(static_cast<Event*>(event));
    recorded.back()->done = false;
    return true;
  }
  State query(void* event) override {
    return lost ? State::kLost : static_cast<Event*>(event)->done ? State::kDone : State::kPending;
  }
  int64_t elapsed_ns(void* begin, void* end) override {
    return silent ? -1 : static_cast<Event*>(end)->at_ns - static_cast<Event*>(begin)->at_ns;
  }
  void finish(int64_t at_ns) {
    for (auto* one : recorded) {
      if (!one->done) *one = {true, at_ns};
    }
  }

  bool refuses = false, lost = false, silent = false;
  std::vector<std::unique_ptr<Event>> all;
  std::vector<Event*> recorded;

 private:
  int contexts_ = 0;
};

struct Fixture {
  PlayedEvents events;
  FakeClock clock;
  InFlight queue{events};
  InFlight::Timed timed;
  int context = 0, handle = 0;
  Stream* stream = queue.stream(&context, nullptr, 0);

  void put(Stream* where, int64_t ns) {
    REQUIRE(queue.reserve(queue.queued_ns(), ns));
    queue.submitted(where, ns, kNsPerMs / 2);
  }
  bool poll(int64_t now_ns = 0) { return queue.poll(now_ns, timed); }
};

}  // namespace

TEST_CASE("a mark comes behind half of the bound, and what is before it leaves the queue with it") {
  Fixture f;
  for (int i = 0; i < 49; ++i) f.put(f.stream, 10 * kNsPerUs);
  CHECK(f.events.recorded.empty());
  f.put(f.stream, 10 * kNsPerUs);
  CHECK(f.events.recorded.size() == 1);
  f.put(f.stream, 10 * kNsPerUs);
  CHECK_FALSE(f.poll());
  CHECK(f.queue.queued_ns() == 510 * kNsPerUs);
  f.events.finish(1);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 10 * kNsPerUs);
  CHECK_FALSE(f.poll());
  CHECK(f.queue.mark_all());
  CHECK_FALSE(f.queue.mark_all());
  f.events.finish(1);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 0);
  CHECK(f.events.all.size() == 1);  // used again
}

TEST_CASE("only one of two takes the last of the room") {
  Fixture f;
  CHECK(f.queue.reserve(0, 5));
  CHECK_FALSE(f.queue.reserve(0, 5));
  f.queue.cancel(5);
  CHECK(f.queue.queued_ns() == 0);
}

TEST_CASE("what a timed submission took is learned") {
  Fixture f;
  Learned learned;
  Cost* cost = learned.find(5, 1);
  const auto time = [&](int64_t begin_ns, int64_t end_ns) {
    REQUIRE(f.queue.reserve(f.queue.queued_ns(), kNsPerMs));
    void* begin = f.queue.begin_timing(f.stream);
    f.events.finish(begin_ns);
    f.queue.timed(f.stream, begin, kNsPerMs, cost, f.clock, f.clock.now_ns(), 0);
    f.events.finish(end_ns);
  };
  time(100, 100 + 70 * kNsPerUs);
  CHECK(f.queue.queued_ns() == kNsPerMs);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 0);
  CHECK(cost->expected_ns() == 70 * kNsPerUs);
  CHECK(f.timed.longest_ns == 70 * kNsPerUs);
  CHECK(f.timed.longest == cost);
  SECTION("where the driver does not say, by the host's clock") {
    f.events.silent = true;
    for (int i = 0; i < 4; ++i) {
      time(0, 0);
      CHECK(f.poll(f.clock.now_ns() + 20 * kNsPerUs));
    }
    CHECK(cost->expected_ns() == 20 * kNsPerUs);
  }
  SECTION("not where it is lost") {
    f.events.lost = true;
    time(0, 10);
    CHECK(f.poll());
    CHECK(f.queue.queued_ns() == 0);
    CHECK(cost->expected_ns() == 70 * kNsPerUs);
  }
}

TEST_CASE("a stop of the process between the two events of a timing is not the kernel's time") {
  Fixture f;
  Learned learned;
  Cost* cost = learned.find(5, 1);
  REQUIRE(f.queue.reserve(0, kNsPerMs));
  const int64_t begun_ns = f.clock.now_ns();
  void* begin = f.queue.begin_timing(f.stream);
  f.events.finish(0);
  f.clock.tick(50 * kNsPerMs);  // the lease had ended
  f.queue.timed(f.stream, begin, kNsPerMs, cost, f.clock, begun_ns, 0);
  f.events.finish(50 * kNsPerMs);
  CHECK(f.poll());
  CHECK(cost->expected_ns() == 0);  // it is timed again
}

TEST_CASE("what a GPU takes that waited for the launch is less than what lies between the two events") {
  Fixture f;
  Learned learned;
  Cost* cost = learned.find(5, 1);
  const auto time = [&](bool idle) {
    REQUIRE(f.queue.reserve(f.queue.queued_ns(), kNsPerMs));
    void* begin = f.queue.begin_timing(f.stream);
    if (idle) f.events.finish(0);
    const bool found = f.queue.is_idle(begin);
    CHECK(found == idle);
    f.clock.tick(5 * kNsPerUs);
    f.queue.timed(f.stream, begin, kNsPerMs, cost, f.clock, f.clock.now_ns() - 5 * kNsPerUs, found ? 5 * kNsPerUs : 0);
    if (!idle) *static_cast<PlayedEvents::Event*>(begin) = {true, 0};
    f.events.finish(7 * kNsPerUs);
    CHECK(f.poll());
  };
  for (int i = 0; i < 4; ++i) time(true);
  CHECK(cost->expected_ns() == 2 * kNsPerUs);
  for (int i = 0; i < 4; ++i) time(false);
  CHECK(cost->expected_ns() == 7 * kNsPerUs);
}

TEST_CASE("what will not be submitted leaves the queue, unless a mark is for it") {
  Fixture f;
  REQUIRE(f.queue.reserve(0, 300));
  InFlight::will_submit(f.stream, 300);
  f.queue.will_not_submit(f.stream, 200);
  CHECK(f.queue.queued_ns() == 100);
  REQUIRE(f.queue.mark_all());
  f.queue.will_not_submit(f.stream, 100);
  CHECK(f.queue.queued_ns() == 100);
  f.events.finish(0);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 0);
}

TEST_CASE("a driver that refuses events leaves nothing in the queue") {
  Fixture f;
  f.events.refuses = true;
  CHECK(f.queue.begin_timing(f.stream) == nullptr);
  f.put(f.stream, kNsPerMs);
  CHECK(f.queue.queued_ns() == 0);
  REQUIRE(f.queue.reserve(0, kNsPerMs));
  f.queue.timed(f.stream, nullptr, kNsPerMs, nullptr, f.clock, 0, 0);
  CHECK(f.queue.queued_ns() == 0);
}

TEST_CASE("a thread's default stream is marked each time, since no other thread can") {
  Fixture f;
  Stream* own = f.queue.stream(&f.context, nullptr, 9);
  CHECK(own != f.stream);
  CHECK(own != f.queue.stream(&f.context, nullptr, 10));
  CHECK(own == f.queue.stream(&f.context, nullptr, 9));
  f.put(own, kNsPerUs);
  CHECK(f.events.recorded.size() == 1);
}

TEST_CASE("what is not counted any more is timed all the same, and is not subtracted twice") {
  Fixture f;
  Learned learned;
  Cost* cost = learned.find(5, 1);
  REQUIRE(f.queue.reserve(0, kNsPerMs));
  f.queue.timed(f.stream, f.queue.begin_timing(f.stream), kNsPerMs, cost, f.clock, f.clock.now_ns(), 0);
  f.put(f.stream, 3 * kNsPerUs);
  f.queue.stop_counting();
  CHECK(f.queue.queued_ns() == 0);
  f.put(f.stream, 2 * kNsPerUs);
  f.events.finish(5);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 2 * kNsPerUs);
  CHECK(cost->expected_ns() > 0);
}

TEST_CASE("a stream that ends is marked, and one of the same handle is another one") {
  Fixture f;
  Stream* stream = f.queue.stream(nullptr, &f.handle, 0);
  CHECK(stream->context != nullptr);
  f.put(stream, kNsPerUs);
  f.queue.forget_stream(&f.handle);
  CHECK(f.events.recorded.size() == 1);
  CHECK(f.queue.stream(nullptr, &f.handle, 0) != stream);
  f.events.finish(1);
  CHECK(f.poll());
  CHECK(f.queue.queued_ns() == 0);
  // Its place is used again.
  CHECK(f.queue.stream(nullptr, &f.context, 0) == stream);
}

TEST_CASE("a context that ends takes its events with it") {
  Fixture f;
  for (int i = 0; i < 60; ++i) f.put(f.stream, 10 * kNsPerUs);
  f.queue.forget_all();
  CHECK(f.queue.queued_ns() == 0);
  f.events.finish(1);
  CHECK_FALSE(f.poll());
  const size_t made = f.events.all.size();
  f.put(f.queue.stream(&f.context, nullptr, 0), kNsPerMs);
  CHECK(f.events.all.size() == made + 1);
}

TEST_CASE("memory is told by the limit, and what is free by what was allocated") {
  constexpr uint64_t kGiB = 1ull << 30;
  Memory memory;
  CHECK(memory.free(50 * kGiB, 80 * kGiB) == 50 * kGiB);
  CHECK(memory.total(80 * kGiB) == 80 * kGiB);
  memory.limit(8 * kGiB);
  memory.allocated(1, kGiB);
  memory.allocated(2, 2 * kGiB);
  CHECK(memory.total(80 * kGiB) == 8 * kGiB);
  CHECK(memory.free(50 * kGiB, 80 * kGiB) == 5 * kGiB);
  CHECK(memory.free(kGiB, 80 * kGiB) == kGiB);
  memory.freed(2);
  memory.freed(77);
  CHECK(memory.free(50 * kGiB, 80 * kGiB) == 7 * kGiB);
  memory.allocated(3, 20 * kGiB);
  CHECK(memory.free(50 * kGiB, 80 * kGiB) == 0);
  // A driver that tells the limit by itself knows better.
  CHECK(memory.free(3 * kGiB, 8 * kGiB) == 3 * kGiB);
}

}  // namespace freeride::shim
