// GpuGuard with a GPU of the tests' own and the fake control program.
#include "gpu/gpu_guard.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <optional>

#include "gpu/fake_gpu_test_support.hpp"
#include "loop/temp_folder_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using namespace freeride::worker::testing;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct FakeState {
  GpuReading reading{80 * kGiB, kGiB, {}};
  ComputeMode mode = ComputeMode::kDefault;
  bool mig = false, silent = false;
  std::vector<uint32_t> xids;  // not told yet
};

class FakeGpu final : public Gpu {
 public:
  explicit FakeGpu(FakeState& state) : state_(state) {}
  const std::string& model() const override { return model_; }
  const std::string& serial() const override { return serial_; }
  const std::string& driver_folder() const override { return folder_; }
  Result<GpuReading> read() override {
    if (state_.silent) return Error{Code::kUnavailable, "the driver does not answer", ""};
    return state_.reading;
  }
  Result<ComputeMode> compute_mode() override { return state_.mode; }
  bool mig() override { return state_.mig; }
  std::vector<uint32_t> take_xids() override { return std::exchange(state_.xids, {}); }

 private:
  FakeState& state_;
  const std::string model_ = "Fake GPU", serial_ = "1650000000001", folder_ = "/opt/driver/lib64";
};

// A side task's process: sleeps, dies with the test.
class Sleeper {
 public:
  Sleeper() : pid_(fork()) {
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ~Sleeper() {
    if (pid_ <= 1) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

struct Rig {
  TempFolder temp;
  TestLoop loop;
  FakeState gpu;
  GpuGuardOptions options;
  std::set<uint64_t> unleased;
  pid_t own = 0;
  bool training = true;
  std::map<uint64_t, pid_t> roots;
  std::map<uint64_t, policy::Verdict> ends;
  std::map<uint64_t, int64_t> memory;
  std::vector<std::pair<uint64_t, uint32_t>> faults;
  int64_t wanted = 0;
  std::unique_ptr<GpuGuard> guard;

  Rig() {
    options.gpu = "GPU-12345678-abcd";
    options.control = fake_control();
    options.mps_folder = temp.path() / "mps";
    options.reserve_bytes = 4 * kGiB;
  }
  Status open() {
    GpuGuard::Calls calls;
    calls.training = [this] { return training; };
    calls.root = [this](uint64_t task) { return roots.count(task) != 0 ? roots[task] : 0; };
    calls.end = [this](uint64_t task, policy::Verdict verdict) { ends[task] = std::move(verdict); };
    calls.memory = [this](uint64_t task, int64_t bytes) { memory[task] = bytes; };
    calls.wanted = [this] { return wanted; };
    calls.fault = [this](uint64_t task, uint32_t xid) { faults.emplace_back(task, xid); };
    calls.leased = [this](uint64_t task) { return unleased.count(task) == 0; };
    calls.own = [this] { return own; };
    auto opened = GpuGuard::open(options, *loop, std::move(calls), std::make_unique<FakeGpu>(gpu));
    if (!opened.ok()) return opened.error();
    guard = std::move(*opened);
    return {};
  }
  SandboxGrants prepare(uint64_t task) {
    std::optional<Result<SandboxGrants>> ready;
    guard->prepare(task, {geteuid(), getegid()}, [&](Result<SandboxGrants> grants) { ready = std::move(grants); });
    loop.until([&] { return ready.has_value(); });
    REQUIRE(ready->ok());
    return **ready;
  }
  void clients(const SandboxGrants& grants, const std::string& pids) {
    std::ofstream(grants.env.at("CUDA_MPS_PIPE_DIRECTORY") + "/clients") << pids;
  }
  void wait_end(uint64_t task) {
    loop.until([&] { return ends.count(task) != 0; });
  }
  void looks() { loop.for_a_while(100 * kNsPerMs); }
};

}  // namespace

TEST_CASE("a GPU on which side tasks cannot be held is refused in one line that says what to do", "[gpu]") {
  Rig rig;
  const auto refusal = [&] {
    auto opened = rig.open();
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().text().find('\n') == std::string::npos);
    return opened.error().text();
  };
  rig.gpu.mode = ComputeMode::kExclusive;
  CHECK(refusal().find("EXCLUSIVE_PROCESS") != std::string::npos);
  CHECK(refusal().find("nvidia-smi -i GPU-12345678-abcd -c DEFAULT") != std::string::npos);
  rig.gpu.mode = ComputeMode::kProhibited;
  CHECK(refusal().find("PROHIBITED") != std::string::npos);
  rig.gpu.mode = ComputeMode::kDefault;
  rig.gpu.mig = true;
  CHECK(refusal().find("MIG") != std::string::npos);
  rig.gpu.mig = false;
  rig.options.control = "/nowhere/mps-control";
  CHECK(refusal().find("/nowhere/mps-control") != std::string::npos);
  rig.options.control = fake_control();
  rig.options.reserve_bytes = 90 * kGiB;
  CHECK(refusal().find("makes no sense") != std::string::npos);
  rig.options.reserve_bytes = 4 * kGiB;
  rig.gpu.silent = true;
  CHECK(refusal().find("driver") != std::string::npos);
  rig.gpu.silent = false;
  rig.gpu.reading.processes = {{getpid(), kGiB, true}};
  CHECK(refusal().find("somebody else's MPS") != std::string::npos);
  rig.gpu.reading.processes.clear();
  CHECK(rig.open().ok());
}

TEST_CASE("a default MPS daemon, whose client training would become, is refused", "[gpu]") {
  Rig rig;
  TempFolder folder;
  setenv("CUDA_MPS_PIPE_DIRECTORY", folder.path().c_str(), 1);
  const pid_t daemon = fork();
  if (daemon == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "nvidia-cuda-mps-control");
    for (;;) pause();
  }
  REQUIRE(daemon > 1);
  for (std::string comm; comm != "nvidia-cuda-mps";)
    std::getline(std::ifstream("/proc/" + std::to_string(daemon) + "/comm") >> std::ws, comm);
  std::ofstream(folder.path() / "nvidia-cuda-mps-control.pid") << daemon;
  const auto opened = rig.open();
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().text().find("echo quit | CUDA_MPS_PIPE_DIRECTORY=") != std::string::npos);
  kill(daemon, SIGKILL);
  waitpid(daemon, nullptr, 0);
  CHECK(rig.open().ok());  // a pid file that nobody is behind
  unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

TEST_CASE("tasks are admitted up to what training, the reserve and live tasks leave", "[gpu]") {
  Rig rig;
  rig.gpu.reading.used_bytes = 50 * kGiB;
  REQUIRE(rig.open().ok());
  const int64_t overhead = kMpsContextBytes + kMpsServerBytes;
  CHECK(rig.guard->usable_bytes() == 26 * kGiB - overhead);
  CHECK(rig.guard->admit(1, 0, 0).error().code == Code::kRejected);
  CHECK(rig.guard->admit(1, 0, -1).error().code == Code::kRejected);
  CHECK(rig.guard->admit(1, 0, INT64_MAX).error().code == Code::kRejected);
  CHECK(rig.guard->admit(1, 0, 30 * kGiB).error().code == Code::kExhausted);
  REQUIRE(rig.guard->admit(1, 0, 20 * kGiB).ok());
  CHECK(rig.guard->usable_bytes() == 6 * kGiB - 2 * overhead);
  CHECK(rig.guard->admit(2, 0, 6 * kGiB).error().code == Code::kExhausted);
  REQUIRE(rig.guard->admit(2, 0, 4 * kGiB).ok());
  rig.guard->release(1);
  CHECK(rig.guard->admit(3, 0, 19 * kGiB).ok());
  rig.gpu.mode = ComputeMode::kExclusive;  // changed under us
  CHECK(rig.guard->admit(4, 0, kGiB).error().text().find("EXCLUSIVE") != std::string::npos);
}

TEST_CASE("a growing trainer evicts before the reserve is gone; what the evicted held is never training's", "[gpu]") {
  Rig rig;
  rig.gpu.reading.used_bytes = 50 * kGiB;
  REQUIRE(rig.open().ok());
  Sleeper low, high;
  REQUIRE(rig.guard->admit(1, -1, 10 * kGiB).ok());
  REQUIRE(rig.guard->admit(2, 0, 10 * kGiB).ok());
  auto grants = rig.prepare(1);
  rig.roots = {{1, low.pid()}, {2, high.pid()}};
  rig.clients(grants, std::to_string(low.pid()));
  rig.gpu.reading.used_bytes += 12 * kGiB;
  rig.gpu.reading.processes = {{low.pid(), 10 * kGiB, true}};
  rig.loop.until([&] { return rig.memory[1] == 10 * kGiB; });
  rig.looks();
  CHECK(rig.ends.empty());  // training has grown by 2 GiB
  rig.gpu.reading.used_bytes += 6 * kGiB;
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kEvicted);
  CHECK(rig.ends[1].message.find("training") != std::string::npos);
  CHECK(rig.ends[1].limit == "reserve 4096 MiB");
  rig.guard->release(1);
  rig.roots.erase(1);  // its process is still ending, and still listed with all of its memory
  rig.looks();
  rig.gpu.reading.processes.clear();
  rig.gpu.reading.used_bytes -= 10 * kGiB;
  rig.looks();
  CHECK(rig.ends.count(2) == 0);
  rig.gpu.reading.used_bytes += 14 * kGiB;
  rig.wait_end(2);
  CHECK(rig.ends[2].kind == policy::VerdictKind::kEvicted);
}

TEST_CASE("memory that training was refused is made free, as far as side tasks have it", "[gpu]") {
  Rig rig;
  rig.gpu.reading.used_bytes = 20 * kGiB;
  REQUIRE(rig.open().ok());
  REQUIRE(rig.guard->admit(1, -1, 10 * kGiB).ok());
  REQUIRE(rig.guard->admit(2, 0, 10 * kGiB).ok());
  const int64_t usable = rig.guard->usable_bytes();
  rig.wanted = kGiB;  // which is there, beside all that side tasks may come to hold
  rig.looks();
  CHECK(rig.ends.empty());
  CHECK(rig.guard->usable_bytes() == usable - kGiB);
  rig.wanted = usable + 5 * kGiB;
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kEvicted);
  rig.looks();
  CHECK(rig.ends.count(2) == 0);
  rig.wanted = int64_t{1} << 60;  // nonsense costs side tasks, and nothing else
  rig.wait_end(2);
  rig.wanted = 0;
  rig.guard->release(1);
  rig.guard->release(2);
  CHECK(rig.guard->usable_bytes() > usable);
}

TEST_CASE("a task that is on the GPU before its init lease is ended", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper task;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  const auto grants = rig.prepare(1);
  rig.unleased = {1};
  rig.roots = {{1, task.pid()}};
  rig.clients(grants, std::to_string(task.pid()));
  rig.gpu.reading.processes = {{task.pid(), kGiB, true}};
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kOverran);
  CHECK(rig.ends[1].cause == policy::Cause::kUnleased);
  CHECK(rig.ends[1].message.find("before its init lease") != std::string::npos);
}

TEST_CASE("the worker's own process on the GPU is neither training's nor a task's", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  const int64_t usable = rig.guard->usable_bytes();
  Sleeper probe;
  rig.own = probe.pid();
  rig.gpu.reading.processes = {{probe.pid(), kGiB, false}};
  rig.gpu.reading.used_bytes += kGiB;
  rig.training = true;
  rig.loop.for_a_while(2 * kNsPerSec);
  CHECK(rig.guard->usable_bytes() == usable - kGiB);
  rig.own = 0;
  rig.gpu.reading.processes.clear();
  rig.gpu.reading.used_bytes -= kGiB;
  rig.loop.for_a_while(2 * kNsPerSec);
  CHECK(rig.guard->usable_bytes() == usable);
}

TEST_CASE("training is who the driver lists, and neither a side task nor the worker's own process", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper training, task;
  rig.own = 4711;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  rig.roots = {{1, task.pid()}};
  CHECK(rig.guard->check_training(training.pid()).error().code == Code::kPermission);
  rig.gpu.reading.processes = {{training.pid(), kGiB, false}, {task.pid(), kGiB, false}, {4711, kGiB, false}};
  CHECK(rig.guard->check_training(training.pid()).ok());
  CHECK_FALSE(rig.guard->check_training(task.pid()).ok());
  CHECK_FALSE(rig.guard->check_training(4711).ok());
  rig.looks();
  CHECK(rig.guard->on_gpu(training.pid()));
  CHECK_FALSE(rig.guard->on_gpu(task.pid()));
  CHECK_FALSE(rig.guard->on_gpu(4711));
  rig.gpu.silent = true;
  CHECK(rig.guard->check_training(training.pid()).error().code == Code::kUnavailable);
}

TEST_CASE("a process of a task that uses the GPU and is no client is ended", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper task;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  auto grants = rig.prepare(1);
  CHECK(grants.env.at("CUDA_VISIBLE_DEVICES") == "GPU-12345678-abcd");
  CHECK(grants.folders == std::vector<std::string>{grants.env.at("CUDA_MPS_PIPE_DIRECTORY")});
  CHECK(grants.files == std::vector<std::string>{"/opt/driver/lib64"});
  CHECK(grants.env.at("LD_LIBRARY_PATH").rfind("/opt/driver/lib64", 0) == 0);
  CHECK(grants.limits.find("1664 MiB") != std::string::npos);
  rig.roots = {{1, task.pid()}};
  rig.clients(grants, std::to_string(task.pid()));
  rig.gpu.reading.processes = {{task.pid(), kGiB, true}};
  rig.loop.until([&] { return rig.memory[1] == kGiB; });
  rig.loop.for_a_while(kNsPerSec);
  CHECK(rig.ends.empty());  // a client of its own server
  rig.gpu.reading.processes = {{task.pid(), kGiB, false}};
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kFailed);
  CHECK(rig.ends[1].message.find("without being a client") != std::string::npos);
}

TEST_CASE("a client of another server than its own is ended", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper task;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  auto grants = rig.prepare(1);
  rig.clients(grants, "4711");
  rig.roots = {{1, task.pid()}};
  rig.gpu.reading.processes = {{task.pid(), kGiB, true}};
  rig.wait_end(1);
  CHECK(rig.ends[1].message.find("another MPS server") != std::string::npos);
}

TEST_CASE("a client that comes and goes in the driver's list while its server is asked is not ended", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper task;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  auto grants = rig.prepare(1);
  rig.clients(grants, "");
  rig.roots = {{1, task.pid()}};
  for (int i = 0; i < 15; ++i) {  // a question takes as long as a process does
    rig.gpu.reading.processes = {{task.pid(), kGiB, true}};
    rig.loop.for_a_while(40 * kNsPerMs);
    rig.gpu.reading.processes = {};
    rig.loop.for_a_while(40 * kNsPerMs);
  }
  CHECK(rig.ends.empty());
}

TEST_CASE("an MPS server that dies ends its task alone", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  REQUIRE(rig.guard->admit(2, 0, kGiB).ok());
  auto one = rig.prepare(1), two = rig.prepare(2);
  CHECK(one.folders != two.folders);
  const std::string file = one.folders.front() + "/nvidia-cuda-mps-control.pid";
  pid_t control = 0;
  std::ifstream(file) >> control;
  REQUIRE(control > 1);
  kill(control, SIGKILL);
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kLost);
  CHECK(rig.ends[1].limit == "MPS server");
  rig.looks();
  CHECK(rig.ends.count(2) == 0);
}

TEST_CASE("somebody else's MPS that comes in mid-run: no new tasks while it is there", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  Sleeper stranger;
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  rig.gpu.reading.processes = {{stranger.pid(), kGiB, true}};
  rig.loop.until([&] {
    const auto admitted = rig.guard->admit(2, 0, kGiB);
    if (admitted.ok()) rig.guard->release(2);
    return !admitted.ok();
  });
  CHECK(rig.guard->admit(2, 0, kGiB).error().text().find("somebody else's MPS") != std::string::npos);
  CHECK(rig.ends.empty());
  rig.gpu.reading.processes.clear();
  rig.loop.until([&] { return rig.guard->admit(2, 0, kGiB).ok(); });
}

TEST_CASE("a driver that does not answer ends side tasks: nobody looks after their limits", "[gpu]") {
  Rig rig;
  REQUIRE(rig.open().ok());
  REQUIRE(rig.guard->admit(1, 0, kGiB).ok());
  rig.gpu.silent = true;
  rig.wait_end(1);
  CHECK(rig.ends[1].kind == policy::VerdictKind::kLost);
  CHECK(rig.ends[1].cause == policy::Cause::kDriver);
  rig.guard->release(1);
  rig.gpu.silent = false;
  rig.looks();
  CHECK(rig.guard->admit(2, 0, kGiB).ok());
}

TEST_CASE("an Xid is the task's whose MPS server has seen a fault, else training's", "[gpu]") {
  using Faults = std::vector<std::pair<uint64_t, uint32_t>>;
  Rig rig;
  REQUIRE(rig.open().ok());
  for (const uint64_t task : {1, 2}) {
    REQUIRE(rig.guard->admit(task, 0, kGiB).ok());
    rig.prepare(task);
  }
  rig.gpu.xids = {79};
  rig.loop.until([&] { return !rig.faults.empty(); });
  CHECK(rig.faults == Faults{{0, 79}});
  CHECK_FALSE(rig.guard->fault_of(1).has_value());

  // The driver is heard first.
  rig.gpu.xids = {31};
  rig.looks();
  CHECK(rig.faults.size() == 1);
  for (const auto& log : std::filesystem::directory_iterator(rig.options.mps_folder.string() + "-logs")) {
    if (log.path().filename().string().back() == '2')
      std::ofstream(log.path() / "server.log") << "[Server 1] Client {PID: 2} encountered a fatal GPU error.\n";
  }
  rig.loop.until([&] { return rig.faults.size() == 2; });
  CHECK(rig.faults[1] == std::pair<uint64_t, uint32_t>{2, 31});
  REQUIRE(rig.guard->fault_of(2).has_value());
  CHECK(rig.guard->fault_of(2)->xid == 31);
  CHECK_FALSE(rig.guard->fault_of(1).has_value());
  // What goes down with it is of the same fault, though the task has been released.
  rig.guard->release(2);
  rig.gpu.xids = {43};
  rig.loop.until([&] { return rig.faults.size() == 3; });
  CHECK(rig.faults[2] == std::pair<uint64_t, uint32_t>{2, 43});
}
