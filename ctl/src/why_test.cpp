#include "why.hpp"

#include <catch2/catch.hpp>

using namespace freeride;  // NOLINT(google-build-using-namespace)

TEST_CASE("why says in which idle phase a rank is") {
  bus::RankInfo rank;
  rank.state.job = "gpt";
  rank.state.rank = 2;
  CHECK(ctl::phase_line(rank).empty());
  rank.state.phase = "rollout\x1b[2J";
  rank.state.phase_ms = 3000;
  rank.silent_ms = 200;
  CHECK(ctl::phase_line(rank).starts_with("gpt/2: in the phase rollout"));
  CHECK(ctl::phase_line(rank).ends_with(" for 3.20 s\n"));
  CHECK(ctl::phase_line(rank).find('\x1b') == std::string::npos);
}

TEST_CASE("why says that nothing is in a task's way only while it lives") {
  bus::TaskState task;
  task.task = "pagerank";
  task.state = "RUNNING";
  task.worker = "host:cpu-1";
  CHECK(ctl::now_line(task) == "pagerank: RUNNING on host:cpu-1; nothing is in its way\n");
  task.reason = "waits for a profile";
  CHECK(ctl::now_line(task) == "pagerank: RUNNING on host:cpu-1; waits for a profile\n");
  task.why = "no_profile";
  CHECK(ctl::now_line(task) == "pagerank: RUNNING on host:cpu-1; waits for a profile [no_profile]\n");
  task.why.clear();
  task.reason.clear();
  task.state = "STOPPED";
  task.verdict.kind = "finished";
  task.verdict.reason = "all its steps are made";
  CHECK(ctl::now_line(task) == "pagerank: STOPPED on host:cpu-1; verdict finished: all its steps are made\n");
}
