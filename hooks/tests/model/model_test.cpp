// No deadlock in any order of events, for the calls of real schedules; and the search can fail: with a rule broken it
// finds the deadlock.
#include "model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

using freeride::hooks::model::Call;
using freeride::hooks::model::explore;
using freeride::hooks::model::Options;
using freeride::hooks::model::parse_schedules;
using freeride::hooks::model::read_schedules;
using freeride::hooks::model::Schedule;
using freeride::policy::Batch;
using freeride::policy::BatchPlan;
using freeride::policy::BatchStep;
using freeride::policy::may_hold_remotely;
using freeride::policy::plan_batch;
using freeride::policy::RemoteBatch;

namespace {

std::vector<Schedule> real_schedules() {
  static const auto schedules = read_schedules(FREERIDE_SOURCE_DIR "/hooks/tests/model/schedules.txt");
  return schedules;
}

void require_no_fault(const Schedule& schedule, const Options& options) {
  const auto outcome = explore(schedule, options);
  INFO(schedule.name << ", " << outcome.states << " states");
  if (std::getenv("FREERIDE_MODEL_STATES") != nullptr) std::cerr << schedule.name << ": " << outcome.states << "\n";
  CHECK(outcome.fault == "");
  CHECK(outcome.complete);
}

BatchPlan hold_before_counters(const Batch& batch) {
  const BatchPlan right = plan_batch(batch);
  BatchPlan plan;
  if (right.holds()) plan.steps[plan.count++] = BatchStep::kHold;
  for (const auto step : right) {
    if (step != BatchStep::kHold) plan.steps[plan.count++] = step;
  }
  return plan;
}

BatchPlan hold_where_posted(Batch batch) {
  batch.needed_at_once = true;
  return plan_batch(batch);
}

// Also what sends in the same batch, or waits for several sources.
BatchPlan apart_without_a_look(const Batch& batch) {
  BatchPlan plan;
  for (const auto step : plan_batch(batch)) {
    const bool early = step == BatchStep::kPost && batch.hook_on && batch.receives && !batch.needed_at_once;
    if (early && !plan_batch(batch).holds_apart()) plan.steps[plan.count++] = BatchStep::kHoldApart;
    plan.steps[plan.count++] = step;
  }
  return plan;
}

BatchPlan unhooked(Batch batch) {
  batch.hook_on = false;
  return plan_batch(batch);
}

// Each rank posts its receive, then its send, then waits for both: legal, and common in context parallelism.
const char* const kRing = "schedule ring\nP:r2 P:s1 W0 W1\nP:r0 P:s2 W0 W1\nP:r1 P:s0 W0 W1\n";
// The same as one batch.
const char* const kRingOfBatches = "schedule ring of batches\nP:s1,r2 W0\nP:s2,r0 W0\nP:s0,r1 W0\n";

size_t ranks_of(const Schedule& schedule) {
  return schedule.ranks.size();
}

// What can be searched through in seconds, where something fails: of four ranks, only the schedules with one stage a
// rank.
bool small(const Schedule& schedule) {
  return ranks_of(schedule) < 4 ||
         (schedule.name.find("1F1B, 4 ranks, 4") != std::string::npos && schedule.name.rfind("Interleaved", 0) != 0) ||
         schedule.name.rfind("GPipe", 0) == 0;
}

Options in_scope(const Schedule& schedule, Options options = {}) {
  options.lead = ranks_of(schedule) > 3 ? 1 : 2;
  options.eager = true;
  return options;
}

// Each rank on a host of its own, or two on one.
std::vector<std::vector<uint32_t>> spread(const Schedule& schedule) {
  std::vector<std::vector<uint32_t>> ways{{0, 1, 2, 3}};
  if (ranks_of(schedule) > 2) ways.push_back({0, 0, 1, 1});
  return ways;
}

// Schedules that nobody would write: a few messages in some order, batched and waited for by chance. They are legal as
// far as each rank takes its messages in that order.
Schedule by_chance(uint64_t seed, uint32_t ranks) {
  const auto below = [&](uint64_t bound) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % bound;
  };
  std::vector<std::string> of(ranks);
  std::vector<std::vector<std::string>> messages(ranks);
  for (uint64_t left = 5 + below(3); left > 0; --left) {
    const uint64_t from = below(ranks), to = (from + 1 + below(ranks - 1)) % ranks;
    messages[from].push_back("s" + std::to_string(to));
    messages[to].push_back("r" + std::to_string(from));
  }
  std::string text = "schedule by chance, " + std::to_string(seed) + "\n";
  for (const auto& own : messages) {
    std::string line;
    size_t batches = 0, waited = 0;
    for (size_t i = 0; i < own.size();) {
      line += " P:" + own[i++];
      while (i < own.size() && below(2) == 0) line += "," + own[i++];
      ++batches;
      if (below(4) == 0 && i < own.size()) continue;
      if (batches - waited > 1 && below(2) == 0) {  // the newest first, and at once
        line += " W" + std::to_string(batches - 1);
        for (size_t before = waited; before + 1 < batches; ++before) line += " W" + std::to_string(before);
        waited = batches;
      }
      for (; waited < batches; ++waited) line += " W" + std::to_string(waited);
    }
    text += (line.empty() ? " P:" : line).substr(1) + "\n";
  }
  return parse_schedules(text)[0];
}

size_t faults_by_chance(const Options& options) {
  size_t faults = 0, tried = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const Schedule schedule = by_chance(seed, seed % 2 == 0 ? 2 : 3);
    Options plain{.plan = unhooked, .lead = 4, .eager = true};
    if (!explore(schedule, plain).fault.empty()) continue;  // deadlocks by itself
    Options here = options;  // what is held within a host is judged by real schedules, which these are not
    here.holds_elsewhere = [](const RemoteBatch&) { return false; };
    if (!explore(schedule, here).fault.empty()) continue;
    ++tried;
    faults += explore(schedule, options).fault.empty() ? 0 : 1;
  }
  CHECK(tried > 100);
  return faults;
}

}  // namespace

TEST_CASE("model: the schedules themselves do not deadlock, hooked or not") {
  size_t found = 0;
  for (const auto& schedule : real_schedules()) {
    require_no_fault(schedule, in_scope(schedule, {.plan = unhooked}));
    require_no_fault(schedule, in_scope(schedule));
    ++found;
  }
  CHECK(found >= 20);
}

TEST_CASE("model: hosts ahead of their streams, every order, two ranks") {
  for (const auto& schedule : real_schedules()) {
    if (ranks_of(schedule) == 2) require_no_fault(schedule, {.lead = 3});
  }
}

TEST_CASE("model: a rank's hook goes off at any moment") {
  for (const auto& schedule : real_schedules()) {
    if (small(schedule)) require_no_fault(schedule, in_scope(schedule, {.switch_offs = 1}));
    if (ranks_of(schedule) == 2) require_no_fault(schedule, in_scope(schedule, {.switch_offs = 2}));
  }
}

TEST_CASE("model: a rank is killed at any moment, and no other is held for it") {
  for (const auto& schedule : real_schedules()) {
    if (small(schedule)) require_no_fault(schedule, in_scope(schedule, {.kills = 1}));
  }
}

TEST_CASE("model: a norm over all stages behind the schedule") {
  for (Schedule schedule : real_schedules()) {
    if (!small(schedule)) continue;
    const auto ranks = static_cast<uint32_t>(ranks_of(schedule));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      auto& calls = schedule.ranks[rank];
      Call norm, wait;
      for (uint32_t other = 0; other < ranks; ++other) {
        if (other != rank) norm.sends.push_back(other);
      }
      norm.receives = norm.sends;
      wait.waits = true;
      norm.batch = wait.batch =
          static_cast<uint32_t>(std::count_if(calls.begin(), calls.end(), [](const Call& c) { return !c.waits; }));
      calls.push_back(norm);
      calls.push_back(wait);
    }
    require_no_fault(schedule, in_scope(schedule));
    if (ranks == 2) require_no_fault(schedule, in_scope(schedule, {.switch_offs = 1}));
    if (ranks == 2) require_no_fault(schedule, in_scope(schedule, {.kills = 1}));
  }
}

TEST_CASE("model: a ring beside the pipeline") {
  for (const char* text : {kRing, kRingOfBatches}) {
    const auto ring = parse_schedules(text);
    require_no_fault(ring[0], {.plan = unhooked, .lead = 4, .one_queue = false});
    require_no_fault(ring[0], {.lead = 4, .one_queue = false});
    require_no_fault(ring[0], {.lead = 4, .switch_offs = 1, .one_queue = false});
    require_no_fault(ring[0], {.lead = 4, .kills = 1, .one_queue = false});
  }
}

TEST_CASE("model: with the hold before the counters, 1F1B deadlocks") {
  size_t deadlocks = 0;
  for (const auto& schedule : real_schedules()) {
    if (schedule.name.rfind("1F1B", 0) != 0) continue;  // torch's: its batches send one way and receive the other
    const auto outcome = explore(schedule, in_scope(schedule, {.plan = hold_before_counters}));
    INFO(schedule.name);
    CHECK(outcome.fault.find("is held") != std::string::npos);
    ++deadlocks;
  }
  CHECK(deadlocks >= 2);
  CHECK_FALSE(explore(parse_schedules(kRingOfBatches)[0], {.plan = hold_before_counters}).fault.empty());
}

TEST_CASE("model: with early-posted receives held where they are posted, a ring deadlocks") {
  CHECK(explore(parse_schedules(kRing)[0], {.plan = hold_where_posted, .one_queue = false}).fault.find("is held") !=
        std::string::npos);
}

TEST_CASE("model: receives posted early are held apart, in real schedules, and nobody waits for ever") {
  size_t early = 0;
  for (const auto& schedule : real_schedules()) {
    for (const auto& calls : schedule.ranks) {
      for (size_t i = 0; i < calls.size(); ++i) {
        const bool at_once = i + 1 < calls.size() && calls[i + 1].waits && calls[i + 1].batch == calls[i].batch;
        early += !calls[i].waits && !at_once && calls[i].sends.empty() && !calls[i].receives.empty();
      }
    }
  }
  CHECK(early > 100);  // or the other tests have not tried it
  // A receive long before its need, with sends behind it in the same queue.
  const auto ahead = parse_schedules("schedule ahead\nP:r1 P:s1 P:s1 W0 W1 W2\nP:r0 W0 P:s0 P:r0 W2 W1\n");
  for (const bool one_queue : {true, false}) {
    const auto plain = explore(ahead[0], {.plan = unhooked, .lead = 4, .one_queue = one_queue});
    const auto held = explore(ahead[0], {.lead = 4, .one_queue = one_queue});
    CHECK(plain.fault.empty() == held.fault.empty());
    CHECK(held.states > plain.states);
  }
}

TEST_CASE("model: a batch that also sends, held apart, deadlocks where its peer needs what it sends") {
  const auto schedule = parse_schedules("schedule answer\nP:s1,r1 P:s1 W0 W1\nP:r0 W0 P:s0 W1 P:r0 W2\n");
  require_no_fault(schedule[0], {.plan = unhooked, .lead = 4});
  require_no_fault(schedule[0], {.lead = 4});
  CHECK_FALSE(explore(schedule[0], {.plan = apart_without_a_look, .lead = 4}).fault.empty());
}

TEST_CASE("model: a batch held apart for its last message deadlocks where the sender waits for its first") {
  const auto schedule = parse_schedules("schedule two in one\nP:r1,r1 P:s1 W0 W1\nP:s0 W0 P:s0 W1 P:r0 W2\n");
  const auto unhooked_outcome = explore(schedule[0], {.plan = unhooked, .lead = 4, .one_queue = false});
  REQUIRE(unhooked_outcome.fault.empty());
  require_no_fault(schedule[0], {.lead = 4, .one_queue = false});
  CHECK_FALSE(explore(schedule[0], {.lead = 4, .apart_for_all = true, .one_queue = false}).fault.empty());
}

TEST_CASE(
    "model: counters released only once can be overwritten by a write that was pending, and hold a rank for ever") {
  // Rank 0's stream is held for rank 1 while its host, ahead, has counted a message for rank 1 and then switches off.
  const auto schedule = parse_schedules("schedule pending write\nP:r1 W0 P:s1 W1 P:s1 W2\nP:s0 W0 P:r0 W1 P:r0 W2\n");
  const Options once{.lead = 6, .switch_offs = 1, .release_again = false};
  CHECK(explore(schedule[0], once).fault.find("rank 1 is held") != std::string::npos);
  require_no_fault(schedule[0], {.lead = 6, .switch_offs = 1});
}

TEST_CASE("model: counters begin anew at any message, and nobody waits for ever") {
  freeride::policy::CountRing ring;
  ring.quiet = 16;  // more messages than these schedules let one rank be ahead of another
  for (const auto& schedule : real_schedules()) {
    if (ranks_of(schedule) != 2) continue;
    for (uint64_t before = 0; before <= 8; ++before) {
      require_no_fault(schedule, in_scope(schedule, {.ring = ring, .counted = ring.period() - before}));
    }
    require_no_fault(schedule, in_scope(schedule, {.switch_offs = 1, .ring = ring, .counted = ring.period() - 4}));
  }
}

TEST_CASE("model: with holds up to where counters begin anew, a rank waits for ever") {
  freeride::policy::CountRing ring;
  ring.quiet = 0;
  // Rank 0's stream comes to its first wait when rank 1 has counted two more messages.
  const auto schedule = parse_schedules("schedule ahead\nP:r1 W0 P:r1 W1\nP:s0 P:s0 W0 W1\n");
  const Options held{.lead = 4, .ring = ring, .counted = uint64_t{ring.period()} - 1};
  CHECK(explore(schedule[0], held).fault.find("rank 0 is held") != std::string::npos);
  ring.quiet = 2;
  require_no_fault(schedule[0], {.lead = 4, .ring = ring, .counted = uint64_t{ring.period()} - 1});
}

TEST_CASE("model: streams held for other hosts as long as it likes, whatever becomes of hints, delay nobody for ever") {
  for (const auto& schedule : real_schedules()) {
    if (!small(schedule)) continue;
    for (const auto& host_of : spread(schedule)) {
      require_no_fault(schedule, in_scope(schedule, {.host_of = host_of}));
      require_no_fault(schedule, in_scope(schedule, {.host_of = host_of, .hints = false}));
    }
    if (ranks_of(schedule) != 2) continue;
    require_no_fault(schedule, {.lead = 2, .host_of = {0, 1}});
    require_no_fault(schedule, in_scope(schedule, {.switch_offs = 1, .host_of = {0, 1}}));
    require_no_fault(schedule, in_scope(schedule, {.kills = 1, .host_of = {0, 1}}));
  }
}

TEST_CASE("model: no rank waits for another's ceiling where hints come") {
  size_t both_ways = 0;
  for (const auto& schedule : real_schedules()) {
    for (const auto& host_of : spread(schedule)) {
      Options options = in_scope(schedule, {.host_of = host_of, .ceilings = false});
      options.holds_elsewhere = [&](const RemoteBatch& batch) {
        both_ways += may_hold_remotely(batch) && batch.sends > 0 ? 1 : 0;
        return may_hold_remotely(batch);
      };
      require_no_fault(schedule, options);
    }
    if (ranks_of(schedule) == 2) require_no_fault(schedule, {.lead = 3, .host_of = {0, 1}, .ceilings = false});
  }
  CHECK(both_ways > 20);  // or nothing was tried of them
  CHECK(faults_by_chance({.lead = 3, .eager = true, .host_of = {0, 1, 2}, .ceilings = false}) == 0);
  CHECK(faults_by_chance({.lead = 3, .eager = true, .host_of = {0, 0, 1}, .ceilings = false}) == 0);
}

TEST_CASE("model: without a ceiling a lost hint holds a rank for ever") {
  size_t tried = 0;
  for (const auto& schedule : real_schedules()) {
    if (ranks_of(schedule) != 2) continue;
    const Options lost{.eager = true, .host_of = {0, 1}, .ceilings = false, .hints = false};
    INFO(schedule.name);
    CHECK(explore(schedule, lost).fault.find("is held for another host") != std::string::npos);
    ++tried;
  }
  CHECK(tried > 2);
}

TEST_CASE("model: a batch held before its own hints are in the stream makes ranks wait for each other's ceilings") {
  size_t deadlocks = 0;
  for (const auto& schedule : real_schedules()) {
    if (schedule.name.rfind("1F1B", 0) != 0 || !small(schedule)) continue;
    Options options = in_scope(schedule, {.host_of = {0, 1, 2, 3}, .ceilings = false});
    options.hint_first = false;
    deadlocks += explore(schedule, options).fault.find("is held for another host") != std::string::npos ? 1 : 0;
    options.ceilings = true;
    require_no_fault(schedule, options);  // slow, and no more than that
  }
  CHECK(deadlocks > 0);
}

TEST_CASE("model: with more held for other hosts than the rule allows, ranks wait for each other's ceilings") {
  const auto waits = [](const char* text, const std::function<bool(const RemoteBatch&)>& rule) {
    const auto schedule = parse_schedules(text);
    Options options{.lead = 4, .one_queue = false, .host_of = {0, 1, 2}, .ceilings = false};
    require_no_fault(schedule[0], {.plan = unhooked, .lead = 4, .one_queue = false});
    require_no_fault(schedule[0], options);
    options.holds_elsewhere = rule;
    const auto broken = explore(schedule[0], options);
    options.ceilings = true;
    require_no_fault(schedule[0], options);
    return broken.fault.find("is held for another host") != std::string::npos;
  };
  const auto at_once = [](const RemoteBatch& batch) { return batch.needed_at_once; };
  // A batch between several ranks: rank 1 needs what rank 0 sends before it lets rank 2 go on, which rank 0 awaits.
  CHECK(waits("schedule several\nP:s1,r2 W0\nP:r0 W0 P:s2 W1\nP:r1 W0 P:s0 W1\n", at_once));
  // A batch that sends what the peer needs before it sends.
  CHECK(waits("schedule answer\nP:s1,r1 W0\nP:r0 W0 P:s0 W1\n", at_once));
  // The peer waits until its first message has gone over.
  CHECK(waits("schedule two\nP:r1,r1 W0\nP:s0 W0 P:s0 W1\n",
              [](const RemoteBatch& batch) { return batch.one_rank && batch.needed_at_once && batch.sends == 0; }));
  // The peer's batch receives the last message that this one sends, but needed the first before it.
  CHECK(waits("schedule last\nP:s1,s1,r1 W0\nP:r0 W0 P:s0,r0 W1\n", [](const RemoteBatch& batch) {
    return batch.one_rank && batch.needed_at_once && (batch.sends == 0 || batch.mirrored);
  }));
  // Posted ahead of its need.
  CHECK(waits("schedule ahead\nP:r1 P:s1 W0 W1\nP:r0 W0 P:s0 W1\n",
              [](const RemoteBatch& batch) { return batch.one_rank; }));
  CHECK(faults_by_chance(
            {.lead = 3, .eager = true, .host_of = {0, 1, 2}, .holds_elsewhere = at_once, .ceilings = false}) > 0);
}

TEST_CASE("model: a file that makes no sense is refused") {
  CHECK_THROWS(read_schedules("/nowhere"));
  CHECK_THROWS(parse_schedules("P:s1\n"));
  CHECK_THROWS(parse_schedules("schedule x\nP:s1 W1\n"));
  CHECK_THROWS(parse_schedules("schedule x\nhello\n"));
}
