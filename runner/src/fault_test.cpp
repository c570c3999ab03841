// Every way in which a plugin can misbehave, and the verdict it gets.
#include <fcntl.h>

#include <sys/resource.h>

#include <csignal>

#include "freeride/base/clock.hpp"
#include "last_words.hpp"
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
    CHECK(outcome.verdict.kind == VerdictKind::kFailed);
    CHECK(outcome.verdict.transition == name);
    CHECK(outcome.verdict.message == "told to fail");

    outcome = faulty(where, "throw");
    CHECK(outcome.verdict.kind == VerdictKind::kFailed);
    CHECK(outcome.verdict.transition == name);
    CHECK(outcome.verdict.message == "threw thrown on purpose");

    outcome = faulty(where, "abort");
    CHECK(outcome.verdict.kind == VerdictKind::kCrashed);
    CHECK(outcome.verdict.transition == name);
    CHECK(outcome.verdict.signal == SIGABRT);

    outcome = faulty(where, "segv");
    CHECK(outcome.verdict.kind == VerdictKind::kCrashed);
    CHECK(outcome.verdict.transition == name);
    CHECK(outcome.verdict.signal == SIGSEGV);
    CHECK(outcome.verdict.message == std::string("killed by signal 11 (SIGSEGV) in ") + name);

    outcome = faulty(where, "exit0");
    CHECK(outcome.verdict.kind == VerdictKind::kFailed);
    CHECK(outcome.verdict.transition == name);
    CHECK(holds(outcome.verdict.message, std::string("exited with code 0 in ") + name));
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
    CHECK(outcome.verdict.kind == VerdictKind::kOverran);
    CHECK(outcome.verdict.transition == name);
    CHECK(outcome.verdict.limit == (std::string(where) == "create" ? "create 300 ms"
                                    : std::string(where) == "stop" ? "stop 300 ms"
                                                                   : "hang 200 ms"));
  }
}

TEST_CASE("fault: a transition that failed and said so is failed, though its process had to be killed") {
  struct Row {
    const char* how;
    const char* message;
  };
  Harness::Options options;
  options.hang_ms = 200;
  for (const Row& row :
       {Row{"fail", "told to fail"}, Row{"throw", "threw thrown on purpose"}, Row{"status", "status 4711"}}) {
    for (const auto& [where, name] : kPlaces) {
      INFO(where << " " << row.how);
      const std::string place = where;
      if (place == "create") continue;  // has no lease; its limit is a minute
      options.stop_ms = place == "stop" ? 300 : 60'000;
      const TempDir scratch;
      auto harness = start("faulty", scratch, {{"where", where}, {"how", row.how}, {"exit", "hang"}}, options);
      const Outcome outcome =
          live(*harness, place == "init" || place == "stop" ? 60'000 : 50, place == "init" ? 50 : 60'000);
      CHECK(outcome.verdict.kind == VerdictKind::kFailed);
      CHECK(outcome.verdict.cause == Cause::kTransition);
      CHECK(outcome.verdict.transition == name);
      CHECK(holds(outcome.verdict.message, row.message));
      REQUIRE(outcome.verdict.evidence.size() == 1);
      CHECK(holds(outcome.verdict.evidence[0], place == "stop" ? "overran: had not stopped" : "overran: "));
      CHECK(outcome.verdict.limit == (place == "stop" ? "stop 300 ms" : "hang 200 ms"));
    }
  }
}

TEST_CASE("fault: last words that are forged excuse no execution") {
  const TempDir scratch;
  const LastWords words = last_words(VerdictKind::kFinished, Cause::kDone, FREERIDE_IN_NONE, "all is well");
  std::ofstream(scratch.path() + "/words", std::ios::binary)
      .write(reinterpret_cast<const char*>(&words), sizeof(words));
  Harness::Options options;
  options.grace_ms = 50;
  auto harness = start("forge_words", scratch, {}, options);
  const Outcome outcome = live(*harness, 50);
  CHECK(outcome.verdict.kind == VerdictKind::kOverran);
  CHECK(outcome.verdict.cause == Cause::kLeaseEnd);
  CHECK(outcome.verdict.transition == "RunNextStep");
  CHECK(outcome.verdict.evidence == std::vector<std::string>{"finished: all is well"});
  const Watched task(harness->task());
  CHECK(harness->wait_gone() == 0);
  CHECK(task.ends(0));
}

TEST_CASE("fault: to claim another state or transition buys no time") {
  // state,transition: being created, stopping, stopped, paused, initialising, created, and values that are none
  for (const std::string claim : {"0,1", "0,0", "2,6", "4,0", "2,0", "1,2", "1,0", "9,77"}) {
    INFO(claim);
    const TempDir scratch;
    Harness::Options options;
    options.grace_ms = 50;
    auto harness = start_paused("claim", scratch, {{"path", claim}}, options);
    open_until(*harness, FREERIDE_LEASE_BUBBLE, 60'000,
               [](const auto& answer) { return pages::load_acquire(answer.last_paused_ns) == UINT64_MAX; });
    harness->revoke();
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kOverran);
    const bool stops = claim == "2,6" || claim == "4,0";
    CHECK(outcome->verdict.limit == (stops ? "stop, of itself: 1000 ms of execution" : "grace 50 ms"));
  }
}

TEST_CASE("fault: a stop that the plugin orders itself is a failure") {
  const TempDir scratch;
  auto harness = start_paused("stop_signal", scratch, {});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kFailed);
  CHECK(outcome->verdict.cause == Cause::kExit);
  CHECK(holds(outcome->verdict.message, "nobody had ordered"));
}

TEST_CASE("fault: no file of the host's is open in the plugin's process, not even the state that it goes on from") {
  const TempDir scratch;
  const std::string file = scratch.path() + "/state";
  std::ofstream(file).close();
  const Fd state(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  Harness::Options options;
  options.state_in_fd = state.get();
  auto harness = start_paused("reopen_fds", scratch, {}, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  INFO(outcome->verdict.message);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
}

TEST_CASE("fault: a plugin cannot read from its arguments whether it is profiled") {
  const TempDir scratch;
  Harness::Options options;
  options.purpose = "profile";
  auto harness = start("counter", scratch, {}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  for (const pid_t pid : {harness->supervisor(), harness->task()}) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    CHECK(holds(line, "supervise"));
    CHECK_FALSE(holds(line, "profile"));
    CHECK(holds(line, "counter"));  // for people: which task it is
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
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  CHECK(outcome->verdict.transition == "InitSideTask");
}

TEST_CASE("fault: spins past the end of its lease") {
  Harness::Options options;
  options.grace_ms = 50;
  options.hang_ms = 60'000;
  for (const char* where : {"init", "step", "pause"}) {
    INFO(where);
    const auto outcome = faulty(where, "spin", options, std::string(where) == "init" ? 60'000 : 30,
                                std::string(where) == "init" ? 30 : 60'000);
    CHECK(outcome.verdict.kind == VerdictKind::kOverran);
    CHECK(outcome.verdict.limit == "grace 50 ms");
    CHECK(holds(outcome.verdict.message, "past the end of lease"));
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
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("fault: other statuses and exceptions") {
  CHECK(faulty("step", "silent").verdict.message == "failed without saying why");
  CHECK(holds(faulty("init", "unavailable").verdict.message, "trying again later"));
  CHECK(holds(faulty("step", "status").verdict.message, "status 4711"));
  CHECK(faulty("init", "finished").verdict.kind == VerdictKind::kFailed);
  CHECK(faulty("step", "finished").verdict.kind == VerdictKind::kFinished);
  CHECK(faulty("step", "throw_int").verdict.message == "threw something that is no std::exception");
  const auto thread = faulty("step", "throw_thread");
  CHECK(thread.verdict.kind == VerdictKind::kFailed);
  CHECK(thread.verdict.transition == "RunNextStep");
  CHECK(holds(thread.verdict.message, "thrown in a thread"));
  const auto code = faulty("step", "exit3");
  CHECK(code.verdict.kind == VerdictKind::kFailed);
#ifndef FREERIDE_SANITIZED  // the leak check at exit has a code of its own
  CHECK(holds(code.verdict.message, "exited with code 3 in RunNextStep"));
#endif
  const auto killed = faulty("step", "kill");
  CHECK(killed.verdict.kind == VerdictKind::kCrashed);
  CHECK(killed.verdict.signal == SIGKILL);
}

TEST_CASE("fault: no memory") {
  for (const char* where : {"create", "init", "step"}) {
    CHECK(faulty(where, "oom").verdict.kind == VerdictKind::kOutOfMemory);
    CHECK(faulty(where, "bad_alloc").verdict.kind == VerdictKind::kOutOfMemory);
  }
#ifndef FREERIDE_SANITIZED  // sanitizers need terabytes of address space
  const TempDir scratch;
  auto harness = start_paused("hog", scratch, {{"mb", "64"}});
  const rlimit limit{1UL << 30, 1UL << 30};
  REQUIRE(prlimit(harness->task(), RLIMIT_AS, &limit, nullptr) == 0);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kOutOfMemory);
  CHECK(outcome->verdict.transition == "RunNextStep");
  CHECK(outcome->verdict.message == "malloc returned NULL");
#endif
}

TEST_CASE("fault: what cannot be loaded is rejected, with words") {
  auto outcome = rejected("counter", {{"speed", "9"}});
  CHECK(outcome.verdict.kind == VerdictKind::kRejected);
  CHECK(outcome.verdict.message == "counter has no parameter 'speed'; it knows: step_us, finish, sleep, trace");
  CHECK(holds(rejected("noisy", {{"speed", "9"}}).verdict.message, "none at all"));
  CHECK(holds(rejected("counter", {{"finish", "1"}, {"finish", "2"}}).verdict.message, "given twice"));
  outcome = rejected("counter", {{"step_us", "-1"}});
  CHECK(outcome.verdict.kind == VerdictKind::kRejected);
  CHECK(outcome.verdict.message == "step_us must not be negative");
  outcome = rejected("abi_99");
  CHECK(outcome.verdict.kind == VerdictKind::kRejected);
  CHECK(holds(outcome.verdict.message, "ABI version 99"));
  CHECK(holds(outcome.verdict.message, "speaks version 1"));
  CHECK(holds(rejected("abi_newer").verdict.message, "freeride_plugin_v2"));
  CHECK(holds(rejected("small_struct").verdict.message, "16 bytes"));
  CHECK(holds(rejected("missing_function").verdict.message, "run_next_step is NULL"));
  CHECK(holds(rejected("null_table").verdict.message, "returned NULL"));
  CHECK(holds(rejected("no_entry").verdict.message, "no entry symbol"));
  CHECK(holds(rejected("bad_params").verdict.message, "parameter 0"));
  CHECK(holds(rejected("undefined_symbol").verdict.message, "freeride_test_function_that_nobody_has"));
  CHECK(holds(rejected("there_is_none").verdict.message, "cannot open plugin"));
  outcome = rejected("load_abort");
  CHECK(outcome.verdict.kind == VerdictKind::kCrashed);
  CHECK(outcome.verdict.transition == "load");

  const TempDir scratch;
  std::ofstream(scratch.path() + "/text.so") << "not a plugin";
  Harness::Options options;
  options.runner = kRunner;
  options.scratch = scratch.path();
  options.plugin = scratch.path() + "/text.so";
  auto harness = Harness::start(options);
  REQUIRE(harness.ok());
  CHECK(holds((*harness)->verdict()->verdict.message, "not an ELF file"));
  options.plugin = scratch.path();  // a folder
  harness = Harness::start(options);
  REQUIRE(harness.ok());
  CHECK(holds((*harness)->verdict()->verdict.message, "is not a file"));
}

TEST_CASE("abi: a plugin built from the first version's header is accepted for ever") {
  const TempDir scratch;
  auto harness = start_paused("from_v1", scratch, {{"steps", "5"}});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  INFO(outcome->verdict.message);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
  CHECK(steps(*harness) == 5);
  CHECK(harness->log().find("info from version 1, stopped after 5 steps") != std::string::npos);
}

TEST_CASE("abi: a plugin built from a later header finds what is not there yet by the host's struct_size") {
  const TempDir scratch;
  auto harness = start_paused("from_later", scratch);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  INFO(outcome->verdict.message);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
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
  CHECK(outcome->verdict.kind == VerdictKind::kOverran);
  CHECK(outcome->verdict.transition == "PauseSideTask");
  CHECK(holds(outcome->verdict.message, "though it said that it had paused"));
}

TEST_CASE("fault: a process left behind, in a session of its own, is ended with the task") {
  const TempDir scratch;
  auto harness = start("child", scratch);
  const Outcome outcome = live(*harness);
  CHECK(outcome.verdict.kind == VerdictKind::kStopped);
  CHECK(outcome.processes_left == 1);
  int pid = 0;
  std::ifstream(scratch.path() + "/child") >> pid;
  if (pid > 0) CHECK(Watched(pid).ends());
}
