#include "ranks.hpp"

#include <catch2/catch.hpp>

using namespace freeride;  // NOLINT(google-build-using-namespace)
using Catch::Contains;

namespace {

bus::RankInfo rank(uint32_t number, const std::string& state, const std::string& why) {
  bus::RankInfo info;
  info.state.job = "gpt";
  info.state.rank = info.state.stage = number;
  info.state.device = "cpu-" + std::to_string(number);
  info.state.state = state;
  info.state.why = why;
  info.host = "head";
  return info;
}

}  // namespace

TEST_CASE("one row for each rank, and each reason is explained once") {
  bus::RanksReply reply;
  reply.ranks = {rank(0, "active", "harvesting"), rank(1, "active", "harvesting"), rank(2, "lost", "died"),
                 rank(3, "active", ""), rank(10, "active", "of_a_later_version")};
  reply.ranks[1].state.guessed = true;
  CHECK(ctl::list_ranks(reply, "").text() ==
        R"(JOB  RANK  STAGE  HOST  DEVICE  STATE   REASON
gpt     0  0      head  cpu-0   active  harvesting
gpt     1  1?     head  cpu-1   active  harvesting
gpt     2  2      head  cpu-2   lost    died
gpt     3  3      head  cpu-3   active  unknown
gpt    10  10     head  cpu-10  active  of_a_later_version

harvesting: side tasks make steps in its bubbles
died: its process has ended without a word: see its own output
unknown: its worker or the manager is of an older version, which does not tell: update it
of_a_later_version: a reason that this freeride-ctl does not know: it is of an earlier version than the rank's worker
stage with ?: nobody has told it; it is made from the rank's number (FREERIDE_STAGE tells it)
)");
  CHECK_THAT(ctl::list_ranks(reply, "").table.csv(), Contains("gpt,1,,head,cpu-1,active,harvesting\n"));
}

TEST_CASE("an idle phase that is under way has a column, with its name and how long it has lasted") {
  bus::RanksReply reply;
  reply.ranks = {rank(0, "active", "usable"), rank(1, "active", "usable")};
  reply.ranks[1].state.phase = "rollout";
  reply.ranks[1].state.phase_ms = 2700;
  reply.ranks[1].silent_ms = 500;
  CHECK_THAT(ctl::list_ranks(reply, "").text(),
             Contains(R"(JOB  RANK  STAGE  HOST  DEVICE  STATE   PHASE               REASON
gpt     0  0      head  cpu-0   active  -                   usable
gpt     1  1      head  cpu-1   active  rollout for 3.20 s  usable
)"));
  CHECK_THAT(ctl::list_ranks(reply, "").table.csv(), Contains("gpt,1,1,head,cpu-1,active,rollout,usable\n"));
  reply.ranks[1].state.phase_ms = INT64_MAX;
  reply.ranks[1].silent_ms = INT64_MIN;
  CHECK_THAT(ctl::present_phase(reply.ranks[1]), Contains("rollout for "));
}

TEST_CASE("without a rank it is said how one would be there") {
  CHECK_THAT(ctl::list_ranks({}, "").text(),
             Contains("no rank is known") && Contains("freeride.observe") && Contains("docs/trainers/not-hooked.md"));
  CHECK_THAT(ctl::list_ranks({}, "bert").text(), Contains("no rank of job bert is known"));
}
