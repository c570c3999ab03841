// The pages that are open, and the frames that they have not read yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace freeride::web {

using Frame = std::shared_ptr<const std::string>;

/// One open page. Its frames are taken by the thread that serves it.
class Viewer {
 public:
  /// The next frame; nullptr after `timeout` without one, or when ended().
  Frame take(std::chrono::milliseconds timeout);
  /// Whether it is to go: it was too slow, or the program ends.
  bool ended() const;

 private:
  friend class Hub;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> frames_;
  size_t bytes_ = 0;
  bool ended_ = false;
};

/// Bounded in viewers, and in frames and bytes of each: who does not read is dropped, and waits for nobody. Any thread.
class Hub {
 public:
  struct Limits {
    size_t viewers = 128;
    size_t frames = 100;        ///< not read by one viewer: ten seconds
    size_t bytes = 8ull << 20;  ///< the same in bytes, the first frame not counted
  };
  explicit Hub(Limits limits) : limits_(limits) {}

  /// A new viewer, whose first frame is `first`. nullptr: there are as many as are allowed.
  std::shared_ptr<Viewer> add(Frame first);
  /// Its page has gone.
  void remove(const std::shared_ptr<Viewer>& viewer);
  /// Never blocks on a viewer.
  void publish(const Frame& frame);
  /// From now on nobody waits here.
  void end();

  size_t size() const;
  uint64_t dropped() const;  ///< viewers that were too slow

 private:
  const Limits limits_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Viewer>> viewers_;
  uint64_t dropped_ = 0;
  bool ended_ = false;
};

}  // namespace freeride::web
