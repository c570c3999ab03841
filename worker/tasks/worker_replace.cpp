// Moving a task to another content of its plugin: the new one is created while the old one goes on; then the old one
// saves its state and stops, and the new one is initialised and goes on from there. Whatever fails, one of them is
// left.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "daemon/worker.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kMarginNs = 60 * kNsPerSec;  // for waiting until a grant can be given

std::string text_of(const bus::Verdict& verdict) {
  std::string text = verdict.kind;
  if (!verdict.transition.empty()) text += " in " + verdict.transition;
  if (!verdict.reason.empty()) text += ": " + verdict.reason;
  if (!verdict.limit.empty()) text += " (limit: " + verdict.limit + ")";
  return text;
}

bool is_initialising(const SideTask& task) {
  const uint32_t transition = task.answered_transition();
  if (task.answered_state() != FREERIDE_STATE_CREATED) return false;
  return transition == FREERIDE_IN_INIT || transition == FREERIDE_IN_RESTORE;
}

}  // namespace

std::unique_ptr<SideTask> Worker::make_task(bus::CreateTask spec) {
  return std::make_unique<SideTask>(std::move(spec), ++last_task_, task_options_, *sandbox_, *loop_, *acting_,
                                    [this](SideTask& task) { on_task(task); });
}

Status Worker::check_room() const {
  const auto live = static_cast<size_t>(
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& t) { return !t.second->ended(); }));
  const size_t all = live + replacements_.size() + ending_.size();
  if (all < Actor::kMostTasks) return {};
  return Error{Code::kExhausted, "worker " + id_ + " has " + std::to_string(all) + " tasks already", ""};
}

SideTask* Worker::candidate(uint64_t id) {
  for (auto& [name, replacement] : replacements_) {
    if (replacement->next != nullptr && replacement->next->id() == id) return replacement->next.get();
  }
  const auto it = std::find_if(ending_.begin(), ending_.end(), [&](const auto& t) { return t->id() == id; });
  return it == ending_.end() ? nullptr : it->get();
}

Status Worker::on_replace(const bus::ReplaceTask& replace) {
  bus::CreateTask spec = replace.create;
  const std::string name = spec.task;
  if (!is_sha256(spec.sha256))
    return Error{Code::kInvalidArgument, "the replacement of task " + name.substr(0, 80) + " names no plugin content",
                 ""};
  const auto it = tasks_.find(name);
  if (it == tasks_.end() || it->second->ended() || it->second->spec().purpose != "run") {
    return Error{Code::kNotFound, "worker " + id_ + " has no task " + name.substr(0, 80), ""};
  }
  SideTask& old = *it->second;
  if (const auto under_way = replacements_.find(name); under_way != replacements_.end()) {
    if (under_way->second->revision == spec.revision) return {};  // repeated
    return Error{Code::kAlreadyExists, "task " + name + " is being replaced already", "wait for that"};
  }
  if (const auto before = replaced_.find(name); before != replaced_.end() && before->second.revision == spec.revision)
    return {};
  if (spec.revision <= old.spec().revision) return {};
  if (stopping_ || old.stopping())
    return Error{Code::kUnavailable, "task " + name + " is being stopped on worker " + id_, ""};
  if (auto room = check_room(); !room.ok()) return room;
  const std::filesystem::path folder = options_.paths.task_dir(name);
  auto file = StateFile::create(folder, spec.instance);
  if (!file.ok()) return file.error();
  auto reader = (*file)->reader();
  if (!reader.ok()) return reader.error();

  spec.purpose = "run";
  spdlog::info("side task {}: being replaced by {} {}", name, spec.plugin, spec.sha256.substr(0, 12));
  auto& replacement = replacements_[name] = std::make_unique<Replacement>();
  replacement->loop = loop_.get();
  replacement->revision = spec.revision;
  replacement->old_spec = old.spec();
  replacement->file = std::move(*file);
  replacement->next = make_task(std::move(spec));
  replacement->next->hold();  // created, no more
  replacement->next->go_on_from(std::move(*reader), {});
  launch(*replacement->next);
  link_->report_soon();
  return {};
}

// One look at a replacement, whenever something about one of its two contents has changed.
void Worker::advance(const std::string& name) {
  const auto it = replacements_.find(name);
  if (it == replacements_.end()) return;
  Replacement& replacement = *it->second;
  SideTask& task = *tasks_.at(name);
  using Phase = Replacement::Phase;
  switch (replacement.phase) {
    case Phase::kCreating:
    case Phase::kSaving:
      if (task.ended()) return cancel_replacement(name, "the task has ended meanwhile");
      if (replacement.next->ended()) {
        return cancel_replacement(name, text_of(replacement.next->report().verdict));
      }
      if (replacement.phase == Phase::kCreating && replacement.next->answered_state() == FREERIDE_STATE_CREATED)
        switch_over(replacement, task);
      return;
    case Phase::kStopping:
      if (task.ended()) take_place(replacement);
      return;
    case Phase::kStarting:
      if (task.ended()) {
        if (task.stopping()) return cancel_replacement(name, "the task was stopped meanwhile");
        return fall_back(replacement, text_of(task.report().verdict));
      }
      if (task.answered_state() != FREERIDE_STATE_PAUSED || task.stopping()) return;
      std::string reason = "it begins anew: ";
      const freeride_saved_state& state = replacement.file->header();
      if (task.restored()) {
        reason = "it goes on from its state of " + std::to_string(state.size) + " bytes";
      } else if (state.present == 0) {
        reason += "the old content kept no state";
      } else {
        reason += "the state is of another plugin, or the new content keeps none";
      }
      task.release();
      finish_replacement(name, "done", reason);
  }
}

// Events can be dropped; once a second makes sure.
void Worker::look_at_replacements() {
  std::vector<std::string> names;
  for (const auto& [name, replacement] : replacements_) names.push_back(name);
  for (const std::string& name : names) advance(name);
}

// The new one is there. The old one's steps end here.
void Worker::switch_over(Replacement& replacement, SideTask& old) {
  if (is_initialising(old)) return;  // until it has: its next change of state comes here
  const std::string name = old.spec().task;
  const uint32_t state = old.answered_state();
  if (state != FREERIDE_STATE_PAUSED && state != FREERIDE_STATE_RUNNING) {
    if (auto copied = replacement.file->copy_or_none(old.counters_now().steps); !copied.ok())
      return cancel_replacement(name, copied.error().text());
    return stop_old(replacement, old);
  }
  replacement.phase = Replacement::Phase::kSaving;
  old.hold();
  replacement.timer = loop_->at(SteadyClock::now() + options_.init_ms * kNsPerMs + kMarginNs, [this, name] {
    replacements_.at(name)->timer = 0;
    cancel_replacement(name, "the old content did not save its state in time");
  });
  old.save(*replacement.file, [this, name](const Status& saved) {
    if (!saved.ok())
      return cancel_replacement(name, "the old content could not save its state: " + saved.error().text());
    if (replacements_.count(name) != 0) stop_old(*replacements_.at(name), *tasks_.at(name));
  });
}

void Worker::stop_old(Replacement& replacement, SideTask& old) {
  const std::string name = old.spec().task;
  if (auto kept = replacement.file->keep(); !kept.ok()) return cancel_replacement(name, kept.error().text());
  loop_->cancel(std::exchange(replacement.timer, 0));
  replacement.phase = Replacement::Phase::kStopping;
  replacement.order = old.ordered();
  old.keep_state();
  if (auto ordered = old.order("stop"); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

// The old one is gone; the name goes to the new one.
void Worker::take_place(Replacement& replacement) {
  auto& place = tasks_.at(replacement.old_spec.task);
  const std::string name = replacement.old_spec.task;
  if (replacement.stop_wanted) {
    if (!stopping_) forget_state(options_.paths.task_dir(name));
    return cancel_replacement(name, "the task was stopped meanwhile");
  }
  replacement.counters = place->counters_now();
  retired_.push_back(std::move(place));
  place = std::move(replacement.next);
  SideTask& task = *place;
  replacement.phase = Replacement::Phase::kStarting;
  if (task.ended()) return fall_back(replacement, text_of(task.report().verdict));
  task.count_from(replacement.counters);
  if (auto ordered = task.order(replacement.order); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
  const uint64_t id = task.id();
  replacement.timer = loop_->at(SteadyClock::now() + options_.init_ms * kNsPerMs + kMarginNs, [this, name, id] {
    if (const auto it = replacements_.find(name); it != replacements_.end()) it->second->timer = 0;
    if (SideTask* late = this->task(id)) late->kill("overran", "was not initialised in time");
  });
  task.initialise_paused();
  link_->report_soon();
}

// The new one does not work: the old content again, from where it was.
void Worker::fall_back(Replacement& replacement, const std::string& why) {
  const std::string name = replacement.old_spec.task;
  auto& place = tasks_.at(name);
  bus::CreateTask spec = replacement.old_spec;
  spec.start_paused = place->ordered() == "pause" || (replacement.order == "pause" && place->ordered() != "run");
  auto old = make_task(spec);
  old->go_on_from(open_state(options_.paths.task_dir(name), spec.instance), replacement.counters);
  retired_.push_back(std::exchange(place, std::move(old)));
  finish_replacement(name, "failed", why + "; the old content goes on");
  launch(*tasks_.at(name));
}

void Worker::finish_replacement(const std::string& name, const std::string& state, const std::string& reason) {
  const auto replacement = std::move(replacements_.extract(name).mapped());
  bus::ReplacementReport& report = replaced_[name];
  report.revision = replacement->revision;
  report.state = state;
  report.reason = reason;
  report.steps = replacement->counters.steps;
  spdlog::info("side task {}: replacement {}: {}", name, state, reason);
  drop_contents(replacement->old_spec.sha256);
  if (replacement->next != nullptr) {
    drop_contents(replacement->next->spec().sha256);
    let_end(std::move(replacement->next));
  }
  link_->report_soon();
}

// The task is left as it is, whatever that is; the new content goes.
void Worker::cancel_replacement(const std::string& name, const std::string& why) {
  const auto it = replacements_.find(name);
  if (it == replacements_.end()) return;
  SideTask& task = *tasks_.at(name);
  if (it->second->phase == Replacement::Phase::kSaving) {
    task.stop_saving();
    task.release();
  }
  finish_replacement(name, "failed", why);
}

void Worker::let_end(std::unique_ptr<SideTask> task) {
  if (task->ended()) {
    retired_.push_back(std::move(task));
    return;
  }
  SideTask& kept = *task;
  ending_.push_back(std::move(task));
  if (auto ordered = kept.order("stop"); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

Status Worker::give_order(SideTask& task, const std::string& order) {
  const std::string name = task.spec().task;
  const auto it = replacements_.find(name);
  if (it != replacements_.end()) {
    Replacement& replacement = *it->second;
    if (replacement.phase == Replacement::Phase::kStopping) {  // it stops anyway; what is wanted is of the new one
      if (order == "stop")
        replacement.stop_wanted = true;
      else if (order == "run" || order == "pause")
        replacement.order = order;
      return {};
    }
    if (order == "stop" && replacement.phase != Replacement::Phase::kStarting)
      cancel_replacement(name, "the task was stopped meanwhile");
  }
  return task.order(order);
}

bus::TaskReport Worker::report_of(SideTask& task) {
  bus::TaskReport report = task.report();
  const std::string& name = task.spec().task;
  if (const auto it = replacements_.find(name); it != replacements_.end()) {
    report.revision = it->second->old_spec.revision;
    report.replacement.revision = it->second->revision;
    report.replacement.state = it->second->state();
  } else if (const auto done = replaced_.find(name); done != replaced_.end()) {
    report.replacement = done->second;
  }
  return report;
}

void Worker::on_end(SideTask& task) {
  const auto it = std::find_if(ending_.begin(), ending_.end(), [&](const auto& t) { return t.get() == &task; });
  if (it != ending_.end()) {
    retired_.push_back(std::move(*it));
    ending_.erase(it);
    return;
  }
  const auto named = tasks_.find(task.spec().task);
  if (named == tasks_.end() || named->second.get() != &task || task.spec().purpose != "run") return;
  const std::string kind = task.report().verdict.kind;
  if (!task.keeps_state() && kind != "lost" && kind != "evicted")
    forget_state(options_.paths.task_dir(task.spec().task));
  drop_contents(task.spec().sha256);
}

// A store that the manager shares is the manager's to clear. Contents that it had to send lie in one that it does not.
void Worker::drop_contents(const std::string& sha256) {
  if (fetched_.count(sha256) == 0) return;
  const auto uses = [&](const SideTask& task) { return !task.ended() && task.spec().sha256 == sha256; };
  const bool used =
      std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& t) { return uses(*t.second); }) ||
      std::any_of(replacements_.begin(), replacements_.end(),
                  [&](const auto& r) {
                    return r.second->old_spec.sha256 == sha256 || (r.second->next != nullptr && uses(*r.second->next));
                  }) ||
      std::any_of(drop_folder_->files().begin(), drop_folder_->files().end(),
                  [&](const auto& f) { return f.second.sha256 == sha256; });
  if (used) return;
  fetched_.erase(sha256);
  store_->remove(sha256);
}

}  // namespace freeride::worker
