#include "daemon/shutdown.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"

namespace freeride::worker {
namespace {

// Of --stop-ms, what all tasks together may take to save; one that has not by then stops without.
constexpr int64_t kSavingShare = 3;

}  // namespace

void Shutdown::begin(const std::map<std::string, std::unique_ptr<SideTask>>& tasks) {
  begun_ = true;
  spdlog::info("stopping: {} side tasks",
               std::count_if(tasks.begin(), tasks.end(), [](const auto& t) { return !t.second->ended(); }));
  for (const auto& [name, task] : tasks) {
    task->keep_state();
    if (can_save(*task)) {
      save(*task);
    } else {
      stop(*task);
    }
  }
  if (states_.empty()) return;
  loop_.at(SteadyClock::now() + stop_ns_ / kSavingShare, [this] {
    while (!states_.empty()) saved(states_.begin()->first, Error{Code::kTimeout, "no time left", ""});
  });
}

// One that is being replaced has saved its state, or will not any more; one that is not initialised has no news.
bool Shutdown::can_save(const SideTask& task) const {
  return !task.ended() && !task.stopping() && task.spec().purpose == "run" && !calls_.replaced(task) &&
         task.initialised();
}

void Shutdown::save(SideTask& task) {
  auto file = StateFile::create(calls_.folder(task.spec().task), task.spec().instance);
  if (!file.ok()) {
    spdlog::warn("{}", file.error().text());
    return stop(task);
  }
  const uint64_t id = task.id();
  StateFile& state = *(states_[id] = std::move(*file));
  task.hold();
  task.save(state, [this, id](const Status& result) { saved(id, result); });
}

void Shutdown::saved(uint64_t id, const Status& saved) {
  auto taken = states_.extract(id);
  SideTask* task = calls_.find(id);
  if (taken.empty() || task == nullptr || task->ended()) return;
  StateFile& state = *taken.mapped();
  task->stop_saving();
  // A plugin that keeps no state says so: there is nothing to go on from.
  const Status kept = !saved.ok() || state.header().present == 0 ? saved : state.keep();
  if (!kept.ok())
    spdlog::warn("side task {} stops without having saved its state: {}", task->spec().task, kept.error().text());
  stop(*task);
}

void Shutdown::stop(SideTask& task) {
  if (auto ordered = calls_.stop(task); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

}  // namespace freeride::worker
