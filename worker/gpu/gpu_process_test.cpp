// The real freeride-worker on a GPU device, with the driver and the MPS control program played by the tests.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "daemon/stranger_test_support.hpp"
#include "daemon/worker_process_test_support.hpp"
#include "freeride/policy/probe.hpp"
#include "gpu/fake_gpu_test_support.hpp"

using namespace freeride;
using namespace freeride::worker::testing;

namespace fs = std::filesystem;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr const char* kGpu = "GPU-12345678-abcd";

// The driver, as this says, for workers started in this scope.
class FakeDriver {
 public:
  FakeDriver() {
    setenv("LD_LIBRARY_PATH", FREERIDE_BUILD_DIR "/fake-driver", 1);
    setenv("FREERIDE_FAKE_GPU", (temp_.path() / "gpu").c_str(), 1);
    say(2 * kGiB);
  }
  ~FakeDriver() {
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("FREERIDE_FAKE_GPU");
  }
  void say(int64_t used_bytes, const std::string& more = "") {
    const auto file = temp_.path() / "gpu", next = temp_.path() / "next";
    std::ofstream(next) << "uuid " << kGpu << "\nname FakeGPU\ntotal " << 80 * kGiB << "\nused " << used_bytes << "\n"
                        << more;
    fs::rename(next, file);  // never half a file
  }

 private:
  TempFolder temp_;
};

bus::CreateTask spec(Rig& rig, const std::string& task, int64_t memory_bytes) {
  std::ifstream in(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "counter.so", std::ios::binary);
  bus::CreateTask create;
  create.task = task;
  create.purpose = "run";
  create.plugin = "counter.so";
  create.sha256 = rig.manager.offer({std::istreambuf_iterator<char>(in), {}});
  create.params = {{"step_us", "200"}};
  create.memory_limit_bytes = memory_bytes;
  return create;
}

// On a GPU the kill rule counts wall time; these tasks execute on processors that others may have for long. So does a
// played GPU: a probe's kernel may come late for no other reason.
std::vector<std::string> gpu_args(const std::string& probe_one_in = "0") {
  return {"--device",   kGpu,    "--mps-control", fake_control(), "--sandbox",      "none",
          "--grace-ms", "60000", "--hang-ms",     "60000",        "--probe-one-in", probe_one_in};
}

std::string refusal(std::vector<std::string> args) {
  TempFolder temp;
  const Paths paths{temp.path() / "run", temp.path() / "state"};
  Rig::prepared(paths);
  CHECK(run_worker(paths, args) == 1);
  std::ifstream in(temp.path() / "worker.log");
  return {std::istreambuf_iterator<char>(in), {}};
}

// The processes of the fake MPS servers under this worker.
size_t mps_processes(pid_t worker) {
  size_t count = 0;
  for (const pid_t pid : children_of(worker)) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
    const std::string line{std::istreambuf_iterator<char>(in), {}};
    if (line.find("fake_mps_control") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("a worker that cannot hold side tasks on a GPU ends with one line that says why", "[gpu]") {
  CHECK(refusal({"--device", kGpu, "--sandbox", "none"}).find("no NVIDIA driver: libnvidia-ml.so.1") !=
        std::string::npos);
  FakeDriver driver;
  const auto args = gpu_args();
  auto other = args;
  other[1] = "GPU-0000";
  CHECK(refusal(other).find("there is no GPU GPU-0000 here; there are: " + std::string(kGpu)) != std::string::npos);
  driver.say(kGiB, "mode 3\n");
  CHECK(refusal(args).find("EXCLUSIVE_PROCESS") != std::string::npos);
  driver.say(kGiB, "mig 1\n");
  CHECK(refusal(args).find("MIG") != std::string::npos);
  driver.say(kGiB, "error 15\n");
  CHECK(refusal(args).find("GPU is lost") != std::string::npos);
  driver.say(kGiB);
  CHECK(refusal({"--device", kGpu, "--sandbox", "none"}).find("no MPS control program") != std::string::npos);
}

TEST_CASE("beside a process that is no attached rank nothing executes that needs an idle GPU", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  auto create = spec(rig, "a", kGiB);
  create.when_idle = true;
  rig.manager.create(create);
  const auto steps = [&] { return rig.manager.task("a").counters.steps; };
  rig.manager.wait([&] { return steps() > 5; });
  driver.say(3 * kGiB, "process " + std::to_string(getpid()) + " 1073741824\n");  // as a training without the hook
  rig.manager.wait([&] { return rig.manager.task("a").why == "other_process"; });
  const uint64_t before = steps();
  for (int n = 0; n < 3; ++n) rig.manager.wait_new_report();
  CHECK(steps() == before);
  CHECK(rig.manager.task("a").state == "PAUSED");
  CHECK(rig.manager.other_process);
  driver.say(2 * kGiB);
  rig.manager.wait([&] { return steps() > before; });
  CHECK_FALSE(rig.manager.other_process);
  rig.stop_worker();
}

TEST_CASE("side tasks on a GPU: an MPS server each, its environment, and nothing left behind", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  for (const char* name : {"a", "b"}) rig.manager.create(spec(rig, name, kGiB));
  rig.manager.wait(
      [&] { return rig.manager.task("a").counters.steps > 5 && rig.manager.task("b").counters.steps > 5; });
  CHECK(mps_processes(rig.worker.pid()) == 2);
  CHECK(rig.manager.task("a").sandbox.find("MPS server of its own (1664 MiB") != std::string::npos);
  CHECK(std::distance(fs::directory_iterator(rig.paths.run_dir / "mps"), fs::directory_iterator()) == 2);

  const Error senseless = rig.manager.create_error(spec(rig, "c", 0));
  CHECK(senseless.code == Code::kRejected);
  CHECK(rig.manager.create_error(spec(rig, "c", 79 * kGiB)).code == Code::kRejected);
  CHECK(rig.manager.create_error(spec(rig, "c", 74 * kGiB)).code == Code::kExhausted);

  rig.manager.order("a", "stop");
  CHECK(rig.manager.verdict("a").kind == "stopped");
  rig.manager.wait([&] { return mps_processes(rig.worker.pid()) == 1; });
  rig.stop_worker();
  CHECK(fs::is_empty(rig.paths.run_dir / "mps"));
}

TEST_CASE("a trainer that grows evicts the youngest; a dead MPS server is a verdict; the other task goes on", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  for (const char* name : {"a", "b", "c"}) {
    rig.manager.create(spec(rig, name, 10 * kGiB));
    rig.manager.wait([&] { return rig.manager.task(name).counters.steps > 0; });
  }
  driver.say(50 * kGiB);
  const bus::Verdict evicted = rig.manager.verdict("c");
  CHECK(evicted.kind == "evicted");
  CHECK(evicted.limit.find("reserve") != std::string::npos);

  for (const auto& entry : fs::directory_iterator(rig.paths.run_dir / "mps")) {
    if (entry.path().filename().string().find("-1") == std::string::npos) continue;  // of the first task
    pid_t control = 0;
    std::ifstream(entry.path() / "nvidia-cuda-mps-control.pid") >> control;
    REQUIRE(control > 1);
    kill(control, SIGKILL);
  }
  const bus::Verdict lost = rig.manager.verdict("a");
  CHECK(lost.kind == "lost");
  CHECK(lost.reason.find("control daemon") != std::string::npos);
  const uint64_t steps = rig.manager.task("b").counters.steps;
  rig.manager.wait([&] { return rig.manager.task("b").counters.steps > steps; });
  CHECK(rig.worker.alive());
  rig.stop_worker();
}

TEST_CASE("kill -9 of a worker on a GPU takes the MPS servers with it; the next one sweeps their folders", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.create(spec(rig, "a", kGiB));
  rig.manager.wait([&] { return rig.manager.task("a").counters.steps > 0; });
  std::vector<pid_t> children = children_of(rig.worker.pid());
  REQUIRE(children.size() == 2);
  for (const pid_t child : std::vector<pid_t>(children)) {
    for (const pid_t grandchild : children_of(child)) children.push_back(grandchild);
  }
  REQUIRE(children.size() == 4);  // control, server, supervisor, runner
  std::vector<std::unique_ptr<Watched>> watched;
  for (const pid_t pid : children) watched.push_back(std::make_unique<Watched>(pid));
  rig.worker.kill_hard();
  for (const auto& process : watched) CHECK(process->ends());
  CHECK_FALSE(fs::is_empty(rig.paths.run_dir / "mps"));
  rig.restart_worker();
  rig.manager.wait_registered();
  CHECK(fs::is_empty(rig.paths.run_dir / "mps"));
  rig.stop_worker();
}

TEST_CASE("a profile on a GPU has the process's own memory there, and the host's", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  auto create = spec(rig, "p", 10 * kGiB);
  create.purpose = "profile";
  create.steps = 100;
  create.params = {{"step_us", "20000"}, {"sleep", "1"}};
  rig.manager.create(create);
  rig.manager.wait([&] { return rig.manager.task("p").counters.steps > 0; });
  // Supervisor and runner; the others are the MPS server's.
  pid_t runner = 0, control = 0;
  for (const pid_t pid : children_of(rig.worker.pid())) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
    const std::string line{std::istreambuf_iterator<char>(in), {}};
    if (line.find("supervise") != std::string::npos) runner = children_of(pid).at(0);
    if (line.find("fake_mps_control") != std::string::npos) control = pid;
  }
  REQUIRE(runner > 1);
  REQUIRE(control > 1);
  for (const auto& entry : fs::directory_iterator(rig.paths.run_dir / "mps"))
    std::ofstream(entry.path() / "clients") << runner;
  driver.say(6 * kGiB, "client " + std::to_string(runner) + " " + std::to_string(3 * kGiB) + "\nprocess " +
                           std::to_string(control) + " " + std::to_string(kGiB) + "\n");
  CHECK(rig.manager.verdict("p").kind == "finished");
  const bus::TaskReport report = rig.manager.task("p");
  REQUIRE(report.profile.size() == 1);
  const bus::Profile& profile = report.profile[0];
  CHECK(profile.peak_bytes.at("gpu") == 3 * kGiB);  // without its server's
  CHECK(profile.peak_bytes.at("host") > int64_t{1} << 20);
  CHECK(profile.peak_bytes.at("host") < kGiB);
  CHECK(profile.gpu_bytes.size() == profile.memory_t_ns.size());
  CHECK(std::find(profile.gpu_bytes.begin(), profile.gpu_bytes.end(), 3 * kGiB) != profile.gpu_bytes.end());
  CHECK(profile.steps.count + profile.warm_up_steps == 100);
  CHECK(report.counters.peak_memory_bytes == 3 * kGiB);
  rig.stop_worker();
}

// With those of replace_process_test, on a CPU and in sandboxes, 200 in all.
TEST_CASE("a side task that hides a fault of its GPU has had one, as its MPS server says", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  for (const char* name : {"honest", "hides"}) {
    rig.manager.create(spec(rig, name, kGiB));
    rig.manager.wait([&] { return rig.manager.task(name).counters.steps > 0; });
    if (std::string(name) == "hides") {
      for (const auto& log : fs::directory_iterator(rig.paths.run_dir / "mps-logs"))
        std::ofstream(log.path() / "server.log") << "[Server 1] Client {PID: 2} encountered a fatal GPU error.\n";
    }
    rig.manager.order(name, "stop");
    const bus::Verdict verdict = rig.manager.verdict(name);
    CHECK(verdict.kind == "stopped");
    CHECK(verdict.gpu_fault == (std::string(name) == "hides"));
  }
  rig.stop_worker();
  CHECK(fs::is_empty(rig.paths.run_dir / "mps-logs"));
}

TEST_CASE("a side task whose work makes the GPU fault is crashed, with the driver's Xid, however it ends", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.create(spec(rig, "t", kGiB));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 0; });
  pid_t plugin = 0;
  for (const pid_t pid : children_of(rig.worker.pid())) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
    const std::string line{std::istreambuf_iterator<char>(in), {}};
    if (line.find("supervise") != std::string::npos) plugin = children_of(pid).at(0);
  }
  REQUIRE(plugin > 1);
  for (const auto& log : fs::directory_iterator(rig.paths.run_dir / "mps-logs"))
    std::ofstream(log.path() / "server.log") << "[Server 1] Client {PID: 2} encountered a fatal GPU error.\n";
  driver.say(2 * kGiB, "xid 31\n");
  kill(plugin, SIGABRT);
  const bus::Verdict verdict = rig.manager.verdict("t");
  CHECK(verdict.kind == "crashed");
  CHECK(verdict.cause == "gpu_fault");
  CHECK(verdict.reason == "its work made the GPU fault (Xid 31)");
  CHECK(verdict.gpu_fault);
  CHECK(verdict.signal == SIGABRT);
  REQUIRE_FALSE(verdict.evidence.empty());
  CHECK(verdict.evidence[0].find("crashed: killed by signal") == 0);
  rig.stop_worker();
}

TEST_CASE("a step that has failed on a GPU is failed, though its process is slow to say so and is killed", "[gpu]") {
  FakeDriver driver;
  auto args = gpu_args();
  args[7] = "300";  // --grace-ms: of wall time
  Rig rig(args);
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  auto create = spec(rig, "t", kGiB);
  std::ifstream in(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "faulty.so", std::ios::binary);
  create.plugin = "faulty.so";
  create.sha256 = rig.manager.offer({std::istreambuf_iterator<char>(in), {}});
  create.params = {{"where", "step"}, {"how", "fail"}, {"exit", "hang"}};
  rig.manager.create(create);
  const bus::Verdict verdict = rig.manager.verdict("t");
  CHECK(verdict.kind == "failed");
  CHECK(verdict.cause == "transition");
  CHECK(verdict.reason == "told to fail");
  CHECK(verdict.transition == "RunNextStep");
  CHECK(std::any_of(verdict.evidence.begin(), verdict.evidence.end(),
                    [](const std::string& sign) { return sign.find("overran: ") != std::string::npos; }));
  rig.stop_worker();
}

TEST_CASE("30 replacements in a row on a GPU leave the last one's MPS server, and nothing else", "[gpu][slow]") {
  constexpr int kWarm = 3, kReplacements = 30;
  const std::vector<pid_t> before = children_of(getpid());  // other cases' processes
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  bus::CreateTask task = spec(rig, "t", kGiB);
  task.instance = "one";
  rig.manager.create(task);
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 5; });
  const std::string bytes = rig.manager.contents.at(task.sha256);
  const auto folders = [&] {
    const fs::directory_iterator all(rig.paths.run_dir / "mps");
    return std::distance(fs::begin(all), fs::end(all));
  };
  // Its control daemon and its supervisor; each with a child: server and runner.
  const auto processes = [&] {
    size_t count = 0;
    for (const pid_t child : children_of(rig.worker.pid())) count += 1 + children_of(child).size();
    return count;
  };
  size_t fds = 0;
  for (int i = 1; i <= kWarm + kReplacements; ++i) {
    task.sha256 = rig.manager.offer(bytes + std::to_string(i));
    task.revision = static_cast<uint64_t>(i);
    REQUIRE_FALSE(rig.manager.call(bus::ReplaceTask{task}).error);
    rig.manager.wait([&] { return rig.manager.task("t").replacement.revision == task.revision; });
    rig.manager.wait([&] {
      const auto state = rig.manager.task("t").replacement.state;
      return state == "done" || state == "failed";
    });
    INFO(rig.manager.task("t").replacement.reason);
    REQUIRE(rig.manager.task("t").replacement.state == "done");
    rig.manager.wait([&] { return processes() == 4 && folders() == 1; });
    if (i == kWarm) fds = fds_of(rig.worker.pid());
  }
  rig.manager.wait([&] { return fds_of(rig.worker.pid()) <= fds; });
  CHECK(mps_processes(rig.worker.pid()) == 1);
  const uint64_t steps = rig.manager.task("t").counters.steps;
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > steps; });
  rig.stop_worker();
  CHECK(fs::is_empty(rig.paths.run_dir / "mps"));
  CHECK(children_of(getpid()) == before);
}

TEST_CASE("a GPU that is busy while nobody has a lease: the task goes, and when it does so again, for good", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args("1"));
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.create(spec(rig, "t", kGiB));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 0 && rig.manager.probes > 0; });
  // Where nothing is busy a probe is clean; on processors that others use, too, not each.
  rig.manager.wait([&] { return rig.manager.probes > rig.manager.probe_findings; });
  driver.say(2 * kGiB, "busy 5000000\n");
  const bus::Verdict first = rig.manager.verdict("t");
  CHECK(first.kind == "lost");
  CHECK(first.cause == "probe");
  CHECK(first.reason.find("probes in a row found the GPU busy while no side task had a lease") != std::string::npos);
  CHECK(rig.manager.probe_findings >= 3);
  // With it gone the GPU is quiet, and the same content is seen to have been it: the next time it goes for good. It has
  // no lease before that is known. A played GPU is not always quiet enough, so it may take one more.
  std::string kind;
  for (int i = 0; i < 10 && kind != "overran"; ++i) {
    driver.say(2 * kGiB);
    const std::string name = "again" + std::to_string(i);
    rig.manager.create(spec(rig, name, kGiB));
    const uint64_t probes = rig.manager.probes;
    rig.manager.wait([&] { return rig.manager.task(name).counters.steps > 0; });
    CHECK(rig.manager.probes - probes >= policy::ProbeJudge::kControls / 2);
    driver.say(2 * kGiB, "busy 5000000\n");
    kind = rig.manager.verdict(name).kind;
    CHECK(rig.manager.verdict(name).cause == "probe");
  }
  CHECK(kind == "overran");
  rig.stop_worker();
}

TEST_CASE("without a CUDA driver there are no probes, and all else is as ever", "[gpu]") {
  FakeDriver driver;
  driver.say(2 * kGiB, "launch_error 719\n");
  Rig rig(gpu_args("1"));
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  rig.manager.create(spec(rig, "t", kGiB));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 20; });
  rig.manager.wait([&] {
    std::ifstream in(rig.temp.path() / "worker.log");
    const std::string log{std::istreambuf_iterator<char>(in), {}};
    return log.find("the GPU probe has ended: its first kernel did not end") != std::string::npos;
  });
  CHECK(rig.manager.probes == 0);
  rig.stop_worker();
}

TEST_CASE("15 side tasks in a row on a GPU leave no process, descriptor or folder", "[gpu]") {
  FakeDriver driver;
  Rig rig(gpu_args());
  rig.manager.wait_registered();
  FakeTrainer trainer(rig.paths, FakeTrainer::Mode::kBubbles, kGpu);
  size_t fds = 0;
  for (int i = 0; i < 15; ++i) {
    rig.manager.create(spec(rig, "t", kGiB));
    rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 0; });
    rig.manager.order("t", "stop");
    CHECK(rig.manager.verdict("t").kind == "stopped");
    rig.manager.wait([&] { return children_of(rig.worker.pid()).empty(); });
    if (i == 4) fds = fds_of(rig.worker.pid());
  }
  rig.manager.wait([&] { return fds_of(rig.worker.pid()) <= fds; });
  CHECK(fs::is_empty(rig.paths.run_dir / "mps"));
  rig.stop_worker();
}

TEST_CASE("another user's training is who the driver lists on the GPU, and gets memory only while it is", "[gpu]") {
  if (geteuid() != 0) return;
  FakeDriver driver;
  Rig rig(gpu_args());
  open_to_all(rig);
  rig.manager.wait_registered();
  rig.manager.create(spec(rig, "a", 60 * kGiB));
  rig.manager.wait([&] { return rig.manager.task("a").state == "PAUSED"; });
  // It attaches whenever it can.
  auto* wanted = static_cast<int64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(wanted != MAP_FAILED);
  Stranger training(kNobody, [&](const Stranger::Tell& tell) {
    FakeRank rank(0, kGpu);
    for (std::string said;; usleep(300'000)) {
      auto socket = pages::connect_to_worker(rig.paths.worker_socket(kGpu).string());
      if (!socket.ok()) continue;
      const std::string answer = exchange(socket->get(), "FRHELLO1", rank.fd());
      if (answer != said) tell(answer);
      said = answer;
      if (answer != "OK") continue;
      pollfd end{socket->get(), POLLIN, 0};
      while (poll(&end, 1, 5) == 0)
        pages::store_release(rank.page().wanted_bytes, static_cast<uint64_t>(pages::load_acquire(*wanted)));
      char text[1024];
      const ssize_t got = recv(socket->get(), text, sizeof(text), 0);
      tell(got > 0 ? said = std::string(text, static_cast<size_t>(got)) : "closed");
    }
  });
  const std::string unlisted = "ERR the driver does not list process " + std::to_string(training.pid());
  CHECK(training.line().find(unlisted) == 0);
  const std::string listed = "process " + std::to_string(training.pid()) + " 1073741824\n";
  driver.say(3 * kGiB, listed);
  CHECK(training.line() == "OK");
  driver.say(2 * kGiB);  // off the GPU, and still connected for a moment
  usleep(100'000);       // ten looks
  pages::store_release(*wanted, 30 * kGiB);
  CHECK(training.line().find(unlisted) == 0);
  rig.manager.wait([&] { return rig.manager.rank_state(std::to_string(kNobody) + "/gpt", 0) == "lost"; });
  rig.manager.wait_new_report();
  CHECK(rig.manager.task("a").verdict.kind.empty());
  driver.say(3 * kGiB, listed);
  CHECK(training.line() == "OK");
  CHECK(rig.manager.verdict("a").kind == "evicted");
  munmap(wanted, 4096);
  rig.stop_worker();
}
