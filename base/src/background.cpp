#include "freeride/base/background.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "freeride/base/daemon_thread.hpp"

namespace freeride {

Result<std::unique_ptr<Background>> Background::create() {
  Fd done(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!done.valid()) return errno_error("cannot make an event descriptor", errno);
  std::unique_ptr<Background> made(new Background(std::move(done)));
  Background& self = *made;
  try {
    self.thread_ = std::thread([&self] { run_or_end("the background thread", [&] { self.serve(); }); });
  } catch (const std::system_error& error) {
    return errno_error("cannot make a thread", error.code().value());
  }
  return made;
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    waiting_.clear();
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Background::run(std::function<void()> work, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(work), std::move(then)});
  }
  changed_.notify_one();
}

void Background::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    Piece piece = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    piece.work();
    piece.work = nullptr;  // what it holds may be large
    lock.lock();
    finished_.push_back(std::move(piece));
    const uint64_t one = 1;
    (void)!write(done_.get(), &one, sizeof one);
  }
}

void Background::finish(size_t most) {
  uint64_t one = 0;
  for (size_t n = 0; n < most && read(done_.get(), &one, sizeof one) == sizeof one; ++n) {
    std::unique_lock lock(mutex_);
    const Piece piece = std::move(finished_.front());
    finished_.pop_front();
    lock.unlock();
    piece.then();
  }
}

}  // namespace freeride
