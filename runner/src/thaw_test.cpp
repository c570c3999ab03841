#include "thaw.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "enforcer.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/pages/mapping.hpp"

using namespace freeride;
using namespace freeride::runner;

namespace {

/// What the test and its child share.
struct Shared {
  Thaw thaw;
  uint32_t told = 0;  ///< so many SIGCONT
};
Shared* shared = nullptr;

Shared& map_shared() {
  void* const at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  shared = new (at) Shared;
  return *shared;
}

/// What a supervisor has of a process.
struct Watched {
  pages::Created<freeride_lease_page> lease = std::move(pages::create_page<freeride_lease_page>(false).value());
  pages::Created<freeride_answer_page> answer = std::move(pages::create_page<freeride_answer_page>(false).value());

  std::unique_ptr<Enforcer> enforcer(pid_t pid) {
    return std::make_unique<Enforcer>(pid, *lease.page, *answer.page, -1,
                                      LeaseWatch(Limits{}, true, 1, SteadyClock::now()));
  }
};

void open_lease(freeride_lease_page& page) {
  pages::Lease lease;
  lease.order = FREERIDE_ORDER_RUN;
  lease.kind = FREERIDE_LEASE_BUBBLE;
  lease.lease_id = 1;
  lease.deadline_ns = static_cast<uint64_t>(SteadyClock::now() + 3600 * kNsPerSec);
  pages::write_lease(page, lease);
  pages::futex_wake(page.sequence);
}

}  // namespace

TEST_CASE("a process that stops itself just after it was told to go on goes on nevertheless", "[thaw]") {
  Shared& both = map_shared();
  Watched watched;
  freeride_lease_page& page = *watched.lease.page;
  const uint32_t as_read = page.sequence;
  const pid_t child = fork();
  if (child == 0) {
    struct sigaction count {};
    count.sa_handler = [](int) { pages::bump_and_wake(shared->told); };
    sigaction(SIGCONT, &count, nullptr);
    // As freeze(), where the lease comes between its look at the page and its stop.
    pages::store_release(both.thaw.frozen, as_read + 1);
    pages::futex_wake(both.thaw.frozen);
    while (pages::load_acquire(both.told) == 0) pages::futex_wait(both.told, 0);
    kill(getpid(), SIGSTOP);
    pages::store_release<uint32_t>(both.thaw.frozen, 0);
    _exit(0);
  }
  const auto enforcer = watched.enforcer(child);
  std::thread thaws([&] { keep_thawing([&] { return enforcer->go_on(); }, page, both.thaw); });
  open_lease(page);
  int status = -1;
  CHECK(waitid(P_PID, static_cast<id_t>(child), nullptr, WEXITED | WNOWAIT) == 0);
  enforcer->process_ended();
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  open_lease(page);  // the thread sees that its process is gone
  thaws.join();
}

TEST_CASE("nobody is told to go on by the number of a process that has ended", "[thaw]") {
  Shared& both = map_shared();
  both.told = 0;
  Watched watched;
  both.thaw.frozen = 1000;  // it had stopped itself
  open_lease(*watched.lease.page);
  // Whoever has its number now: this very process.
  struct sigaction count {
  }, before{};
  count.sa_handler = [](int) { ++shared->told; };
  sigaction(SIGCONT, &count, &before);
  const auto enforcer = watched.enforcer(getpid());
  enforcer->process_ended();
  keep_thawing([&] { return enforcer->go_on(); }, *watched.lease.page, both.thaw);  // returns
  sigaction(SIGCONT, &before, nullptr);
  CHECK(both.told == 0);
}

TEST_CASE("a process that has seen a lease and stops itself all the same stays stopped until the next", "[thaw]") {
  Shared& both = map_shared();
  Watched watched;
  freeride_lease_page& page = *watched.lease.page;
  open_lease(page);
  const uint32_t as_read = page.sequence;
  const pid_t child = fork();
  if (child == 0) {
    freeze(both.thaw, page.sequence, as_read);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  REQUIRE(WIFSTOPPED(status));
  int told = 0;
  std::thread thaws([&] { keep_thawing([&] { return told++ == 0 && kill(child, SIGCONT) == 0; }, page, both.thaw); });
  open_lease(page);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  open_lease(page);
  thaws.join();
  CHECK(told == 2);  // for the second lease and the third
}
