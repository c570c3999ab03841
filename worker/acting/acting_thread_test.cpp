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
#include "freeride/base/wait_set.hpp"

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

/// A process that does nothing, in the place of a task's.
class Idler {
 public:
  Idler() : pid_(fork()) {
    if (pid_ == 0) {
      setpgid(0, 0);
      for (;;) pause();
    }
    pidfd_ = std::make_shared<const Fd>(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Idler() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Idler(const Idler&) = delete;
  Idler& operator=(const Idler&) = delete;
  pid_t pid() const { return pid_; }
  std::shared_ptr<const Fd> pidfd() const { return pidfd_; }

 private:
  pid_t pid_;
  std::shared_ptr<const Fd> pidfd_;
};

// Until somebody sleeps on it.
void wait_for_sleeper(const freeride_bell_page& bell) {
  while (pages::futex_wake(bell.rings, pages::kAnyBit, 1) != 1) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a lease is opened for a hook that rings the bell, and for one that knows of none", "[acting]") {
  const bool rings = GENERATE(true, false);
  const Idler process;
  ActorConfig config;
  config.task.by_cpu_clock = false;
  config.task.grace_ns = config.task.hang_ns = config.lease.init_ns = 600 * kNsPerSec;  // this process may be starved
  auto acting = std::move(ActingThread::start(config).value());
  CHECK((acting->bell_fd() >= 0) == !has_futex_waitv());
  FakeProcesses clocks;
  FakeTask task(1, clocks);
  FakeRank rank;
  rank.learn(1, 600 * kNsPerSec, 600 * kNsPerSec, 600 * kNsPerSec);
  pages::Mapped<freeride_bell_page> bell;
  if (rings && acting->bell_fd() >= 0) {
    bell = std::move(pages::map_page_writable<freeride_bell_page>(acting->bell_fd()).value());
    rank.page().bell = bell->header.incarnation;
  }
  rank.started(SteadyClock::now());
  acting->add_rank(rank.source(1));
  acting->add_task(task.source());
  acting->set_process(1, process.pid(), process.pidfd());
  task.created();
  pages::bump_and_wake(task.answer().sequence);
  while (task.lease().kind != FREERIDE_LEASE_INIT) std::this_thread::yield();
  task.initialised(SteadyClock::now());
  pages::bump_and_wake(task.answer().sequence);
  while (task.lease().kind != FREERIDE_LEASE_NONE) std::this_thread::yield();
  if (bell) wait_for_sleeper(*bell);
  rank.begin(SteadyClock::now());
  if (bell) pages::bump_and_wake(bell->rings);
  while (task.lease().kind != FREERIDE_LEASE_BUBBLE) std::this_thread::yield();
  rank.end(SteadyClock::now());
  if (bell) pages::bump_and_wake(bell->rings);
  while (task.lease().kind != FREERIDE_LEASE_NONE) std::this_thread::yield();
}

TEST_CASE("orders are heard after the bell was made anew", "[acting]") {
  auto acting = std::move(ActingThread::start(ActorConfig()).value());
  if (acting->bell_fd() < 0) return;  // as in worker_test_without_futex_waitv
  const auto first = std::move(pages::map_page_writable<freeride_bell_page>(acting->bell_fd()).value());
  wait_for_sleeper(*first);
  REQUIRE(acting->renew_bell().ok());
  const auto second = std::move(pages::map_page_writable<freeride_bell_page>(acting->bell_fd()).value());
  CHECK(second->header.incarnation != first->header.incarnation);
  wait_for_sleeper(*second);
  acting.reset();  // joins: it has heard that it is to stop
}

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
