#include "live.hpp"

namespace freeride::web {
namespace {
constexpr uint64_t kEntityTicks = 5;  // twice a second: people read no faster
}

Live::Live(Limits limits, Hub::Limits viewers, std::string version, size_t task_series)
    : version_(std::move(version)), task_series_(task_series), model_(limits), hub_(viewers) {}

void Live::feed(const std::function<void(Model&)>& what) {
  const std::lock_guard lock(mutex_);
  what(model_);
}

Frame Live::frame_of(const nlohmann::json& json) {
  return std::make_shared<const std::string>(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Live::publish(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  const auto changes = model_.changes(now_ns, ticks_++ % kEntityTicks == 0);
  if (!changes.is_null() && hub_.size() != 0) hub_.publish(frame_of(changes));
}

std::shared_ptr<Viewer> Live::join(int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  return hub_.add(frame_of(model_.snapshot(now_ns)));
}

std::string Live::metrics(bool open_metrics) const {
  const std::lock_guard lock(mutex_);
  return metrics_text(model_, {version_, hub_.size(), hub_.dropped()}, task_series_, open_metrics);
}

bool Live::wants_bubbles() const {
  const std::lock_guard lock(mutex_);
  return hub_.size() != 0 && model_.wants_bubbles();
}

}  // namespace freeride::web
