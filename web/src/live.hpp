// The model and its viewers, shared by the thread that feeds it and those that answer requests.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "hub.hpp"
#include "metrics.hpp"
#include "model.hpp"

namespace freeride::web {

/// Any thread. Nobody holds the lock while waiting or writing.
class Live {
 public:
  Live(Limits limits, Hub::Limits viewers, std::string version, size_t task_series);

  /// Feeds the model.
  void feed(const std::function<void(Model&)>& what);
  /// Sends what has changed to the viewers. `now_ns`: as in Model::on_event(). About ten times a second.
  void publish(int64_t now_ns);
  /// A page that is opened at `now_ns`: it is sent all there is first. nullptr: there are too many.
  std::shared_ptr<Viewer> join(int64_t now_ns);
  void leave(const std::shared_ptr<Viewer>& viewer) { hub_.remove(viewer); }
  void end() { hub_.end(); }
  std::string metrics(bool open_metrics) const;
  /// Whether any page is open.
  bool is_watched() const { return hub_.size() != 0; }
  /// Whether anybody would see bubbles one by one.
  bool wants_bubbles() const;

 private:
  static Frame frame_of(const nlohmann::json& json);

  const std::string version_;
  const size_t task_series_;
  mutable std::mutex mutex_;
  Model model_;
  Hub hub_;
  uint64_t ticks_ = 0;
};

}  // namespace freeride::web
