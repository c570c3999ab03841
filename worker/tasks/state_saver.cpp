#include "tasks/state_saver.hpp"

#include <sys/epoll.h>

#include <utility>

namespace freeride::worker {

void StateSaver::save(std::shared_ptr<const TaskSource> pages, int pipe_fd, StateFile& file, Saved saved) {
  if (auto s = loop_.watch(pipe_fd, EPOLLIN, [this](uint32_t) { receive(); }); !s.ok()) return saved(s);
  pages_ = std::move(pages);
  pipe_fd_ = pipe_fd;
  file_ = &file;
  saved_ = std::move(saved);
  acting_.ask_to_save(pages_->id, true);
}

void StateSaver::stop() {
  if (file_ == nullptr) return;
  file_ = nullptr;
  saved_ = nullptr;
  loop_.forget(pipe_fd_);
  acting_.ask_to_save(pages_->id, false);
}

void StateSaver::receive() {
  auto received = receiver_.receive(pipe_fd_, pages_->save_lease.load(), *file_);
  if (received.ok() && *received == StateReceiver::Progress::kMore) return;
  const Saved saved = std::move(saved_);
  stop();
  saved(received.ok() ? Status() : Status(received.error()));
}

}  // namespace freeride::worker
