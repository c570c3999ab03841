#include "acting/acting_thread.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "acting/fake_pages_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using namespace freeride::worker::testing;

namespace {

/// While it lives, this process gets no further descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Fd lowest_free(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit none{static_cast<rlim_t>(lowest_free.get()), before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("a task is killed though the worker has no descriptor left", "[acting]") {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    for (;;) pause();
  }
  const auto pidfd = std::make_shared<const Fd>(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ActorConfig config;
  config.task.by_cpu_clock = false;
  config.task.grace_ns = config.task.hang_ns = kNsPerMs;
  auto acting = std::move(ActingThread::start(config).value());
  FakeProcesses clocks;
  FakeTask task(1, clocks);
  {
    const NoDescriptors none;
    acting->add_task(task.source());
    acting->set_process(1, child, pidfd);
    task.created();
    pages::bump_and_wake(task.answer().sequence);
    while (task.lease().kind != FREERIDE_LEASE_INIT) std::this_thread::yield();
    task.initialised(SteadyClock::now());
    pages::bump_and_wake(task.answer().sequence);
    while (task.lease().kind != FREERIDE_LEASE_NONE) std::this_thread::yield();
    task.start(SteadyClock::now());  // without a lease
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WTERMSIG(status) == SIGKILL);
  }
  CHECK(task.source()->killed);
}
