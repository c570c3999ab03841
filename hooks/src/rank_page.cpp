#include "rank_page.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "freeride/base/clock.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::hooks {

using pages::load_acquire;
using pages::load_relaxed;
using pages::store_relaxed;
using pages::store_release;

namespace {

// Cuts at a whole UTF-8 character and replaces control characters: a reader refuses pages that have them.
void put_text(char (&field)[FREERIDE_NAME_BYTES], const std::string& text) {
  const std::string whole = bounded(text, sizeof(field) - 1);
  std::replace_copy_if(whole.begin(), whole.end(), field, is_control, '?');
}

}  // namespace

Result<double> parse_budget(const std::string& text) {
  double pct = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, pct, std::chars_format::fixed);
  if (failed == std::errc() && stop == end && pct >= 0 && pct <= 100) return pct;
  return Error{Code::kInvalidArgument, "the slowdown budget \"" + text.substr(0, 32) + "\" is no percentage",
               "a number from 0 to 100, such as 0.3"};
}

Result<std::unique_ptr<RankPage>> RankPage::create(const RankIdentity& identity) {
  auto made = pages::create_page<freeride_bubble_page>(true);
  if (!made.ok()) return made.error();
  std::unique_ptr<RankPage> rank(new RankPage);
  rank->made_ = std::move(*made);
  rank->lengths_.reserve(FREERIDE_MAX_WAITS);
  auto& page = rank->page();
  put_text(page.job, identity.job);
  put_text(page.device, identity.device);
  put_text(page.framework, identity.framework);
  page.rank = identity.rank;
  page.stage = identity.stage;
  page.stages = identity.stages;
  page.replica = identity.replica;
  page.replicas = identity.replicas;
  page.pid = static_cast<uint32_t>(getpid());
  page.budget = pages::budget_word(identity.budget_pct);
  // The worker would refuse it later; here there is still somebody to tell.
  auto checked = pages::check_bubble_page(page);
  if (!checked.ok()) return checked.error();
  rank->iteration_begin_ns_ = rank->segment_ns_ = SteadyClock::now();
  return rank;
}

RankPage::~RankPage() {
  if (bell_ != nullptr) munmap(bell_, sizeof(*bell_));
}

Status RankPage::ring(int fd) {
  uint64_t incarnation = 0;
  {
    auto checked = pages::map_page_writable<freeride_bell_page>(fd);
    if (!checked.ok()) return checked.error();
    incarnation = (*checked)->header.incarnation;
  }
  void* at =
      mmap(bell_, sizeof(*bell_), PROT_READ | PROT_WRITE, MAP_SHARED | (bell_ == nullptr ? 0 : MAP_FIXED), fd, 0);
  if (at == MAP_FAILED) return errno_error("cannot map the worker's bell", errno);
  bell_ = static_cast<freeride_bell_page*>(at);
  rung_.store(&bell_->rings, std::memory_order_seq_cst);
  store_release(page().bell, incarnation);
  changed();  // a change before this one has woken the page's word only
  return {};
}

void RankPage::ring_none() {
  if (rung_.exchange(nullptr, std::memory_order_seq_cst) == nullptr) return;
  store_release(page().bell, uint64_t{0});
  changed();
}

void RankPage::changed() {
  uint32_t& wake = page().wake;
  __atomic_fetch_add(&wake, 1U, __ATOMIC_SEQ_CST);  // before the look at whom to wake, as ring() counts on
  uint32_t* const rung = rung_.load(std::memory_order_seq_cst);
  if (rung == nullptr) {
    pages::futex_wake(wake);
  } else {
    pages::bump_and_wake(*rung);
  }
}

bool RankPage::mine() {
  const pthread_t self = pthread_self();
  pthread_t owner = owner_.load(std::memory_order_relaxed);
  return owner == self || (owner == 0 && owner_.compare_exchange_strong(owner, self, std::memory_order_acquire));
}

void RankPage::begin(int64_t now_ns) {
  if (open_ || !mine()) return;
  if (!on_.load(std::memory_order_relaxed))
    whole_ = false;  // a wait that is not counted: the numbers after it would be wrong
  if (!whole_) return;
  if (wait_ + 1 >= FREERIDE_PHASE_WAIT(0)) return;  // the state word has no number for it: it stays training's
  open_bubble(now_ns, ++wait_, true);
}

void RankPage::open_bubble(int64_t now_ns, uint32_t wait, bool write_state) {
  auto& page = this->page();
  wait_ = wait;
  open_ = true;
  begin_ns_ = now_ns;
  gap_ns_ = now_ns - segment_ns_ - phases_in_gap_ns_.exchange(0, std::memory_order_relaxed);
  if (!write_state && wait <= FREERIDE_MAX_WAITS) note_gap(gaps_[wait - 1], now_ns);
  if (iteration_ > 0) compute_ns_ += static_cast<uint64_t>(std::max<int64_t>(gap_ns_, 0));
  open_word_ = FREERIDE_STATE(iteration_, wait);
  promised_ns_ = wait <= FREERIDE_MAX_WAITS ? load_relaxed(page.learned[wait - 1].low_ns) : 0;
  store_relaxed(page.compute_ns, compute_ns_);
  store_release(page.begin_ns, static_cast<uint64_t>(now_ns));
  if (write_state) {
    // A full barrier, for the look at on_ after it: whoever switches us off meanwhile either sees this word and clears
    // it, or is seen.
    __atomic_exchange_n(&page.state_word, open_word_, __ATOMIC_SEQ_CST);
    if (!on_.load(std::memory_order_seq_cst)) {
      store_release(page.state_word, uint64_t{0});
      open_ = false;
    }
  }
  changed();
}

void RankPage::note_gap(Gap& gap, int64_t begin_ns) {
  constexpr int64_t kLongest = (int64_t{1} << 48) - 1;
  const int64_t end_ns = last_end_ns_;
  if (end_ns == 0) return;
  const auto ns = static_cast<uint64_t>(std::clamp<int64_t>(begin_ns - end_ns, 1, kLongest));
  gap.last[gap.count++ % gap.last.size()] = uint64_t{last_end_wait_} << 48 | ns;
}

policy::Span RankPage::span_of(const Gap& gap, std::optional<uint32_t> after) const {
  constexpr uint64_t kNs = (uint64_t{1} << 48) - 1;
  std::array<int64_t, std::tuple_size_v<decltype(gap.last)>> known{};
  size_t count = 0;
  for (const uint64_t word : gap.last) {
    if (word != 0 && (!after || word >> 48 == *after)) known[count++] = static_cast<int64_t>(word & kNs);
  }
  return policy::usual_span({known.data(), count});
}

// Of the next wait that may have a lease; 0, 0: not known. A wait whose data is there when it comes is not marked, so
// it may be the one behind the next.
policy::MarkWindow RankPage::next_begin(int64_t now_ns) const {
  constexpr uint32_t kAhead = 3;
  policy::MarkWindow next;
  for (uint32_t i = 1; i <= kAhead; ++i) {
    const auto waits = static_cast<uint32_t>(std::max<size_t>(published_, 1));
    const uint32_t wait = (wait_ + i - 1) % waits + 1;
    if (high_ns(wait) <= 0) continue;
    const auto after = policy::mark_window(span_of(gaps_[wait - 1], last_end_wait_));
    if (after.to_ns == 0 || last_end_ns_ + after.to_ns <= now_ns) continue;
    if (next.to_ns == 0 || last_end_ns_ + after.from_ns < next.from_ns)
      next = {last_end_ns_ + after.from_ns, last_end_ns_ + after.to_ns};
  }
  return next;
}

void RankPage::end(int64_t now_ns) {
  if (!open_ || !mine()) return;
  if (on_.load(std::memory_order_relaxed)) {
    // A full barrier, as in open_bubble().
    __atomic_exchange_n(&page().state_word, FREERIDE_STATE(iteration_, 0), __ATOMIC_SEQ_CST);
    if (!on_.load(std::memory_order_seq_cst)) store_release(page().state_word, uint64_t{0});
  }
  close_bubble(now_ns);
  changed();
}

void RankPage::close_bubble(int64_t now_ns) {
  open_ = false;
  const int64_t length = std::max<int64_t>(now_ns - begin_ns_, 0);
  segment_ns_ = now_ns;
  last_end_wait_ = wait_;
  last_end_ns_ = now_ns;
  bubble_ns_ += static_cast<uint64_t>(length);
  if (wait_ <= FREERIDE_MAX_WAITS) {
    while (lengths_.size() + 1 < wait_) lengths_.push_back(0);  // external marks may skip a number
    if (lengths_.size() < wait_) lengths_.push_back(length);
  }
  record(open_word_, begin_ns_, now_ns, promised_ns_);
}

void RankPage::record(uint64_t word, int64_t begin_ns, int64_t end_ns, uint64_t promised_ns) {
  const std::lock_guard lock(recording_);
  auto& page = this->page();
  const uint64_t bubbles = load_relaxed(page.bubbles);
  auto& record = page.history[bubbles % FREERIDE_HISTORY];
  store_relaxed(record.state_word, word);
  store_relaxed(record.begin_ns, static_cast<uint64_t>(begin_ns));
  store_relaxed(record.end_ns, static_cast<uint64_t>(end_ns));
  store_relaxed(record.learned_low_ns, promised_ns);
  store_release(page.bubbles, bubbles + 1);
}

void RankPage::record_phase(uint32_t wait, int64_t begin_ns, int64_t end_ns, uint64_t promised_ns) {
  phases_in_gap_ns_.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
  phases_in_iteration_ns_.fetch_add(end_ns - begin_ns, std::memory_order_relaxed);
  record(FREERIDE_STATE(load_acquire(page().iteration), wait), begin_ns, end_ns, promised_ns);
  changed();
}

uint64_t RankPage::finish_iteration(int64_t now_ns, uint64_t count) {
  // The thread that ends iterations is the one whose waits count from now on.
  owner_.store(pthread_self(), std::memory_order_relaxed);
  if (open_) end(now_ns);
  if (count > iteration_ + 1) whole_ = false;
  count_iteration(now_ns, true, count);
  changed();
  return iteration_;
}

void RankPage::finish_iteration_by_phase(int64_t now_ns) {
  const pthread_t self = pthread_self();
  pthread_t owner = 0;
  const bool taken = owner_.compare_exchange_strong(owner, self, std::memory_order_acquire);
  if (!taken && owner != self) return;
  if (open_) end(now_ns);
  count_iteration(now_ns, true);
  changed();
  if (taken) owner_.store(0, std::memory_order_release);  // no wait was marked so far: whoever marks one may
}

void RankPage::count_iteration(int64_t now_ns, bool write_state, uint64_t count) {
  auto& page = this->page();
  const bool on = on_.load(std::memory_order_acquire);
  const int64_t gap_ns = now_ns - segment_ns_ - phases_in_gap_ns_.exchange(0, std::memory_order_relaxed);
  if (iteration_ > 0) compute_ns_ += static_cast<uint64_t>(std::max<int64_t>(gap_ns, 0));
  segment_ns_ = now_ns;
  bubble_ns_ += static_cast<uint64_t>(phases_in_iteration_ns_.exchange(0, std::memory_order_relaxed));
  if (on && whole_) {
    auto& record = page.iterations[iteration_ % FREERIDE_ITERATIONS];
    store_relaxed(record.iteration, iteration_);
    store_relaxed(record.begin_ns, static_cast<uint64_t>(iteration_begin_ns_));
    store_relaxed(record.end_ns, static_cast<uint64_t>(now_ns));
    store_relaxed(record.bubble_ns, bubble_ns_);
    if (learn_ && learner_.add_iteration(lengths_)) store_relaxed(page.relearned, load_relaxed(page.relearned) + 1);
    store_relaxed(page.waits, wait_);
  }
  if (on && (whole_ || !leases_next_)) publish_lengths();
  iteration_ = std::max(iteration_ + 1, count);
  store_relaxed(page.compute_ns, compute_ns_);
  store_release(page.iteration, iteration_);
  iteration_begin_ns_ = now_ns;
  bubble_ns_ = 0;
  wait_ = 0;
  lengths_.clear();
  whole_ = on;
  if (on) {
    if (write_state) __atomic_exchange_n(&page.state_word, FREERIDE_STATE(iteration_, 0), __ATOMIC_SEQ_CST);
    uint32_t starting = FREERIDE_HOOK_STARTING;
    __atomic_compare_exchange_n(&page.hook_state, &starting, static_cast<uint32_t>(FREERIDE_HOOK_ACTIVE), false,
                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (!on_.load(std::memory_order_seq_cst)) store_release(page.state_word, uint64_t{0});
  }
}

policy::WaitLength RankPage::for_leases(policy::WaitLength known) const {
  if (known.low_ns < shortest_lease_ns_) return {0, 0, 0, known.samples};
  // On a GPU a step that is under way when the data comes delays training: leases that follow the bubble past the low
  // quantile, or to where training has posted what it does next, cost more than they harvest.
  if (shortest_lease_ns_ > 0) {
    known.low_ns -= std::min(lease_lead_ns_, known.low_ns / 2);
    known.mid_ns = known.high_ns = known.low_ns;
  }
  return known;
}

void RankPage::publish_lengths() {
  auto& page = this->page();
  // Where nothing was held so far nothing was learned, and yet some may be told.
  const size_t waits = std::max(learner_.waits(), std::min<size_t>(wait_, FREERIDE_MAX_WAITS));
  for (size_t i = 0; i < std::max(waits, published_); ++i) {
    auto known = for_leases(learner_.length(i + 1));
    const int64_t remote_ns = i < FREERIDE_MAX_WAITS ? learned_[i].remote_ns.load(std::memory_order_relaxed) : -1;
    if (remote_ns != kNotRemote) {
      known.low_ns = known.mid_ns = known.high_ns = remote_ns < shortest_lease_ns_ ? 0 : remote_ns;
    }
    learned_[i].high_ns.store(known.high_ns, std::memory_order_relaxed);
    if (known.low_ns > 0) usable_by_.store(iteration_ + 1, std::memory_order_relaxed);
    if (!leases_next_) known = {0, 0, 0, known.samples};
    auto& slot = page.learned[i];
    // A reader between these stores sees a mixture of two sane lengths; it orders them by itself.
    store_relaxed(slot.low_ns, static_cast<uint64_t>(known.low_ns));
    store_relaxed(slot.mid_ns, static_cast<uint64_t>(known.mid_ns));
    store_relaxed(slot.high_ns, static_cast<uint64_t>(known.high_ns));
    store_relaxed(slot.samples, known.samples);
    const char type = policy::bubble_type(page.stage, page.stages, waits, i + 1);
    store_relaxed(slot.type, static_cast<uint32_t>(static_cast<unsigned char>(type)));
  }
  published_ = waits;
}

bool RankPage::observe(int64_t now_ns) {
  const uint64_t word = load_acquire(page().state_word);
  if (word == seen_word_) return false;
  take_notice(word, now_ns);
  return true;
}

void RankPage::close_early(int64_t now_ns, uint64_t word) {
  uint64_t open = seen_word_;
  // Only over the mark that was seen: the writer may be further already.
  if (FREERIDE_STATE_WAIT(open) == 0) return;
  if (!__atomic_compare_exchange_n(&page().state_word, &open, word, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
  take_notice(word, now_ns);
}

void RankPage::take_notice(uint64_t word, int64_t now_ns) {
  auto& page = this->page();
  const uint64_t before = seen_word_;
  seen_word_ = word;
  if (!on_.load(std::memory_order_acquire)) {
    open_ = whole_ = false;
    return;
  }
  if (FREERIDE_STATE_WAIT(before) != 0 && open_) close_bubble(now_ns);
  if (FREERIDE_STATE_ITERATION(word) != iteration_) {
    // Waits that were over before anybody looked, or never marked, are part of the iteration all the same.
    const uint64_t told = expected_waits_[iteration_ % expected_waits_.size()].load(std::memory_order_acquire);
    const uint64_t expected = told & ~(kOdd | kNotHeld | kNoLeases);
    learn_ = true;
    if (FREERIDE_STATE_ITERATION(expected) == iteration_) {
      if ((told & kOdd) != 0) whole_ = false;
      learn_ = (told & kNotHeld) == 0;
    }
    // Nobody may have looked for some iterations: what is told of the next one is told with the one before it.
    const uint64_t before_next = FREERIDE_STATE_ITERATION(word) - 1;
    const uint64_t last = expected_waits_[before_next % expected_waits_.size()].load(std::memory_order_acquire);
    leases_next_ =
        FREERIDE_STATE_ITERATION(last & ~(kOdd | kNotHeld | kNoLeases)) != before_next || (last & kNoLeases) == 0;
    if (FREERIDE_STATE_ITERATION(expected) == iteration_ && FREERIDE_STATE_WAIT(expected) != 0) {
      wait_ = FREERIDE_STATE_WAIT(expected);
      lengths_.resize(std::min<size_t>(wait_, FREERIDE_MAX_WAITS), 0);
    }
    count_iteration(now_ns, false);
    iteration_ = FREERIDE_STATE_ITERATION(word);
    store_release(page.iteration, iteration_);
  }
  if (FREERIDE_STATE_WAIT(word) != 0) {
    open_bubble(now_ns, FREERIDE_STATE_WAIT(word), false);
  } else {
    changed();
  }
}

void RankPage::expect_waits(uint64_t iteration, uint32_t waits, Told told) {
  const uint64_t flags =
      (told.representative ? 0 : kOdd) | (told.held ? 0 : kNotHeld) | (told.leases_next ? 0 : kNoLeases);
  expected_waits_[iteration % expected_waits_.size()].store(FREERIDE_STATE(iteration, waits) | flags,
                                                            std::memory_order_release);
}

void RankPage::set_remote_length(uint32_t wait, int64_t ns) {
  if (wait == 0 || wait > FREERIDE_MAX_WAITS) return;
  learned_[wait - 1].remote_ns.store(ns, std::memory_order_relaxed);
}

void RankPage::set_hold_costs(const policy::ArmCost& held, const policy::ArmCost& with_leases) {
  const auto ppm = [](double pct) { return static_cast<int32_t>(std::lround(std::clamp(pct, -1e5, 1e5) * 1e4)); };
  const auto set = [&](freeride_hold_cost& on_page, const policy::ArmCost& cost) {
    store_relaxed(on_page.increase_ppm, ppm(cost.increase_pct));
    store_relaxed(on_page.low_ppm, ppm(cost.ci95_low_pct));
    store_relaxed(on_page.high_ppm, ppm(cost.ci95_high_pct));
    store_relaxed(on_page.periods, cost.measured ? static_cast<uint32_t>(cost.periods) : 0U);
  };
  set(page().held, held);
  set(page().held_with_leases, with_leases);
}

int64_t RankPage::next_look(int64_t now_ns, bool leases) {
  constexpr int64_t kSoonest = 15 * kNsPerUs;  // a sleep that is shorter takes as long
  constexpr int64_t kClose = 50 * kNsPerUs;
  constexpr int64_t kCoarse = 500 * kNsPerUs;
  constexpr int64_t kIdle = 10 * kNsPerMs;
  constexpr int64_t kWakeUp = 400 * kNsPerUs;  // so long before, the worker is told, whose core may be asleep
  const int64_t since = now_ns - (open_ ? begin_ns_ : segment_ns_);
  if (open_) {
    const int64_t left = static_cast<int64_t>(promised_ns_) - since;
    if (leases && left > 0) return now_ns + std::clamp(left / 2, kSoonest, kCoarse);
    // After a second without any edge (a checkpoint, the end) a look costs more than it finds.
    if (since > static_cast<int64_t>(promised_ns_) + kNsPerSec) return now_ns + kIdle;
    return now_ns + (promised_ns_ > 0 && left <= 0 ? kClose : kCoarse);
  }
  if (since > kNsPerSec) return now_ns + kIdle;
  const auto begin = leases ? next_begin(now_ns) : policy::MarkWindow{};
  if (begin.to_ns == 0) return now_ns + kCoarse;
  if (told_ns_ != begin.to_ns && now_ns >= begin.from_ns - kWakeUp) {
    told_ns_ = begin.to_ns;
    store_release(page().expected_ns, static_cast<uint64_t>(begin.to_ns));
    changed();
  }
  if (now_ns >= begin.from_ns) return now_ns;
  const int64_t next_ns = now_ns < begin.from_ns - kWakeUp ? begin.from_ns - kWakeUp : begin.from_ns;
  return now_ns + std::clamp(next_ns - now_ns, kSoonest, kCoarse);
}

void RankPage::switch_off(uint32_t state) {
  auto& page = this->page();
  on_.store(false, std::memory_order_seq_cst);
  __atomic_store_n(&page.hook_state, state, __ATOMIC_SEQ_CST);
  __atomic_exchange_n(&page.state_word, uint64_t{0}, __ATOMIC_SEQ_CST);
  changed();
}

void RankPage::switch_on() {
  auto& page = this->page();
  __atomic_store_n(&page.hook_state, static_cast<uint32_t>(FREERIDE_HOOK_STARTING), __ATOMIC_SEQ_CST);
  on_.store(true, std::memory_order_seq_cst);
  changed();
}

}  // namespace freeride::hooks
