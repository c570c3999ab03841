// Whether a step or piece may begin: by one class, whichever interface asks.
#include "admission.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::runner;
using Opening = Admission::Opening;
using Pass = Admission::Pass;

namespace {

constexpr int64_t kMs = kNsPerMs;

Admission knows(int64_t step_ns, bool stops_anywhere = false) {
  Admission admission({}, stops_anywhere);
  for (int i = 0; i < 8; ++i) admission.step_done(step_ns);
  return admission;
}

Job profiled(const std::string& device) {
  Job job;
  job.device = device;
  job.predicted_step_ns = 5 * kMs;
  return job;
}

}  // namespace

TEST_CASE("admission: a step and a workload's piece may begin by the same figures") {
  Admission admission = knows(10 * kMs);
  for (const int64_t room_ms : {1, 9, 12, 100}) {
    INFO(room_ms);
    CHECK(admission.may_begin(room_ms * kMs, false) == (room_ms > 10));
    CHECK(admission.may_pass(0, room_ms * kMs, false) == (room_ms > 10 ? Pass::kWhole : Pass::kNo));
  }
}

TEST_CASE(
    "admission: a workload's first piece passes, any piece where a stop ends what executes or the end is unknown") {
  Admission gpu = knows(10 * kMs);
  CHECK(gpu.may_pass(0, 1 * kMs, true) == Pass::kCut);
  CHECK(gpu.may_pass(0, 0, false) == Pass::kWhole);
  CHECK(gpu.may_pass(0, 1 * kMs, false) == Pass::kNo);
  CHECK(knows(10 * kMs, true).may_pass(0, 1 * kMs, false) == Pass::kWhole);
  CHECK(Admission().may_pass(0, 1 * kMs, true) == Pass::kWhole);  // nothing is known
}

TEST_CASE("admission: a piece is cut while most of the time is in leases that are too short for it") {
  Admission admission = knows(10 * kMs);
  const auto passes = [&](int64_t room_ms) { return admission.may_pass(0, room_ms * kMs, true); };
  CHECK(passes(9) == Pass::kCut);
  CHECK(passes(20) == Pass::kWhole);
  for (int iteration = 0; iteration < 100; ++iteration) {
    INFO(iteration);
    CHECK(passes(8) == Pass::kNo);
    CHECK(passes(20) == Pass::kWhole);
    CHECK(passes(8) == Pass::kNo);
  }
  CHECK(passes(60'000) == Pass::kWhole);  // no training: no longer a memory than others
  int leases = 0;
  while (passes(8) == Pass::kNo && leases < 1000) ++leases;
  CHECK(leases < 64);
}

TEST_CASE("admission: a piece is queued behind another only where both are known and fit") {
  Admission admission;
  CHECK_FALSE(admission.may_queue(0, INT64_MAX));
  for (int step = 0; step < 8; ++step) {
    admission.step_begins();
    admission.piece_done(10 * kMs);
    admission.step_done(10 * kMs);
  }
  admission.step_begins();
  CHECK_FALSE(admission.may_queue(0, 15 * kMs));
  CHECK(admission.may_queue(0, 30 * kMs));
  CHECK_FALSE(admission.may_queue(20 * kMs, 30 * kMs));
  admission.queued();
  CHECK(admission.take_ahead());
  CHECK_FALSE(admission.take_ahead());
}

TEST_CASE("admission: what a profile knows admits the first step, and says nothing of a workload's pieces") {
  Admission steps(profiled("GPU-1"));
  CHECK_FALSE(steps.may_begin(1 * kMs, true));
  CHECK(steps.may_begin(20 * kMs, true));
  CHECK(steps.predicted_ns() >= 5 * kMs);
  Admission pieces(profiled("GPU-1"));
  pieces.use_gate();
  CHECK(pieces.predicted_ns() == 0);
  CHECK(pieces.step_quantile_ns(0.5) == 0);
  CHECK(Admission(profiled("cpu-0")).may_pass(0, 1, false) == Pass::kWhole);
}

TEST_CASE("admission: behind the shim of libcuda a lease is used to its end, whatever the pieces took") {
  for (const bool gated : {false, true}) {
    Job job = profiled("GPU-1");
    job.gated = gated;
    Admission admission(job);
    admission.use_gate();
    for (int i = 0; i < 20; ++i) admission.step_done(8 * kMs);
    CHECK((admission.may_pass(0, 2 * kMs, false) == Pass::kWhole) == gated);
    for (int i = 0; i < 16; ++i) admission.pause_took(8 * kMs, INT64_MAX);
    CHECK((admission.close_at_ns(20 * kMs) >= 19 * kMs) == gated);
    CHECK((admission.opening(0, 5 * kMs, false) == Opening::kOpen) == gated);
    CHECK((admission.patience_ns(false) <= 1 * kMs) == gated);
  }
}

TEST_CASE("admission: the gate is closed so early that a pause fits, and opened once where none does") {
  Admission admission;
  admission.use_gate();
  CHECK(admission.opening(0, 10 * kMs, false) == Opening::kOpen);  // nothing is known
  for (int i = 0; i < 16; ++i) admission.pause_took(4 * kMs, INT64_MAX);
  CHECK(admission.close_at_ns(20 * kMs) < 16 * kMs);
  CHECK(admission.opening(0, 20 * kMs, false) == Opening::kOpen);
  CHECK(admission.opening(0, 2 * kMs, false) == Opening::kNone);
  CHECK(admission.opening(0, 2 * kMs, true) == Opening::kRest);
  Opening opening = Opening::kNone;
  for (int leases = 0; leases < 1000 && opening == Opening::kNone; ++leases) {
    admission.lease_skipped();
    opening = admission.opening(0, 2 * kMs, false);
  }
  CHECK(opening == Opening::kOnce);
}

TEST_CASE("admission: a workload that is stuck in a piece is not waited for again") {
  Admission gpu;
  Admission cpu({}, true);
  for (Admission* admission : {&gpu, &cpu}) {
    admission->use_gate();
    for (int i = 0; i < 16; ++i) admission->pause_took(4 * kMs, INT64_MAX);
  }
  CHECK(gpu.patience_ns(false) == 2 * cpu.patience_ns(false));
  CHECK(gpu.patience_ns(true) < cpu.patience_ns(false));
}

TEST_CASE("admission: what iterations save up corrects a profile that was taken in a slow moment, on a GPU") {
  Job job;
  job.device = "GPU-1";
  job.predicted_step_ns = 89'800'000;
  Admission admission(job);
  freeride::pages::Lease lease;
  lease.kind = FREERIDE_LEASE_BUBBLE;
  lease.grace_ns = 100'000'000;
  constexpr int64_t kRoomNs = 10'000'000;
  uint32_t iterations = 0;
  for (; iterations < 1'000; ++iterations) {
    lease.iteration = iterations + 1;
    admission.sees(lease);
    if (admission.may_begin(kRoomNs, true)) break;
    admission.lease_skipped();
  }
  CHECK(iterations > 80);  // what it would take past the bubble, at 1 ms an iteration
  CHECK(iterations < 90);
  admission.begins(kRoomNs);
  admission.step_begins();
  admission.step_done(3'000'000);
  CHECK(admission.may_begin(kRoomNs - 3'000'000, false));

  // A worker of an earlier version tells no iterations; another training begins to count anew.
  Admission untold(job);
  lease.iteration = 0;
  for (int i = 0; i < 100; ++i) {
    untold.sees(lease);
    CHECK_FALSE(untold.may_begin(kRoomNs, true));
    untold.lease_skipped();
  }
  Admission jumps(job);
  for (const uint32_t iteration : {5'000'000u, 1u, 4'000'000'000u, 2u}) {
    lease.iteration = iteration;
    jumps.sees(lease);
    for (int i = 0; i < 8; ++i) jumps.lease_skipped();
    CHECK_FALSE(jumps.may_begin(kRoomNs, true));
  }
}
