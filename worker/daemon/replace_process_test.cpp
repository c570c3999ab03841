// Replacing a task's plugin: the real freeride-worker and freeride-runner, with a trainer and a manager played by the
// test.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/worker_process_test_support.hpp"

using namespace freeride;
using namespace freeride::worker::testing;

namespace fs = std::filesystem;

namespace {

// `number` appends that to the file: another content that does the same.
std::string plugin_bytes(const std::string& name, int number = 0) {
  std::ifstream in(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / (name + ".so"), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  return number == 0 ? bytes : bytes + std::to_string(number);
}

struct ReplaceRig : Rig {
  using Rig::Rig;
  uint64_t revision = 0;

  bus::CreateTask spec(const std::string& plugin, std::map<std::string, std::string> params = {}, int number = 0) {
    bus::CreateTask create;
    create.task = "t";
    create.purpose = "run";
    create.plugin = plugin + ".so";
    create.sha256 = manager.offer(plugin_bytes(plugin, number));
    create.params = std::move(params);
    create.instance = "one";
    return create;
  }
  bus::TaskReport task() { return manager.task("t"); }
  double metric(const std::string& name) {
    const auto metrics = task().counters.metrics;
    const auto found = metrics.find(name);
    return found == metrics.end() ? -1 : found->second;
  }
  void run_until_steps(uint64_t more) {
    const uint64_t before = task().counters.steps;
    manager.wait([&] { return task().counters.steps >= before + more; });
  }
  /// A report may be made in mid-step, when the plugin has counted and the runner has not: until one is not.
  void wait_count(const std::string& name, uint64_t before) {
    manager.wait(
        [&] { return metric(name) + static_cast<double>(before) == static_cast<double>(task().counters.steps); });
  }
  std::optional<Error> replace(bus::CreateTask create) {
    create.revision = ++revision;
    return manager.call(bus::ReplaceTask{create}).error;
  }
  bus::ReplacementReport outcome() {
    manager.wait([&] {
      const auto report = task().replacement;
      return report.revision == revision && (report.state == "done" || report.state == "failed");
    });
    return task().replacement;
  }
  fs::path state_file() const { return paths.task_dir("t") / "state"; }
  void wait_children(size_t count) {
    manager.wait([&] { return children_of(worker.pid()).size() == count; });
  }
};

int64_t resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6);
  }
  return -1;
}

size_t lines_of(const std::string& file) {
  std::ifstream in(file);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a replaced task goes on from its state, and its steps add up", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.run_until_steps(20);
  for (int i = 1; i <= 3; ++i) {
    REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, i)));
    const auto outcome = rig.outcome();
    INFO(outcome.reason);
    REQUIRE(outcome.state == "done");
    CHECK(outcome.steps >= 20);
    CHECK(rig.task().revision == rig.revision);
    rig.manager.wait([&] { return rig.metric("restored") == static_cast<double>(outcome.steps); });
    rig.run_until_steps(5);
    // Every step of every content is in the count, and none twice.
    rig.wait_count("n", 0);
  }
  rig.wait_children(1);
  rig.manager.order("t", "stop");
  CHECK(rig.manager.verdict("t").kind == "stopped");
  CHECK_FALSE(fs::exists(rig.state_file()));
  rig.stop_worker();
}

TEST_CASE("without a state the new content begins at 0, and the task's steps still add up", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("counter", {{"step_us", "200"}}));
  rig.run_until_steps(20);
  REQUIRE_FALSE(rig.replace(rig.spec("counter", {{"step_us", "200"}}, 1)));
  auto outcome = rig.outcome();
  REQUIRE(outcome.state == "done");
  CHECK(outcome.reason.find("starts from zero") != std::string::npos);
  rig.run_until_steps(5);
  rig.wait_count("count", outcome.steps);
  // A state of another plugin is not forced on anybody.
  REQUIRE_FALSE(rig.replace(rig.spec("keeper")));
  CHECK(rig.outcome().state == "done");
  rig.run_until_steps(5);
  CHECK(rig.metric("restored") == 0);
  REQUIRE_FALSE(rig.replace(rig.spec("counter", {{"step_us", "200"}})));
  outcome = rig.outcome();
  CHECK(outcome.state == "done");
  CHECK(outcome.reason.find("another plugin") != std::string::npos);
  rig.stop_worker();
}

TEST_CASE("a new content that does not work leaves the old one at work, with nothing lost", "[process]") {
  struct Case {
    std::string plugin;
    std::map<std::string, std::string> params;
    const char* reason;
    bool stops_old;  // it is only found out after the old one has stopped
  };
  const auto one = GENERATE(values<Case>({
      {"keeper", {{"fail_in", "create"}}, "failed as told in create", false},
      {"keeper", {{"fail_in", "create"}, {"fail_how", "abort"}}, "crashed in CreateSideTask", false},
      {"keeper", {{"no_such", "1"}}, "no parameter 'no_such'", false},
      {"abi_99", {}, "version 99", false},
      {"load_abort", {}, "crashed", false},
      {"keeper", {{"fail_in", "init"}}, "failed as told in init", true},
      {"keeper", {{"fail_in", "restore"}}, "failed in RestoreState: failed as told in restore", true},
      {"keeper", {{"fail_in", "restore"}, {"fail_how", "abort"}}, "crashed in RestoreState", true},
      {"keeper", {{"fail_in", "restore"}, {"fail_how", "hang"}}, "overran in RestoreState", true},
  }));
  CAPTURE(one.plugin, one.params, one.reason);
  ReplaceRig rig({"--init-ms", "2000"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.run_until_steps(20);
  REQUIRE_FALSE(rig.replace(rig.spec(one.plugin, one.params, 1)));
  const auto outcome = rig.outcome();
  INFO(outcome.reason);
  CHECK(outcome.state == "failed");
  CHECK(outcome.reason.find(one.reason) != std::string::npos);
  CHECK(rig.task().revision == 0);
  rig.run_until_steps(10);
  rig.wait_count("n", 0);
  CHECK((rig.metric("restored") > 0) == one.stops_old);
  CHECK(rig.task().verdict.kind.empty());
  rig.wait_children(1);
  // And the next one is taken.
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 2)));
  CHECK(rig.outcome().state == "done");
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
}

TEST_CASE("an old content that cannot save its state goes on; one that dies over it ends", "[process]") {
  ReplaceRig rig({"--init-ms", "2000"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper", {{"fail_in", "save"}}));
  rig.run_until_steps(10);
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 1)));
  auto outcome = rig.outcome();
  CHECK(outcome.state == "failed");
  CHECK(outcome.reason.find("failed as told in save") != std::string::npos);
  rig.run_until_steps(10);
  CHECK(rig.metric("restored") == 0);
  rig.wait_children(1);
  rig.manager.order("t", "stop");
  CHECK(rig.manager.verdict("t").kind == "stopped");
  rig.manager.forget("t");

  SECTION("a crash") {
    rig.manager.create(rig.spec("keeper", {{"fail_in", "save"}, {"fail_how", "abort"}}));
    rig.run_until_steps(3);
    REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 2)));
    const auto verdict = rig.manager.verdict("t");
    CHECK(verdict.kind == "crashed");
    CHECK(verdict.transition == "SaveState");
    CHECK(rig.outcome().state == "failed");
  }
  SECTION("no end") {
    rig.manager.create(rig.spec("keeper", {{"fail_in", "save"}, {"fail_how", "hang"}}));
    rig.run_until_steps(3);
    REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 2)));
    const auto verdict = rig.manager.verdict("t");
    CHECK(verdict.kind == "overran");
    CHECK(verdict.transition == "SaveState");
    CHECK(rig.outcome().state == "failed");
  }
  rig.wait_children(rig.task().verdict.kind.empty() ? 1 : 0);
  rig.stop_worker();
}

TEST_CASE("a large state arrives whole", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper", {{"ballast", "70000000"}}));
  rig.run_until_steps(3);
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 2)));
  CHECK(rig.outcome().state == "done");
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
}

TEST_CASE("an old content that dies in StopSideTask is replaced all the same", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper", {{"fail_in", "stop"}, {"fail_how", "abort"}}));
  rig.run_until_steps(10);
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 1)));
  CHECK(rig.outcome().state == "done");
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
}

TEST_CASE("replacing a task that the user has paused: it is paused still, and has its state", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.run_until_steps(10);
  rig.manager.plan.orders = {{"t", "pause"}};
  rig.manager.order("t", "pause");
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 1)));
  const auto outcome = rig.outcome();
  CHECK(outcome.state == "done");
  rig.manager.wait_new_report();
  rig.manager.wait_new_report();
  CHECK(rig.task().state == "PAUSED");
  CHECK(rig.task().counters.steps == outcome.steps);
  // Twice in a row without a step between.
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", {}, 2)));
  CHECK(rig.outcome().state == "done");
  CHECK(rig.task().counters.steps == outcome.steps);
  rig.manager.order("t", "run");
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
}

TEST_CASE("replacing a task that has not been initialised, by itself, twice at once, and one that is not there",
          "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  CHECK(rig.replace(rig.spec("keeper"))->code == Code::kNotFound);
  auto create = rig.spec("keeper");
  create.start_paused = true;
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.task().state == "CREATED"; });
  REQUIRE_FALSE(rig.replace(rig.spec("keeper")));  // the very same content
  // The same again is the same; another one has to wait.
  auto again = rig.spec("keeper");
  again.revision = rig.revision;
  CHECK_FALSE(rig.manager.call(bus::ReplaceTask{again}).error);
  again.revision = rig.revision + 5;
  const auto second = rig.manager.call(bus::ReplaceTask{again}).error;
  if (second) CHECK(second->code == Code::kAlreadyExists);  // unless the first was done by then
  rig.manager.wait([&] { return rig.task().replacement.state == "done"; });
  rig.manager.wait([&] { return !second ? rig.task().revision == rig.revision + 5 : true; });
  CHECK(rig.task().state == "PAUSED");
  CHECK(rig.task().counters.steps == 0);
  rig.revision += 5;
  FakeTrainer trainer(rig.paths);
  rig.manager.plan.orders = {{"t", "run"}};
  rig.manager.order("t", "run");
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
}

TEST_CASE("stopping a task while it is replaced stops both contents", "[process]") {
  const std::string when = GENERATE("creating", "at once", "hanging");
  CAPTURE(when);
  ReplaceRig rig({"--init-ms", "60000"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.run_until_steps(5);
  std::map<std::string, std::string> params;
  if (when == "creating") params = {{"fail_in", "create"}, {"fail_how", "hang"}};
  if (when == "hanging") params = {{"fail_in", "restore"}, {"fail_how", "hang"}};
  REQUIRE_FALSE(rig.replace(rig.spec("keeper", params, 1)));
  if (when == "creating") rig.wait_children(2);
  if (when == "hanging") rig.manager.wait([&] { return rig.task().replacement.state == "starting"; });
  rig.manager.order("t", "stop");
  CHECK_FALSE(rig.manager.verdict("t").kind.empty());
  rig.wait_children(0);
  CHECK(rig.worker.alive());
  rig.stop_worker();
}

TEST_CASE("a worker that is killed in a replacement leaves a state to go on from", "[process]") {
  ReplaceRig rig({"--init-ms", "60000"});
  rig.manager.wait_registered();
  uint64_t steps = 0;
  {
    FakeTrainer trainer(rig.paths);
    rig.manager.create(rig.spec("keeper"));
    rig.run_until_steps(20);
    REQUIRE_FALSE(rig.replace(rig.spec("keeper", {{"fail_in", "restore"}, {"fail_how", "hang"}}, 1)));
    rig.manager.wait([&] { return rig.task().replacement.state == "starting"; });
    steps = rig.task().counters.steps;
    rig.restart_worker();
  }
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.manager.wait([&] { return rig.metric("restored") == static_cast<double>(steps); });
  // Another task of the name begins anew.
  rig.manager.order("t", "stop");
  rig.manager.verdict("t");
  rig.manager.forget("t");
  auto other = rig.spec("keeper");
  other.instance = "two";
  rig.manager.create(other);
  rig.run_until_steps(3);
  CHECK(rig.metric("restored") == 0);
  rig.stop_worker();
}

TEST_CASE("a worker that ends in good order lets its tasks save their progress, and they go on from it", "[process]") {
  ReplaceRig rig;
  rig.manager.wait_registered();
  {
    FakeTrainer trainer(rig.paths);
    rig.manager.create(rig.spec("keeper"));
    bus::CreateTask stateless = rig.spec("counter", {{"step_us", "200"}});
    stateless.task = "stateless";
    rig.manager.create(stateless);
    rig.run_until_steps(20);
    rig.manager.wait([&] { return rig.manager.task("stateless").counters.steps > 0; });
    rig.stop_worker();
  }
  const auto steps = rig.task().counters.steps;  // of its last report, with the verdict
  CHECK(rig.task().verdict.kind == "stopped");
  CHECK(fs::exists(rig.state_file()));
  CHECK_FALSE(fs::exists(rig.paths.task_dir("stateless") / "state"));
  CHECK_FALSE(fs::exists(rig.paths.task_dir("stateless") / "state.next"));
  rig.restart_worker();
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper"));
  rig.manager.wait([&] { return rig.metric("restored") == static_cast<double>(steps); });
  rig.run_until_steps(3);
  rig.stop_worker();
}

TEST_CASE("a task that cannot save its progress holds nobody up when the worker ends", "[process]") {
  const std::string how = GENERATE("throw", "abort", "hang");
  CAPTURE(how);
  ReplaceRig rig({"--stop-ms", "6000"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper", {{"fail_in", "save"}, {"fail_how", how}}));
  rig.run_until_steps(10);
  rig.stop_worker();
  CHECK_FALSE(fs::exists(rig.state_file()));
  CHECK_FALSE(fs::exists(rig.paths.task_dir("t") / "state.next"));
}

TEST_CASE("a task whose SaveState has no end takes none of its neighbour's time", "[process]") {
  ReplaceRig rig({"--stop-ms", "9000"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  bus::CreateTask bad = rig.spec("keeper", {{"fail_in", "save"}, {"fail_how", "hang"}});
  bad.task = "bad";  // the first to be saved
  rig.manager.create(bad);
  rig.manager.wait([&] { return rig.manager.task("bad").counters.steps > 0; });
  rig.manager.create(rig.spec("keeper"));
  rig.run_until_steps(5);
  rig.stop_worker();
  CHECK(fs::exists(rig.state_file()));
  CHECK_FALSE(fs::exists(rig.paths.task_dir("bad") / "state"));
}

// Those on a GPU, 30 more, are in gpu_process_test.
TEST_CASE("40 replacements in a row leave nothing behind", "[process][slow]") {
  constexpr int kWarm = 10, kReplacements = 40;
  constexpr double kMostKibEach = 4;  // growth of the worker's memory, per replacement
  ReplaceRig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(rig.spec("keeper", {{"step_us", "200"}}));
  rig.run_until_steps(5);
  const auto once = [&](int number) {
    const std::string last = rig.spec("keeper", {}, number).sha256;
    REQUIRE_FALSE(rig.replace(rig.spec("keeper", {{"step_us", "200"}}, number)));
    REQUIRE(rig.outcome().state == "done");
    rig.wait_children(1);
    rig.manager.contents.clear();
    return last;
  };
  for (int i = 1; i <= kWarm; ++i) once(i);  // until allocator and caches have their size
  const size_t fds = fds_of(rig.worker.pid());
  const size_t mounts = lines_of("/proc/" + std::to_string(rig.worker.pid()) + "/mounts");
  const int64_t resident = resident_kib(rig.worker.pid());
  const size_t folder = files_in(rig.paths.task_dir("t"));
  for (int i = kWarm + 1; i <= kWarm + kReplacements; ++i) once(i);
  rig.manager.wait([&] { return fds_of(rig.worker.pid()) <= fds; });
  CHECK(lines_of("/proc/" + std::to_string(rig.worker.pid()) + "/mounts") == mounts);
  CHECK(files_in(rig.paths.task_dir("t")) == folder);
  // It had to fetch them all, so they were its own to clear: the present content is left.
  CHECK(files_in(rig.paths.store_dir()) == 1);
  const int64_t grown = resident_kib(rig.worker.pid()) - resident;
  INFO("resident memory " << resident << " KiB, grown by " << grown << " KiB");
  CHECK(static_cast<double>(grown) <= kMostKibEach * kReplacements);
  rig.run_until_steps(3);
  rig.wait_count("n", 0);
  rig.stop_worker();
  CHECK(children_of(getpid()).empty());
}
