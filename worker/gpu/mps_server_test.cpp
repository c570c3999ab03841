// MpsServer against a control program of the tests' own: real processes, sockets and users, no GPU.
#include "gpu/mps_server.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <optional>

#include "gpu/fake_gpu_test_support.hpp"
#include "loop/temp_folder_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using namespace freeride::worker::testing;

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

struct Server {
  TempFolder temp;
  TestLoop loop;
  MpsRequest request;
  std::optional<Status> ready;
  std::string died;
  std::unique_ptr<MpsServer> server;

  Server() {
    request.control = fake_control();
    request.folder = temp.path() / "mps" / "one";
    request.gpu = "GPU-1";
    request.identity = {geteuid(), getegid()};
    request.limit_bytes = 512 * kMiB;
  }
  Status start() {
    auto started = MpsServer::start(
        request, *loop, [this](Status status) { ready = std::move(status); },
        [this](const std::string& how) { died = how; });
    if (!started.ok()) return started.error();
    server = std::move(*started);
    return {};
  }
  void wait_ready() {
    loop.until([this] { return ready.has_value(); });
  }
  Error failure() {
    wait_ready();
    REQUIRE_FALSE(ready->ok());
    return ready->error();
  }
};

}  // namespace

TEST_CASE("an MPS server is up with its limits, says who its clients are, and goes without a trace", "[mps]") {
  Server it;
  REQUIRE(it.start().ok());
  CHECK_FALSE(it.ready.has_value());
  it.wait_ready();
  REQUIRE(it.ready->ok());
  const pid_t control = it.server->control_pid(), server = it.server->server_pid();
  REQUIRE(control > 1);
  REQUIRE(server > 1);
  CHECK(alive(control));
  CHECK(alive(server));

  std::ofstream(it.request.folder / "clients") << "12\n345\n";
  std::optional<Result<std::vector<pid_t>>> clients;
  it.server->clients([&](Result<std::vector<pid_t>> listed) { clients = std::move(listed); });
  it.loop.until([&] { return clients.has_value(); });
  REQUIRE(clients->ok());
  CHECK(**clients == std::vector<pid_t>{12, 345});

  it.server.reset();
  it.loop.until([&] { return !alive(control) && !alive(server) && !fs::exists(it.request.folder); });
  CHECK(it.died.empty());
}

TEST_CASE("an MPS server's log says whether its client made the GPU fault, and lies where no side task is", "[mps]") {
  Server it;
  REQUIRE(it.start().ok());
  it.wait_ready();
  REQUIRE(it.ready->ok());
  const fs::path folder = it.temp.path() / "mps-logs" / "one", log = folder / "server.log";
  REQUIRE(fs::is_directory(folder));
  CHECK_FALSE(it.server->saw_fault());
  std::ofstream(log) << "[2026-11-23 15:54:14.400 Server   421] Status of client {PID: 419, Context ID: 1} is ACTIVE\n";
  CHECK_FALSE(it.server->saw_fault());
  std::ofstream(log, std::ios::app) << "[2026-11-23 15:54:17.134 Server   421] Server is handling a fatal GPU error.\n"
                                    << "[2026-11-23 15:54:18.471 Server   421] Exiting\n";
  CHECK(it.server->saw_fault());
  fs::resize_file(log, 0);
  CHECK_FALSE(it.server->saw_fault());
  fs::resize_file(log, 17u << 20);
  CHECK(it.server->saw_fault());
  it.server.reset();
  it.loop.until([&] { return !fs::exists(folder) && !fs::exists(it.request.folder); });
}

TEST_CASE("an MPS server that a fault ended still says so, and one whose log grows without end is ended", "[mps]") {
  for (const bool fault : {false, true}) {
    CAPTURE(fault);
    Server it;
    REQUIRE(it.start().ok());
    it.wait_ready();
    REQUIRE(it.ready->ok());
    const pid_t server = it.server->server_pid();
    const fs::path folder = it.temp.path() / "mps-logs" / "one", log = folder / "server.log";
    if (fault) {
      std::ofstream(log) << "[2026-11-23 15:54:17.134 Server   421] Server is handling a fatal GPU error.\n";
      REQUIRE(::kill(server, SIGKILL) == 0);
    } else {
      std::ofstream(log) << "";
      fs::resize_file(log, 17u << 20);
    }
    it.loop.until([&] { return !it.died.empty() && !alive(server); });
    CHECK((it.died.find("16 MiB") == std::string::npos) == fault);
    CHECK(it.server->saw_fault());
    it.loop.until([&] { return !fs::exists(folder); });
  }
}

TEST_CASE("an MPS server that dies in mid-run, or whose control daemon does, says so once", "[mps]") {
  for (const bool control : {false, true}) {
    CAPTURE(control);
    Server it;
    REQUIRE(it.start().ok());
    it.wait_ready();
    REQUIRE(it.ready->ok());
    const pid_t both[] = {it.server->control_pid(), it.server->server_pid()};
    REQUIRE((both[0] > 1 && both[1] > 1));
    kill(both[control ? 0 : 1], SIGKILL);
    it.loop.until([&] { return !it.died.empty(); });
    CHECK(it.died.find(control ? "control daemon" : "MPS server") != std::string::npos);
    it.loop.until([&] { return !alive(both[0]) && !alive(both[1]); });
  }
}

TEST_CASE("an MPS server that does not come up, or does not hold its limits, is refused with the reason", "[mps]") {
  {
    FakeMode lax("lax");
    Server it;
    REQUIRE(it.start().ok());
    CHECK(it.failure().message.find("given a memory limit of 512M and says '0'") != std::string::npos);
  }
  {
    Server it;
    it.request.control = "/bin/false";
    REQUIRE(it.start().ok());
    CHECK(it.failure().message.find("control daemon ended") != std::string::npos);
  }
  {
    Server it;
    it.request.control = "/nowhere/nvidia-cuda-mps-control";
    const auto started = it.start();
    REQUIRE_FALSE(started.ok());
    CHECK(started.error().text().find("/nowhere/nvidia-cuda-mps-control") != std::string::npos);
  }
  {
    Server it;
    it.request.folder = it.temp.path() / std::string(100, 'x');
    REQUIRE_FALSE(it.start().ok());
  }
}

TEST_CASE("an MPS control daemon that answers nobody is given up, and ended", "[mps]") {
  FakeMode deaf("deaf");
  Server it;
  REQUIRE(it.start().ok());
  const pid_t control = it.server->control_pid();
  CHECK(it.failure().code == Code::kTimeout);
  it.server.reset();
  it.loop.until([&] { return !alive(control); });
}

TEST_CASE("an MPS server runs as its task's user, in a folder of that user alone", "[mps]") {
  if (geteuid() != 0) return;  // only root can change users; the rest is tested above
  Server it;
  fs::permissions(it.temp.path(), fs::perms::others_exec, fs::perm_options::add);
  it.request.identity = {61001, 61001};
  const std::string copy = (it.temp.path() / "control.py").string();  // where that user can read it
  fs::copy_file(it.request.control, copy);
  it.request.control = copy;
  REQUIRE(it.start().ok());
  it.wait_ready();
  REQUIRE(it.ready->ok());
  struct stat folder {
  }, process{};
  REQUIRE(stat(it.request.folder.c_str(), &folder) == 0);
  CHECK(folder.st_uid == 61001);
  CHECK((folder.st_mode & 0777) == 0700);
  REQUIRE(stat(("/proc/" + std::to_string(it.server->server_pid())).c_str(), &process) == 0);
  CHECK(process.st_uid == 61001);
}

TEST_CASE("what a dead worker left of its MPS servers is swept up, and nothing else", "[mps]") {
  TempFolder temp;
  for (const char* name : {"mine-1", "other-1"}) fs::create_directory(temp.path() / name);
  const fs::path logs = temp.path().string() + "-logs";
  for (const char* name : {"mine-1", "other-1"}) fs::create_directories(logs / name);
  const auto left_behind = [&](const std::string& name) {
    const std::string variable = "CUDA_MPS_PIPE_DIRECTORY=" + (temp.path() / name).string();
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      char* argv[] = {const_cast<char*>("sleep"), const_cast<char*>("infinity"), nullptr};
      char* environment[] = {const_cast<char*>(variable.c_str()), nullptr};
      execve("/bin/sleep", argv, environment);
      _exit(127);
    }
    // Until the exec its environment is this process's.
    const std::string file = "/proc/" + std::to_string(pid) + "/comm";
    for (std::string comm; comm != "sleep";) std::getline(std::ifstream(file) >> std::ws, comm);
    return pid;
  };
  const pid_t mine = left_behind("mine-1"), other = left_behind("other-1"), longer = left_behind("mine-10");
  REQUIRE((mine > 1 && other > 1 && longer > 1));
  sweep_mps_folders(temp.path(), "mine-");
  int status = 0;
  CHECK(waitpid(mine, &status, 0) == mine);
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(alive(other));
  CHECK(alive(longer));
  CHECK_FALSE(fs::exists(temp.path() / "mine-1"));
  CHECK(fs::exists(temp.path() / "other-1"));
  CHECK_FALSE(fs::exists(logs / "mine-1"));
  CHECK(fs::exists(logs / "other-1"));
  fs::remove_all(logs);
  for (const pid_t pid : {other, longer}) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}
