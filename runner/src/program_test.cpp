// Programs as side tasks, through the real supervisor, without a sandbox (tests/sandbox has those with one).
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <random>
#include <sstream>

#include "freeride/base/process_stat.hpp"
#include "freeride/base/starvation.hpp"
#include "program_processes.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

namespace {

std::unique_ptr<Harness> start_program(std::vector<std::string> program, const TempDir& scratch,
                                       Harness::Options options = {}) {
  options.runner = kRunner;
  options.program = std::move(program);
  options.scratch = scratch.path();
  auto harness = Harness::start(options);
  INFO((harness.ok() ? "" : harness.error().text()));
  REQUIRE(harness.ok());
  return std::move(*harness);
}

std::unique_ptr<Harness> start_shell(const std::string& script, const TempDir& scratch, Harness::Options options = {}) {
  return start_program({"/bin/sh", "-c", "cd " + scratch.path() + "\n" + script}, scratch, std::move(options));
}

/// Executed, and stopped in its first instructions.
void initialise(Harness& harness) {
  REQUIRE(harness.wait_state(FREERIDE_STATE_CREATED));
  harness.open(FREERIDE_LEASE_INIT, 60'000);
  const bool paused = harness.wait_paused();
  REQUIRE((paused || harness.verdict(0)));  // a short one may have ended before it could be stopped
  harness.revoke();
}

/// Bubbles of `bubble_ms`, one after the other, until the verdict.
Outcome run_in_bubbles(Harness& harness, int64_t bubble_ms = 20) {
  for (int bubbles = 0; bubbles < 100'000; ++bubbles) {
    const uint64_t before = pages::load_acquire(harness.answer().steps);
    harness.open(FREERIDE_LEASE_BUBBLE, bubble_ms);
    harness.wait_until([&](const auto& answer) {
      return SteadyClock::now() > static_cast<int64_t>(harness.lease().deadline_ns) &&
             (pages::load_acquire(answer.steps) > before || pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED);
    });
    harness.revoke();
    if (auto outcome = harness.verdict(1)) return *outcome;
  }
  FAIL("it did not end");
  return {};
}

bool is_there(const TempDir& scratch, const std::string& name) {
  return std::filesystem::exists(scratch.path() + "/" + name);
}

std::string content(const TempDir& scratch, const std::string& name) {
  std::ifstream file(scratch.path() + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool lives(pid_t pid) {
  if (kill(pid, 0) != 0) return false;
  const auto stat = stat_of(pid);
  return stat && stat->state != 'Z';
}

/// Waits, with leases of `bubble_ms`, until the program has made the file.
void run_until_file(Harness& harness, const TempDir& scratch, const std::string& name, int64_t bubble_ms = 20) {
  for (int bubbles = 0; bubbles < 10'000 && !is_there(scratch, name); ++bubbles) {
    harness.open(FREERIDE_LEASE_BUBBLE, bubble_ms);
    harness.wait_until([&](const auto&) {
      return SteadyClock::now() > static_cast<int64_t>(harness.lease().deadline_ns) || is_there(scratch, name);
    });
    harness.revoke();
    REQUIRE(harness.wait_paused());
  }
  REQUIRE(is_there(scratch, name));
}

}  // namespace

TEST_CASE("a program that exits with 0 has finished", "[program]") {
  const TempDir scratch;
  auto harness = start_program({"echo", "hello", "two words"}, scratch);
  initialise(*harness);
  const Outcome outcome = run_in_bubbles(*harness);
  CHECK(outcome.verdict.kind == VerdictKind::kFinished);
  CHECK(outcome.verdict.cause == Cause::kDone);
  CHECK(outcome.verdict.exit_code == 0);
  CHECK(harness->log() == "hello two words\n");
}

TEST_CASE("a program's exit code is in its verdict", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("echo out; echo err >&2; exit 7", scratch);
  initialise(*harness);
  const Outcome outcome = run_in_bubbles(*harness);
  CHECK(outcome.verdict.kind == VerdictKind::kFailed);
  CHECK(outcome.verdict.cause == Cause::kExit);
  CHECK(outcome.verdict.exit_code == 7);
  CHECK(outcome.verdict.message == "exited with code 7");
  CHECK(harness->log() == "out\nerr\n");
}

TEST_CASE("a program that a signal ends has crashed", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("kill -SEGV $$", scratch);
  initialise(*harness);
  const Outcome outcome = run_in_bubbles(*harness);
  CHECK(outcome.verdict.kind == VerdictKind::kCrashed);
  CHECK(outcome.verdict.cause == Cause::kSignal);
  CHECK(outcome.verdict.signal == SIGSEGV);
}

TEST_CASE("a program that is not there is rejected before any lease", "[program]") {
  const TempDir scratch;
  SECTION("by name") {
    auto harness = start_program({"no-such-program-here"}, scratch);
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kRejected);
    CHECK(outcome->verdict.cause == Cause::kProgram);
    CHECK(outcome->verdict.message.find("no program 'no-such-program-here'") != std::string::npos);
  }
  SECTION("by path, not executable") {
    std::ofstream(scratch.path() + "/text") << "x";
    auto harness = start_program({scratch.path() + "/text"}, scratch);
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kRejected);
    CHECK(outcome->verdict.message.find("is not executable") != std::string::npos);
  }
  SECTION("its interpreter is not there") {
    const std::string script = scratch.path() + "/script";
    std::ofstream(script) << "#!/no/such/interpreter\n";
    std::filesystem::permissions(script, std::filesystem::perms(0755));
    auto harness = start_program({script}, scratch);
    REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
    harness->open(FREERIDE_LEASE_INIT, 60'000);
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kRejected);
    CHECK(outcome->verdict.message.find("interpreter") != std::string::npos);
  }
}

TEST_CASE("nothing of a program executes before its first lease, and under the init lease it is only executed",
          "[program]") {
  const TempDir scratch;
  auto harness = start_shell("echo > made", scratch);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  CHECK_FALSE(is_there(scratch, "made"));
  CHECK(pages::load_acquire(harness->answer().steps) == 0);
  const Outcome outcome = [&] {
    initialise(*harness);
    return run_in_bubbles(*harness);
  }();
  CHECK(outcome.verdict.kind == VerdictKind::kFinished);
  CHECK(is_there(scratch, "made"));
}

TEST_CASE("a program with the shim of libcuda starts under its init lease until it asks for the GPU", "[program]") {
  const TempDir scratch;
  freeride_shim_page page{};
  page.magic = FREERIDE_SHIM_MAGIC;
  page.version = FREERIDE_SHIM_VERSION;
  const std::string file = scratch.path() + "/page";
  std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(&page), sizeof(page));
  const Fd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(fd.valid());
  Harness::Options options;
  options.shim_fd = fd.get();
  auto harness = start_shell("i=0; while :; do i=$((i+1)); echo $i >> counted; done", scratch, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  SECTION("by its shim page") {
    harness->open(FREERIDE_LEASE_INIT, 60'000);
    while (content(scratch, "counted").size() < 4) usleep(1000);  // it makes progress
    CHECK(pages::load_acquire(harness->answer().state) != FREERIDE_STATE_PAUSED);
    page.held = 1;
    REQUIRE(pwrite(fd.get(), &page, sizeof(page), 0) == sizeof(page));
    REQUIRE(harness->wait_paused());
  }
  SECTION("or until the lease ends, with a page that says nothing or that it has cut") {
    const bool cut = GENERATE(false, true);
    if (cut) REQUIRE(ftruncate(fd.get(), 0) == 0);
    harness->open(FREERIDE_LEASE_INIT, 500);
    REQUIRE(harness->wait_paused());
    CHECK_FALSE(content(scratch, "counted").size() < 2);
  }
  harness->revoke();
  const std::string counted = content(scratch, "counted");
  usleep(20'000);
  CHECK(content(scratch, "counted") == counted);
}

TEST_CASE("between leases all processes of a program are stopped, and their clocks stand still", "[program]") {
  const TempDir scratch;
  // Two that spin below a shell that waits, one of them an orphan in a session of its own.
  auto harness = start_shell(
      "(while :; do :; done) & echo $! > one\n"
      "setsid sh -c 'echo $$ > two; while :; do :; done' &\n"
      "while [ ! -s two ]; do :; done; echo > ready; wait",
      scratch);
  initialise(*harness);
  run_until_file(*harness, scratch, "ready");
  const std::vector<pid_t> pids{harness->task(), std::stoi(content(scratch, "one")),
                                std::stoi(content(scratch, "two"))};
  for (int round = 0; round < 20; ++round) {
    harness->open(FREERIDE_LEASE_BUBBLE, 5);
    const uint64_t lease = harness->lease().lease_id;
    harness->wait_until([&](const auto& answer) {
      return SteadyClock::now() > static_cast<int64_t>(harness->lease().deadline_ns) &&
             pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED;
    });
    harness->revoke();
    std::vector<int64_t> before;
    for (const pid_t pid : pids) {
      const auto stat = stat_of(pid);
      REQUIRE(stat);
      INFO("lease " << lease << ": " << stat->state);
      CHECK(executes_nothing(stat->state));
      clockid_t clock = 0;
      timespec time{};
      REQUIRE(clock_getcpuclockid(pid, &clock) == 0);
      clock_gettime(clock, &time);
      before.push_back(time.tv_sec * kNsPerSec + time.tv_nsec);
    }
    const timespec moment{0, 5 * kNsPerMs};
    nanosleep(&moment, nullptr);
    for (size_t i = 0; i < pids.size(); ++i) {
      clockid_t clock = 0;
      timespec time{};
      REQUIRE(clock_getcpuclockid(pids[i], &clock) == 0);
      clock_gettime(clock, &time);
      CHECK(time.tv_sec * kNsPerSec + time.tv_nsec == before[i]);
    }
  }
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  for (const pid_t pid : pids) CHECK_FALSE(lives(pid));
}

TEST_CASE("a program that sleeps in its leases makes no step time", "[program]") {
  const TempDir scratch;
  auto harness = start_program({"sleep", "3600"}, scratch);
  initialise(*harness);
  const auto& answer = harness->answer();
  for (int bubble = 0; bubble < 1000 && pages::load_acquire(answer.steps) < 10; ++bubble) {
    harness->open(FREERIDE_LEASE_BUBBLE, 30);
    harness->wait_until(
        [&](const auto&) { return SteadyClock::now() > static_cast<int64_t>(harness->lease().deadline_ns); });
    harness->revoke();
    REQUIRE(harness->wait_paused());
  }
  REQUIRE(pages::load_acquire(answer.steps) == 10);
  // Ten leases of 30 ms; it was executed and slept again.
  CHECK(pages::load_acquire(answer.step_ns) < 100 * kNsPerMs);
  CHECK(pages::load_acquire(answer.lease_step_ns) <= pages::load_acquire(answer.step_ns));
}

TEST_CASE("what a program's short-lived processes executed is counted when they have ended", "[program]") {
  ProgramProcesses processes(false);
  processes.look();
  const int64_t before_ns = processes.total_ns();
  constexpr int64_t kBurntNs = 30 * kNsPerMs;
  const pid_t child = fork();
  if (child == 0) {
    while (process_cpu_ns(getpid()) < kBurntNs) {
    }
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  processes.look();
  CHECK(processes.total_ns() - before_ns >= kBurntNs);
}

TEST_CASE("what a program leaves behind is killed before its verdict", "[program]") {
  const TempDir scratch;
  auto harness = start_shell(
      "setsid sh -c 'sh -c \"echo \\$\\$ > left; sleep 1000\" & ' & while [ ! -s left ]; do :; done", scratch);
  initialise(*harness);
  const Outcome outcome = run_in_bubbles(*harness);
  CHECK(outcome.verdict.kind == VerdictKind::kFinished);
  CHECK(outcome.processes_left >= 1);
  CHECK_FALSE(lives(std::stoi(content(scratch, "left"))));
}

TEST_CASE("a program that forks all the time is stopped whole, at every moment", "[program]") {
  const TempDir scratch("/dev/shm");  // a write to a disk may end after its process was stopped
  auto harness = start_shell("i=0; while :; do i=$((i+1)); (/bin/true; echo $i > last) & wait; done", scratch);
  initialise(*harness);
  std::mt19937 random(1);  // the moments differ by themselves
  for (int round = 0; round < 60; ++round) {
    harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
    REQUIRE(harness->wait_state(FREERIDE_STATE_RUNNING));
    const timespec moment{0, static_cast<long>(random() % (3 * kNsPerMs))};
    nanosleep(&moment, nullptr);
    harness->revoke();
    REQUIRE(harness->wait_paused());
    const std::string last = content(scratch, "last");
    nanosleep(&moment, nullptr);
    CHECK(content(scratch, "last") == last);
  }
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("a program is stopped at any moment of its start", "[program]") {
  for (int round = 0; round < 40; ++round) {
    const TempDir scratch;
    auto harness = start_shell("/bin/true; exec /bin/sh -c '/bin/true; exec sleep 1000'", scratch);
    const int64_t wait_ns = (round % 20) * kNsPerMs / 2;
    const timespec moment{0, wait_ns};
    if (round < 20) {
      nanosleep(&moment, nullptr);  // while it is set up
    } else {
      REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
      harness->open(FREERIDE_LEASE_INIT, 60'000);
      if (round % 2 == 0) REQUIRE(harness->wait_paused());
      if (round % 2 == 0) harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
      nanosleep(&moment, nullptr);
    }
    harness->revoke(FREERIDE_ORDER_STOP);
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    INFO("round " << round << ": " << policy::text_of(outcome->verdict));
    CHECK(outcome->verdict.kind == VerdictKind::kStopped);
    CHECK(harness->wait_gone());
  }
}

TEST_CASE("a program that is to end gets SIGTERM, and acts upon it under a save lease only", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("trap 'echo > saved; exit 0' TERM; echo > ready; while :; do :; done", scratch);
  initialise(*harness);
  run_until_file(*harness, scratch, "ready");
  harness->revoke(FREERIDE_ORDER_END);
  const timespec moment{0, 20 * kNsPerMs};
  nanosleep(&moment, nullptr);
  CHECK_FALSE(is_there(scratch, "saved"));
  harness->open(FREERIDE_LEASE_SAVE, 60'000, FREERIDE_ORDER_END);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  CHECK(outcome->verdict.exit_code == 0);
  CHECK(is_there(scratch, "saved"));
}

TEST_CASE("a program that does not heed SIGTERM is killed by the order to stop", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("trap '' TERM; echo > ready; while :; do :; done", scratch);
  initialise(*harness);
  run_until_file(*harness, scratch, "ready");
  harness->revoke(FREERIDE_ORDER_END);
  const uint64_t lease = harness->open(FREERIDE_LEASE_SAVE, 50, FREERIDE_ORDER_END);
  REQUIRE(harness->wait_until([&](const auto& answer) { return pages::load_acquire(answer.saved_lease) == lease; }));
  CHECK_FALSE(harness->verdict(1));
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("a program answers a save lease that is not its end without executing", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("echo > ready; while :; do :; done", scratch);
  initialise(*harness);
  run_until_file(*harness, scratch, "ready");
  const uint64_t steps_before = steps(*harness);
  const uint64_t lease = harness->open(FREERIDE_LEASE_SAVE, 60'000, FREERIDE_ORDER_PAUSE);
  REQUIRE(harness->wait_until([&](const auto& answer) { return pages::load_acquire(answer.saved_lease) == lease; }));
  CHECK(steps(*harness) == steps_before);
  CHECK(pages::load_acquire(harness->answer().state) == FREERIDE_STATE_PAUSED);
}

TEST_CASE("a program goes with its worker", "[program]") {
  const TempDir scratch;
  auto harness = start_shell("sleep 1000 & echo $! > made; mv made child; wait", scratch);
  initialise(*harness);
  run_until_file(*harness, scratch, "child");
  const pid_t child = std::stoi(content(scratch, "child"));
  harness->cut_lifeline();
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kLost);
  CHECK_FALSE(lives(child));
}

TEST_CASE("a process that arranges to go on between leases is stopped again, and the program is killed for it",
          "[program]") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 20;
  // Timers whose signal is SIGCONT, by the C library's own structures: 64 bytes of sigevent, 32 of itimerspec. A timer
  // whose signal a stop finds pending never comes again: hence several.
  const std::string script = R"(import ctypes, signal, struct
signal.signal(signal.SIGCONT, lambda *_: None)
libc = ctypes.CDLL(None)
event = struct.pack('=qii', 0, signal.SIGCONT, 0) + bytes(48)
for number in range(8):
    timer = ctypes.c_void_p()
    times = struct.pack('=qqqq', 0, 40000000, 0, 5000000 * (1 + number))
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    assert libc.timer_settime(timer, 0, times, None) == 0
open('ready', 'w')
while True: pass
)";
  auto harness =
      start_program({"/bin/sh", "-c", "cd " + scratch.path() + "; exec python3 -c \"$0\"", script}, scratch, options);
  initialise(*harness);
  run_until_file(*harness, scratch, "ready", 50);
  const auto outcome = harness->verdict();
  INFO(harness->log());
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kOverran);
}
