// The real freeride-worker and freeride-runner, with a trainer and a manager played by the test.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/worker_process_test_support.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/plugin_file.hpp"

using namespace freeride;
using namespace freeride::worker::testing;

namespace fs = std::filesystem;

namespace {

std::string plugin_bytes(const std::string& name) {
  std::ifstream in(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / (name + ".so"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bus::CreateTask spec(Rig& rig, const std::string& task, const std::string& plugin,
                     std::map<std::string, std::string> params = {}) {
  bus::CreateTask create;
  create.task = task;
  create.purpose = "run";
  create.plugin = plugin + ".so";
  create.sha256 = rig.manager.offer(plugin_bytes(plugin));
  create.params = std::move(params);
  return create;
}

}  // namespace

TEST_CASE("a task harvests a trainer's bubbles, obeys orders, and stops with a verdict", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  rig.manager.wait([&] { return rig.manager.rank_why("gpt", 0) == "no_task"; });
  rig.manager.create(spec(rig, "t", "counter", {{"step_us", "300"}}));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 20; });
  rig.manager.wait([&] { return rig.manager.rank_why("gpt", 0) == "harvesting"; });
  rig.manager.wait([&] { return !rig.manager.iterations.empty() && rig.manager.harvested_ns > 0; });
  CHECK(rig.manager.task("t").counters.leases > 0);
  CHECK(rig.manager.harvested_ns <= rig.manager.bubble_ns);
  CHECK(rig.manager.task("t").counters.peak_memory_bytes > 0);
  for (const auto& iteration : rig.manager.iterations)
    CHECK(iteration.bubble_ns <= iteration.end_ns - iteration.begin_ns);

  rig.manager.order("t", "pause");
  rig.manager.wait_new_report();
  rig.manager.wait([&] { return rig.manager.task("t").state == "PAUSED"; });
  rig.manager.wait_new_report();
  const uint64_t steps = rig.manager.task("t").counters.steps;
  rig.manager.wait_new_report();
  rig.manager.wait_new_report();
  CHECK(rig.manager.task("t").counters.steps == steps);
  CHECK(rig.manager.task("t").why == "paused_by_user");
  rig.manager.order("t", "run");
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > steps; });
  rig.manager.wait([&] { return rig.manager.task("t").why.empty(); });
  CHECK(rig.manager.task("t").bubble_ns > 0);
  rig.manager.order("t", "stop");
  CHECK(rig.manager.verdict("t").kind == "stopped");
  CHECK(rig.manager.verdict("t").cause == "order");
  rig.stop_worker();
}

TEST_CASE("verdicts of tasks that misbehave; worker and other tasks go on", "[process]") {
  Rig rig({"--grace-ms", "50", "--hang-ms", "400", "--init-ms", "1500"});
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(spec(rig, "good", "counter", {{"step_us", "200"}}));
  rig.manager.wait([&] { return rig.manager.task("good").counters.steps > 5; });
  struct Case {
    const char *where, *how, *kind, *transition, *cause;
  };
  for (const Case& c :
       {Case{"step", "abort", "crashed", "RunNextStep", "signal"},
        Case{"init", "fail", "failed", "InitSideTask", "transition"},
        Case{"step", "spin", "overran", "RunNextStep", ""}, Case{"step", "hang", "overran", "RunNextStep", "no_pause"},
        Case{"create", "throw", "failed", "CreateSideTask", "transition"},
        Case{"step", "exit0", "failed", "RunNextStep", "exit"}, Case{"init", "spin", "overran", "InitSideTask", ""}}) {
    CAPTURE(c.where, c.how);
    rig.manager.create(spec(rig, "bad", "faulty", {{"where", c.where}, {"how", c.how}}));
    const bus::Verdict verdict = rig.manager.verdict("bad");
    CHECK(verdict.kind == c.kind);
    CHECK(verdict.transition == c.transition);
    // A task that spins at the lowest priority may pass either limit first: lease_end or no_pause.
    CHECK((*c.cause == '\0' ? !verdict.cause.empty() : verdict.cause == c.cause));
    CHECK_FALSE(verdict.reason.empty());
  }
  const uint64_t steps = rig.manager.task("good").counters.steps;
  rig.manager.wait([&] { return rig.manager.task("good").counters.steps > steps; });
  rig.stop_worker();
}

TEST_CASE("kill -9 of runner or supervisor is a verdict; the worker stays", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  for (const bool supervisor : {true, false}) {
    rig.manager.create(spec(rig, "t", "counter", {{"step_us", "200"}}));
    rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 2; });
    const TaskProcesses task = task_processes(rig.worker.pid());
    REQUIRE(task.supervisor > 1);
    REQUIRE(task.runner > 1);
    const Watched runner(task.runner);
    REQUIRE(kill(supervisor ? task.supervisor : task.runner, SIGKILL) == 0);
    const auto verdict = rig.manager.verdict("t");
    CHECK(verdict.kind == (supervisor ? "lost" : "crashed"));
    CHECK(verdict.cause == (supervisor ? "supervisor" : "signal"));
    CHECK(verdict.signal == SIGKILL);
    CHECK(runner.ends());
    rig.manager.forget("t");
  }
  CHECK(rig.worker.alive());
  rig.stop_worker();
}

TEST_CASE("kill -9 of the worker ends its side tasks; a trainer finds the next worker", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(spec(rig, "t", "counter", {{"step_us", "200"}}));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 2; });
  const TaskProcesses task = task_processes(rig.worker.pid());
  REQUIRE(task.supervisor > 1);
  REQUIRE(task.runner > 1);
  const Watched supervisor(task.supervisor), runner(task.runner);
  rig.worker.kill_hard();
  CHECK(supervisor.ends());
  CHECK(runner.ends());
  CHECK(trainer.disconnected());
  rig.restart_worker();
  rig.manager.wait_registered();
  CHECK(rig.manager.tasks.empty());
  FakeTrainer again(rig.paths);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  rig.stop_worker();
}

TEST_CASE("a worker whose socket or run folder was removed makes it again, and keeps its trainers", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.create(spec(rig, "t", "counter", {{"step_us", "200"}}));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 2; });
  const std::string path = rig.paths.worker_socket("cpu-0").string();
  REQUIRE(std::filesystem::remove(path));
  rig.manager.wait([&] { return std::filesystem::exists(path); });
  const auto folder = rig.paths.run_dir;
  std::filesystem::remove_all(folder);  // as the end of a user's last session does
  rig.manager.wait([&] { return std::filesystem::exists(path) && std::filesystem::exists(folder / "host-id"); });
  {
    const FakeRank second(1);
    auto socket = std::move(pages::connect_to_worker(path).value());
    CHECK(exchange(socket.get(), "FRHELLO1", second.fd()) == "OK");
  }
  const auto steps = rig.manager.task("t").counters.steps;
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > steps; });
  CHECK(rig.manager.rank_state("gpt", 0) == "active");
  rig.stop_worker();
}

TEST_CASE("a trainer that dies in a bubble is lost, and its lease with it", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  {
    FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kOneLongBubble);
    rig.manager.create(spec(rig, "t", "counter", {{"step_us", "200"}}));
    rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 2; });
  }
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "lost"; });
  CHECK(rig.manager.rank_why("gpt", 0) == "died");
  rig.manager.wait_new_report();
  rig.manager.wait([&] { return rig.manager.task("t").state == "PAUSED"; });
  rig.manager.wait_new_report();
  const uint64_t steps = rig.manager.task("t").counters.steps;
  rig.manager.wait_new_report();
  rig.manager.wait_new_report();
  CHECK(rig.manager.task("t").counters.steps == steps);
  CHECK(rig.manager.task("t").verdict.kind.empty());
  rig.stop_worker();
}

TEST_CASE("the manager goes and comes back: tasks go on and are told again", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  const auto create = spec(rig, "t", "counter", {{"step_us", "200"}});
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 2; });
  const uint64_t steps = rig.manager.task("t").counters.steps;
  rig.manager.down();
  const auto supervisors = children_of(rig.worker.pid());
  REQUIRE(supervisors.size() == 1);
  rig.manager.up();
  rig.manager.wait_registered();
  CHECK(rig.manager.tasks.count("t") == 1);
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > steps; });
  CHECK(children_of(rig.worker.pid()) == supervisors);
  // A manager that has forgotten the worker asks it to register again; what its plan does not name is kept, paused.
  rig.manager.know_worker = false;
  rig.manager.plan.orders.clear();
  rig.manager.wait([&] { return rig.manager.task("t").why == "not_recorded"; });
  const uint64_t kept = rig.manager.task("t").counters.steps;
  for (int n = 0; n < 3; ++n) rig.manager.wait_new_report();
  CHECK(rig.manager.task("t").counters.steps <= kept + 1);  // one may have been under way
  CHECK(rig.manager.task("t").verdict.kind.empty());
  CHECK(children_of(rig.worker.pid()) == supervisors);
  // One that knows it lets it go on.
  rig.manager.know_worker = false;
  rig.manager.plan.orders = {{"t", "run"}};
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > kept + 1; });
  rig.stop_worker();
}

TEST_CASE("a new worker leaves an idle device alone until trainings had time to attach", "[process]") {
  Rig rig({"--settle-ms", "60000"});
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "counter", {{"step_us", "200"}});
  create.when_idle = true;
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("t").why == "settling"; });
  rig.manager.wait_new_report();
  CHECK(rig.manager.task("t").state == "PAUSED");
  CHECK(rig.manager.task("t").counters.steps == 0);
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles);  // bubbles are used from the first on
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 0; });
  rig.stop_worker();
}

TEST_CASE("without renewed orders a task pauses, and is ended after a while", "[process]") {
  Rig rig;
  rig.manager.pause_ms = 1000;
  rig.manager.stop_ms = 60'000;
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "counter", {{"step_us", "200"}});
  create.when_idle = true;
  create.epoch = 5;
  create.instance = "1-1";
  const auto steps = [&] { return rig.manager.task("t").counters.steps; };
  rig.manager.wait([&] { return rig.manager.heard > 0; });
  create.heard = rig.manager.heard;
  rig.manager.create(create);
  rig.manager.wait([&] { return steps() > 100; });
  CHECK(rig.manager.task("t").epoch == 5);
  CHECK(rig.manager.task("t").instance == "1-1");

  rig.manager.silent = true;
  rig.manager.wait([&] { return rig.manager.task("t").why == "orders_expired"; });
  const uint64_t before = steps();
  for (int n = 0; n < 3; ++n) rig.manager.wait_new_report();
  CHECK(steps() == before);
  rig.manager.silent = false;
  rig.manager.wait([&] { return steps() > before + 100; });

  rig.manager.stop_ms = 2000;
  rig.manager.wait_new_report();
  rig.manager.wait_new_report();
  rig.manager.silent = true;
  CHECK(rig.manager.verdict("t").kind == "lost");
  CHECK(rig.manager.task("t").verdict.cause == "expired");
  rig.stop_worker();
}

TEST_CASE("an order of a later epoch ends a copy at once; what comes late or twice is refused", "[process]") {
  Rig rig;
  rig.manager.pause_ms = 5000;
  rig.manager.stop_ms = 60'000;
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "counter", {{"step_us", "200"}, {"trace", "1"}});
  create.when_idle = true;
  create.epoch = 5;
  create.instance = "1-1";
  create.heard = rig.manager.heard;
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 10; });
  CHECK(rig.manager.create_error(create).message.empty());                        // repeated, and there
  CHECK(rig.manager.call(bus::TaskOrder{"t", "stop", 4}).error == std::nullopt);  // held up: of one before
  rig.manager.wait_new_report();
  rig.manager.wait_new_report();
  CHECK(rig.manager.task("t").verdict.kind.empty());
  rig.manager.plan.orders = {{"t", "stop", 6}};
  CHECK(rig.manager.verdict("t").kind == "lost");
  CHECK(rig.manager.task("t").verdict.cause == "superseded");

  rig.manager.plan.orders.clear();
  CHECK(rig.manager.create_error(create).message.find("too late") != std::string::npos);
  create.epoch = 7;
  create.heard = rig.manager.heard + 1000;  // of nothing that it ever said
  CHECK(rig.manager.create_error(create).message.find("too late") != std::string::npos);
  create.epoch = 8;
  create.heard = rig.manager.heard;
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 10; });
  CHECK(rig.manager.task("t").epoch == 8);
  rig.stop_worker();
}

TEST_CASE("a worker whose operator allows no network refuses a task that is to have it", "[process]") {
  Rig rig({"--no-task-network"});
  rig.manager.wait_registered();
  bus::CreateTask task = spec(rig, "t", "counter", {});
  task.network = true;
  const Error error = rig.manager.create_error(task);
  CHECK(error.code == Code::kPermission);
  CHECK(error.text().find("--no-task-network") != std::string::npos);
  task.network = false;
  rig.manager.create(task);
  rig.stop_worker();
}

TEST_CASE("bad hellos are refused with a line, and good ones taken after them", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  const std::string path = rig.paths.worker_socket("cpu-0").string();
  const auto answer_to = [&](int fd, const std::string& text = "FRHELLO1") {
    auto socket = std::move(pages::connect_to_worker(path).value());
    return exchange(socket.get(), text, fd);
  };
  FakeRank good;
  {
    const Fd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(unsealed.get(), sizeof(freeride_bubble_page)) == 0);
    CHECK(answer_to(unsealed.get()).rfind("ERR ", 0) == 0);
  }
  {
    const Fd tiny(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(tiny.get(), 100) == 0);
    REQUIRE(fcntl(tiny.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK(answer_to(tiny.get()).find("too short") != std::string::npos);
  }
  {
    FakeRank newer;
    newer.page().header.major = 9;
    CHECK(answer_to(newer.fd()).find("version 9") != std::string::npos);
  }
  {
    FakeRank elsewhere(0, "cpu-7");
    CHECK(answer_to(elsewhere.fd()).find("cpu-7") != std::string::npos);
  }
  {
    FakeRank unterminated;
    std::memset(unterminated.page().job, 'x', sizeof(unterminated.page().job));
    CHECK(answer_to(unterminated.fd()).find("job") != std::string::npos);
  }
  CHECK(answer_to(good.fd(), "FRHELLO2").rfind("ERR ", 0) == 0);
  CHECK(answer_to(good.fd(), "garbage of some length that is no hello").rfind("ERR ", 0) == 0);
  CHECK(answer_to(-1).rfind("ERR ", 0) == 0);
  FakeTrainer trainer(rig.paths);
  CHECK(answer_to(FakeRank().fd()).find("attached already") != std::string::npos);
  CHECK(rig.worker.alive());
  rig.stop_worker();
}

TEST_CASE("25 tasks in a row leave nothing behind", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "faulty", {{"where", "create"}, {"how", "fail"}});
  const auto once = [&](int i) {
    create.task = "t" + std::to_string(i % 20);  // what is known of the others is kept meanwhile
    rig.manager.create(create);
    CHECK(rig.manager.verdict(create.task).kind == "failed");
    rig.manager.forget(create.task);
  };
  once(0);
  once(0);
  const size_t fds = fds_of(rig.worker.pid());
  for (int i = 0; i < 25; ++i) once(i);
  rig.manager.wait([&] { return fds_of(rig.worker.pid()) <= fds; });
  CHECK(children_of(rig.worker.pid()).empty());
  rig.stop_worker();
}

TEST_CASE("what an ended task has left goes when there is too much of it, unless somebody wants the task",
          "[process]") {
  Rig rig({"--keep-bytes", "0"});
  rig.manager.wait_registered();
  const auto folder = [&](const std::string& name) { return rig.paths.task_dir(name); };
  rig.manager.wanted = {"wanted"};
  for (const std::string name : {"wanted", "t"}) {
    rig.manager.create(spec(rig, name, "faulty", {{"where", "create"}, {"how", "fail"}}));
    CHECK(rig.manager.verdict(name).kind == "failed");
  }
  rig.manager.wait([&] { return !fs::exists(folder("t")); });
  CHECK(fs::exists(folder("wanted")));
  rig.stop_worker();
}

TEST_CASE("a large plugin is not hashed on the main thread", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  // CPU time so far, of the whole process and of its main thread.
  const auto executed = [&](const std::string& of) {
    std::ifstream stat("/proc/" + std::to_string(rig.worker.pid()) + of + "/schedstat");
    int64_t ns = 0;
    stat >> ns;
    return ns;
  };
  const auto all = [&] {
    int64_t ns = 0;
    for (const auto& thread : fs::directory_iterator("/proc/" + std::to_string(rig.worker.pid()) + "/task"))
      ns += executed("/task/" + thread.path().filename().string());
    return ns;
  };
  const std::string bytes = plugin_bytes("counter") + std::string(64u << 20, '\0');
  const std::string sha256 = sha256_hex(bytes);
  fs::create_directories(rig.paths.store_dir());
  std::ofstream(rig.paths.store_dir() / (sha256 + ".so"), std::ios::binary) << bytes;
  auto large = spec(rig, "t", "counter");
  large.sha256 = sha256;
  const int64_t all_ns = all(), main_ns = executed("/task/" + std::to_string(rig.worker.pid()));
  rig.manager.create(large);
  rig.manager.wait([&] { return rig.manager.task("t").state == "CREATED" || rig.manager.task("t").state == "PAUSED"; });
  CHECK(executed("/task/" + std::to_string(rig.worker.pid())) - main_ns < (all() - all_ns) / 2);
  rig.stop_worker();
}

TEST_CASE("content that the manager does not have, or sends wrongly, is a verdict", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  bus::CreateTask create = spec(rig, "t", "counter");
  create.sha256 = std::string(64, 'a');
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "lost");
  rig.manager.forget("t");
  rig.manager.contents[create.sha256] = "something else";
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "rejected");
  CHECK(rig.manager.create_error(bus::CreateTask{}).code == Code::kInvalidArgument);
  create.task = "../evil";
  CHECK(rig.manager.create_error(create).code == Code::kInvalidArgument);
  rig.stop_worker();
}

TEST_CASE("profiling gives memory and durations and ends by itself", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "counter", {{"step_us", "500"}});
  create.purpose = "profile";
  create.steps = 20;
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "finished");
  const bus::TaskReport report = rig.manager.task("t");
  CHECK(report.purpose == "profile");
  CHECK(report.counters.steps == 20);
  CHECK(report.counters.predicted_ns > 0);
  REQUIRE(report.profile.size() == 1);
  const bus::Profile& profile = report.profile[0];
  CHECK(profile.conditions == "idle");
  CHECK(profile.steps.count + profile.warm_up_steps == 20);  // on a busy machine the first are slow
  CHECK(profile.step_ns.size() == 20);
  CHECK(profile.steps.p50_ns >= 500'000);
  CHECK(profile.steps.p50_ns <= profile.steps.p90_ns);
  CHECK(profile.steps.p99_ns <= profile.steps.max_ns);
  CHECK(profile.starts.count == 1);
  CHECK(profile.pauses.count == 1);
  CHECK(profile.pieces.empty());
  CHECK(profile.create_ns > 0);
  CHECK(profile.init_ns > 0);
  CHECK(profile.peak_bytes.at("host") > int64_t{1} << 20);  // by the kernel, however short it was
  CHECK(profile.peak_bytes.count("gpu") == 0);              // absent, not zero
  CHECK(profile.gpu_bytes.empty());
  CHECK_FALSE(std::filesystem::exists(rig.paths.task_dir("t")));  // there is one for every profile that is ever taken
  // The same name again, to run: it waits for a trainer, and begins with what is known.
  create.purpose = "run";
  create.steps = 0;
  create.predicted_step_ns = profile.steps.p90_ns;
  create.start_paused = true;
  rig.manager.forget("t");
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("t").state == "CREATED"; });
  CHECK(rig.manager.task("t").counters.predicted_ns >= profile.steps.p90_ns);
  CHECK(rig.manager.task("t").profile.empty());
  rig.manager.order("t", "run");
  rig.manager.wait([&] { return rig.manager.task("t").state == "PAUSED"; });
  CHECK(rig.manager.task("t").counters.steps == 0);
  rig.stop_worker();
}

TEST_CASE("a profile beside a training: its steps are in bubbles", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  auto create = spec(rig, "t", "yielding", {{"pieces", "3"}, {"piece_us", "300"}});
  create.purpose = "profile";
  create.steps = 12;
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "finished");
  const bus::TaskReport report = rig.manager.task("t");
  REQUIRE(report.profile.size() == 1);
  const bus::Profile& profile = report.profile[0];
  CHECK(profile.conditions == "bubbles");
  CHECK(profile.steps.count + profile.warm_up_steps == 12);
  CHECK(profile.pieces.size() == 3);
  CHECK(report.counters.leases > 0);
  rig.stop_worker();
}

TEST_CASE("a profile beside a training that gives no bubbles ends with what it has", "[process]") {
  Rig rig({"--profile-ms", "1500"});
  rig.manager.wait_registered();
  FakeRank rank(0, "cpu-0");  // attached, and never in a bubble
  auto socket = pages::connect_to_worker(rig.paths.worker_socket("cpu-0").string());
  REQUIRE(socket.ok());
  REQUIRE(exchange(socket->get(), "FRHELLO1", rank.fd()) == "OK");
  auto create = spec(rig, "t", "counter");
  create.purpose = "profile";
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "stopped");
  const bus::TaskReport report = rig.manager.task("t");
  REQUIRE(report.profile.size() == 1);
  CHECK(report.profile[0].steps.count == 0);
  CHECK(report.profile[0].peak_bytes.at("host") > 0);
  CHECK(report.profile[0].ended.find("--profile-ms") != std::string::npos);
  rig.stop_worker();
}

TEST_CASE("a profile that is ordered from a worker that has just started waits, and has its steps", "[process]") {
  Rig rig({"--settle-ms", "3000"});
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "counter", {{"step_us", "500"}});
  create.purpose = "profile";
  create.steps = 20;
  rig.manager.create(create);
  CHECK(rig.manager.verdict("t").kind == "finished");
  CHECK(rig.manager.task("t").counters.steps == 20);
  rig.stop_worker();
}

TEST_CASE("a profile that hangs in InitSideTask is a verdict and leaves nothing", "[process]") {
  Rig rig({"--init-ms", "300", "--profile-ms", "300", "--hang-ms", "500"});
  rig.manager.wait_registered();
  auto create = spec(rig, "t", "faulty", {{"where", "init"}, {"how", "hang"}});
  create.purpose = "profile";
  rig.manager.create(create);
  const bus::Verdict verdict = rig.manager.verdict("t");
  CHECK(verdict.kind == "overran");
  CHECK(verdict.transition == "InitSideTask");
  CHECK(rig.manager.task("t").profile.empty());
  rig.manager.wait([&] { return children_of(rig.worker.pid()).empty(); });
  rig.stop_worker();
}

TEST_CASE("a worker whose terminal is closed stops in good order", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  rig.manager.create(spec(rig, "t", "counter"));
  rig.manager.wait([&] { return rig.manager.task("t").state == "PAUSED"; });
  REQUIRE(rig.worker.pid() > 1);
  kill(rig.worker.pid(), SIGHUP);
  int code = -1;
  rig.manager.wait([&] { return rig.worker.ended(code); });
  CHECK(code == 0);
  CHECK(rig.manager.task("t").verdict.kind == "stopped");
}

TEST_CASE("scripts of a host find its name in the run folder", "[process]") {
  const auto told = [](const Rig& rig) {
    std::string word;
    std::ifstream(rig.paths.run_dir / "host-id") >> word;
    return word;
  };
  Rig named({"--host-id", "here"});
  named.manager.wait_registered();
  CHECK(told(named) == "here");
  named.stop_worker();
  Rig rig;
  rig.manager.wait_registered();
  CHECK(told(rig) == host_id());
  rig.stop_worker();
}

TEST_CASE("wrong usage and a device that is taken are one line and an exit code", "[process]") {
  Rig rig;
  rig.manager.wait_registered();
  CHECK(run_worker(rig.paths, {"--device", "cpu-0"}) == 1);
  CHECK(run_worker(rig.paths, {"--device", "a/b"}) == 2);
  CHECK(run_worker(rig.paths, {"--device", "cpu-1", "--sandbox", "jail"}) == 2);
  CHECK(run_worker(rig.paths, {"--device", "cpu-1", "--host-id", "a/b"}) == 2);
  CHECK(run_worker(rig.paths, {"--device", "cpu-1", "--cores", "many"}) == 2);
  CHECK(run_worker(rig.paths, {"--device", "cpu-1", "--runner", "/nowhere/runner"}) == 1);
  CHECK(run_worker(rig.paths, {"--no-such-option"}) == 2);
  rig.stop_worker();
}
