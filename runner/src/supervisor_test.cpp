// Somebody else dies, freezes or lies: the supervisor's part.
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdio>

#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

namespace {

struct Ran {
  int code = -1;
  std::string output;
};

Ran run(const std::string& command) {
  Ran ran;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> part{};
  size_t length = 0;
  while ((length = fread(part.data(), 1, part.size(), pipe)) > 0) ran.output.append(part.data(), length);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

}  // namespace

TEST_CASE("supervisor: the worker's end is the task's, whatever it is doing") {
  for (const bool running : {false, true}) {
    const TempDir scratch;
    auto harness = start_paused("counter", scratch, {{"step_us", "500"}});
    if (running) {
      harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
      REQUIRE(wait_steps(*harness, 1));
    }
    const Watched task(harness->task());
    harness->cut_lifeline();
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kLost);
    CHECK(harness->wait_gone() == 0);
    CHECK(task.ends(0));
  }
}

TEST_CASE("supervisor: enforces the lease of a worker that says nothing any more") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 50;
  // Well-behaved until the lease is over: nobody revokes, nobody wakes.
  auto harness = start_paused("faulty", scratch, {{"where", "step"}, {"how", "spin"}, {"after", "3"}}, options);
  open_until(*harness, FREERIDE_LEASE_BUBBLE, 100,
             [](const auto& answer) { return pages::load_acquire(answer.steps) == 3; });
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kOverran);
  CHECK(outcome->verdict.transition == "RunNextStep");
  CHECK(outcome->verdict.limit == "grace 50 ms");
}

TEST_CASE("supervisor: a page that stays half-written is a lease that has ended") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 50;
  auto harness = start_paused("faulty", scratch, {{"where", "step"}, {"how", "spin"}}, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 600'000);
  REQUIRE(harness->wait_until([](const auto& answer) { return answer.transition == FREERIDE_IN_STEP; }));
  pages::store_release(harness->lease_page().sequence, harness->lease_page().sequence + 1);
  pages::futex_wake(harness->lease_page().sequence, FREERIDE_WAKE_SUPERVISOR);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kOverran);
}

TEST_CASE("supervisor: a frozen plugin process is killed once it should have paused") {
  const TempDir scratch;
  Harness::Options options;
  options.hang_ms = 300;
  auto harness = start_paused("counter", scratch, {{"step_us", "500"}}, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 600'000);
  REQUIRE(wait_steps(*harness, 1));
  REQUIRE(harness->signal_task(SIGSTOP));
  harness->revoke();
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  // Frozen in the step, or between the last one and the pause.
  CHECK(outcome->verdict.kind == VerdictKind::kOverran);
  CHECK(outcome->verdict.limit == "hang 300 ms");
}

TEST_CASE("supervisor: SIGUSR1 and SIGUSR2, which Slurm sends to every step, end neither it nor its plugin") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"step_us", "500"}});
  for (const int stray : {SIGUSR1, SIGUSR2}) {
    REQUIRE(kill(harness->supervisor(), stray) == 0);
    REQUIRE(harness->signal_task(stray));
  }
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  CHECK(wait_steps(*harness, 3));
}

TEST_CASE("supervisor: its own end is its plugin's") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch);
  const Watched task(harness->task());
  REQUIRE(harness->signal_supervisor(SIGKILL));
  CHECK(task.ends());
  CHECK_FALSE(harness->verdict());
}

TEST_CASE("supervisor: the plugin's process killed from outside is a crash with its signal") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch);
  REQUIRE(harness->signal_task(SIGKILL));
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kCrashed);
  CHECK(outcome->verdict.signal == SIGKILL);
}

TEST_CASE("supervisor: SIGTERM does not wait for a transition that hangs for longer than the stop limit") {
  const TempDir scratch;
  Harness::Options options;
  options.stop_ms = 200;
  auto harness = start("faulty", scratch, {{"where", "create"}, {"how", "hang"}}, options);
  REQUIRE(harness->wait_until([](const auto& answer) { return answer.transition == FREERIDE_IN_CREATE; }));
  REQUIRE(harness->signal_supervisor(SIGTERM));
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind ==
        VerdictKind::kStopped);  // as it was to be; that it had to be killed for it is in the reason
  CHECK(outcome->verdict.transition == "CreateSideTask");
  CHECK(outcome->verdict.limit == "stop 200 ms");
  CHECK(outcome->verdict.message.starts_with("by force: "));
}

TEST_CASE("supervisor: a task whose worker has stopped reading its log goes on") {
  const TempDir scratch;
  Harness::Options options;
  options.deaf = true;  // some 80 steps fill the pipe
  auto harness = start_paused("noisy", scratch, {}, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 600'000);
  CHECK(wait_steps(*harness, 200));
  int named = 0;
  for (const auto& metric : harness->answer().metrics) {
    if (metric.name[0] != '\0') ++named;
    CHECK(metric.name[sizeof(metric.name) - 1] == '\0');
  }
  CHECK(named == 2);
}

TEST_CASE("supervisor: bad descriptors and bad usage end with one clear line") {
  const std::string common = kRunner + " supervise --plugin " + plugin("counter") +
                             " --name t --device cpu-0 --scratch /tmp --lifeline-fd 0 --report-fd 0 ";
  auto ran = run(common + "--lease-fd 0 --answer-fd 0 < /dev/null");
  CHECK(ran.code != 0);
  CHECK(ran.output.find("lease page") != std::string::npos);
  ran = run(common + "--lease-fd 77 --answer-fd 78");
  CHECK(ran.code == 1);
  ran = run(common);
  CHECK(ran.code == 2);
  ran = run(common + "--lease-fd 0 --answer-fd 0 --param nothing");
  CHECK(ran.code == 2);
  CHECK(ran.output.find("key=value") != std::string::npos);
  ran = run(kRunner);
  CHECK(ran.code == 2);
}

TEST_CASE("check: good and bad plugins, text and JSON") {
  auto ran = run(kRunner + " check " + plugin("counter") + " --steps 20 --param step_us=200");
  INFO(ran.output);
  CHECK(ran.code == 0);
  CHECK(ran.output.substr(ran.output.size() - 3) == "ok\n");

  ran = run(kRunner + " check " + plugin("background") + " --format json");
  CHECK(ran.code == 5);
  CHECK(ran.output.find("\"ok\": false") != std::string::npos);
  CHECK(ran.output.find("executes though it is paused") != std::string::npos);
  CHECK(ran.output.find("outlived StopSideTask and execute") != std::string::npos);

  ran = run(kRunner + " check " + plugin("lingering"));
  INFO(ran.output);
  CHECK(ran.code == 0);  // nobody can join a library's thread
  CHECK(ran.output.find("1 thread(s) outlived StopSideTask, asleep") != std::string::npos);
  CHECK(ran.output.find("executes though it is paused") == std::string::npos);  // it did once, and no more

  ran = run(kRunner + " check " + plugin("unique"));
  CHECK(ran.code == 0);
#ifndef __clang__  // which makes no such symbols
  CHECK(ran.output.find("GNU unique") != std::string::npos);
#endif

  ran = run(kRunner + " check " + plugin("faulty"));
  CHECK(ran.code == 5);
  CHECK(ran.output.find("failed in RunNextStep: told to fail") != std::string::npos);
  CHECK(ran.output.find("1 problem\n") != std::string::npos);

  // A step without an end: neither the wait nor what to do about it is left to be guessed.
  ran = run(kRunner + " check " + plugin("faulty") + " --timeout-s 3 --param where=step --param how=spin");
  INFO(ran.output);
  CHECK(ran.code == 5);
  CHECK(ran.output.find("no step has ended within 3 s") != std::string::npos);
  CHECK(ran.output.find("--timeout-s") != std::string::npos);

  ran = run(kRunner + " check /nowhere/x.so");
  CHECK(ran.code == 5);
  CHECK(ran.output.find("cannot open plugin /nowhere/x.so") != std::string::npos);
}

TEST_CASE("describe: what a plugin is, without running it") {
  auto ran = run(kRunner + " describe --format json " + plugin("counter"));
  CHECK(ran.code == 0);
  CHECK(ran.output.find("\"step_us\"") != std::string::npos);
  ran = run(kRunner + " describe " + plugin("load_abort"));
  CHECK(ran.code == 5);
  CHECK(ran.output.find("signal 6") != std::string::npos);
}
