#include "gpu/end_child.hpp"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

namespace freeride::worker {

void end_child(Child child, Loop& loop, std::function<void()> after) {
  if (child.pid <= 1) return;
  ::kill(-child.pid, SIGKILL);
  syscall(SYS_pidfd_send_signal, child.pidfd.get(), SIGKILL, nullptr, 0);
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
    waitid(P_PID, static_cast<id_t>(keep->pid), &info, WEXITED | WNOHANG);
    if (after) after();
  };
  if (!loop.watch(fd, EPOLLIN, reap).ok()) reap(0);
}

}  // namespace freeride::worker
