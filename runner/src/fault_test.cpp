// Every way in which a plugin can misbehave, and the verdict it gets.
#include <sys/resource.h>

#include <csignal>

#include "freeride/base/clock.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

namespace {

struct Place {
  const char* where;
  const char* name;
};
constexpr Place kPlaces[] = {{"create", "CreateSideTask"}, {"init", "InitSideTask"},   {"start", "StartSideTask"},
                             {"step", "RunNextStep"},      {"pause", "PauseSideTask"}, {"stop", "StopSideTask"}};

Outcome faulty(const std::string& where, const std::string& how, const Harness::Options& options = {},
               int64_t bubble_ms = 60'000, int64_t init_ms = 60'000) {
  const TempDir scratch;
  auto harness = start("faulty", scratch, {{"where", where}, {"how", how}, {"after", "0"}}, options);
  Outcome outcome = live(*harness, bubble_ms, init_ms);
  const Watched task(harness->task());
  CHECK(harness->wait_gone() == 0);
  CHECK(task.ends(0));
  return outcome;
}

Outcome rejected(const std::string& name, const Params& params = {}) {
  const TempDir scratch;
  auto harness = start(name, scratch, params);
  return live(*harness);
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("fault: fails, throws, crashes and exits, in each transition") {
  for (const auto& [where, name] : kPlaces) {
    INFO(where);
    auto outcome = faulty(where, "fail");
    CHECK(outcome.kind == "failed");
    CHECK(outcome.transition == name);
    CHECK(outcome.reason == "told to fail");

    outcome = faulty(where, "throw");
    CHECK(outcome.kind == "failed");
    CHECK(outcome.transition == name);
    CHECK(outcome.reason == "threw thrown on purpose");

    outcome = faulty(where, "abort");
    CHECK(outcome.kind == "crashed");
    CHECK(outcome.transition == name);
    CHECK(outcome.signal == SIGABRT);

    outcome = faulty(where, "segv");
    CHECK(outcome.kind == "crashed");
    CHECK(outcome.transition == name);
    CHECK(outcome.signal == SIGSEGV);
    CHECK(outcome.reason == std::string("killed by signal 11 (SIGSEGV) in ") + name);

    outcome = faulty(where, "exit0");
    CHECK(outcome.kind == "failed");
    CHECK(outcome.transition == name);
    CHECK(holds(outcome.reason, std::string("exited with code 0 in ") + name));
  }
}

TEST_CASE("fault: hangs in each transition") {
  Harness::Options options;
  options.hang_ms = 200;
  options.create_ms = 300;
  options.stop_ms = 300;
  for (const auto& [where, name] : kPlaces) {
    INFO(where);
    // The other limits must not be what ends it: only the hanging transition has a short one.
    Harness::Options tight = options;
    if (std::string(where) != "create") tight.create_ms = 60'000;
    if (std::string(where) != "stop") tight.stop_ms = 60'000;
    const int64_t init_ms = std::string(where) == "init" ? 50 : 60'000;
    const bool in_bubble =
        std::string(where) == "start" || std::string(where) == "step" || std::string(where) == "pause";
    const auto outcome = faulty(where, "hang", tight, in_bubble ? 50 : 60'000, init_ms);
    CHECK(outcome.kind == "overran");
    CHECK(outcome.transition == name);
    CHECK(outcome.limit == (std::string(where) == "create" ? "create 300 ms"
                            : std::string(where) == "stop" ? "stop 300 ms"
                                                           : "hang 200 ms"));
  }
}

TEST_CASE("fault: is told to stop while it is initialised, and does not come back from there") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 50;
  auto harness = start("faulty", scratch, {{"where", "init"}, {"how", "spin"}}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_INIT, 60'000);
  REQUIRE(harness->wait_until([](const auto& a) { return pages::load_acquire(a.transition) == FREERIDE_IN_INIT; }));
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->kind == "stopped");
  CHECK(outcome->transition == "InitSideTask");
}

TEST_CASE("fault: spins past the end of its lease") {
  Harness::Options options;
  options.grace_ms = 50;
  options.hang_ms = 60'000;
  for (const char* where : {"init", "step", "pause"}) {
    INFO(where);
    const auto outcome = faulty(where, "spin", options, std::string(where) == "init" ? 60'000 : 30,
                                std::string(where) == "init" ? 30 : 60'000);
    CHECK(outcome.kind == "overran");
    CHECK(outcome.limit == "grace 50 ms");
    CHECK(holds(outcome.reason, "past the end of lease"));
  }
}

TEST_CASE("fault: executing past the end but within the grace is forgiven") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 30'000;
  auto harness = start_paused("faulty", scratch, {{"where", "step"}, {"how", "hold"}}, options);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 20,
                     [](const auto& answer) { return pages::load_acquire(answer.steps) > 0; }));
  REQUIRE(harness->wait_paused());
  const freeride_answer_page& answer = harness->answer();
  CHECK(answer.last_paused_ns > harness->lease().deadline_ns);
  CHECK(answer.lease_step_ns < answer.step_ns);
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->kind == "stopped");
}

TEST_CASE("fault: other statuses and exceptions") {
  CHECK(faulty("step", "silent").reason == "failed without saying why");
  CHECK(holds(faulty("init", "unavailable").reason, "trying again later"));
  CHECK(holds(faulty("step", "status").reason, "status 4711"));
  CHECK(faulty("init", "finished").kind == "failed");
  CHECK(faulty("step", "finished").kind == "finished");
  CHECK(faulty("step", "throw_int").reason == "threw something that is no std::exception");
  const auto thread = faulty("step", "throw_thread");
  CHECK(thread.kind == "failed");
  CHECK(thread.transition == "RunNextStep");
  CHECK(holds(thread.reason, "thrown in a thread"));
  const auto code = faulty("step", "exit3");
  CHECK(code.kind == "failed");
#ifndef FREERIDE_SANITIZED  // the leak check at exit has a code of its own
  CHECK(holds(code.reason, "exited with code 3 in RunNextStep"));
#endif
  const auto killed = faulty("step", "kill");
  CHECK(killed.kind == "crashed");
  CHECK(killed.signal == SIGKILL);
}

TEST_CASE("fault: no memory") {
  for (const char* where : {"create", "init", "step"}) {
    CHECK(faulty(where, "oom").kind == "out_of_memory");
    CHECK(faulty(where, "bad_alloc").kind == "out_of_memory");
  }
#ifndef FREERIDE_SANITIZED  // sanitizers need terabytes of address space
  const TempDir scratch;
  auto harness = start_paused("hog", scratch, {{"mb", "64"}});
  const rlimit limit{1UL << 30, 1UL << 30};
  REQUIRE(prlimit(harness->task(), RLIMIT_AS, &limit, nullptr) == 0);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->kind == "out_of_memory");
  CHECK(outcome->transition == "RunNextStep");
  CHECK(outcome->reason == "malloc returned NULL");
#endif
}

TEST_CASE("fault: what cannot be loaded is rejected, with words") {
  auto outcome = rejected("counter", {{"speed", "9"}});
  CHECK(outcome.kind == "rejected");
  CHECK(outcome.reason == "counter has no parameter 'speed'; it knows: step_us, finish, sleep, trace");
  CHECK(holds(rejected("noisy", {{"speed", "9"}}).reason, "none at all"));
  CHECK(holds(rejected("counter", {{"finish", "1"}, {"finish", "2"}}).reason, "given twice"));
  outcome = rejected("counter", {{"step_us", "-1"}});
  CHECK(outcome.kind == "rejected");
  CHECK(outcome.reason == "step_us must not be negative");
  outcome = rejected("abi_99");
  CHECK(outcome.kind == "rejected");
  CHECK(holds(outcome.reason, "ABI version 99"));
  CHECK(holds(outcome.reason, "speaks version 1"));
  CHECK(holds(rejected("abi_newer").reason, "freeride_plugin_v2"));
  CHECK(holds(rejected("small_struct").reason, "16 bytes"));
  CHECK(holds(rejected("missing_function").reason, "run_next_step is NULL"));
  CHECK(holds(rejected("null_table").reason, "returned NULL"));
  CHECK(holds(rejected("no_entry").reason, "no entry symbol"));
  CHECK(holds(rejected("bad_params").reason, "parameter 0"));
  CHECK(holds(rejected("undefined_symbol").reason, "freeride_test_function_that_nobody_has"));
  CHECK(holds(rejected("there_is_none").reason, "cannot open plugin"));
  outcome = rejected("load_abort");
  CHECK(outcome.kind == "crashed");
  CHECK(outcome.transition == "load");

  const TempDir scratch;
  std::ofstream(scratch.path() + "/text.so") << "not a plugin";
  Harness::Options options;
  options.runner = kRunner;
  options.scratch = scratch.path();
  options.plugin = scratch.path() + "/text.so";
  auto harness = Harness::start(options);
  REQUIRE(harness.ok());
  CHECK(holds((*harness)->verdict()->reason, "not an ELF file"));
  options.plugin = scratch.path();  // a folder
  harness = Harness::start(options);
  REQUIRE(harness.ok());
  CHECK(holds((*harness)->verdict()->reason, "is not a file"));
}

TEST_CASE("abi: a plugin built from the first version's header is accepted for ever") {
  const TempDir scratch;
  auto harness = start("from_v1", scratch, {{"steps", "5"}});
  const Outcome outcome = live(*harness);
  INFO(outcome.reason);
  CHECK(outcome.kind == "finished");
  CHECK(steps(*harness) == 5);
  CHECK(harness->log().find("info from version 1, stopped after 5 steps") != std::string::npos);
}

TEST_CASE("abi: a plugin built from a later header finds what is not there yet by the host's struct_size") {
  const TempDir scratch;
  auto harness = start("from_later", scratch);
  const Outcome outcome = live(*harness);
  INFO(outcome.reason);
  CHECK(outcome.kind == "finished");
  CHECK(harness->log().find("info does without") != std::string::npos);
}

TEST_CASE("fault: a thread that goes on after the pause is found out by the CPU clock") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 50;
  auto harness = start("background", scratch, {}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_INIT, 60'000);
  harness->wait_paused();
  harness->revoke();
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->kind == "overran");
  CHECK(outcome->transition == "PauseSideTask");
  CHECK(holds(outcome->reason, "though it said that it had paused"));
}

TEST_CASE("fault: a process left behind, in a session of its own, is ended with the task") {
  const TempDir scratch;
  auto harness = start("child", scratch);
  const Outcome outcome = live(*harness);
  CHECK(outcome.kind == "stopped");
  CHECK(outcome.processes_left == 1);
  int pid = 0;
  std::ifstream(scratch.path() + "/child") >> pid;
  if (pid > 0) CHECK(Watched(pid).ends());
}
