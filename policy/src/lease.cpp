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
  return rank.low_ns == 0 ? Why::kUnknown : Why::kNone;
}

// Of two moments, 0 being none.
int64_t earlier(int64_t a_ns, int64_t b_ns) {
  return a_ns == 0 || (b_ns != 0 && b_ns < a_ns) ? b_ns : a_ns;
}

int64_t end_of(int64_t begin_ns, int64_t length_ns) {
  return begin_ns > std::numeric_limits<int64_t>::max() - length_ns ? std::numeric_limits<int64_t>::max()
                                                                    : begin_ns + length_ns;
}

Window window_of(const LeaseSnapshot& s) {
  Window window;
  window.ends_ns.fill(std::numeric_limits<int64_t>::max());
  for (const RankView& rank : s.ranks) {
    const Why why = obstacle(rank, s);
    if (why != Why::kNone && (window.why == Why::kNone || why < window.why)) window.why = why;
    int64_t length_ns = 0;
    size_t quantile = 0;
    for (const int64_t learned_ns : {rank.low_ns, rank.mid_ns, rank.high_ns}) {
      length_ns = std::max(length_ns, learned_ns);  // a page whose quantiles do not ascend is taken at its lower word
      window.ends_ns[quantile] = std::min(window.ends_ns[quantile], end_of(rank.begin_ns, length_ns));
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

LeaseAction keep(const LeaseSnapshot& s) {
  LeaseAction action;
  action.look_again_ns = s.open_deadline_ns;
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

LeaseAction decide_idle(const LeaseSnapshot& s) {
  if (s.other_process) return none(s, Why::kOtherProcess);
  if (s.now_ns < s.settled_ns) return none(s, Why::kSettling, s.settled_ns);
  if (stands(s, true)) return keep(s);
  const bool own_waits =
      std::any_of(s.tasks.begin(), s.tasks.end(),
                  [&](const TaskView& task) { return wants_own(task) && ordered(task, s.now_ns); }) &&
      std::none_of(s.tasks.begin(), s.tasks.end(), holds_own);
  if (own_waits) return none(s, Why::kOtherLease);
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
  if (s.probe_room_ns > 0) {
    window.ends_ns.fill(window.ends_ns[0] - s.probe_room_ns);
    if (window.ends_ns[0] - s.now_ns < s.limits.shortest_ns) return none(s, Why::kProbe);
  }
  // The learned end may have moved to earlier while the lease was open (another rank's bubble began later, a page that
  // changes its mind): the lease must not outlive the last of the present ends.
  const int64_t last_ns = window.ends_ns[kQuantiles - 1];
  if (stands(s, false) && s.open_deadline_ns <= last_ns) return keep(s);
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
  const auto next = std::find_if(s.tasks.begin(), s.tasks.end(), [&](const TaskView& task) {
    return wants_own(task) && ordered(task, s.now_ns) && !too_early(s, task);
  });
  if (std::any_of(s.tasks.begin(), s.tasks.end(), [&](const TaskView& task) { return too_early(s, task); }))
    action.look_again_ns = earlier(action.look_again_ns, s.settled_ns);
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
