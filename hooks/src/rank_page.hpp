// RankPage: a training rank's bubble page and what is learned of its waits.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/pages/mapping.hpp"
#include "freeride/policy/hold_cost.hpp"
#include "freeride/policy/length_learner.hpp"
#include "freeride/policy/mark_window.hpp"
#include "freeride/policy/rank_why.hpp"

namespace freeride::hooks {

struct RankIdentity {
  std::string job, device, framework;
  uint32_t rank = 0, stage = 0, stages = 1, replica = 0, replicas = 1;
  std::optional<double> budget_pct;  ///< the slowdown budget that it asks for
};

/// "0.3": a slowdown budget in percent, from 0 to 100. Errors: kInvalidArgument.
Result<double> parse_budget(const std::string& text);

/// Writes one bubble page. Marks come from one thread at a time (the training loop's, or with external marks the
/// helper's); switching off may come from any. No function allocates, throws or blocks, but for create() and, when the
/// number of waits is a new one, finish_iteration().
class RankPage {
 public:
  /// Errors: kInvalidArgument (identity), kExhausted.
  static Result<std::unique_ptr<RankPage>> create(const RankIdentity& identity);
  ~RankPage();
  RankPage(const RankPage&) = delete;
  RankPage& operator=(const RankPage&) = delete;

  // Host marks; `now_ns` is CLOCK_MONOTONIC.
  void begin(int64_t now_ns);
  void end(int64_t now_ns);
  /// At least `count` iterations have ended then: where that leaves numbers out, those are of no iteration. Returns how
  /// many have.
  uint64_t finish_iteration(int64_t now_ns, uint64_t count = 0);
  /// An idle phase says that an iteration has ended. Any thread: in another one than marks the waits nothing happens.
  void finish_iteration_by_phase(int64_t now_ns);

  /// External marks: takes notice of what somebody else wrote into the state word. True when it had changed. One
  /// thread, as of the next two.
  bool observe(int64_t now_ns);
  /// The present bubble ends now, before its writer says so; `word` is what it would write.
  void close_early(int64_t now_ns, uint64_t word);
  /// When to look next. Where `leases` may be given, closely around the moments at which bubbles usually begin and end,
  /// and the worker is told before the begin, to be awake (policy/mark_window).
  int64_t next_look(int64_t now_ns, bool leases);
  /// External marks: iteration `iteration` has so many waits, whatever was seen of them.
  struct Told {
    bool representative = true;  ///< false: it counts for nothing
    bool held = true;            ///< false: nothing was held nor marked in it, so no lengths are learned
    bool leases_next = true;     ///< false: the next iteration's bubbles are to get none
  };
  void expect_waits(uint64_t iteration, uint32_t waits, Told told);
  /// External marks: the length of wait `wait` is not learned from its marks, but told: until when the host holds it;
  /// 0: not at all. Published with the next iteration. The training's thread.
  static constexpr int64_t kNotRemote = -1;
  void set_remote_length(uint32_t wait, int64_t ns);
  /// What holds cost this rank, for people. The training's thread.
  void set_hold_costs(const policy::ArmCost& held, const policy::ArmCost& with_leases);
  /// What the bound of a hold follows; 0: not known, or a wait too short for a lease. Where a GPU marks it is the
  /// length that leases have: holds that were ended at their bound are among those that are learned, and must not
  /// lengthen it. Any thread.
  int64_t high_ns(uint32_t wait) const { return learned_[wait - 1].high_ns.load(std::memory_order_relaxed); }
  /// Marks by a GPU: shorter waits are learned but not published, no lease in them; and leases in the others end so
  /// long before the learned end, when training posts what it does next. Before the first mark.
  void set_leases(int64_t shortest_ns, int64_t lead_ns) {
    shortest_lease_ns_ = shortest_ns;
    lease_lead_ns_ = lead_ns;
  }
  /// Any thread. 0: nothing any more.
  void want_memory(uint64_t bytes) { pages::store_release(page().wanted_bytes, bytes); }
  /// From now on every change rings the bell that a worker has handed over, instead of waking whoever waits for the
  /// page's own word. The helper's thread; `fd` stays the caller's. Errors: those of pages::map_page_writable().
  Status ring(int fd);
  /// That worker is gone. The helper's thread.
  void ring_none();
  /// Any thread. What the page cannot show of why there are no bubbles.
  void note(policy::RankWhy why) { pages::store_relaxed(page().noted, static_cast<uint32_t>(why)); }
  /// Any thread. Whether some wait had a length for a lease at the end of one of the last `iterations` iterations.
  bool usable_lately(uint64_t iterations) const {
    const uint64_t by = usable_by_.load(std::memory_order_relaxed);
    return by > 0 && pages::load_acquire(page().iteration) <= by + iterations;
  }
  /// A phase has ended: it goes into the history, under `wait`, and its time is no compute. Any thread.
  void record_phase(uint32_t wait, int64_t begin_ns, int64_t end_ns, uint64_t promised_ns);
  /// Any thread. There is a length for a lease just now.
  void note_usable() { usable_by_.store(pages::load_acquire(page().iteration) + 1, std::memory_order_relaxed); }
  /// What a lease may have of a learned length: all 0 for one that is too short.
  policy::WaitLength for_leases(policy::WaitLength known) const;
  /// The last step of every change to the page: whoever waits for one is woken. Any thread.
  void changed();
  bool is_on() const { return on_.load(std::memory_order_acquire); }
  /// Any thread. `state` is FREERIDE_HOOK_DISABLED or FREERIDE_HOOK_GONE.
  void switch_off(uint32_t state);
  /// Any thread. Marks count again after the next iteration's end.
  void switch_on();
  uint32_t state() const { return pages::load_acquire(page().hook_state); }

  freeride_bubble_page& page() const { return *made_.page; }
  int fd() const { return made_.fd.get(); }
  void close_fd() { made_.fd.reset(); }

 private:
  RankPage() : learner_(FREERIDE_MAX_WAITS) {}
  bool mine();
  void open_bubble(int64_t now_ns, uint32_t wait, bool write_state);
  void close_bubble(int64_t now_ns);
  void count_iteration(int64_t now_ns, bool write_state, uint64_t count = 0);
  void publish_lengths();
  void record(uint64_t word, int64_t begin_ns, int64_t end_ns, uint64_t promised_ns);

  pages::Created<freeride_bubble_page> made_;
  policy::LengthLearner learner_;
  std::atomic<bool> on_{true};
  std::atomic<pthread_t> owner_{0};
  // The bell, if any worker has handed one over. Its address stays the same for good: a thread that is about to ring
  // rings the present one, and never what is not mapped any more.
  freeride_bell_page* bell_ = nullptr;
  std::atomic<uint32_t*> rung_{nullptr};  // null: the page's own word

  // The marking thread's own.
  std::vector<int64_t> lengths_;  // of this iteration's waits; its capacity is fixed
  uint64_t iteration_ = 0;
  uint32_t wait_ = 0;  // in this iteration
  bool open_ = false;
  bool whole_ = true;  // this iteration was marked from its begin
  uint64_t open_word_ = 0;
  int64_t begin_ns_ = 0;
  int64_t segment_ns_ = 0;  // begin of the present compute segment
  int64_t gap_ns_ = 0;      // last compute segment, for the observer
  uint64_t promised_ns_ = 0;
  int64_t iteration_begin_ns_ = 0;
  uint64_t bubble_ns_ = 0;  // in this iteration
  uint64_t compute_ns_ = 0;
  std::mutex recording_;  // of the history; held for some stores
  // Of idle phases, not yet taken off compute and counted to the iteration.
  std::atomic<int64_t> phases_in_gap_ns_{0}, phases_in_iteration_ns_{0};
  size_t published_ = 0;  // slots of `learned` that are not 0
  int64_t shortest_lease_ns_ = 0, lease_lead_ns_ = 0;

  // External marks.
  void take_notice(uint64_t word, int64_t now_ns);
  uint64_t seen_word_ = 0;
  int64_t last_end_ns_ = 0;
  uint32_t last_end_wait_ = 0;
  // From the end of a wait to the begin of another: the last times, each with the number of the wait that had ended,
  // for waits whose data is there when they come are not marked.
  struct Gap {
    std::array<uint64_t, 16> last{};  // wait << 48 | ns; 0: none yet
    uint32_t count = 0;
  };
  void note_gap(Gap& gap, int64_t begin_ns);
  policy::Span span_of(const Gap& gap, std::optional<uint32_t> after) const;
  policy::MarkWindow next_begin(int64_t now_ns) const;
  std::array<Gap, FREERIDE_MAX_WAITS> gaps_{};
  int64_t told_ns_ = 0;                                     // the end of the window that the worker was told of
  std::array<std::atomic<uint64_t>, 64> expected_waits_{};  // FREERIDE_STATE(iteration, waits) and flags, by iteration
  static constexpr uint64_t kOdd = uint64_t{1} << 63, kNotHeld = uint64_t{1} << 62, kNoLeases = uint64_t{1} << 61;
  bool learn_ = true, leases_next_ = true;  // of the iteration that is ending
  struct Length {
    std::atomic<int64_t> high_ns{0}, remote_ns{kNotRemote};
  };
  std::array<Length, FREERIDE_MAX_WAITS> learned_{};
  std::atomic<uint64_t> usable_by_{0};  // iterations that had ended when some length was; 0: none so far
};

}  // namespace freeride::hooks
