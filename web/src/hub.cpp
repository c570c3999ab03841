#include "hub.hpp"

#include <algorithm>

namespace freeride::web {

Frame Viewer::take(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return ended_ || !frames_.empty(); });
  if (ended_ || frames_.empty()) return nullptr;
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  bytes_ -= std::min(bytes_, frame->size());
  return frame;
}

bool Viewer::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::shared_ptr<Viewer> Hub::add(Frame first) {
  const std::lock_guard lock(mutex_);
  if (ended_ || viewers_.size() >= limits_.viewers) return nullptr;
  auto viewer = std::make_shared<Viewer>();
  viewer->frames_.push_back(std::move(first));
  viewers_.push_back(viewer);
  return viewer;
}

void Hub::remove(const std::shared_ptr<Viewer>& viewer) {
  const std::lock_guard lock(mutex_);
  std::erase(viewers_, viewer);
}

void Hub::publish(const Frame& frame) {
  const std::lock_guard lock(mutex_);
  std::erase_if(viewers_, [&](const auto& viewer) {
    const std::lock_guard own(viewer->mutex_);
    if (viewer->frames_.size() >= limits_.frames || viewer->bytes_ + frame->size() > limits_.bytes) {
      viewer->ended_ = true;
      viewer->frames_.clear();
      ++dropped_;
    } else {
      viewer->frames_.push_back(frame);
      viewer->bytes_ += frame->size();
    }
    viewer->changed_.notify_one();
    return viewer->ended_;
  });
}

void Hub::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (const auto& viewer : viewers_) {
    const std::lock_guard own(viewer->mutex_);
    viewer->ended_ = true;
    viewer->changed_.notify_one();
  }
  viewers_.clear();
}

size_t Hub::size() const {
  const std::lock_guard lock(mutex_);
  return viewers_.size();
}

uint64_t Hub::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace freeride::web
