// RankSlot: what the acting thread knows of one training rank: the present bubble, and those whose measures are not
// complete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "acting/act_event.hpp"
#include "acting/plans.hpp"
#include "acting/transitions.hpp"
#include "freeride/pages/mapping.hpp"
#include "freeride/policy/lease.hpp"

namespace freeride::worker {

/// A trainer's page, checked and mapped. Shared by main and acting thread, never changed.
struct RankSource {
  uint64_t id = 0;
  pages::Mapped<const freeride_bubble_page> page;
  std::string job;
};

/// One bubble of one rank, from the moment the worker saw it.
struct Bubble {
  uint64_t serial = 0;      ///< of this rank, from 1
  uint64_t state_word = 0;  ///< 0: none
  uint32_t type = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;   ///< from the page's history; 0: not there yet
  int64_t left_ns = 0;  ///< when the worker saw that it had ended
  int64_t learned_ns = 0;
  int64_t harvested_ns = 0, overrun_ns = 0;
  uint64_t task = 0;                           ///< that executed last in it; else one that had a lease
  int64_t side_begin_ns = 0, side_end_ns = 0;  ///< all execution; side_end_ns 0: it had not paused by the end
  bool leased = false, holdout = false;
  bool settled = true;  ///< nobody's execution past its end is still being measured
};

/// Belongs to the acting thread. No allocation after construction. Nothing on the page is trusted: numbers are bounded
/// before use, and how much work one look can cause is bounded too.
class RankSlot {
 public:
  RankSlot(std::shared_ptr<const RankSource> source, std::shared_ptr<const PlanSet> plans);

  /// Looks at the acted-on part of the page. Fills the members below; the hot path.
  void read();
  void set_plans(std::shared_ptr<const PlanSet> plans);

  // As of the last read().
  policy::RankView view;
  uint32_t wake = 0;        ///< value of the futex word, read before anything else
  uint64_t bell = 0;        ///< incarnation of the bell that the hook rings after every change of that word; 0: none
  uint64_t state_word = 0;  ///< low 16 bits 0: training
  int64_t expected_ns = 0;  ///< up to when the hook expects a bubble to begin at any moment
  bool left = false;        ///< the bubble before has ended
  bool entered = false;     ///< a new one has begun

  /// Bookkeeping after the hot path: moves the bubble that was left among those to be completed, and begins the new
  /// one.
  void turn(int64_t now_ns, EventRing& events);
  /// Reads what the page's history has of finished bubbles and iterations, and reports all that is complete.
  void collect(const Transitions& transitions, int64_t now_ns, EventRing& events);

  Bubble& current() { return current_; }
  /// Best knowledge of when the bubble that was just left ended.
  int64_t end_of_left(int64_t now_ns) const;
  /// Notes harvest of the present bubble, also towards its iteration.
  void add_harvest(int64_t harvested_ns);
  /// Notes who executed in the present bubble, from when to when; `end_ns` 0: until after its end, `begin_ns` 0: had a
  /// lease, but made no step. Several may have, one after the other, and are noted in any order.
  void note_side_task(uint64_t task, int64_t begin_ns, int64_t end_ns);
  void note_lease();
  /// Someone's execution past the end of bubble `serial` is being measured / has been measured.
  void expect_overrun(uint64_t serial);
  void settle_overrun(uint64_t serial, int64_t overrun_ns, int64_t harvested_late_ns = 0);

  const RankSource& source() const { return *source_; }
  const uint32_t& wake_word() const { return source_->page->wake; }
  uint64_t last_left_serial() const { return last_left_serial_; }
  uint64_t implausible() const { return implausible_; }

 private:
  static constexpr size_t kPending = 8;
  static constexpr uint64_t kMostRecords = 64;  // looked at in one go; more are skipped
  static constexpr uint64_t kMostIterations = 8;
  struct IterationSum {
    uint64_t iteration = ~uint64_t{0};
    int64_t harvested_ns = 0;
    bool leased = false;
  };

  void collect_bubbles(int64_t now_ns, EventRing& events);
  void collect_iterations(const Transitions& transitions, int64_t now_ns, EventRing& events);
  void report(const Bubble& bubble, EventRing& events) const;
  void report_complete(EventRing& events);
  void drop_front();
  Bubble* find(uint64_t serial);
  IterationSum& sum_of(uint64_t iteration);
  bool held_out(uint64_t iteration) const;
  void read_phase(uint64_t iteration);
  void note_phase_left(int64_t now_ns);

  std::shared_ptr<const RankSource> source_;
  std::shared_ptr<const PlanSet> plan_set_;
  const PlanSet::Plans* plans_ = nullptr;
  Bubble current_;
  std::array<Bubble, kPending> pending_;
  size_t pending_count_ = 0;
  std::array<IterationSum, 4> sums_;
  uint64_t serial_ = 0, last_left_serial_ = 0;
  uint64_t entered_word_ = 0;  // of the bubble that was entered last
  int64_t entered_begin_ns_ = 0;
  uint64_t bubbles_seen_ = 0, iterations_seen_ = 0;
  uint32_t hook_state_ = 0;
  uint64_t implausible_ = 0;
};

}  // namespace freeride::worker
