#include "gpu/end_child.hpp"

#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "freeride/base/clock.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kAgainNs = 100 * kNsPerMs;

}  // namespace

void end_child(Child child, Loop& loop, std::function<void()> after) {
  if (child.pid <= 1) return;
  ::kill(-child.pid, SIGKILL);
  ::kill(child.pid, SIGKILL);  // not reaped yet, so the number is its own
  reap_child(std::move(child), loop, std::move(after));
}

void reap_child(Child child, Loop& loop, std::function<void()> after) {
  auto shared = std::make_shared<Child>(std::move(child));
  const int fd = shared->pidfd.get();
  auto reap = [shared, &loop, after = std::move(after)](uint32_t) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): forgetting the handler would end it
    const auto keep = shared;
    siginfo_t info{};
    loop.forget(keep->pidfd.get());
    const bool lives = waitid(P_PID, static_cast<id_t>(keep->pid), &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0;
    if (!lives) return after ? after() : void();
    // There was no descriptor to watch it by.
    loop.at(SteadyClock::now() + kAgainNs, [keep, &loop, after] { reap_child(std::move(*keep), loop, after); });
  };
  if (!loop.watch(fd, EPOLLIN, reap).ok()) reap(0);
}

}  // namespace freeride::worker
