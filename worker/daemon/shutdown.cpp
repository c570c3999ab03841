#include "daemon/shutdown.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/about.hpp"
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
  until_ns_ = SteadyClock::now() + stop_ns_ / kSavingShare;
  for (const auto& [name, task] : tasks) {
    task->keep_state();
    if (can_save(*task)) {
      task->hold();
      waiting_.push_back(name);
    } else {
      stop(*task);
    }
  }
  save_next();
}

void Shutdown::save_next() {
  while (saving_.empty() && !waiting_.empty()) {
    const std::string name = waiting_.front();
    const int64_t now_ns = SteadyClock::now();
    const int64_t share_ns = std::max<int64_t>(0, until_ns_ - now_ns) / static_cast<int64_t>(waiting_.size());
    waiting_.pop_front();
    SideTask* task = host_.named(name);
    if (task == nullptr || task->ended()) continue;
    saving_ = name;
    timer_ = loop_.at(now_ns + share_ns, [this, name] {
      timer_ = 0;
      saved(name, Error{Code::kTimeout, "no time left", ""});
    });
    save(*task);
  }
}

// One that is being replaced has saved its state, or will not any more; one that is not initialised has no news.
bool Shutdown::can_save(const SideTask& task) const {
  return !task.ended() && !task.stopping() && task.spec().purpose == "run" &&
         !replacements_.under_way(task.spec().task) && task.initialised();
}

void Shutdown::save(SideTask& task) {
  const std::string name = task.spec().task;
  auto file = StateFile::create(host_.folder(name), task.spec().instance);
  if (!file.ok()) return saved(name, file.error());
  state_ = std::move(*file);
  task.save(*state_, [this, name](const Status& result) { saved(name, result); });
}

void Shutdown::saved(const std::string& name, const Status& saved) {
  if (saving_.empty() || saving_ != name) return;
  saving_.clear();
  loop_.cancel(std::exchange(timer_, 0));
  const std::unique_ptr<StateFile> state = std::move(state_);
  if (SideTask* task = host_.named(name); task != nullptr && !task->ended()) {
    task->stop_saving();
    // A plugin that keeps no state says so: there is nothing to go on from.
    const Status kept = !saved.ok() || state->header().present == 0 ? saved : state->keep();
    if (!kept.ok())
      spdlog::warn("side {} stops without having saved its state: {}", about_task(name), kept.error().text());
    stop(*task);
  }
  save_next();
}

void Shutdown::stop(SideTask& task) {
  if (auto ordered = replacements_.order(task, "stop"); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

}  // namespace freeride::worker
