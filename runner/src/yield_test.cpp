// Yield points, driven through hand-made pages: pieces within leases, and what ends a wait in the middle of a step.
#include <csignal>
#include <deque>

#include "freeride/base/clock.hpp"
#include "saved_state.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

namespace {

struct Piece {
  std::string what;
  long number = 0;
  int64_t begin_ns = 0, end_ns = 0;
};

std::vector<Piece> read_pieces(const TempDir& scratch) {
  std::vector<Piece> pieces;
  std::ifstream file(scratch.path() + "/pieces");
  for (Piece piece; file >> piece.what >> piece.number >> piece.begin_ns >> piece.end_ns;) pieces.push_back(piece);
  return pieces;
}

// PAUSED with `predicted_ns` saying something of a piece, not of a step: it waits at a yield point.
bool waits_in_a_step(Harness& harness) {
  const uint64_t lease = harness.lease().lease_id;
  return harness.wait_until([&](const auto& answer) {
    return pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED &&
           pages::load_acquire(answer.transition) == FREERIDE_IN_NONE && pages::load_acquire(answer.lease_id) == lease;
  });
}

// Leads a new task into the wait after its first piece: that piece ends after its lease.
void lead_into_a_step(Harness& harness, const TempDir& scratch) {
  REQUIRE(open_until(harness, FREERIDE_LEASE_BUBBLE, 5,
                     [](const auto& answer) { return pages::load_acquire(answer.step_ns) > 0; }));
  REQUIRE(waits_in_a_step(harness));
  REQUIRE(steps(harness) == 0);
  REQUIRE(read_pieces(scratch).back().what == "piece");
}

}  // namespace

TEST_CASE("yield: a long step is done in short leases, and no piece begins outside one") {
  const TempDir scratch;
  std::vector<std::pair<int64_t, int64_t>> leases;
  {
    auto harness = start_paused("yielding", scratch, {{"pieces", "6"}, {"piece_us", "10000"}});
    // Of 25 ms; longer ones take their place where a busy machine needs 20 ms for a piece.
    for (int i = 0; i < 400 && steps(*harness) < 3; ++i) {
      const int64_t length_ms = i < 100 ? 25 : 50;
      harness->open(FREERIDE_LEASE_BUBBLE, length_ms);
      leases.emplace_back(static_cast<int64_t>(harness->lease().opened_ns),
                          static_cast<int64_t>(harness->lease().deadline_ns));
      harness->wait_until([&](const auto& answer) {
        return SteadyClock::now() > leases.back().second &&
               pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED &&
               pages::load_acquire(answer.transition) == FREERIDE_IN_NONE;
      });
      harness->revoke();
    }
    CHECK(steps(*harness) >= 3);
    harness->revoke(FREERIDE_ORDER_STOP);
    REQUIRE(harness->verdict());
    CHECK(harness->verdict()->verdict.kind == VerdictKind::kStopped);
  }
  long last = -1;
  size_t used = 0, late = 0;
  for (const Piece& piece : read_pieces(scratch)) {
    if (piece.what != "piece") continue;
    INFO("piece " << piece.number << " at " << piece.begin_ns);
    CHECK((piece.number == last + 1 || piece.number == 0));
    last = piece.number == 5 ? -1 : piece.number;
    while (used < leases.size() && leases[used].second < piece.begin_ns) ++used;
    REQUIRE(used < leases.size());
    late += piece.begin_ns < leases[used].first ? 1 : 0;
  }
  // A busy machine may take the processor between the yield point's answer and the piece's look at the clock.
  CHECK(late <= 1);
}

TEST_CASE("yield: queued pieces are one ahead of the GPU where there is room, and none executes outside a lease") {
  const TempDir scratch;
  std::vector<std::pair<int64_t, int64_t>> leases;
  const auto lease = [&](Harness& harness, int64_t length_ms) {
    harness.open(FREERIDE_LEASE_BUBBLE, length_ms);
    leases.emplace_back(static_cast<int64_t>(harness.lease().opened_ns),
                        static_cast<int64_t>(harness.lease().deadline_ns));
    harness.wait_until([&](const auto& answer) {
      return SteadyClock::now() > leases.back().second && pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED &&
             pages::load_acquire(answer.transition) == FREERIDE_IN_NONE;
    });
    // Nothing of it is left on the "GPU".
    const int64_t cpu_ns = harness.cpu_ns();
    const timespec moment{0, 20'000'000};
    nanosleep(&moment, nullptr);
    CHECK(harness.cpu_ns() - cpu_ns < 5 * kNsPerMs);
    harness.revoke();
  };
  {
    auto harness = start_paused("yielding", scratch, {{"pieces", "6"}, {"piece_us", "8000"}, {"queued", "1"}});
    for (int i = 0; i < 200 && steps(*harness) < 4; ++i) lease(*harness, i < 50 ? 30 : 60);
    CHECK(steps(*harness) >= 4);
    lease(*harness, 400);
    harness->revoke(FREERIDE_ORDER_STOP);
    REQUIRE(harness->verdict());
    CHECK(harness->verdict()->verdict.kind == VerdictKind::kStopped);
  }
  const auto trace = read_pieces(scratch);
  size_t used = 0;
  int ahead = 0;
  int64_t queued_ns = 0;  // when the piece after the next one to end was queued
  std::deque<int64_t> queued;
  for (const Piece& piece : trace) {
    if (piece.what == "queued") queued.push_back(queued_ns = piece.begin_ns);
    if (piece.what != "piece") continue;
    INFO("piece " << piece.number << " at " << piece.begin_ns);
    REQUIRE_FALSE(queued.empty());
    // When it was queued: on a busy machine the thread that does it may come to it later.
    while (used < leases.size() && leases[used].second < queued.front()) ++used;
    REQUIRE(used < leases.size());
    CHECK(queued.front() >= leases[used].first);
    queued.pop_front();
    if (piece.begin_ns < queued_ns && queued_ns < piece.end_ns) ++ahead;
  }
  CHECK(ahead > 0);
}

TEST_CASE("yield: a lease that is taken back ends queued pieces, too") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, {{"pieces", "200"}, {"piece_us", "2000"}, {"queued", "1"}});
  for (int i = 0; i < 5; ++i) {
    harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
    const uint64_t before_ns = pages::load_acquire(harness->answer().step_ns);
    REQUIRE(harness->wait_until([&](const auto& answer) {
      return pages::load_acquire(answer.step_ns) >
             before_ns + 30 * kNsPerMs;  // in the middle of a step, one piece ahead
    }));
    harness->revoke();
    REQUIRE(harness->wait_paused());
  }
  CHECK_FALSE(harness->verdict(1));
}

TEST_CASE("yield: a wait in the middle of a step is a pause, and may last") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 20;
  options.hang_ms = 50;
  auto harness = start_paused("yielding", scratch, {{"piece_us", "8000"}}, options);
  lead_into_a_step(*harness, scratch);
  harness->revoke();
  const int64_t cpu_ns = harness->cpu_ns();
  const timespec longer_than_the_limits{0, 300'000'000};
  nanosleep(&longer_than_the_limits, nullptr);
  CHECK_FALSE(harness->verdict(1));
  CHECK(harness->cpu_ns() - cpu_ns < 20 * kNsPerMs);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  CHECK(wait_steps(*harness, 2));  // with the room there is, it goes on
  harness->revoke();
  REQUIRE(harness->wait_paused());
}

TEST_CASE("yield: a stop in the middle of a step gives it up") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, {{"piece_us", "8000"}});
  lead_into_a_step(*harness, scratch);
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  CHECK(steps(*harness) == 0);
  CHECK(read_pieces(scratch).back().what == "pause");
}

TEST_CASE("yield: on a GPU, too, leaving the step counts from the stop and not from its last lease's end") {
  const TempDir scratch;
  Harness::Options options;
  options.device = "GPU-0";
  options.grace_ms = 1'000;
  auto harness = start_paused("yielding", scratch, {{"piece_us", "8000"}, {"leave_us", "20000"}}, options);
  lead_into_a_step(*harness, scratch);
  harness->revoke();
  const timespec longer_than_grace{1, 200'000'000};
  nanosleep(&longer_than_grace, nullptr);
  harness->revoke(FREERIDE_ORDER_STOP);
  REQUIRE(harness->wait_until([](const auto& a) { return pages::load_acquire(a.transition) == FREERIDE_IN_STEP; }));
  harness->revoke(FREERIDE_ORDER_STOP);  // wakes the supervisor while the task is on its way out
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("yield: SIGTERM to the supervisor does the same") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, {{"piece_us", "8000"}});
  lead_into_a_step(*harness, scratch);
  harness->revoke();
  REQUIRE(harness->signal_supervisor(SIGTERM));
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("yield: a state can be saved in the middle of a step, which is then begun anew") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, {{"piece_us", "8000"}, {"pieces", "3"}});
  lead_into_a_step(*harness, scratch);
  harness->revoke();
  const uint64_t save_lease = harness->open(FREERIDE_LEASE_SAVE, 60'000, FREERIDE_ORDER_PAUSE);
  REQUIRE(
      harness->wait_until([&](const auto& answer) { return pages::load_acquire(answer.saved_lease) == save_lease; }));
  harness->revoke();
  const auto saved = read_saved_state(harness->state_fd());
  REQUIRE(saved.ok());
  REQUIRE(saved->has_value());
  CHECK((*saved)->bytes == "0");
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 1));
  harness->revoke(FREERIDE_ORDER_STOP);
  REQUIRE(harness->verdict());
  std::string order;
  for (const Piece& piece : read_pieces(scratch)) order += piece.what == "pause" ? "p" : std::to_string(piece.number);
  // How far it got before the first wait is the machine's to say.
  CHECK((order.rfind("0p012", 0) == 0 || order.rfind("01p012", 0) == 0));
}

TEST_CASE("yield: a profile runs through its yield points") {
  const TempDir scratch;
  Harness::Options options;
  options.purpose = "profile";
  options.steps = 3;
  auto harness = start("yielding", scratch, {{"piece_us", "500"}}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_PROFILE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
  CHECK(steps(*harness) == 3);
  freeride_profile_record header{};
  REQUIRE(pread(harness->state_fd(), &header, sizeof(header), 0) == sizeof(header));
  std::vector<freeride_profile_sample> samples(header.samples);
  const auto bytes = static_cast<ssize_t>(samples.size() * sizeof(samples[0]));
  REQUIRE(pread(harness->state_fd(), samples.data(), static_cast<size_t>(bytes), sizeof(header)) == bytes);
  std::string order;
  uint64_t step_ns = 0, pieces_ns = 0;
  for (const auto& sample : samples) {
    if (sample.kind == FREERIDE_PROFILE_PIECE) order += std::to_string(sample.piece), pieces_ns += sample.duration_ns;
    if (sample.kind == FREERIDE_PROFILE_STEP) order += "s", step_ns += sample.duration_ns;
  }
  CHECK(order == "012345s012345s012345s");
  CHECK(step_ns == pieces_ns);
}
