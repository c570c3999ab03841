#include "loop/loop.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "freeride/base/clock.hpp"

namespace freeride::worker {

Result<std::unique_ptr<Loop>> Loop::create() {
  auto loop = std::make_unique<Loop>();
  loop->epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_.valid()) return errno_error("cannot make an epoll descriptor", errno);
  return loop;
}

Status Loop::watch(int fd, uint32_t events, Handler handler) {
  forget(fd);
  auto watched = std::make_shared<Watched>(Watched{++last_generation_, std::move(handler)});
  epoll_event event{};
  event.events = events;
  event.data.u64 = (uint64_t{watched->generation} << 32) | static_cast<uint32_t>(fd);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("cannot watch a descriptor", errno);
  watched_[fd] = std::move(watched);
  return {};
}

void Loop::forget(int fd) {
  if (watched_.erase(fd) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Loop::Timer Loop::at(int64_t when_ns, std::function<void()> what) {
  const Timer timer = ++last_timer_;
  timers_.emplace(std::pair(when_ns, timer), std::move(what));
  due_[timer] = when_ns;
  return timer;
}

void Loop::cancel(Timer timer) {
  const auto due = due_.find(timer);
  if (due == due_.end()) return;
  timers_.erase({due->second, timer});
  due_.erase(due);
}

int64_t Loop::run_timers() {
  const int64_t now_ns = SteadyClock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now_ns && !stopped_) {
    auto node = timers_.extract(timers_.begin());
    due_.erase(node.key().second);
    node.mapped()();
  }
  return timers_.empty() ? 0 : timers_.begin()->first.first;
}

void Loop::run() {
  std::array<epoll_event, 32> events{};
  while (!stopped_) {
    const int64_t due_ns = run_timers();
    if (after_turn_) after_turn_();
    if (stopped_) break;
    int timeout_ms = -1;
    // after_turn_ may have set a nearer timer.
    const int64_t next_ns = timers_.empty() ? due_ns : timers_.begin()->first.first;
    if (next_ns != 0) {
      // Rounded up: a wait that ends a little early would only be repeated.
      const int64_t left_ns = std::max<int64_t>(0, next_ns - SteadyClock::now());
      timeout_ms = static_cast<int>(std::min<int64_t>((left_ns + kNsPerMs - 1) / kNsPerMs, 60'000));
    }
    const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < ready && !stopped_; ++i) {
      const auto fd = static_cast<int>(events[i].data.u64 & 0xffffffffu);
      const auto it = watched_.find(fd);
      // An earlier handler of this turn may have closed the descriptor, and another may have got its number since.
      if (it == watched_.end() || it->second->generation != events[i].data.u64 >> 32) continue;
      const auto keep = it->second;
      keep->handler(events[i].events);
    }
  }
  stopped_ = false;
}

}  // namespace freeride::worker
