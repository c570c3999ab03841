#include "acting/actor.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/clock.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kAuditNs = kNsPerSec;  // how often paused tasks' CPU clocks are looked at

}  // namespace

Actor::Actor(const ActorConfig& config, Processes& processes, EventRing& events)
    : config_(config), processes_(processes), events_(events) {
  ranks_.reserve(kMostRanks);
  tasks_.reserve(kMostTasks);
  rank_views_.reserve(kMostRanks);
  task_views_.reserve(kMostTasks);
  charges_.reserve(kMostTasks);
}

// ---- orders

void Actor::add_rank(std::shared_ptr<const RankSource> source) {
  if (ranks_.size() < kMostRanks) ranks_.push_back(std::make_unique<RankSlot>(std::move(source), plans_));
}

void Actor::remove_rank(uint64_t id, int64_t now_ns) {
  RankSlot* leaver = rank(id);
  if (leaver == nullptr) return;
  // A dead trainer's bubble ends with it.
  if (open_task_ != policy::kNoTask) close_lease(now_ns, now_ns);
  if (window_open_) leave_window(now_ns, nullptr);
  std::erase_if(ranks_, [&](const auto& r) { return r->source().id == id; });
  std::erase_if(charges_, [&](const Charge& c) { return c.rank == id; });
}

void Actor::add_task(std::shared_ptr<TaskSource> source) {
  if (tasks_.size() < kMostTasks) {
    tasks_.push_back(std::make_unique<TaskSlot>(std::move(source), config_.task, processes_));
  }
}

void Actor::remove_task(uint64_t id) {
  const auto it = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t->source().id == id; });
  if (it == tasks_.end()) return;
  const auto index = static_cast<size_t>(it - tasks_.begin());
  if (open_task_ == index) {
    open_task_ = policy::kNoTask;
  } else if (open_task_ != policy::kNoTask && open_task_ > index) {
    --open_task_;
  }
  for (const Charge& charge : charges_) {
    if (charge.task != id) continue;
    if (RankSlot* slot = rank(charge.rank)) slot->settle_overrun(charge.serial, 0);
  }
  std::erase_if(charges_, [&](const Charge& c) { return c.task == id; });
  tasks_.erase(it);
}

void Actor::set_process(uint64_t id, int pid, std::shared_ptr<const Fd> pidfd) {
  if (TaskSlot* slot = task(id)) slot->set_process(pid, std::move(pidfd));
}

void Actor::stop(int64_t now_ns) {
  open_task_ = policy::kNoTask;
  for (auto& slot : tasks_) slot->close(now_ns, now_ns);
}

void Actor::set_order(uint64_t id, uint32_t order, int64_t now_ns) {
  if (TaskSlot* slot = task(id)) slot->set_order(order, now_ns);
}

void Actor::ask_to_save(uint64_t id, bool wanted) {
  if (TaskSlot* slot = task(id)) slot->ask_to_save(wanted);
}

void Actor::initialise_paused(uint64_t id) {
  if (TaskSlot* slot = task(id)) slot->initialise_paused();
}

void Actor::set_plans(std::shared_ptr<const PlanSet> plans) {
  plans_ = std::move(plans);
  for (auto& slot : ranks_) slot->set_plans(plans_);
}

// ---- one look

Actor::Next Actor::step(int64_t now_ns, WaitSet& waits) {
  next_ = Next{};
  for (auto& slot : ranks_) slot->read();
  for (auto& slot : tasks_) slot->read();
  act(now_ns);
  // From here on nothing is urgent.
  account(now_ns);
  grants(now_ns);
  judge(now_ns);
  settle(now_ns, false);
  for (auto& slot : ranks_) slot->collect(now_ns, events_);
  tell_states();
  tell_supervisors(now_ns);
  add_waits(waits);
  next_.in_window = window_open_;
  next_.awake_ns = awake_until(now_ns);
  return next_;
}

void Actor::act(int64_t now_ns) {
  rank_views_.clear();
  task_views_.clear();
  bool same_bubbles = true;
  for (auto& slot : ranks_) {
    rank_views_.push_back(slot->view);
    same_bubbles = same_bubbles && !slot->left;
  }
  for (auto& slot : tasks_) task_views_.push_back(slot->view);

  policy::LeaseSnapshot snapshot;
  snapshot.now_ns = now_ns;
  snapshot.ranks = rank_views_;
  snapshot.tasks = task_views_;
  snapshot.open_task = open_task_;
  // A lease is of one bubble: when another has begun since, it is over, whatever its deadline says.
  snapshot.open_deadline_ns = open_task_ == policy::kNoTask || !same_bubbles ? 0 : tasks_[open_task_]->deadline_ns();
  snapshot.open_is_idle = open_is_idle_;
  snapshot.grant_waits =
      std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t->wants_grant() || t->wants_save(); }) &&
      std::none_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t->has_grant(); });
  snapshot.limits = config_.lease;
  const policy::LeaseAction action = policy::decide_lease(snapshot);

  switch (action.verb) {
    case policy::LeaseVerb::kNothing:
      break;
    case policy::LeaseVerb::kClose:
      close_lease(now_ns, now_ns);
      break;
    case policy::LeaseVerb::kOpen: {
      if (open_task_ != policy::kNoTask && open_task_ != action.task) close_lease(now_ns, now_ns);
      int64_t begin_ns = now_ns;
      if (!action.idle) {
        begin_ns = 0;
        for (const policy::RankView& view : rank_views_) begin_ns = std::max(begin_ns, view.begin_ns);
      }
      TaskSlot& slot = *tasks_[action.task];
      slot.open(action.idle ? TaskSlot::Kind::kIdle : TaskSlot::Kind::kBubble, action.deadline_ns, begin_ns, now_ns);
      slot.view.last_served = ++served_;
      open_task_ = action.task;
      open_is_idle_ = action.idle;
      break;
    }
  }
  if (action.look_again_ns != 0) look_at(after_start(action.look_again_ns, now_ns));
}

bool Actor::starting() const {
  return open_task_ != policy::kNoTask && tasks_[open_task_]->not_started();
}

int64_t Actor::after_start(int64_t when_ns, int64_t now_ns) const {
  return starting() ? std::max(when_ns, now_ns + kStartNs) : when_ns;
}

void Actor::close_lease(int64_t ended_ns, int64_t now_ns) {
  TaskSlot& slot = *tasks_[open_task_];
  open_task_ = policy::kNoTask;
  slot.close(ended_ns, now_ns);
}

bool Actor::all_in_bubbles() const {
  return !ranks_.empty() &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const auto& slot) { return slot->state_word != 0; });
}

void Actor::account(int64_t now_ns) {
  RankSlot* leaver = nullptr;
  for (auto& slot : ranks_) {
    if (slot->left && leaver == nullptr) leaver = slot.get();
  }
  if (window_open_ && (leaver != nullptr || !all_in_bubbles())) leave_window(now_ns, leaver);
  for (auto& slot : ranks_) {
    if (slot->left || slot->entered) slot->turn(now_ns, events_);
  }
  if (!window_open_ && all_in_bubbles()) {
    settle(now_ns, true);
    window_open_ = true;
    window_leased_ = false;
    window_begin_ns_ = 0;
    for (auto& slot : ranks_) window_begin_ns_ = std::max(window_begin_ns_, slot->current().begin_ns);
  }
  if (window_open_ && open_task_ != policy::kNoTask && !open_is_idle_) {
    tasks_[open_task_]->enter_window(now_ns);
    if (!window_leased_) {
      window_leased_ = true;
      for (auto& slot : ranks_) slot->note_lease();
    }
  }
}

void Actor::leave_window(int64_t now_ns, RankSlot* leaver) {
  window_open_ = false;
  const int64_t end_ns = leaver == nullptr ? now_ns : leaver->end_of_left(now_ns);
  for (auto& slot : tasks_) {
    if (!slot->in_window()) continue;
    const int64_t harvested_ns = slot->leave_window(end_ns, end_ns - window_begin_ns_);
    for (auto& rank_slot : ranks_) {
      rank_slot->add_harvest(harvested_ns);
      rank_slot->note_side_task(slot->source().id, slot->side_begin_ns(), slot->side_end_ns());
    }
    if (leaver == nullptr || !slot->overruns()) continue;
    charges_.push_back(Charge{slot->source().id, leaver->source().id, leaver->current().serial});
    leaver->expect_overrun(leaver->current().serial);
  }
}

void Actor::settle(int64_t now_ns, bool next_window) {
  for (auto& slot : tasks_) {
    if (!slot->overruns()) continue;
    const int64_t executed_ns = slot->overrun(now_ns, next_window);
    if (executed_ns < 0) continue;
    const uint64_t id = slot->source().id;
    for (const Charge& charge : charges_) {
      if (charge.task != id) continue;
      if (RankSlot* rank_slot = rank(charge.rank)) rank_slot->settle_overrun(charge.serial, executed_ns);
    }
    std::erase_if(charges_, [&](const Charge& c) { return c.task == id; });
  }
  // Whoever was ordered to stop is not measured any more.
  for (const Charge& charge : charges_) {
    TaskSlot* slot = task(charge.task);
    if (slot != nullptr && slot->overruns()) continue;
    if (RankSlot* rank_slot = rank(charge.rank)) rank_slot->settle_overrun(charge.serial, 0);
  }
  std::erase_if(charges_, [&](const Charge& c) {
    TaskSlot* slot = task(c.task);
    return slot == nullptr || !slot->overruns();
  });
}

void Actor::grants(int64_t now_ns) {
  bool granted = false;
  for (auto& slot : tasks_) {
    if (!slot->has_grant()) continue;
    if (slot->grant_done() || slot->killed() || slot->deadline_ns() <= now_ns) {
      slot->close(now_ns, now_ns);
      slot->forget_unused_grant();
      look_at(now_ns);  // it may get a lease at once
    } else if (!ranks_.empty() && slot->holds_profile()) {
      slot->take_back_profile(now_ns);
      look_at(now_ns);
    } else {
      granted = true;
      look_at(slot->deadline_ns());
    }
  }
  // One at a time, begun while the others pause; low in priority by how its process is scheduled.
  const bool busy = open_task_ != policy::kNoTask ||
                    std::any_of(tasks_.begin(), tasks_.end(), [](const auto& t) { return t->view.executing; });
  if (granted || busy) return;
  for (auto& slot : tasks_) {
    if (slot->wants_save()) {
      slot->open(TaskSlot::Kind::kSave, now_ns + config_.init_ns, now_ns, now_ns);
      look_at(now_ns + config_.init_ns);
      if (ranks_.empty()) look_at(now_ns);  // idle leases had stopped for this grant, and go on beside it
      return;
    }
    if (!slot->wants_grant()) continue;
    // Beside a training a profile is initialised like any task, and makes its steps in bubbles.
    const bool profile = slot->source().profile && ranks_.empty();
    const int64_t deadline_ns = now_ns + (profile ? config_.profile_ns : config_.init_ns);
    slot->open(profile ? TaskSlot::Kind::kProfile : TaskSlot::Kind::kInit, deadline_ns, now_ns, now_ns);
    look_at(deadline_ns);
    if (ranks_.empty()) look_at(now_ns);  // as above
    return;
  }
}

void Actor::judge(int64_t now_ns) {
  const bool audit = next_audit_ns_ <= now_ns;
  bool again = false;
  for (auto& slot : tasks_) {
    const uint32_t transition = slot->transition;
    const bool could_save = slot->wants_save();
    const bool training_came = slot->training_came();
    int64_t look_ns = 0;
    if (slot->judge(now_ns, look_ns) || (audit && slot->audit(now_ns))) note_kill(*slot, transition, training_came);
    if (look_ns != 0) look_at(look_ns);
    if (!could_save && slot->wants_save()) look_at(now_ns);  // seen paused just now
    again = again || (slot->initialised() && !slot->killed());
  }
  if (audit) next_audit_ns_ = now_ns + kAuditNs;
  if (again) look_at(next_audit_ns_);
}

void Actor::note_kill(TaskSlot& slot, uint32_t transition, bool training_came) {
  if (open_task_ != policy::kNoTask && tasks_[open_task_].get() == &slot) open_task_ = policy::kNoTask;
  kills_.push_back(Kill{slot.source().id, slot.reason(), slot.limit(), transition, training_came});
  next_.tell_now = true;
}

void Actor::tell_states() {
  for (auto& slot : tasks_) {
    if (!slot->take_state_change()) continue;
    ActEvent event;
    event.kind = ActEvent::Kind::kTaskState;
    event.id = slot->source().id;
    events_.push(event);
    next_.tell_now = true;
  }
}

void Actor::tell_supervisors(int64_t now_ns) {
  for (auto& slot : tasks_) {
    const int64_t look_ns = slot->tell_supervisor(now_ns);
    if (look_ns != 0) look_at(after_start(look_ns, now_ns));
  }
}

void Actor::look_at(int64_t when_ns) {
  if (next_.look_ns == 0 || when_ns < next_.look_ns) next_.look_ns = when_ns;
}

void Actor::add_waits(WaitSet& waits) const {
  for (const auto& slot : ranks_) waits.add_shared(slot->wake_word(), slot->wake);
  const auto runnable =
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& slot) { return slot->view.runnable; });
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const TaskSlot& slot = *tasks_[i];
    // Answers matter while something waits for them: a creation, a grant, a first step, a pause, or somebody who could
    // have the rest.
    const bool initialising = slot.state < FREERIDE_STATE_PAUSED || slot.kind() == TaskSlot::Kind::kInit ||
                              slot.kind() == TaskSlot::Kind::kSave;
    const bool pausing = slot.watched() || slot.overruns();
    const bool shared = i == open_task_ && (runnable > 1 || slot.not_started());
    if (initialising || pausing || shared) waits.add_shared(slot.sequence_word(), slot.sequence);
  }
}

int64_t Actor::awake_until(int64_t now_ns) const {
  if (open_task_ != policy::kNoTask || window_open_) return 0;
  if (std::none_of(tasks_.begin(), tasks_.end(), [](const auto& slot) { return slot->view.runnable; })) return 0;
  int64_t until_ns = 0;
  for (const auto& slot : ranks_) {
    const policy::RankView& view = slot->view;
    if (!view.active || (view.plan != nullptr && policy::is_held_out(*view.plan, view.iteration))) return 0;
    if (slot->state_word != 0) continue;
    if (slot->expected_ns <= now_ns) return 0;
    until_ns = std::max(until_ns, slot->expected_ns);
  }
  return until_ns;
}

RankSlot* Actor::rank(uint64_t id) {
  const auto it = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& r) { return r->source().id == id; });
  return it == ranks_.end() ? nullptr : it->get();
}

TaskSlot* Actor::task(uint64_t id) {
  const auto it = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t->source().id == id; });
  return it == tasks_.end() ? nullptr : it->get();
}

}  // namespace freeride::worker
