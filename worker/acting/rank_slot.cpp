#include "acting/rank_slot.hpp"

#include <algorithm>

#include "acting/task_source.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"

namespace freeride::worker {
namespace {

using pages::load_acquire;
using pages::load_relaxed;

constexpr int64_t kFutureNs = kNsPerMs;                // clocks are one; more than this ahead is a lie
constexpr int64_t kLongestNs = 24 * 3600 * kNsPerSec;  // a longer bubble or iteration is one too

int64_t sane_length(uint64_t ns) {
  return std::min<int64_t>(sane(ns), kLongestNs);
}

/// Whether this is the bubble of state word `word`. Phases of one name have the same word, and each a begin of its own.
bool is_same(const Bubble& bubble, uint64_t word, int64_t begin_ns) {
  const uint32_t wait = FREERIDE_STATE_WAIT(word);
  if (wait < FREERIDE_PHASE_WAIT(0)) return bubble.state_word == word;
  return FREERIDE_STATE_WAIT(bubble.state_word) == wait && bubble.begin_ns == begin_ns;
}

/// Record `number` of a ring of `size` may have been overwritten while it was read: its writer works at `next`.
bool overwritten(uint64_t number, const uint64_t& next, uint64_t size) {
  __atomic_thread_fence(__ATOMIC_ACQUIRE);  // after the reading
  return load_relaxed(next) - number >= size;
}

bool plausible(int64_t begin_ns, int64_t end_ns, int64_t now_ns) {
  return begin_ns > 0 && end_ns >= begin_ns && end_ns <= now_ns + kFutureNs && end_ns - begin_ns <= kLongestNs;
}

}  // namespace

RankSlot::RankSlot(std::shared_ptr<const RankSource> source, std::shared_ptr<const PlanSet> plans)
    : source_(std::move(source)) {
  set_plans(std::move(plans));
  // What happened before this worker was there is not its to report.
  bubbles_seen_ = load_acquire(source_->page->bubbles);
  iterations_seen_ = load_acquire(source_->page->iteration);
}

void RankSlot::set_plans(std::shared_ptr<const PlanSet> plans) {
  plan_set_ = std::move(plans);
  plans_ = plan_set_ == nullptr ? nullptr : plan_set_->of(source_->job);
}

void RankSlot::read() {
  const freeride_bubble_page& page = *source_->page;
  wake = load_acquire(page.wake);
  bell = load_acquire(page.bell);
  uint64_t word = 0;
  for (int tries = 0; tries < 4; ++tries) {
    word = load_acquire(page.state_word);
    view.wait = FREERIDE_STATE_WAIT(word);
    if (view.wait == 0) break;
    view.begin_ns = sane(load_relaxed(page.begin_ns));
    if (word != entered_word_ && view.begin_ns == entered_begin_ns_) {
      // A GPU's mark that the hook has not seen yet: the begin is that of the bubble before. The hook's wake-up comes.
      word = view.wait = 0;
      break;
    }
    view.low_ns = view.mid_ns = view.high_ns = 0;
    if (view.wait <= FREERIDE_MAX_WAITS) {
      const freeride_learned& learned = page.learned[view.wait - 1];
      view.low_ns = sane_length(load_relaxed(learned.low_ns));
      view.mid_ns = sane_length(load_relaxed(learned.mid_ns));
      view.high_ns = sane_length(load_relaxed(learned.high_ns));
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (load_relaxed(page.state_word) == word) break;
    word = view.wait = 0;  // it is changing: as if training had the device; its wake-up comes after the change
  }
  expected_ns = sane(load_relaxed(page.expected_ns));
  view.active = load_relaxed(page.hook_state) == FREERIDE_HOOK_ACTIVE;
  view.iteration = FREERIDE_STATE_ITERATION(word != 0 ? word : load_acquire(page.state_word));
  view.plan = PlanSet::at(plans_, view.iteration);
  state_word = view.wait == 0 ? 0 : word;
  read_phase(view.iteration);
  const bool same = is_same(current_, state_word, view.begin_ns);
  left = current_.state_word != 0 && !same;
  entered = state_word != 0 && !same;
}

// An idle phase is a bubble like a wait, whatever the state word says meanwhile.
void RankSlot::read_phase(uint64_t iteration) {
  const freeride_bubble_page& page = *source_->page;
  view.phase = false;
  const uint64_t begun = load_acquire(page.idle_begun);
  const uint32_t name = FREERIDE_PHASE_NAME(begun);
  if (FREERIDE_PHASE_NUMBER(begun) <= load_acquire(page.idle_ended) || name >= FREERIDE_MAX_PHASES) return;
  const int64_t begin_ns = sane(load_relaxed(page.idle_begin_ns));
  const int64_t told_ns = sane_length(load_relaxed(page.idle_expected_ns));
  const bool open = (load_relaxed(page.idle_flags) & FREERIDE_PHASE_OPEN) != 0;
  const freeride_learned& learned = page.phases[name].learned;
  const auto length = [&](const uint64_t& ns) {
    return open ? 0 : told_ns != 0 ? told_ns : sane_length(load_relaxed(ns));
  };
  const int64_t low_ns = length(learned.low_ns), mid_ns = length(learned.mid_ns), high_ns = length(learned.high_ns);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (load_relaxed(page.idle_begun) != begun) return;  // its wake-up comes after the change
  view.phase = true;
  view.wait = FREERIDE_PHASE_WAIT(name);
  view.begin_ns = begin_ns;
  view.low_ns = low_ns;
  view.mid_ns = mid_ns;
  view.high_ns = high_ns;
  state_word = FREERIDE_STATE(iteration, view.wait);
}

// How far phases are apart that are long enough for a task's start.
void RankSlot::note_phase_left(int64_t now_ns) {
  const uint32_t left_wait = FREERIDE_STATE_WAIT(current_.state_word);
  view.phases_apart_ns = 0;
  for (uint32_t name = 0; name < FREERIDE_MAX_PHASES; ++name) {
    const freeride_phase& phase = source_->page->phases[name];
    if (sane_length(load_relaxed(phase.learned.low_ns)) < policy::kStartableNs) continue;
    if (left_wait == FREERIDE_PHASE_WAIT(name)) view.phase_ended_ns = now_ns;
    view.phases_apart_ns = std::max(view.phases_apart_ns, sane_length(load_relaxed(phase.apart_ns)));
  }
}

bool RankSlot::held_out(uint64_t iteration) const {
  const policy::HoldoutPlan* plan = PlanSet::at(plans_, iteration);
  return plan != nullptr && policy::is_held_out(*plan, iteration);
}

int64_t RankSlot::end_of_left(int64_t now_ns) const {
  const freeride_bubble_page& page = *source_->page;
  const uint64_t bubbles = load_acquire(page.bubbles);
  if (bubbles == 0) return now_ns;
  const freeride_bubble_record& record = page.history[(bubbles - 1) % FREERIDE_HISTORY];
  if (!is_same(current_, load_relaxed(record.state_word), sane(load_relaxed(record.begin_ns)))) return now_ns;
  const int64_t end_ns = sane(load_relaxed(record.end_ns));
  if (overwritten(bubbles - 1, page.bubbles, FREERIDE_HISTORY)) return now_ns;
  return end_ns >= current_.begin_ns && end_ns <= now_ns ? end_ns : now_ns;
}

void RankSlot::turn(int64_t now_ns, EventRing& events) {
  if (left) {
    if (pending_count_ == kPending) {
      report(pending_[0], events);
      drop_front();
    }
    current_.left_ns = now_ns;
    if (FREERIDE_STATE_WAIT(current_.state_word) >= FREERIDE_PHASE_WAIT(0)) note_phase_left(now_ns);
    last_left_serial_ = current_.serial;
    pending_[pending_count_++] = current_;
    current_ = Bubble{};
  }
  if (!entered) return;
  current_ = Bubble{};
  current_.serial = ++serial_;
  current_.state_word = state_word;
  current_.begin_ns = view.begin_ns;
  if (!view.phase) {  // a phase has a begin of its own
    entered_word_ = state_word;
    entered_begin_ns_ = view.begin_ns;
  }
  current_.learned_ns = view.low_ns;
  current_.holdout = held_out(view.iteration);
  if (view.wait <= FREERIDE_MAX_WAITS) current_.type = load_relaxed(source_->page->learned[view.wait - 1].type);
  ActEvent event;
  event.kind = ActEvent::Kind::kBubbleBegin;
  event.id = source_->id;
  event.iteration = view.iteration;
  event.wait = view.wait;
  event.begin_ns = current_.begin_ns;
  event.learned_ns = current_.learned_ns;
  events.push(event);
}

void RankSlot::collect(const Transitions& transitions, int64_t now_ns, EventRing& events) {
  const uint32_t hook_state = load_relaxed(source_->page->hook_state);
  if (hook_state != hook_state_) {
    hook_state_ = hook_state;
    ActEvent event;
    event.kind = ActEvent::Kind::kRankState;
    event.id = source_->id;
    events.push(event);
  }
  collect_bubbles(now_ns, events);
  collect_iterations(transitions, now_ns, events);
  report_complete(events);
}

void RankSlot::collect_bubbles(int64_t now_ns, EventRing& events) {
  const freeride_bubble_page& page = *source_->page;
  const uint64_t bubbles = load_acquire(page.bubbles);
  if (bubbles - bubbles_seen_ > kMostRecords) {  // also a count that went backwards
    implausible_ += 1;
    bubbles_seen_ = bubbles < kMostRecords ? 0 : bubbles - kMostRecords;
  }
  for (; bubbles_seen_ != bubbles; ++bubbles_seen_) {
    const freeride_bubble_record& record = page.history[bubbles_seen_ % FREERIDE_HISTORY];
    const uint64_t word = load_relaxed(record.state_word);
    const int64_t begin_ns = sane(load_relaxed(record.begin_ns));
    // It ended after read() had looked: its end is acted on first, in the next step.
    if (word != 0 && is_same(current_, word, begin_ns)) return;
    const int64_t end_ns = sane(load_relaxed(record.end_ns));
    const int64_t learned_ns = sane_length(load_relaxed(record.learned_low_ns));
    if (overwritten(bubbles_seen_, page.bubbles, FREERIDE_HISTORY)) continue;
    if (FREERIDE_STATE_WAIT(word) == 0 || !plausible(begin_ns, end_ns, now_ns)) {
      ++implausible_;
      continue;
    }
    const auto last = pending_.begin() + static_cast<ptrdiff_t>(pending_count_);
    const auto it = std::find_if(pending_.begin(), last,
                                 [&](const Bubble& b) { return is_same(b, word, begin_ns) && b.end_ns == 0; });
    if (it != last) {
      it->begin_ns = begin_ns;
      it->end_ns = end_ns;
      continue;
    }
    // It began and ended between two looks.
    Bubble bubble;
    bubble.state_word = word;
    bubble.begin_ns = begin_ns;
    bubble.end_ns = end_ns;
    bubble.learned_ns = learned_ns;
    bubble.holdout = held_out(FREERIDE_STATE_ITERATION(word));
    report(bubble, events);
  }
}

void RankSlot::collect_iterations(const Transitions& transitions, int64_t now_ns, EventRing& events) {
  const freeride_bubble_page& page = *source_->page;
  const uint64_t iterations = load_acquire(page.iteration);
  if (iterations - iterations_seen_ > kMostIterations) {
    iterations_seen_ = iterations < kMostIterations ? 0 : iterations - kMostIterations;
  }
  for (; iterations_seen_ != iterations; ++iterations_seen_) {
    const freeride_iteration_record& record = page.iterations[iterations_seen_ % FREERIDE_ITERATIONS];
    ActEvent event;
    event.kind = ActEvent::Kind::kIteration;
    event.id = source_->id;
    event.iteration = load_relaxed(record.iteration);
    event.begin_ns = sane(load_relaxed(record.begin_ns));
    event.end_ns = sane(load_relaxed(record.end_ns));
    const int64_t bubble_ns = sane_length(load_relaxed(record.bubble_ns));
    if (overwritten(iterations_seen_, page.iteration, FREERIDE_ITERATIONS)) continue;
    if (event.iteration != iterations_seen_ || !plausible(event.begin_ns, event.end_ns, now_ns)) {
      // The first iteration has no begin: it is counted, but was not measured.
      if (event.begin_ns != 0) ++implausible_;
      continue;
    }
    event.bubble_ns = std::min(bubble_ns, event.end_ns - event.begin_ns);
    event.holdout = held_out(event.iteration);
    const IterationSum& sum = sum_of(event.iteration);
    event.harvested_ns = std::min(sum.harvested_ns, event.end_ns - event.begin_ns);
    event.leased = sum.leased;
    event.transitions = transitions.within(event.begin_ns, event.end_ns);
    events.push(event);
  }
}

void RankSlot::report(const Bubble& bubble, EventRing& events) const {
  ActEvent event;
  event.kind = ActEvent::Kind::kBubbleEnd;
  event.id = source_->id;
  event.iteration = FREERIDE_STATE_ITERATION(bubble.state_word);
  event.wait = FREERIDE_STATE_WAIT(bubble.state_word);
  event.type = bubble.type;
  event.begin_ns = bubble.begin_ns;
  event.end_ns = std::max(bubble.end_ns != 0 ? bubble.end_ns : bubble.left_ns, bubble.begin_ns);
  event.learned_ns = bubble.learned_ns;
  event.harvested_ns = std::min(bubble.harvested_ns, event.end_ns - event.begin_ns);
  event.overrun_ns = bubble.overrun_ns;
  event.leased = bubble.leased;
  event.holdout = bubble.holdout;
  event.task = bubble.task;
  event.side_begin_ns = bubble.side_begin_ns;
  // What was executed later, when the system let it, counts as if it had gone on.
  event.side_end_ns =
      bubble.side_begin_ns != 0 && bubble.side_end_ns == 0 ? event.end_ns + bubble.overrun_ns : bubble.side_end_ns;
  events.push(event);
}

void RankSlot::report_complete(EventRing& events) {
  while (pending_count_ > 0) {
    const Bubble& front = pending_[0];
    // A record that has not come though a later one has will not come any more.
    const bool given_up = front.end_ns == 0 && pending_count_ > 1 && pending_[1].end_ns != 0;
    if (!front.settled || (front.end_ns == 0 && !given_up)) return;
    report(front, events);
    drop_front();
  }
}

void RankSlot::drop_front() {
  std::move(pending_.begin() + 1, pending_.begin() + static_cast<ptrdiff_t>(pending_count_), pending_.begin());
  --pending_count_;
}

Bubble* RankSlot::find(uint64_t serial) {
  if (current_.serial == serial && serial != 0) return &current_;
  for (size_t i = 0; i < pending_count_; ++i) {
    if (pending_[i].serial == serial) return &pending_[i];
  }
  return nullptr;
}

void RankSlot::expect_overrun(uint64_t serial) {
  if (Bubble* bubble = find(serial)) bubble->settled = false;
}

void RankSlot::settle_overrun(uint64_t serial, int64_t overrun_ns, int64_t harvested_late_ns) {
  if (Bubble* bubble = find(serial)) {
    bubble->overrun_ns += overrun_ns;
    bubble->harvested_ns += harvested_late_ns;
    bubble->settled = true;
    sum_of(FREERIDE_STATE_ITERATION(bubble->state_word)).harvested_ns += harvested_late_ns;
  }
}

void RankSlot::add_harvest(int64_t harvested_ns) {
  if (current_.state_word == 0) return;  // it joined while the others were in theirs
  current_.harvested_ns += harvested_ns;
  sum_of(FREERIDE_STATE_ITERATION(current_.state_word)).harvested_ns += harvested_ns;
}

void RankSlot::note_side_task(uint64_t task, int64_t begin_ns, int64_t end_ns) {
  if (current_.state_word == 0) return;
  const bool others = current_.side_begin_ns != 0;
  if (others && begin_ns == 0) return;
  const bool last = !others || end_ns == 0 || (current_.side_end_ns != 0 && end_ns > current_.side_end_ns);
  current_.side_begin_ns = others ? std::min(current_.side_begin_ns, begin_ns) : begin_ns;
  if (!last) return;
  current_.task = task;
  current_.side_end_ns = end_ns;
}

void RankSlot::note_lease() {
  current_.leased = true;
  sum_of(FREERIDE_STATE_ITERATION(current_.state_word)).leased = true;
}

RankSlot::IterationSum& RankSlot::sum_of(uint64_t iteration) {
  IterationSum& sum = sums_[iteration % sums_.size()];
  if (sum.iteration != iteration) {
    sum = IterationSum{};
    sum.iteration = iteration;
  }
  return sum;
}

}  // namespace freeride::worker
