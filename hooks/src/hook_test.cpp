// The C API against a fake worker. The library allows one hook a process, so each case runs in a child of its own where
// that matters.
#include "freeride/hook.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "fake_worker_test_support.hpp"
#include "freeride/idle.hpp"

namespace freeride::hooks {
namespace {

freeride_hook_config config_of(const std::string& run_dir, uint32_t flags = 0) {
  freeride_hook_config config{};
  config.struct_size = sizeof(config);
  config.flags = flags;
  config.job = "job";
  config.device = "cpu-0";
  config.framework = "test";
  config.run_dir = run_dir.c_str();
  config.stages = 2;
  config.replicas = 1;
  return config;
}

// Attached for the length of a test case.
struct Attached {
  explicit Attached(const std::string& run_dir, uint32_t flags = 0) {
    const auto config = config_of(run_dir, flags);
    hook = freeride_hook_attach(&config);
    REQUIRE(hook != nullptr);
  }
  ~Attached() { freeride_hook_detach(hook); }
  void iterate(int waits) {
    for (int i = 0; i < waits; ++i) {
      freeride_hook_mark_begin(hook);
      freeride_hook_mark_end(hook);
    }
    freeride_hook_iteration_end(hook);
  }
  bool connected() {
    const int64_t deadline = SteadyClock::now() + kWatchdogMs * kNsPerMs;
    while (freeride_hook_connected(hook) == 0 && SteadyClock::now() < deadline) usleep(1000);
    return freeride_hook_connected(hook) == 1;
  }
  freeride_hook* hook = nullptr;
};

// Runs `body` in a forked child; its return value is the exit code.
int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("why a rank has no usable bubble is one number at any time, with a name and a sentence") {
  const TempDir dir;
  Attached rank(dir.path());
  const auto why = [&] {
    const char* name = nullptr;
    const char* text = nullptr;
    freeride_hook_explain(freeride_hook_why(rank.hook), &name, &text);
    CHECK(*text != 0);
    return std::string(name);
  };
  CHECK(why() == "no_messages");
  freeride_hook_note(rank.hook, 11);
  CHECK(why() == "other_groups");
  freeride_hook_note(rank.hook, ~0U);
  CHECK(why() == "no_messages");
  freeride_hook_mark_begin(rank.hook);
  freeride_hook_mark_end(rank.hook);
  CHECK(why() == "no_iterations");
  freeride_hook_iteration_end(rank.hook);
  CHECK(why() == "learning");
  freeride_hook_disable(rank.hook, "lunch");
  CHECK(why() == "disabled");
  freeride_hook_fail(rank.hook, "broken");
  freeride_hook_note(rank.hook, 11);  // the error stays
  CHECK(why() == "failed");
  freeride_hook_detach(rank.hook);
  CHECK(why() == "ended");
  CHECK(freeride_hook_why(nullptr) == 8);
  CHECK(freeride_hook_explain(9999, nullptr, nullptr) == 0);
  freeride_hook_note(nullptr, 1);
}

TEST_CASE("idle phases end iterations where nobody else does, and are all that a rank needs to be used") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  Attached rank(dir.path());
  worker.accept();
  REQUIRE(rank.connected());
  const auto& page = worker.page();
  freeride_hook_idle_end(rank.hook, freeride_hook_idle_begin(rank.hook, "loader", 0, FREERIDE_IDLE_FOUND, nullptr));
  CHECK(page.bubbles == 1);
  CHECK(page.iteration == 0);  // training has not asked for it
  for (int i = 0; i < 3; ++i) {
    {
      const Idle idle(rank.hook, "rollout");
      CHECK(idle);
      CHECK(pages::load_acquire(page.hook_state) == FREERIDE_HOOK_ACTIVE);
      CHECK(FREERIDE_PHASE_NUMBER(pages::load_acquire(page.idle_begun)) > pages::load_acquire(page.idle_ended));
      CHECK(freeride_hook_idle_phase(rank.hook) == FREERIDE_PHASE_NUMBER(page.idle_begun));
      const uint64_t iteration = page.iteration;
      CHECK(iteration == static_cast<uint64_t>(i) + 1);
      CHECK(FREERIDE_STATE_ITERATION(page.state_word) == iteration);  // also when the phase has just begun
    }
    const Idle other = Idle::open(rank.hook, "save");
    CHECK(page.idle_flags == FREERIDE_PHASE_OPEN);
  }
  CHECK(page.iteration == 3);
  CHECK(page.bubbles == 7);
  CHECK(freeride_hook_idle_phase(rank.hook) == 0);
  const char* name = nullptr;
  freeride_hook_explain(freeride_hook_why(rank.hook), &name, nullptr);
  CHECK(std::string(name) == "usable");
  rank.iterate(1);  // from here on somebody does
  const uint64_t ended = page.iteration;
  const Idle idle(rank.hook, "rollout");
  CHECK(page.iteration == ended);
}

TEST_CASE("idle phases used wrongly are one line each, and no phase outlives what training does next") {
  const TempDir dir;
  const std::string said = dir.path() + "/said";
  const int code = in_child([&] {
    const int file = open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    Attached rank(dir.path());
    const auto& page = *freeride_hook_page(rank.hook);
    const auto none = [&] { return FREERIDE_PHASE_NUMBER(page.idle_begun) <= page.idle_ended; };
    for (int i = 0; i < 2; ++i) {
      const uint64_t outer = freeride_hook_idle_begin(rank.hook, "rollout", 0, 0, nullptr);
      if (outer == 0 || freeride_hook_idle_begin(rank.hook, "save", 0, 0, nullptr) != 0) return 1;
      freeride_hook_idle_end(rank.hook, 0);
      freeride_hook_idle_end(rank.hook, outer + 1);
      if (none()) return 2;
      freeride_hook_iteration_end(rank.hook);  // without an end
      if (!none()) return 3;
      freeride_hook_idle_end(rank.hook, outer);
    }
    // A child of a rank is none: its calls change nothing of the rank's.
    const uint64_t phase = freeride_hook_idle_begin(rank.hook, "rollout", 0, 0, nullptr);
    const int child = in_child([&] {
      freeride_hook_idle_end(rank.hook, phase);
      return freeride_hook_idle_begin(rank.hook, "save", 0, 0, nullptr) == 0 ? 0 : 1;
    });
    if (child != 0 || none()) return 4;
    freeride_hook_idle_end(rank.hook, phase);
    if (!none() || freeride_hook_idle_begin(nullptr, "x", 0, 0, nullptr) != 0) return 5;
    freeride_hook_idle_end(nullptr, 1);
    freeride_hook_disable(rank.hook, nullptr);
    return freeride_hook_idle_begin(rank.hook, "save", 0, 0, nullptr) == 0 ? 0 : 6;
  });
  CHECK(code == 0);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text ==
        "freeride: an idle phase begins within \"rollout\", and is taken for part of it\n"
        "freeride: the idle phase \"rollout\" was still under way at an iteration's end, which ends it: end it before\n"
        "freeride: the hook is switched off; training goes on without\n");
}

TEST_CASE("a phase that began within a wait ends with that wait at the latest: training continues") {
  const TempDir dir;
  Attached rank(dir.path());
  const auto& page = *freeride_hook_page(rank.hook);
  rank.iterate(1);
  freeride_hook_mark_begin(rank.hook);
  // Such as of a checkpoint that another thread writes.
  std::thread([&] { freeride_hook_idle_begin(rank.hook, "save", 0, 0, nullptr); }).join();
  REQUIRE(FREERIDE_PHASE_NUMBER(page.idle_begun) > page.idle_ended);
  freeride_hook_mark_end(rank.hook);
  CHECK(FREERIDE_PHASE_NUMBER(page.idle_begun) <= page.idle_ended);
  CHECK(freeride_hook_idle_phase(rank.hook) == 0);
}

TEST_CASE("a phase of another thread than the one that marks waits ends no iteration") {
  const TempDir dir;
  Attached rank(dir.path());
  const auto& page = *freeride_hook_page(rank.hook);
  freeride_hook_mark_begin(rank.hook);
  freeride_hook_mark_end(rank.hook);
  for (int i = 0; i < 3; ++i) std::thread([&] { const Idle idle(rank.hook, "save"); }).join();
  CHECK(page.iteration == 0);
  freeride_hook_mark_begin(rank.hook);
  CHECK(page.state_word == FREERIDE_STATE(0, 2));  // its waits still count
  freeride_hook_mark_end(rank.hook);
  freeride_hook_iteration_end(rank.hook);
  CHECK(page.iteration == 1);
  CHECK(page.waits == 2);
}

TEST_CASE("a phase that is refused ends no iteration") {
  const TempDir dir;
  Attached rank(dir.path());
  const std::string too_long(32, 'x');
  for (const char* name : {"", "a\nb", too_long.c_str()}) CHECK_FALSE(Idle(rank.hook, name));
  CHECK(freeride_hook_page(rank.hook)->iteration == 0);
  for (uint32_t i = 0; i < FREERIDE_MAX_PHASES; ++i) {
    const std::string found = "found " + std::to_string(i);
    freeride_hook_idle_end(rank.hook,
                           freeride_hook_idle_begin(rank.hook, found.c_str(), 0, FREERIDE_IDLE_FOUND, nullptr));
  }
  CHECK_FALSE(Idle(rank.hook, "one too many"));
  CHECK(freeride_hook_page(rank.hook)->iteration == 0);
  CHECK(Idle(rank.hook, "found 3"));
  CHECK(freeride_hook_page(rank.hook)->iteration == 1);
}

TEST_CASE("where no waits are marked, phases of any thread end iterations") {
  const TempDir dir;
  Attached rank(dir.path());
  const auto& page = *freeride_hook_page(rank.hook);
  for (int i = 0; i < 3; ++i) std::thread([&] { const Idle idle(rank.hook, "rollout"); }).join();
  CHECK(page.iteration == 3);
  freeride_hook_mark_begin(rank.hook);  // of a thread that has begun no phase
  CHECK(FREERIDE_STATE_WAIT(page.state_word) == 1);
  freeride_hook_mark_end(rank.hook);
}

TEST_CASE("a worker that is there first gets the page, and sees the marks") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  Attached rank(dir.path());
  worker.accept();
  CHECK(worker.peer == getpid());
  CHECK(std::string(worker.page().job) == "job");
  CHECK(rank.connected());
  const auto& page = worker.page();
  freeride_hook_mark_begin(rank.hook);
  CHECK(wait_for(page.wake, [&] { return pages::load_acquire(page.state_word) == FREERIDE_STATE(0, 1); }));
  freeride_hook_mark_end(rank.hook);
  freeride_hook_iteration_end(rank.hook);
  CHECK(pages::load_acquire(page.hook_state) == FREERIDE_HOOK_ACTIVE);
  freeride_hook_set_usable_bytes(rank.hook, 123);
  CHECK(pages::load_acquire(page.usable_bytes) == 123);
  freeride_hook_detach(rank.hook);
  CHECK(pages::load_acquire(page.hook_state) == FREERIDE_HOOK_GONE);
  CHECK(worker.trainer_gone());
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_GONE);
  rank.iterate(1);  // late marks on a handle that stays valid
}

TEST_CASE("a worker that waits for one word hears the marks by its bell; one that gives none, by the page's") {
  const TempDir dir;
  Attached rank(dir.path());
  const auto bell = std::move(pages::create_page<freeride_bell_page>(false).value());
  {
    FakeWorker worker(dir.path());
    worker.accept("OK", bell.fd.get());
    REQUIRE(rank.connected());
    const auto& page = worker.page();
    CHECK(page.bell == bell.page->header.incarnation);
    freeride_hook_mark_begin(rank.hook);
    CHECK(wait_for(bell.page->rings, [&] { return pages::load_acquire(page.state_word) == FREERIDE_STATE(0, 1); }));
    freeride_hook_mark_end(rank.hook);
    freeride_hook_iteration_end(rank.hook);
    CHECK(wait_for(bell.page->rings, [&] { return pages::load_acquire(page.iteration) == 1; }));
  }
  FakeWorker next(dir.path());
  next.accept();
  REQUIRE(rank.connected());
  CHECK(next.page().bell == 0);
  const uint32_t rings = pages::load_acquire(bell.page->rings);
  rank.iterate(3);
  CHECK(pages::load_acquire(bell.page->rings) == rings);
}

TEST_CASE("a worker that comes later, goes and comes back gets the page each time") {
  const TempDir dir;
  const std::string run_dir = dir.path() + "/run";
  std::filesystem::create_directory(run_dir);
  Attached rank(run_dir);
  rank.iterate(3);
  for (int round = 0; round < 3; ++round) {
    FakeWorker worker(run_dir);
    worker.accept();
    CHECK(rank.connected());
    const uint64_t before = worker.page().bubbles;
    rank.iterate(3);
    CHECK(worker.page().bubbles == before + 3);
  }
}

TEST_CASE("a run folder that is made after the attach is found") {
  const TempDir dir;
  const std::string run_dir = dir.path() + "/later";
  Attached rank(run_dir);
  std::filesystem::create_directory(run_dir);
  FakeWorker worker(run_dir);
  worker.accept();
  CHECK(rank.connected());
}

TEST_CASE("a worker that hangs, refuses or babbles holds nothing up") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  Attached rank(dir.path());
  SECTION("hangs") {
    worker.accept("");
  }
  SECTION("refuses") {
    worker.accept("ERR bubble page: stage 7 of 2");
    CHECK(worker.trainer_gone());
  }
  SECTION("garbage") {
    worker.accept(std::string(400, '\x01'));
    CHECK(worker.trainer_gone());
  }
  SECTION("talks after OK") {
    worker.accept();
    REQUIRE(rank.connected());
    worker.say("and another thing");
    CHECK(worker.trainer_gone());
  }
  for (int i = 0; i < 100; ++i) rank.iterate(8);
  CHECK(freeride_hook_page(rank.hook)->bubbles == 800);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_ACTIVE);
}

TEST_CASE("one line says why a worker that is there does not have the page, however often it is tried") {
  const TempDir dir;
  const std::string said = dir.path() + "/said";
  const int code = in_child([&] {
    const int file = open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    FakeWorker worker(dir.path());
    Attached rank(dir.path());
    worker.turn_away("ERR process 4711 may not run on the cores of this device");
    worker.accept("ERR and another reason");
    if (!worker.trainer_gone()) return 2;
    rank.iterate(1);
    worker.accept();  // its successor is wiser
    return rank.connected() ? 0 : 3;
  });
  CHECK(code == 0);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text ==
        "freeride: the worker of cpu-0 does not take the page: ERR process 4711 may not run on the cores of this "
        "device\n");
}

TEST_CASE("a worker that does not answer is one line, and may still answer", "[slow]") {
  const TempDir dir;
  const std::string said = dir.path() + "/said";
  const int code = in_child([&] {
    const int file = open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    FakeWorker worker(dir.path());
    Attached rank(dir.path());
    worker.accept("");
    for (int i = 0; i < kWatchdogMs / 100 && std::filesystem::file_size(said) == 0; ++i) usleep(100'000);
    worker.say("OK");
    return rank.connected() ? 0 : 1;
  });
  CHECK(code == 0);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text == "freeride: the worker of cpu-0 has not answered for 10 s; see whether it is stopped\n");
}

TEST_CASE("a worker whose socket is not for this user is one line, with what to do") {
  if (geteuid() != 0) return;  // only root is somebody else, too
  const TempDir dir;
  const std::string said = dir.path() + "/said";
  chmod(dir.path().c_str(), 0755);
  const int code = in_child([&] {
    const int file = open(said.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    FakeWorker worker(dir.path());
    if (setresuid(65534, 65534, 65534) != 0) return 1;
    Attached rank(dir.path());
    rank.iterate(1);
    usleep(300'000);  // some tries
    return freeride_hook_connected(rank.hook);
  });
  CHECK(code == 0);
  std::ifstream in(said);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.find("nobody may not use " + dir.path() + "/worker-cpu-0.sock: it is for root only") != std::string::npos);
}

TEST_CASE("a second attach returns the first; after detach a new one is made") {
  const TempDir dir;
  Attached rank(dir.path());
  auto other = config_of(dir.path());
  other.job = "another";
  CHECK(freeride_hook_attach(&other) == rank.hook);
  const uint64_t incarnation = freeride_hook_page(rank.hook)->header.incarnation;
  freeride_hook_detach(rank.hook);
  freeride_hook* next = freeride_hook_attach(&other);
  REQUIRE(next != nullptr);
  CHECK(next != rank.hook);
  CHECK(freeride_hook_page(next)->header.incarnation != incarnation);
  freeride_hook_detach(next);
}

TEST_CASE("nonsense is refused, and NULL is always allowed") {
  const TempDir dir;
  CHECK(freeride_hook_attach(nullptr) == nullptr);
  auto config = config_of(dir.path());
  SECTION("short struct") {
    config.struct_size = 8;
  }
  SECTION("no job") {
    config.job = nullptr;
  }
  SECTION("no device") {
    config.device = "";
  }
  SECTION("a path as device") {
    config.device = "../x";
  }
  SECTION("device of a kilobyte") {
    static const std::string kLong(1000, 'x');
    config.device = kLong.c_str();
  }
  SECTION("stage past the last") {
    config.stage = 2;
  }
  SECTION("no stages") {
    config.stages = 0;
  }
  CHECK(freeride_hook_attach(&config) == nullptr);

  freeride_hook_mark_begin(nullptr);
  freeride_hook_mark_end(nullptr);
  freeride_hook_iteration_end(nullptr);
  freeride_hook_disable(nullptr, nullptr);
  freeride_hook_fail(nullptr, "x");
  freeride_hook_detach(nullptr);
  freeride_hook_set_usable_bytes(nullptr, 1);
  CHECK(freeride_hook_enable(nullptr) == 0);
  CHECK(freeride_hook_state(nullptr) == FREERIDE_HOOK_GONE);
  CHECK(freeride_hook_connected(nullptr) == 0);
  CHECK(freeride_hook_page(nullptr) == nullptr);
  CHECK(freeride_hook_produce(nullptr, 1) == 0);
  CHECK(freeride_hook_wait_sent(nullptr, 1, 1, 1) == FREERIDE_SENT_NONE);
  CHECK(std::string(freeride_hook_sent_path(nullptr)).empty());
}

TEST_CASE("the slowdown budget that the environment names is on the page") {
  const TempDir dir;
  const auto config = config_of(dir.path());
  const auto attach = [&](const char* budget) {
    if (budget != nullptr) setenv("FREERIDE_JOB_BUDGET_PCT", budget, 1);
    freeride_hook* hook = freeride_hook_attach(&config);
    unsetenv("FREERIDE_JOB_BUDGET_PCT");
    return hook;
  };
  const auto asked = [&](const char* budget) {
    freeride_hook* hook = attach(budget);
    REQUIRE(hook != nullptr);
    const auto identity = pages::check_bubble_page(*freeride_hook_page(hook));
    REQUIRE(identity.ok());
    freeride_hook_detach(hook);
    return identity->budget_pct;
  };
  CHECK(asked(nullptr) == std::nullopt);
  CHECK(asked("") == std::nullopt);
  CHECK(asked("0.3") == 0.3);
  CHECK(asked("0") == 0.0);
  CHECK(asked("100") == 100.0);
  // What is not understood may have been meant to be less than the manager's: the training goes on without side tasks.
  for (const char* no : {"0.3%", "-1", "101", "nan", "0,3", "much"}) CHECK(attach(no) == nullptr);
}

TEST_CASE("FREERIDE_HOOK=0 switches everything off") {
  const TempDir dir;
  setenv("FREERIDE_HOOK", "0", 1);
  const auto config = config_of(dir.path());
  CHECK(freeride_hook_attach(&config) == nullptr);
  unsetenv("FREERIDE_HOOK");
}

TEST_CASE("disable and enable; an error is for good") {
  const TempDir dir;
  Attached rank(dir.path());
  rank.iterate(2);
  freeride_hook_mark_begin(rank.hook);
  freeride_hook_disable(rank.hook, "test");
  CHECK(freeride_hook_page(rank.hook)->state_word == 0);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_DISABLED);
  freeride_hook_mark_end(rank.hook);
  rank.iterate(2);
  CHECK(freeride_hook_enable(rank.hook) == 1);
  rank.iterate(2);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_ACTIVE);
  CHECK(freeride_hook_page(rank.hook)->iteration == 3);
  freeride_hook_fail(rank.hook, "test");
  CHECK(freeride_hook_enable(rank.hook) == 0);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_DISABLED);
}

TEST_CASE("a forked child neither uses nor tears down the parent's hook") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  Attached rank(dir.path(), FREERIDE_HOOK_SENT);
  worker.accept();
  REQUIRE(rank.connected());
  rank.iterate(2);
  freeride_hook_mark_begin(rank.hook);
  const uint32_t wake = worker.page().wake;
  CHECK(in_child([&] {
          freeride_hook_mark_end(rank.hook);
          freeride_hook_iteration_end(rank.hook);
          freeride_hook_disable(rank.hook, "by the child");
          freeride_hook_detach(rank.hook);
          if (freeride_hook_produce(rank.hook, 1) != 0) return 3;
          return freeride_hook_state(rank.hook) == FREERIDE_HOOK_GONE ? 0 : 4;
        }) == 0);
  CHECK(worker.page().state_word == FREERIDE_STATE(1, 1));
  CHECK(worker.page().wake == wake);
  CHECK(freeride_hook_connected(rank.hook) == 1);
  freeride_hook_mark_end(rank.hook);
  CHECK(freeride_hook_produce(rank.hook, 1) == 1);
}

TEST_CASE("a forked child that outlives its parent does not keep the worker waiting for its end") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  int started[2], hold[2];
  REQUIRE(pipe(started) == 0);
  REQUIRE(pipe(hold) == 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    const auto config = config_of(dir.path());
    freeride_hook* hook = freeride_hook_attach(&config);
    while (freeride_hook_connected(hook) == 0) usleep(1000);
    const pid_t loader = fork();
    if (loader == 0) {
      close(hold[1]);
      char byte;
      if (write(started[1], "s", 1) != 1) _exit(1);
      _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the test lets go
    }
    for (;;) pause();
  }
  close(hold[0]);
  worker.accept();
  char byte;
  REQUIRE(read(started[0], &byte, 1) == 1);
  REQUIRE(kill(trainer, SIGKILL) == 0);
  CHECK(worker.trainer_gone());
  REQUIRE(waitpid(trainer, nullptr, 0) == trainer);
  for (const int fd : {hold[1], started[0], started[1]}) close(fd);
}

#ifndef FREERIDE_SANITIZED_THREADS  // it ends every process that makes a thread after such a fork
TEST_CASE("a forked child may attach for itself") {
  const TempDir dir;
  Attached rank(dir.path());
  CHECK(in_child([&] {
          const auto config = config_of(dir.path());
          freeride_hook* own = freeride_hook_attach(&config);
          if (own == nullptr || own == rank.hook) return 1;
          freeride_hook_mark_begin(own);
          const bool marked = freeride_hook_page(own)->state_word == FREERIDE_STATE(0, 1);
          freeride_hook_detach(own);
          return marked ? 0 : 2;
        }) == 0);
  CHECK(freeride_hook_page(rank.hook)->state_word == 0);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_STARTING);
}
#endif

TEST_CASE("exit() is a detach") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  const pid_t trainer = fork();
  if (trainer == 0) {
    const auto config = config_of(dir.path());
    freeride_hook* hook = freeride_hook_attach(&config);
    while (freeride_hook_connected(hook) == 0) usleep(1000);
    exit(0);  // NOLINT(concurrency-mt-unsafe)
  }
  worker.accept();
  CHECK(worker.trainer_gone());
  CHECK(worker.page().hook_state == FREERIDE_HOOK_GONE);
  int status = 0;
  REQUIRE(waitpid(trainer, &status, 0) == trainer);
  CHECK(status == 0);
}

TEST_CASE("no sent page: attach succeeds without counters") {
  const TempDir dir;
  setenv("FREERIDE_SHM_DIR", "/proc", 1);  // nothing can be made there, as in a full /dev/shm
  Attached rank(dir.path(), FREERIDE_HOOK_SENT);
  unsetenv("FREERIDE_SHM_DIR");
  CHECK(std::string(freeride_hook_sent_path(rank.hook)).empty());
  CHECK(freeride_hook_produce(rank.hook, 1) == 0);
  CHECK(freeride_hook_wait_sent(rank.hook, 1, 1, kNsPerSec) == FREERIDE_SENT_NONE);
  rank.iterate(1);
  CHECK(freeride_hook_state(rank.hook) == FREERIDE_HOOK_ACTIVE);
}

TEST_CASE("counters reach the other rank, and its death releases us through the helper thread") {
  const TempDir dir;
  setenv("FREERIDE_SHM_DIR", dir.path().c_str(), 1);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t other = fork();
  if (other == 0) {
    auto config = config_of(dir.path(), FREERIDE_HOOK_SENT);
    config.device = "cpu-1";
    config.local_rank = 1;
    freeride_hook* hook = freeride_hook_attach(&config);
    freeride_hook_produce(hook, 0);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  for (const int fd : ready) close(fd);
  Attached rank(dir.path(), FREERIDE_HOOK_SENT);
  unsetenv("FREERIDE_SHM_DIR");
  CHECK(freeride_hook_wait_sent(rank.hook, 1, 1, 30 * kNsPerSec) == FREERIDE_SENT_REACHED);
  CHECK(freeride_hook_wait_sent(rank.hook, 1, 2, kNsPerMs) == FREERIDE_SENT_TIMEOUT);
  REQUIRE(kill(other, SIGKILL) == 0);
  REQUIRE(waitpid(other, nullptr, 0) == other);
  CHECK(freeride_hook_wait_sent(rank.hook, 1, 2, 30 * kNsPerSec) == FREERIDE_SENT_RELEASED);
}

TEST_CASE("memory that training was refused is asked for on the page, where there is a worker") {
  const TempDir dir;
  Attached rank(dir.path());
  CHECK(freeride_hook_want_memory(nullptr, 5) == 0);
  CHECK(freeride_hook_want_memory(rank.hook, uint64_t{5} << 30) == 0);
  FakeWorker worker(dir.path());
  worker.accept();
  REQUIRE(rank.connected());
  CHECK(freeride_hook_want_memory(rank.hook, uint64_t{7} << 30) == 1);
  CHECK(worker.page().wanted_bytes == uint64_t{7} << 30);
  CHECK(freeride_hook_want_memory(rank.hook, 0) == 1);
  CHECK(worker.page().wanted_bytes == 0);
}

TEST_CASE("with external marks the helper thread wakes the worker") {
  const TempDir dir;
  FakeWorker worker(dir.path());
  Attached rank(dir.path(), FREERIDE_HOOK_EXTERNAL_MARKS);
  worker.accept();
  REQUIRE(rank.connected());
  freeride_hook_mark_begin(rank.hook);  // not this rank's to say
  freeride_hook_iteration_end(rank.hook);
  CHECK(worker.page().iteration == 0);
  const auto& page = worker.page();
  auto* own = freeride_hook_page(rank.hook);
  for (uint64_t iteration = 0; iteration < 3; ++iteration) {
    const uint64_t before = pages::load_acquire(page.bubbles);
    const uint32_t wake = pages::load_acquire(page.wake);
    pages::store_release(own->state_word, FREERIDE_STATE(iteration, 1));
    CHECK(wait_for(page.wake, [&] { return pages::load_acquire(page.wake) != wake; }));
    pages::store_release(own->state_word, FREERIDE_STATE(iteration, 0));
    CHECK(wait_for(page.wake, [&] { return pages::load_acquire(page.bubbles) == before + 1; }));
  }
  CHECK(wait_for(page.wake, [&] { return pages::load_acquire(page.iteration) == 2; }));
  CHECK(pages::load_acquire(page.hook_state) == FREERIDE_HOOK_ACTIVE);
}

}  // namespace freeride::hooks
