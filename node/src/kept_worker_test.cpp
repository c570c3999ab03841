// A worker is played by a shell.
#include "kept_worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "freeride/base/priority.hpp"

using namespace freeride;
using namespace freeride::node;

namespace {

constexpr int kWatchdogMs = 60'000;

struct Folder {
  Folder() {
    char name[] = "/tmp/freeride-node-XXXXXX";
    path = ::mkdtemp(name);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

// As a node's main thread has it, which reads signals from a descriptor.
struct Blocked {
  Blocked() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &before);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  ~Blocked() { sigprocmask(SIG_SETMASK, &before, nullptr); }
  sigset_t before{};
};

KeptWorker shell(const Folder& folder, const std::string& script) {
  return {"cpu-0", {"/bin/sh", "-c", script}, folder.path / "worker.sock", Beginning::now()};
}

bool ends(const KeptWorker& worker) {
  pollfd end{worker.fd(), POLLIN, 0};
  return ::poll(&end, 1, kWatchdogMs) == 1;
}

}  // namespace

TEST_CASE("the pause before a restart grows to a minute", "[node]") {
  CHECK(pause_ns(1) == kNsPerSec);
  CHECK(pause_ns(2) == 2 * kNsPerSec);
  CHECK(pause_ns(6) == 32 * kNsPerSec);
  CHECK(pause_ns(7) == 60 * kNsPerSec);
  CHECK(pause_ns(1'000'000) == 60 * kNsPerSec);
}

TEST_CASE("a worker that ends is started again, later each time, and soon after a long run", "[node]") {
  const Folder folder;
  KeptWorker worker = shell(folder, "exit 3");
  int64_t now = 1000 * kNsPerSec;
  for (const int64_t pause : {1, 2, 4}) {
    worker.look(now);
    REQUIRE(worker.fd() >= 0);
    REQUIRE(ends(worker));
    worker.look(now);
    CHECK(worker.fd() < 0);
    CHECK(worker.next_look_ns() == now + pause * kNsPerSec);
    worker.look(now + pause * kNsPerSec - 1);
    CHECK(worker.fd() < 0);  // not yet
    now += pause * kNsPerSec;
  }
  worker.look(now);
  REQUIRE(ends(worker));
  now += kLongRunNs;
  worker.look(now);
  CHECK(worker.next_look_ns() == now + kNsPerSec);
}

TEST_CASE("a worker that listens already is left running, watched, and told to end", "[node]") {
  const Folder folder;
  const Blocked blocked;
  KeptWorker worker = shell(folder, "exit 3");
  int ready[2];
  REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
  const pid_t running = ::fork();
  if (running == 0) {  // as a worker listens: pages' handover.cpp
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = (folder.path / "worker.sock").string();
    name.copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 8) != 0)
      ::_exit(9);
    (void)!::write(ready[1], "", 1);
    sigset_t none;
    sigemptyset(&none);
    (void)::signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  worker.look(kNsPerSec);
  REQUIRE(worker.fd() >= 0);
  pollfd end{worker.fd(), POLLIN, 0};
  CHECK(::poll(&end, 1, 0) == 0);  // another would have ended by itself
  worker.end();
  REQUIRE(ends(worker));
  worker.look(2 * kNsPerSec);
  CHECK(worker.ended());
  int status = 0;
  REQUIRE(::waitpid(running, &status, 0) == running);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
  for (const int fd : ready) ::close(fd);
}

TEST_CASE("a worker that cannot be watched is ended before it is started again", "[node]") {
  const Folder folder;
  KeptWorker worker = shell(folder, "sleep 1000");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{0, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  worker.look(kNsPerSec);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(worker.fd() < 0);
  CHECK(worker.next_look_ns() == 2 * kNsPerSec);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // it has left no child
}

TEST_CASE("a program that cannot be executed is tried again", "[node]") {
  const Folder folder;
  KeptWorker worker("cpu-0", {(folder.path / "none").string()}, folder.path / "worker.sock", Beginning::now());
  worker.look(kNsPerSec);
  REQUIRE(ends(worker));
  worker.look(kNsPerSec);
  CHECK(worker.next_look_ns() == 2 * kNsPerSec);
}

TEST_CASE("a worker is told to end, and is not started again", "[node]") {
  const Folder folder;
  const Blocked blocked;
  KeptWorker worker = shell(folder, "exec sleep 1000");
  worker.look(kNsPerSec);
  REQUIRE(worker.fd() >= 0);
  CHECK_FALSE(worker.ended());
  worker.end();
  REQUIRE(ends(worker));
  worker.look(2 * kNsPerSec);
  CHECK(worker.ended());
  worker.look(1000 * kNsPerSec);
  CHECK(worker.ended());
  CHECK(worker.next_look_ns() == 0);
}

TEST_CASE("a worker has the limits that the node began with, not the node's own, and no signal blocked", "[node]") {
  const Folder folder;
  const std::string out = (folder.path / "out").string();
  const std::string script = "ulimit -d > " + out + "; cat /proc/self/oom_score_adj >> " + out +
                             "; grep SigBlk /proc/self/status | tr -d 0 >> " + out;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_DATA, &before) == 0);
  const Beginning beginning = Beginning::now();
  KeptWorker worker("cpu-0", {"/bin/sh", "-c", script}, folder.path / "worker.sock", beginning);
  REQUIRE(leave_memory_to_training(kServiceMemoryBytes).ok());
  const Blocked blocked;
  worker.look(kNsPerSec);
  REQUIRE(ends(worker));
  std::ifstream in(out);
  std::string limit, score, mask, nothing;
  in >> limit >> score >> mask;
  CHECK(limit == (before.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(before.rlim_cur / 1024)));
  CHECK(score + "\n" == beginning.oom_score_adj);
  CHECK(mask == "SigBlk:");
  CHECK_FALSE(in >> nothing);
}
