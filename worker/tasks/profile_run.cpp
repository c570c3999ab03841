#include "tasks/profile_run.hpp"

#include <sys/epoll.h>

#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"

namespace freeride::worker {

using pages::load_relaxed;

ProfileRun::ProfileRun(std::shared_ptr<const TaskSource> pages, int pipe_fd, int64_t patience_ns, bool cpu_device,
                       Loop& loop, Calls calls)
    : pages_(std::move(pages)),
      pipe_fd_(pipe_fd),
      patience_ns_(patience_ns),
      cpu_device_(cpu_device),
      loop_(loop),
      calls_(std::move(calls)),
      watch_(SteadyClock::now()) {}

Status ProfileRun::start() {
  const auto receive = [this](uint32_t) {
    if (!watch_.receive(pipe_fd_)) loop_.forget(pipe_fd_);
  };
  if (auto s = loop_.watch(pipe_fd_, EPOLLIN, receive); !s.ok()) return s;
  look();
  return {};
}

void ProfileRun::stop() {
  loop_.cancel(std::exchange(timer_, 0));
  const int pipe_fd = std::exchange(pipe_fd_, -1);
  if (pipe_fd < 0) return;
  watch_.receive(pipe_fd);
  loop_.forget(pipe_fd);
}

void ProfileRun::look() {
  const int64_t now_ns = SteadyClock::now();
  const TaskMemory& memory = calls_.look();
  if (memory.host_resident_bytes() > 0)
    watch_.look(now_ns, memory.host_resident_bytes(), cpu_device_ ? int64_t{-1} : memory.resident_bytes());
  const uint32_t state = load_relaxed(pages_->answer->state);
  const bool initialised = state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING;
  if (initialised && initialised_ns_ == 0) initialised_ns_ = now_ns;
  timer_ = loop_.at(now_ns + watch_.pause_ns(), [this] { look(); });
  if (initialised_ns_ != 0 && now_ns - initialised_ns_ > patience_ns_) calls_.enough();
}

bus::Profile ProfileRun::result(const TaskMemory& memory, const policy::Verdict& verdict, uint64_t wanted_steps) const {
  bus::Profile found;
  watch_.fill(found);
  found.conditions = pages_->in_bubbles.load(std::memory_order_relaxed) ? "bubbles" : "idle";
  found.create_ns = sane(load_relaxed(pages_->answer->create_ns));
  found.init_ns = sane(load_relaxed(pages_->answer->init_ns));
  found.peak_bytes["host"] = memory.host_peak_bytes();
  if (!cpu_device_) found.peak_bytes["gpu"] = memory.peak_bytes();
  found.wanted_steps = wanted_steps;
  found.ended = verdict.kind == policy::VerdictKind::kStopped
                    ? "the worker's time for a profile was over (--profile-ms)"
                    : verdict.message;
  return found;
}

}  // namespace freeride::worker
