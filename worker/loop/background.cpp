#include "loop/background.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "freeride/base/daemon_thread.hpp"

namespace freeride::worker {

Result<std::unique_ptr<Background>> Background::create(Loop& loop) {
  Fd done(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!done.valid()) return errno_error("cannot make an event descriptor", errno);
  std::unique_ptr<Background> made(new Background(loop, std::move(done)));
  Background& self = *made;
  if (auto s = loop.watch(self.done_.get(), EPOLLIN, [&self](uint32_t) { self.on_done(); }); !s.ok()) return s.error();
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
  loop_.forget(done_.get());
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
    lock.lock();
    finished_.push_back(std::move(piece));
    const uint64_t one = 1;
    (void)!write(done_.get(), &one, sizeof one);
  }
}

void Background::on_done() {
  uint64_t count = 0;
  (void)!read(done_.get(), &count, sizeof count);
  std::deque<Piece> finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  for (const Piece& piece : finished) piece.then();
}

}  // namespace freeride::worker
