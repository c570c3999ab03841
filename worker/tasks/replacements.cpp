#include "tasks/replacements.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/about.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/enum_names.hpp"
#include "freeride/base/log.hpp"
#include "tasks/verdicts.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kMarginNs = 60 * kNsPerSec;  // for waiting until an init or save lease can be given

bool is_initialising(const SideTask& task) {
  const uint32_t transition = task.answered_transition();
  if (task.answered_state() != FREERIDE_STATE_CREATED) return false;
  return transition == FREERIDE_IN_INIT || transition == FREERIDE_IN_RESTORE;
}

void give(SideTask& task, const std::string& order) {
  if (auto ordered = task.order(order); !ordered.ok()) spdlog::warn("{}", ordered.error().text());
}

}  // namespace

const char* Replacements::phase_name(Phase phase) {
  static constexpr EnumName<Phase> kNames[] = {{Phase::kCreating, "creating"},
                                               {Phase::kSaving, "saving"},
                                               {Phase::kStopping, "stopping"},
                                               {Phase::kStarting, "starting"}};
  return name_in(kNames, phase);
}

Replacements::~Replacements() {
  for (auto& [name, replacement] : under_way_) loop_.cancel(replacement->timer);
}

SideTask* Replacements::find(uint64_t id) {
  for (auto& [name, replacement] : under_way_) {
    if (replacement->next != nullptr && replacement->next->id() == id) return replacement->next.get();
  }
  const auto it = std::find_if(ending_.begin(), ending_.end(), [&](const auto& t) { return t->id() == id; });
  return it == ending_.end() ? nullptr : it->get();
}

Status Replacements::begin(SideTask& old, bus::CreateTask spec) {
  const std::string name = spec.task;
  if (const auto it = under_way_.find(name); it != under_way_.end()) {
    if (it->second->revision == spec.revision) return {};  // repeated
    return Error{Code::kAlreadyExists, "task " + name + " is being replaced already", "wait for that"};
  }
  if (const auto before = done_.find(name); before != done_.end() && before->second.revision == spec.revision)
    return {};
  if (spec.revision <= old.spec().revision) return {};
  if (auto may = host_.may_replace(old); !may.ok()) return may;
  auto file = StateFile::create(host_.folder(name), spec.instance);
  if (!file.ok()) return file.error();
  auto reader = (*file)->reader();
  if (!reader.ok()) return reader.error();

  spec.purpose = "run";
  spdlog::info("side {}: being replaced by {} {}", about_task(name), spec.plugin, spec.sha256.substr(0, 12));
  auto& replacement = under_way_[name] = std::make_unique<Replacement>();
  replacement->revision = spec.revision;
  replacement->old_spec = old.spec();
  replacement->file = std::move(*file);
  replacement->next = host_.make(std::move(spec));
  replacement->next->hold();  // created, no more
  replacement->next->go_on_from(std::move(*reader), {});
  host_.launch(*replacement->next);
  host_.report_soon();
  return {};
}

SideTask* Replacements::next_of(const std::string& name) {
  const auto it = under_way_.find(name);
  return it == under_way_.end() ? nullptr : it->second->next.get();
}

void Replacements::give_up(const std::string& name, const policy::Verdict& why) {
  SideTask* next = next_of(name);
  if (!under_way(name)) return;
  finish(name, "failed", why.message);
  if (next != nullptr && !next->ended()) next->kill(why);
}

void Replacements::look_at(const std::string& name) {
  const auto it = under_way_.find(name);
  if (it == under_way_.end()) return;
  Replacement& replacement = *it->second;
  SideTask& task = *host_.named(name);
  switch (replacement.phase) {
    case Phase::kCreating:
    case Phase::kSaving:
      if (task.ended()) return cancel(name, "the task has ended meanwhile");
      if (replacement.next->ended()) return cancel(name, text_of(replacement.next->verdict()));
      if (replacement.phase == Phase::kCreating && replacement.next->answered_state() == FREERIDE_STATE_CREATED)
        switch_over(replacement, task);
      return;
    case Phase::kStopping:
      if (task.ended()) take_place(replacement, task);
      return;
    case Phase::kStarting:
      if (task.ended()) {
        if (task.stopping()) return cancel(name, "the task was stopped meanwhile");
        return fall_back(replacement, text_of(task.verdict()));
      }
      if (task.answered_state() != FREERIDE_STATE_PAUSED || task.stopping()) return;
      std::string reason = "it starts from zero: ";
      const freeride_saved_state& state = replacement.file->header();
      if (task.restored()) {
        reason = "it continues from its state of " + std::to_string(state.size) + " bytes";
      } else if (state.present == 0) {
        reason += "the old content kept no state";
      } else {
        reason += "the state is of another plugin, or the new content keeps none";
      }
      task.release();
      finish(name, "done", reason);
  }
}

void Replacements::look_at_all() {
  std::vector<std::string> names;
  for (const auto& [name, replacement] : under_way_) names.push_back(name);
  for (const std::string& name : names) look_at(name);
}

// The new one is there. The old one's steps end here.
void Replacements::switch_over(Replacement& replacement, SideTask& old) {
  if (is_initialising(old)) return;  // until it has: its next change of state comes here
  const std::string name = old.spec().task;
  if (!old.initialised()) {
    if (auto copied = replacement.file->copy_or_none(old.counters_now().steps); !copied.ok())
      return cancel(name, copied.error().text());
    return stop_old(replacement, old);
  }
  replacement.phase = Phase::kSaving;
  old.hold();
  replacement.timer = loop_.at(SteadyClock::now() + init_ns_ + kMarginNs, [this, name] {
    under_way_.at(name)->timer = 0;
    cancel(name, "the old content did not save its state in time");
  });
  old.save(*replacement.file, [this, name](const Status& saved) {
    if (!saved.ok()) return cancel(name, "the old content could not save its state: " + saved.error().text());
    if (under_way(name)) stop_old(*under_way_.at(name), *host_.named(name));
  });
}

void Replacements::stop_old(Replacement& replacement, SideTask& old) {
  if (auto kept = replacement.file->keep(); !kept.ok()) return cancel(old.spec().task, kept.error().text());
  loop_.cancel(std::exchange(replacement.timer, 0));
  replacement.phase = Phase::kStopping;
  replacement.order = old.ordered();
  old.keep_state();
  give(old, "stop");
}

// The old one is gone; the name goes to the new one.
void Replacements::take_place(Replacement& replacement, SideTask& old) {
  const std::string name = replacement.old_spec.task;
  if (replacement.stop_wanted) {
    if (!going_down_) forget_state(host_.folder(name));
    return cancel(name, "the task was stopped meanwhile");
  }
  replacement.counters = old.counters_now();
  SideTask& task = *replacement.next;
  host_.retire(host_.put(name, std::move(replacement.next)));
  replacement.phase = Phase::kStarting;
  if (task.ended()) return fall_back(replacement, text_of(task.verdict()));
  task.count_from(replacement.counters);
  give(task, replacement.order);
  replacement.timer = loop_.at(SteadyClock::now() + init_ns_ + kMarginNs, [this, name] {
    const auto it = under_way_.find(name);
    if (it == under_way_.end()) return;
    it->second->timer = 0;
    host_.named(name)->kill(
        {policy::VerdictKind::kOverran, policy::Cause::kSlowTransition, "was not initialised in time"});
  });
  task.initialise_paused();
  host_.report_soon();
}

// The new one does not work: the old content again, from where it was.
void Replacements::fall_back(Replacement& replacement, const std::string& why) {
  const std::string name = replacement.old_spec.task;
  const std::string ordered = host_.named(name)->ordered();
  bus::CreateTask spec = replacement.old_spec;
  spec.start_paused = ordered == "pause" || (replacement.order == "pause" && ordered != "run");
  auto old = host_.make(spec);
  old->go_on_from(open_state(host_.folder(name), spec.instance), replacement.counters);
  host_.retire(host_.put(name, std::move(old)));
  finish(name, "failed", why + "; the old content continues");
  host_.launch(*host_.named(name));
}

void Replacements::finish(const std::string& name, const std::string& state, const std::string& reason) {
  const auto replacement = std::move(under_way_.extract(name).mapped());
  loop_.cancel(replacement->timer);
  bus::ReplacementReport& report = done_[name];
  report.revision = replacement->revision;
  report.state = state;
  report.reason = reason;
  report.steps = replacement->counters.steps;
  spdlog::info("side {}: replacement {}: {}", about_task(name), state, reason);
  host_.drop_content(replacement->old_spec.sha256);
  if (replacement->next != nullptr) {
    host_.drop_content(replacement->next->spec().sha256);
    let_end(std::move(replacement->next));
  }
  host_.report_soon();
}

// The task is left as it is, whatever that is; the new content goes.
void Replacements::cancel(const std::string& name, const std::string& why) {
  const auto it = under_way_.find(name);
  if (it == under_way_.end()) return;
  if (it->second->phase == Phase::kSaving) {
    SideTask& task = *host_.named(name);
    task.stop_saving();
    task.release();
  }
  finish(name, "failed", why);
}

void Replacements::let_end(std::unique_ptr<SideTask> task) {
  if (task->ended()) return host_.retire(std::move(task));
  SideTask& kept = *task;
  ending_.push_back(std::move(task));
  give(kept, "stop");
}

Status Replacements::order(SideTask& task, const std::string& order) {
  const std::string name = task.spec().task;
  if (const auto it = under_way_.find(name); it != under_way_.end()) {
    Replacement& replacement = *it->second;
    if (replacement.phase == Phase::kStopping) {  // it stops anyway; what is wanted is of the new one
      if (order == "stop")
        replacement.stop_wanted = true;
      else if (order == "run" || order == "pause")
        replacement.order = order;
      return {};
    }
    if (order == "stop" && replacement.phase != Phase::kStarting) cancel(name, "the task was stopped meanwhile");
  }
  return task.order(order);
}

void Replacements::fill(bus::TaskReport& report) const {
  if (const auto it = under_way_.find(report.task); it != under_way_.end()) {
    report.revision = it->second->old_spec.revision;
    report.replacement.revision = it->second->revision;
    report.replacement.state = phase_name(it->second->phase);
    // While the new one is being created, the old one works.
    if (it->second->phase != Phase::kCreating) report.why = policy::why_name(policy::Why::kReplacing);
  } else if (const auto done = done_.find(report.task); done != done_.end()) {
    report.replacement = done->second;
  }
}

bool Replacements::ended(const SideTask& task) {
  const auto it = std::find_if(ending_.begin(), ending_.end(), [&](const auto& t) { return t.get() == &task; });
  if (it == ending_.end()) return false;
  auto gone = std::move(*it);
  ending_.erase(it);
  host_.retire(std::move(gone));
  return true;
}

bool Replacements::uses(const std::string& sha256) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const auto& r) {
    const SideTask* next = r.second->next.get();
    return r.second->old_spec.sha256 == sha256 || (next != nullptr && !next->ended() && next->spec().sha256 == sha256);
  });
}

}  // namespace freeride::worker
