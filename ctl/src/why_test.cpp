#include "why.hpp"

#include <catch2/catch.hpp>

using namespace freeride;  // NOLINT(google-build-using-namespace)

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
