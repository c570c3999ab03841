// A worker that ends in good order: its tasks save their progress, those that can, and stop; where they are placed
// again on this host they go on from there.
#include <algorithm>

#include "daemon/worker.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"

namespace freeride::worker {
namespace {

// Of --stop-ms, what all tasks together may take to save; one that has not by then stops without.
constexpr int64_t kSavingShare = 3;

}  // namespace

void Worker::begin_stop() {
  stopping_ = true;
  spdlog::info("stopping: {} side tasks",
               std::count_if(tasks_.begin(), tasks_.end(), [](const auto& t) { return !t.second->ended(); }));
  for (auto& [name, task] : tasks_) {
    task->keep_state();
    if (can_save(*task)) {
      save_last(*task);
    } else {
      order_to_stop(*task);
    }
  }
  if (!last_states_.empty()) {
    loop_->at(SteadyClock::now() + options_.stop_ms * kNsPerMs / kSavingShare, [this] {
      while (!last_states_.empty()) saved_last(last_states_.begin()->first, Error{Code::kTimeout, "no time left", ""});
    });
  }
  stop_when_idle();
}

// One that is being replaced has saved its state, or will not any more; one that is not initialised has no news.
bool Worker::can_save(const SideTask& task) const {
  const std::string& name = task.spec().task;
  const uint32_t state = task.answered_state();
  return !task.ended() && !task.stopping() && task.spec().purpose == "run" && replacements_.count(name) == 0 &&
         (state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING);
}

void Worker::save_last(SideTask& task) {
  auto file = StateFile::create(options_.paths.task_dir(task.spec().task), task.spec().instance);
  if (!file.ok()) {
    spdlog::warn("{}", file.error().text());
    return order_to_stop(task);
  }
  const uint64_t id = task.id();
  StateFile& state = *(last_states_[id] = std::move(*file));
  task.hold();
  task.save(state, [this, id](const Status& saved) { saved_last(id, saved); });
}

void Worker::saved_last(uint64_t id, const Status& saved) {
  auto taken = last_states_.extract(id);
  SideTask* task = this->task(id);
  if (taken.empty() || task == nullptr || task->ended()) return;
  StateFile& state = *taken.mapped();
  task->stop_saving();
  // A plugin that keeps no state says so: there is nothing to go on from.
  const Status kept = !saved.ok() || state.header().present == 0 ? saved : state.keep();
  if (!kept.ok())
    spdlog::warn("side task {} stops without having saved its state: {}", task->spec().task, kept.error().text());
  order_to_stop(*task);
}

void Worker::order_to_stop(SideTask& task) {
  if (auto ordered = give_order(task, "stop"); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

void Worker::stop_when_idle() {
  if (!stopping_) return;
  const bool idle = std::all_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t.second->ended(); });
  if (idle && ending_.empty()) loop_->stop();
}

}  // namespace freeride::worker
