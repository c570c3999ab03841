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
    soon_.clear();
    waiting_.clear();
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Background::run(std::function<void()> work, std::function<void()> then) {
  add(waiting_, {std::move(work), std::move(then)});
}

void Background::run_soon(std::function<void()> work, std::function<void()> then) {
  add(soon_, {std::move(work), std::move(then)});
}

void Background::add(std::deque<Piece>& to, Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    to.push_back(std::move(piece));
  }
  changed_.notify_one();
}

void Background::serve() {
  std::unique_lock lock(mutex_);
  for (bool was_soon = false;;) {
    changed_.wait(lock, [this] { return ends_ || !soon_.empty() || !waiting_.empty(); });
    if (ends_) return;
    // In turns where both wait: neither can keep the other waiting for long.
    std::deque<Piece>& from = !soon_.empty() && (waiting_.empty() || !was_soon) ? soon_ : waiting_;
    was_soon = &from == &soon_;
    Piece piece = std::move(from.front());
    from.pop_front();
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
