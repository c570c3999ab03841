// The gate of the imperative interface by itself: which pieces of a workload pass it, and when.
#include "workload.hpp"

#include <catch2/catch.hpp>
#include <ctime>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::runner;

namespace {

constexpr int64_t kPieceNs = 2 * kNsPerMs;

/// A workload of endless steps, of four pieces each that take the GPU, or whoever, kPieceNs.
struct Pieces {
  Admission admission;
  Workload workload{admission};
  std::atomic<int> begun{0};

  freeride_status body() {
    for (int i = 1;; ++i) {
      ++begun;
      const timespec piece{0, kPieceNs};
      nanosleep(&piece, nullptr);
      const auto status = i % 4 == 0 ? workload.pass() : workload.pass_piece();
      if (status != FREERIDE_OK) return status;
    }
  }
  void open(uint64_t lease, int64_t for_ns) {
    workload.expect_open_until(lease, SteadyClock::now() + for_ns);
    workload.open([this] { return body(); });
  }
  // Until the workload waits at a closed gate.
  void wait_closed() {
    const timespec moment{0, 1'000'000};
    while (!workload.waits()) nanosleep(&moment, nullptr);
  }
  ~Pieces() { workload.abandon(60'000); }
};

}  // namespace

TEST_CASE("workload: what does not fit the rest of a lease closes the gate") {
  Pieces pieces;
  pieces.open(1, 60 * kNsPerSec);
  while (pieces.begun < 40) sched_yield();
  CHECK_FALSE(pieces.workload.waits());
  pieces.workload.expect_open_until(1, SteadyClock::now() + kPieceNs / 2);  // nobody closes it
  pieces.wait_closed();
  const int begun = pieces.begun;
  pieces.open(1, kPieceNs / 2);  // the same lease, a little longer
  pieces.wait_closed();
  CHECK(pieces.begun == begun);
}

TEST_CASE("workload: where no lease is long enough for a piece, the first piece of each passes and is cut") {
  Pieces pieces;
  pieces.open(1, 60 * kNsPerSec);
  while (pieces.begun < 40) sched_yield();
  pieces.workload.close(SteadyClock::now() + 60 * kNsPerSec);
  uint64_t lease = 2;
  const auto passes = [&] {
    const int begun = pieces.begun;
    pieces.open(lease++, kPieceNs / 2);
    pieces.wait_closed();
    return pieces.begun - begun;
  };
  int passed = 0;
  while (lease < 200 && passed == 0) passed = passes();  // of the longer one less is remembered with each
  for (int i = 0; i < 10; ++i) CHECK(passes() == 1);
  CHECK(pieces.workload.is_cut());
}

TEST_CASE("workload: a lease that is too short for a piece is left alone while others are long enough") {
  Pieces pieces;
  pieces.open(1, 60 * kNsPerSec);
  while (pieces.begun < 40) sched_yield();
  pieces.workload.close(SteadyClock::now() + 60 * kNsPerSec);
  constexpr uint64_t kShort = 30;
  int passed = 0;
  for (uint64_t lease = 2; lease < 2 + 2 * kShort; lease += 2) {
    pieces.open(lease, 10 * kPieceNs);
    pieces.wait_closed();
    const int begun = pieces.begun;
    pieces.open(lease + 1, kPieceNs / 2);
    pieces.wait_closed();
    passed += pieces.begun - begun;
  }
  CHECK(passed < static_cast<int>(kShort / 2));  // on a busy machine a long one passes unused, and counts as too short
}

TEST_CASE("workload: what a piece takes does not include the time in which the process may be stopped") {
  Admission admission;
  Workload workload(admission);
  std::atomic<bool> begun{false}, may_end{false};
  const int64_t begin_ns = SteadyClock::now();
  workload.open([&] {
    begun = true;
    while (!may_end) sched_yield();
    return workload.pass() == FREERIDE_OK ? FREERIDE_FINISHED : FREERIDE_OK;
  });
  while (!begun) sched_yield();
  const int64_t stands_ns = SteadyClock::now();
  workload.stands(stands_ns);
  const timespec while_stopped{0, 20 * kPieceNs};
  nanosleep(&while_stopped, nullptr);
  const int64_t goes_on_ns = SteadyClock::now();
  workload.goes_on(goes_on_ns);
  may_end = true;
  while (!workload.ended()) sched_yield();
  CHECK(admission.step_quantile_ns(0.5) > 0);
  CHECK(admission.step_quantile_ns(0.5) <= SteadyClock::now() - begin_ns - (goes_on_ns - stands_ns));
  workload.abandon(60'000);
}

TEST_CASE("workload: what it prepares is done before the gate is closed, and a failure of it is known") {
  Admission admission;
  Workload fails(admission);
  CHECK(fails.prepare([] { return FREERIDE_OUT_OF_MEMORY; }, [] { return FREERIDE_OK; }) == FREERIDE_OUT_OF_MEMORY);
  CHECK(fails.ended());
  Workload works(admission);
  std::atomic<int> done{0};
  CHECK(works.prepare([&] { return ++done, works.pass(); }, [&] { return ++done, FREERIDE_FINISHED; }) == FREERIDE_OK);
  works.close(SteadyClock::now() + 60 * kNsPerSec);
  CHECK(works.waits());
  CHECK(done == 1);
  works.open({});
  while (!works.ended()) sched_yield();
  CHECK(done == 2);
  CHECK(works.status() == FREERIDE_FINISHED);
  works.abandon(1000);
}
