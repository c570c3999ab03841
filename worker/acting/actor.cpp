#include "acting/actor.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kAuditNs = kNsPerSec;  // how often paused tasks' CPU clocks are looked at

// In one look: a lease for steps, and an init, profile or save lease, may each end, and another begin.
constexpr int kMostChanges = 4;

}  // namespace

Actor::Actor(const ActorConfig& config, Processes& processes, EventRing& events)
    : config_(config),
      processes_(processes),
      events_(events),
      prober_(config.probe, config.probe_counts, config.probe_secret) {
  ranks_.reserve(kMostRanks);
  tasks_.reserve(kMostTasks);
  rank_views_.reserve(kMostRanks);
  task_views_.reserve(kMostTasks);
  charges_.reserve(kMostTasks);
  suspects_.reserve(kMostTasks);
  suspect_slots_.reserve(kMostTasks);
}

// ---- orders

void Actor::add_rank(std::shared_ptr<const RankSource> source) {
  prober_.training_changed();
  if (ranks_.size() < kMostRanks) ranks_.push_back(std::make_unique<RankSlot>(std::move(source), plans_));
}

void Actor::remove_rank(uint64_t id, int64_t now_ns) {
  RankSlot* leaver = rank(id);
  if (leaver == nullptr) return;
  prober_.training_changed();
  // A dead trainer's bubble ends with it.
  if (open_task_ != policy::kNoTask) close_lease(now_ns, now_ns);
  if (window_open_) leave_window(now_ns, nullptr);
  std::erase_if(ranks_, [&](const auto& r) { return r->source().id == id; });
  std::erase_if(charges_, [&](const Charge& c) { return c.rank == id; });
  // Its process may train on without its hook: until somebody has looked.
  if (!config_.task.by_cpu_clock) other_process_ = true;
}

void Actor::add_task(std::shared_ptr<TaskSource> source) {
  if (tasks_.size() < kMostTasks) {
    tasks_.push_back(std::make_unique<TaskSlot>(std::move(source), config_.task, processes_));
  }
}

void Actor::remove_task(uint64_t id, int64_t now_ns) {
  const auto it = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t->id() == id; });
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
  if (window_open_ && (*it)->harvest.in_window()) {
    const int64_t harvested_ns = (*it)->harvest.leave_ended(now_ns, now_ns - window_begin_ns_);
    for (auto& slot : ranks_) slot->add_harvest(harvested_ns);
  }
  tasks_.erase(it);
}

void Actor::set_process(uint64_t id, int pid, std::shared_ptr<const Fd> pidfd) {
  if (TaskSlot* slot = task(id)) slot->process.set(pid, std::move(pidfd));
}

void Actor::stop(int64_t now_ns) {
  open_task_ = policy::kNoTask;
  for (auto& slot : tasks_) slot->close(now_ns, now_ns);
}

void Actor::set_order(uint64_t id, uint32_t order, int64_t now_ns) {
  if (TaskSlot* slot = task(id)) slot->set_order(order, now_ns);
}

void Actor::ask_to_save(uint64_t id, bool wanted) {
  if (TaskSlot* slot = task(id)) slot->lease.ask_to_save(wanted);
}

void Actor::initialise_paused(uint64_t id) {
  if (TaskSlot* slot = task(id)) slot->lease.initialise_paused();
}

void Actor::set_plans(std::shared_ptr<const PlanSet> plans) {
  plans_ = std::move(plans);
  for (auto& slot : ranks_) slot->set_plans(plans_);
}

// ---- one look

Actor::Next Actor::step(int64_t now_ns, WaitSet& waits, int64_t suspended_ns) {
  next_ = Next{};
  for (auto& slot : ranks_) slot->read();
  for (auto& slot : tasks_) slot->read(suspended_ns);
  act(now_ns);
  // From here on nothing is urgent.
  account(now_ns);
  note_why(now_ns);
  judge(now_ns);
  probe(now_ns);
  settle(now_ns, false);
  transitions_.look(note_transitions(), now_ns);
  for (auto& slot : ranks_) slot->collect(transitions_, now_ns, events_);
  tell_states();
  tell_supervisors(now_ns);
  add_waits(waits);
  next_.in_window = window_open_;
  next_.awake_ns = awake_until(now_ns);
  return next_;
}

void Actor::act(int64_t now_ns) {
  policy::LeaseAction action;
  int changes = 0;
  rank_views_.clear();
  for (auto& slot : ranks_) rank_views_.push_back(slot->view);
  const bool nobody = std::none_of(tasks_.begin(), tasks_.end(), [](const auto& slot) { return slot->suspect; });
  probe_room_ns_ = prober_.look(rank_views_, nobody, now_ns);
  controlling_ = !rank_views_.empty() && prober_.controlling(now_ns);
  do {
    action = policy::decide_lease(snapshot(now_ns));
    carry_out(action, now_ns);
  } while (action.verb != policy::LeaseVerb::kNothing && action.look_again_ns == now_ns && ++changes < kMostChanges);
  why_ = action.why;
  if (action.look_again_ns != 0) look_at(after_start(action.look_again_ns, now_ns));
}

policy::LeaseSnapshot Actor::snapshot(int64_t now_ns) {
  task_views_.clear();
  bool same_bubbles = true;
  for (auto& slot : ranks_) same_bubbles = same_bubbles && !slot->left;
  for (auto& slot : tasks_) {
    int64_t& since_ns = slot->view.wants_since_ns;
    since_ns = slot->view.wants == policy::LeaseKind::kNone ? 0 : since_ns == 0 ? now_ns : since_ns;
    task_views_.push_back(slot->view);
  }

  policy::LeaseSnapshot snapshot;
  snapshot.now_ns = now_ns;
  snapshot.ranks = rank_views_;
  snapshot.tasks = task_views_;
  snapshot.open_task = open_task_;
  // A lease is of one bubble: when another has begun since, it is over, whatever its deadline says.
  snapshot.open_deadline_ns =
      open_task_ == policy::kNoTask || !same_bubbles ? 0 : tasks_[open_task_]->lease.deadline_ns();
  snapshot.open_is_idle = open_is_idle_;
  snapshot.probe_room_ns = probe_room_ns_;
  snapshot.only_probes = controlling_;
  snapshot.other_process = other_process_;
  snapshot.settled_ns = config_.settled_ns;
  snapshot.limits = config_.lease;
  return snapshot;
}

void Actor::carry_out(const policy::LeaseAction& action, int64_t now_ns) {
  if (action.verb == policy::LeaseVerb::kNothing) return;
  TaskSlot& slot = *tasks_[action.task];
  const bool own = policy::is_own(action.kind);
  if (action.verb == policy::LeaseVerb::kClose) {
    if (!own) return close_lease(now_ns, now_ns);
    if (action.training_came) slot.kills.training_came();
    if (action.expired) slot.kills.orders_expired();
    slot.close(now_ns, now_ns);
    look_at(now_ns);  // it may get a lease for steps at once
    return;
  }
  if (own) return slot.open(action.kind, action.deadline_ns, now_ns, now_ns);
  if (open_task_ != policy::kNoTask && open_task_ != action.task) close_lease(now_ns, now_ns);
  const bool idle = action.kind == policy::LeaseKind::kIdle;
  int64_t begin_ns = idle ? now_ns : 0;
  if (!idle) {
    for (const policy::RankView& view : rank_views_) {
      if (view.begin_ns < begin_ns) continue;
      begin_ns = view.begin_ns;
      slot.lease.in_iteration(view.iteration);
    }
  }
  slot.open(action.kind, action.deadline_ns, begin_ns, now_ns);
  slot.view.last_served = ++served_;
  open_task_ = action.task;
  open_is_idle_ = idle;
}

bool Actor::starting() const {
  return open_task_ != policy::kNoTask && tasks_[open_task_]->lease.not_started();
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
    for (auto& slot : tasks_) slot->why.enter_window();
    for (auto& slot : ranks_) window_begin_ns_ = std::max(window_begin_ns_, slot->current().begin_ns);
  }
  if (window_open_ && open_task_ != policy::kNoTask && !open_is_idle_) {
    TaskSlot& slot = *tasks_[open_task_];
    slot.harvest.enter_window(slot.lease.opened_ns(), now_ns);
    if (!window_leased_) {
      window_leased_ = true;
      for (auto& rank_slot : ranks_) rank_slot->note_lease();
    }
  }
}

void Actor::leave_window(int64_t now_ns, RankSlot* leaver) {
  window_open_ = false;
  const int64_t end_ns = leaver == nullptr ? now_ns : leaver->end_of_left(now_ns);
  for (auto& slot : tasks_) {
    slot->why.leave_window(now_ns);
    if (!slot->harvest.in_window()) continue;
    const int64_t harvested_ns = slot->leave_window(end_ns, end_ns - window_begin_ns_);
    for (auto& rank_slot : ranks_) {
      rank_slot->add_harvest(harvested_ns);
      rank_slot->note_side_task(slot->id(), slot->harvest.side_begin_ns(), slot->harvest.side_end_ns());
    }
    if (leaver == nullptr || !slot->harvest.overruns()) continue;
    charges_.push_back(Charge{slot->id(), leaver->source().id, leaver->current().serial});
    leaver->expect_overrun(leaver->current().serial);
  }
}

void Actor::settle(int64_t now_ns, bool next_window) {
  for (auto& slot : tasks_) {
    if (!slot->harvest.overruns()) continue;
    const int64_t executed_ns = slot->overrun(now_ns, next_window);
    if (executed_ns < 0) continue;
    const int64_t late_ns = slot->harvest.take_late();
    const uint64_t id = slot->id();
    for (auto& rank_slot : ranks_) {
      bool charged = false;
      for (const Charge& charge : charges_) {
        if (charge.task != id || charge.rank != rank_slot->source().id) continue;
        rank_slot->settle_overrun(charge.serial, executed_ns, std::exchange(charged, true) ? 0 : late_ns);
      }
      if (!charged && late_ns > 0) rank_slot->add_harvest(late_ns);
    }
    std::erase_if(charges_, [&](const Charge& c) { return c.task == id; });
  }
  // Whoever was ordered to stop is not measured any more.
  for (const Charge& charge : charges_) {
    TaskSlot* slot = task(charge.task);
    if (slot != nullptr && slot->harvest.overruns()) continue;
    if (RankSlot* rank_slot = rank(charge.rank)) rank_slot->settle_overrun(charge.serial, 0);
  }
  std::erase_if(charges_, [&](const Charge& c) {
    TaskSlot* slot = task(c.task);
    return slot == nullptr || !slot->harvest.overruns();
  });
}

void Actor::note_why(int64_t now_ns) {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    TaskSlot& slot = *tasks_[i];
    policy::Why why = why_;
    if (slot.view.orders_until_ns != 0 && slot.view.orders_until_ns <= now_ns) {
      why = policy::Why::kOrdersExpired;
    } else if (ranks_.empty() && !slot.view.when_idle) {
      why = policy::Why::kDeviceIdle;
    } else if (i == open_task_) {
      why = policy::Why::kNone;
    } else if (open_task_ != policy::kNoTask) {
      why = policy::Why::kOtherLease;
    }
    slot.why.look(why, window_open_);
  }
}

void Actor::judge(int64_t now_ns) {
  const bool audit = next_audit_ns_ <= now_ns;
  bool again = false;
  for (auto& slot : tasks_) {
    const bool could_save = slot->view.wants == policy::LeaseKind::kSave;
    int64_t look_ns = 0;
    if (slot->judge(now_ns, audit, look_ns)) note_kill(*slot);
    if (look_ns != 0) look_at(look_ns);
    slot->view_own();
    if (!could_save && slot->view.wants == policy::LeaseKind::kSave) look_at(now_ns);  // seen paused just now
    const bool live = !slot->kills.killed() && slot->process.known();
    if (audit && live && slot->answers.initialised()) slot->why.sum_up(now_ns, slot->harvest.starved());
    again = again || live;
  }
  if (audit) next_audit_ns_ = now_ns + kAuditNs;
  if (again) look_at(next_audit_ns_);
}

bool Actor::all_stopped() const {
  return open_task_ == policy::kNoTask && std::all_of(tasks_.begin(), tasks_.end(), [](const auto& slot) {
           return !slot->process.known() || (slot->process.stopped() && !slot->kills.killed());
         });
}

void Actor::probe(int64_t now_ns) {
  int64_t look_ns = 0;
  const Prober::Answer answer = prober_.step(all_stopped(), now_ns, look_ns);
  if (look_ns != 0) look_at(after_start(look_ns, now_ns));
  if (!answer.came) return;
  suspects_.clear();
  suspect_slots_.clear();
  for (auto& slot : tasks_) {
    if (!slot->suspect) continue;
    suspects_.push_back({slot->source->content, slot->view.last_served});
    suspect_slots_.push_back(slot.get());
  }
  const auto decision = prober_.judge().note(answer.outcome, suspects_, now_ns);
  if (decision.victim == policy::ProbeJudge::kNobody) return;
  TaskSlot& victim = *suspect_slots_[decision.victim];
  policy::Verdict verdict;
  verdict.kind = decision.guilty ? policy::VerdictKind::kOverran : policy::VerdictKind::kLost;
  verdict.cause = policy::Cause::kProbe;
  verdict.message =
      std::to_string(decision.row) +
      " probes in a row found the GPU busy while no side task had a lease, the last one for " +
      milliseconds(answer.waited_ns) +
      (decision.guilty ? "; when this content had gone before, the GPU was quiet"
                       : "; it had the latest lease, so it is taken off to see whether the GPU is quiet without it");
  verdict.limit = "probe " + milliseconds(config_.probe.busy_ns);
  victim.kills.accuse(std::move(verdict));
  victim.view.runnable = victim.view.executing = false;
  note_kill(victim);
}

void Actor::note_kill(TaskSlot& slot) {
  if (open_task_ != policy::kNoTask && tasks_[open_task_].get() == &slot) open_task_ = policy::kNoTask;
  if (!slot.kills.verdict().ended()) return;
  kills_.push_back(Kill{slot.id(), slot.kills.verdict()});
  next_.tell_now = true;
}

// Whether any task is in one now; the main thread hears of each that begins or ends.
bool Actor::note_transitions() {
  bool any = false;
  for (auto& slot : tasks_) {
    const bool now = slot->in_transition();
    any = any || now;
    if (slot->source->in_transition.exchange(now, std::memory_order_relaxed) != now) tell_state(*slot);
  }
  return any;
}

void Actor::tell_states() {
  for (auto& slot : tasks_) {
    if (slot->answers.take_state_change()) tell_state(*slot);
  }
}

void Actor::tell_state(const TaskSlot& task) {
  ActEvent event;
  event.kind = ActEvent::Kind::kTaskState;
  event.id = task.id();
  events_.push(event);
  next_.tell_now = true;
}

void Actor::tell_supervisors(int64_t now_ns) {
  for (auto& slot : tasks_) {
    const int64_t look_ns = slot->lease.tell_supervisor(now_ns);
    if (look_ns != 0) look_at(after_start(look_ns, now_ns));
  }
}

void Actor::look_at(int64_t when_ns) {
  if (next_.look_ns == 0 || when_ns < next_.look_ns) next_.look_ns = when_ns;
}

void Actor::add_waits(WaitSet& waits) const {
  const uint64_t bell = bell_ == nullptr ? 0 : bell_->page->header.incarnation;
  for (const auto& slot : ranks_) waits.add_shared(slot->wake_word(), slot->wake, bell != 0 && slot->bell == bell);
  prober_.add_waits(waits);
  const auto runnable =
      std::count_if(tasks_.begin(), tasks_.end(), [](const auto& slot) { return slot->view.runnable; });
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const TaskSlot& slot = *tasks_[i];
    // Answers matter while something waits for them: a creation, an init or save lease, a first step, a pause, or
    // somebody who could have the rest.
    const policy::LeaseKind kind = slot.lease.kind();
    const bool initialising = slot.answers.state < FREERIDE_STATE_PAUSED || kind == policy::LeaseKind::kInit ||
                              kind == policy::LeaseKind::kSave;
    const bool pausing = slot.kills.watching() || slot.harvest.overruns();
    const bool shared = i == open_task_ && (runnable > 1 || slot.lease.not_started());
    if (initialising || pausing || shared) waits.add_shared(slot.answers.page().sequence, slot.answers.sequence);
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
  const auto it = std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t->id() == id; });
  return it == tasks_.end() ? nullptr : it->get();
}

}  // namespace freeride::worker
