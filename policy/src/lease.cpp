#include "freeride/policy/lease.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace freeride::policy {
namespace {

constexpr size_t kQuantiles = 3;

// When the device's bubble is expected to end: one moment for each learned quantile, ascending.
struct Window {
  Why why = Why::kNone;
  std::array<int64_t, kQuantiles> ends_ns{};
  int64_t learned_end_ns = 0;  // the first of them, without slices
  int64_t slice_ns = 0;        // of an idle phase: the shortest of the ranks'; 0: none is in one
};

Why obstacle(const RankView& rank, const LeaseSnapshot& s) {
  if (!rank.active) return Why::kInactive;
  if (rank.wait == 0) return Why::kTraining;
  if (rank.begin_ns <= 0 || rank.begin_ns > s.now_ns + s.limits.future_ns) return Why::kImplausible;
  if (rank.low_ns < 0 || rank.mid_ns < 0 || rank.high_ns < 0) return Why::kImplausible;
  if (rank.plan != nullptr) {
    if (is_held_out(*rank.plan, rank.iteration)) return Why::kHoldout;
    if (!is_on_duty(*rank.plan, rank.iteration)) return Why::kOffDuty;
  }
  return rank.low_ns == 0 && !rank.phase ? Why::kUnknown : Why::kNone;
}

// Of two moments, 0 being none.
int64_t earlier(int64_t a_ns, int64_t b_ns) {
  return a_ns == 0 || (b_ns != 0 && b_ns < a_ns) ? b_ns : a_ns;
}

int64_t end_of(int64_t begin_ns, int64_t length_ns) {
  return begin_ns > std::numeric_limits<int64_t>::max() - length_ns ? std::numeric_limits<int64_t>::max()
                                                                    : begin_ns + length_ns;
}

// How far ahead of now a lease of this rank's phase may end, whatever is known of its length.
int64_t slice_of(const RankView& rank, const LeaseSnapshot& s) {
  const int64_t past_ns = s.now_ns - end_of(rank.begin_ns, std::max({rank.low_ns, rank.mid_ns, rank.high_ns}));
  const auto grown_ns = static_cast<int64_t>(static_cast<double>(std::max<int64_t>(past_ns, 0)) * s.limits.slice_share);
  return std::clamp(grown_ns, s.limits.least_slice_ns, s.limits.most_slice_ns);
}

Window window_of(const LeaseSnapshot& s) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  Window window;
  window.ends_ns.fill(kNever);
  window.learned_end_ns = kNever;
  for (const RankView& rank : s.ranks) {
    const Why why = obstacle(rank, s);
    if (why != Why::kNone && (window.why == Why::kNone || why < window.why)) window.why = why;
    if (why != Why::kNone) continue;
    const int64_t slice_ns = rank.phase ? slice_of(rank, s) : 0;
    if (rank.phase) window.slice_ns = earlier(window.slice_ns, slice_ns);
    window.learned_end_ns = std::min(window.learned_end_ns, end_of(rank.begin_ns, rank.low_ns));
    int64_t length_ns = 0;
    size_t quantile = 0;
    for (const int64_t learned_ns : {rank.low_ns, rank.mid_ns, rank.high_ns}) {
      length_ns = std::max(length_ns, learned_ns);  // a page whose quantiles do not ascend is taken at its lower word
      const int64_t end_ns = std::max(end_of(rank.begin_ns, length_ns), slice_ns == 0 ? 0 : s.now_ns + slice_ns);
      window.ends_ns[quantile] = std::min(window.ends_ns[quantile], end_ns);
      ++quantile;
    }
  }
  return window;
}

bool ordered(const TaskView& task, int64_t now_ns) {
  return task.orders_until_ns == 0 || now_ns < task.orders_until_ns;
}

bool may_get(const LeaseSnapshot& s, size_t index, int64_t deadline_ns, bool idle) {
  const TaskView& task = s.tasks[index];
  return task.runnable && ordered(task, s.now_ns) && deadline_ns > task.declined_ns && (!idle || task.when_idle);
}

// Whether a goes before b for a lease of `remaining_ns`.
bool before(const TaskView& a, const TaskView& b, int64_t remaining_ns, LeaseOrder order) {
  const bool a_fits = a.predicted_ns <= remaining_ns;
  const bool b_fits = b.predicted_ns <= remaining_ns;
  if (a_fits != b_fits) return a_fits;
  if (a.priority != b.priority) return a.priority > b.priority;
  if (order == LeaseOrder::kBestFit && a.predicted_ns != b.predicted_ns) {
    return a_fits ? a.predicted_ns > b.predicted_ns : a.predicted_ns < b.predicted_ns;
  }
  return a.last_served < b.last_served;
}

size_t choose(const LeaseSnapshot& s, int64_t deadline_ns, bool idle) {
  // Whoever still executes is the only one who may: two at a time would make the first one's overrun the second one's.
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    if (s.tasks[i].executing) return may_get(s, i, deadline_ns, idle) ? i : kNoTask;
  }
  size_t best = kNoTask;
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    if (!may_get(s, i, deadline_ns, idle)) continue;
    if (best == kNoTask || before(s.tasks[i], s.tasks[best], deadline_ns - s.now_ns, s.limits.order)) best = i;
  }
  return best;
}

LeaseKind open_kind(const LeaseSnapshot& s) {
  return s.open_is_idle ? LeaseKind::kIdle : LeaseKind::kBubble;
}

LeaseAction none(const LeaseSnapshot& s, Why why, int64_t look_again_ns = 0) {
  LeaseAction action;
  if (s.open_task != kNoTask) {
    action.verb = LeaseVerb::kClose;
    action.kind = open_kind(s);
    action.task = s.open_task;
  }
  action.why = why;
  action.look_again_ns = look_again_ns;
  return action;
}

// The open lease still stands: its task may run, has not given it back, and its time is not up.
bool stands(const LeaseSnapshot& s, bool idle) {
  if (s.open_task >= s.tasks.size() || s.open_is_idle != idle || s.open_deadline_ns <= s.now_ns) return false;
  return may_get(s, s.open_task, s.open_deadline_ns, idle);
}

// Of a lease for steps.
int64_t within_orders(const LeaseSnapshot& s, size_t task, int64_t deadline_ns) {
  return earlier(deadline_ns, s.tasks[task].orders_until_ns);
}

LeaseAction open_until(size_t task, int64_t deadline_ns, LeaseKind kind) {
  LeaseAction action;
  action.verb = LeaseVerb::kOpen;
  action.kind = kind;
  action.task = task;
  action.deadline_ns = deadline_ns;
  action.look_again_ns = deadline_ns;
  return action;
}

LeaseAction keep(const LeaseSnapshot& s, int64_t look_again_ns) {
  LeaseAction action;
  action.look_again_ns = std::min(look_again_ns, s.open_deadline_ns);
  return action;
}

bool wants_own(const TaskView& task) {
  return task.wants != LeaseKind::kNone;
}
bool holds_own(const TaskView& task) {
  return task.holds != LeaseKind::kNone;
}

// Ranks are attached, or a process is there that may be one.
bool beside_training(const LeaseSnapshot& s) {
  return !s.ranks.empty() || s.other_process;
}

// A profile waits until it is known whether a training is there: it is taken once, in bubbles or without them.
bool too_early(const LeaseSnapshot& s, const TaskView& task) {
  return task.wants == LeaseKind::kProfile && !beside_training(s) && s.now_ns < s.settled_ns;
}

// Until when this rank lets a start wait for one of its phases; 0 or past: it does not.
int64_t start_waits_for(const RankView& rank, const LeaseLimits& limits, int64_t now_ns) {
  const bool short_one = rank.low_ns > 0 && rank.low_ns < kStartableNs && rank.phases_apart_ns > 0;
  if (rank.phase && !short_one) {
    const int64_t left_ns = end_of(rank.begin_ns, rank.low_ns) - now_ns;
    const bool early = left_ns >= std::min(limits.start_ns, rank.low_ns / 2);
    return rank.low_ns == 0 || early ? 0 : end_of(rank.begin_ns, rank.high_ns);
  }
  if (rank.phases_apart_ns == 0) return 0;
  return end_of(rank.phase_ended_ns, std::min(2 * rank.phases_apart_ns, limits.patience_ns));
}

// A start (kInit, kProfile) costs training least in an idle phase. Until when this task's waits for one; 0: what it
// wants may begin.
int64_t waits_for_phase_until(const LeaseSnapshot& s, const TaskView& task) {
  if (task.wants == LeaseKind::kSave) return 0;
  int64_t until_ns = 0;
  for (const RankView& rank : s.ranks) until_ns = std::max(until_ns, start_waits_for(rank, s.limits, s.now_ns));
  // Ranks whose phases never meet, or that lie, would hold it up for ever.
  until_ns = std::min(until_ns, end_of(task.wants_since_ns, s.limits.patience_ns));
  return until_ns > s.now_ns ? until_ns : 0;
}

// A lease of its own that could begin, but for others' leases.
bool own_may_begin(const LeaseSnapshot& s, const TaskView& task) {
  return wants_own(task) && ordered(task, s.now_ns) && !too_early(s, task) && waits_for_phase_until(s, task) == 0;
}

// A lease for a transition is due, and leases for steps that would follow each other without end make room for it.
bool own_is_due(const LeaseSnapshot& s) {
  if (std::any_of(s.tasks.begin(), s.tasks.end(), holds_own)) return false;
  return std::any_of(s.tasks.begin(), s.tasks.end(), [&](const TaskView& task) { return own_may_begin(s, task); });
}

LeaseAction decide_idle(const LeaseSnapshot& s) {
  if (s.other_process) return none(s, Why::kOtherProcess);
  if (s.now_ns < s.settled_ns) return none(s, Why::kSettling, s.settled_ns);
  if (stands(s, true)) return keep(s, s.open_deadline_ns);
  if (own_is_due(s)) return none(s, Why::kOtherLease);
  const int64_t deadline_ns = s.now_ns + s.limits.idle_slice_ns;
  const size_t task = choose(s, deadline_ns, true);
  if (task == kNoTask) return none(s, Why::kDeviceIdle);
  return open_until(task, within_orders(s, task, std::min(deadline_ns, s.now_ns + s.limits.longest_ns)),
                    LeaseKind::kIdle);
}

LeaseAction decide_bubble(const LeaseSnapshot& s) {
  Window window = window_of(s);
  if (window.why != Why::kNone) return none(s, window.why);
  if (s.only_probes) return none(s, Why::kProbe);
  if (window.slice_ns != 0 && own_is_due(s)) return none(s, Why::kOtherLease);
  if (s.probe_room_ns > 0) {
    window.ends_ns.fill(window.learned_end_ns - s.probe_room_ns);
    window.slice_ns = 0;
    if (window.ends_ns[0] - s.now_ns < s.limits.shortest_ns) return none(s, Why::kProbe);
  }
  // The learned end may have moved to earlier while the lease was open (another rank's bubble began later, a page that
  // changes its mind): the lease must not outlive the last of the present ends.
  const int64_t last_ns = window.ends_ns[kQuantiles - 1];
  if (stands(s, false) && s.open_deadline_ns <= last_ns) {
    // In a phase the lease moves on before it ends, so that its task need not pause.
    const int64_t move_ns = s.open_deadline_ns - window.slice_ns / 4 * 3;
    const int64_t until_ns = within_orders(s, s.open_task, std::min(window.ends_ns[0], s.now_ns + s.limits.longest_ns));
    if (window.slice_ns == 0 || s.now_ns < move_ns || until_ns <= s.open_deadline_ns) {
      return keep(s, window.slice_ns == 0 ? s.open_deadline_ns : std::max(move_ns, s.now_ns + window.slice_ns / 4));
    }
    return open_until(s.open_task, until_ns, LeaseKind::kBubble);
  }
  for (const int64_t end_ns : window.ends_ns) {
    if (end_ns - s.now_ns < s.limits.shortest_ns) continue;
    const size_t task = choose(s, end_ns, false);
    if (task != kNoTask) {
      return open_until(task, within_orders(s, task, std::min(end_ns, s.now_ns + s.limits.longest_ns)),
                        LeaseKind::kBubble);
    }
    // Somebody may be able to use what the next quantile adds, but only from this one's end on.
    const bool anybody = std::any_of(s.tasks.begin(), s.tasks.end(), [](const TaskView& t) { return t.runnable; });
    return none(s, Why::kNoTask, anybody ? end_ns : 0);
  }
  return none(s, Why::kPastLengths);
}

// Looked at again at once: the others' leases may go on now.
LeaseAction close_own(const LeaseSnapshot& s, size_t task, bool training_came, bool expired) {
  LeaseAction action;
  action.verb = LeaseVerb::kClose;
  action.kind = s.tasks[task].holds;
  action.task = task;
  action.look_again_ns = s.now_ns;
  action.training_came = training_came;
  action.expired = expired;
  return action;
}

// Init, profile and save leases, given whether anybody has a lease for steps.
LeaseAction decide_own(const LeaseSnapshot& s, bool busy) {
  LeaseAction action;
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const TaskView& task = s.tasks[i];
    busy = busy || task.executing || holds_own(task);
    if (!holds_own(task)) continue;
    if (task.done || task.holds_until_ns <= s.now_ns) return close_own(s, i, false, false);
    if (!ordered(task, s.now_ns)) return close_own(s, i, false, true);
    // InitSideTask cannot be cut; the profile's steps are for the bubbles from then on.
    if (task.holds == LeaseKind::kProfile && task.init_done && beside_training(s)) return close_own(s, i, true, false);
    action.look_again_ns = earlier(action.look_again_ns, earlier(task.holds_until_ns, task.orders_until_ns));
  }
  for (const TaskView& task : s.tasks) {
    if (too_early(s, task)) action.look_again_ns = earlier(action.look_again_ns, s.settled_ns);
    if (wants_own(task)) action.look_again_ns = earlier(action.look_again_ns, waits_for_phase_until(s, task));
  }
  const auto next =
      std::find_if(s.tasks.begin(), s.tasks.end(), [&](const auto& task) { return own_may_begin(s, task); });
  if (busy || next == s.tasks.end() || (s.only_probes && !s.ranks.empty())) return action;
  // Beside a training a profile is initialised like any task, and makes its steps in bubbles.
  const LeaseKind kind = next->wants == LeaseKind::kProfile && beside_training(s) ? LeaseKind::kInit : next->wants;
  const int64_t length_ns = kind == LeaseKind::kProfile ? s.limits.profile_ns : s.limits.init_ns;
  action = open_until(static_cast<size_t>(next - s.tasks.begin()), s.now_ns + length_ns, kind);
  action.look_again_ns = s.now_ns;  // idle leases had stopped for this one, and go on beside it
  return action;
}

}  // namespace

LeaseAction decide_lease(const LeaseSnapshot& s) {
  LeaseAction action = s.ranks.empty() ? decide_idle(s) : decide_bubble(s);
  const bool leased = action.verb == LeaseVerb::kOpen || (action.verb == LeaseVerb::kNothing && s.open_task != kNoTask);
  LeaseAction own = decide_own(s, leased);
  if (action.verb == LeaseVerb::kNothing && own.verb != LeaseVerb::kNothing) {
    own.why = action.why;
    return own;
  }
  action.look_again_ns = earlier(action.look_again_ns, own.look_again_ns);
  return action;
}

}  // namespace freeride::policy
