#include "tasks/leftovers.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>
#include <utility>

#include "freeride/base/about.hpp"
#include "freeride/base/log.hpp"

namespace freeride::worker {

Leftovers::Leftovers(Loop& loop, std::string name, Child child, Fd scratch, bool keep)
    : loop_(loop), name_(std::move(name)), child_(std::move(child)), scratch_(std::move(scratch)), keep_(keep) {}

void Leftovers::wait() {
  if (done_.valid()) loop_.forget(done_.get());
  if (thread_.joinable()) thread_.join();
}

void Leftovers::put_away_now() {
  if (auto kept = child_.hold->end_scratch(scratch_.get(), keep_); !kept.ok())
    spdlog::warn("{}: its scratch folder was not kept: {}", about_task(name_), kept.error().text());
  scratch_.reset();  // the last of it: the kernel frees its files now
}

bool Leftovers::put_away(std::function<void()> done) {
  done_.reset(eventfd(0, EFD_CLOEXEC));
  if (!done_.valid()) return false;
  const auto watched = loop_.watch(done_.get(), EPOLLIN, [this, done = std::move(done)](uint32_t) {
    wait();
    done();
  });
  if (!watched.ok()) {
    done_.reset();
    return false;
  }
  try {
    thread_ = std::thread([this] {
      put_away_now();
      const uint64_t one = 1;
      (void)!write(done_.get(), &one, sizeof one);
    });
  } catch (const std::system_error&) {
    loop_.forget(done_.get());
    done_.reset();
    return false;
  }
  return true;
}

}  // namespace freeride::worker
