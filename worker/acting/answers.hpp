// Answers: what a side task's runner says on its answer page.
#pragma once

#include <cstdint>

#include "acting/task_source.hpp"
#include "freeride/policy/rights.hpp"

namespace freeride::worker {

/// Belongs to the acting thread. Nothing on the page is trusted.
class Answers {
 public:
  explicit Answers(const TaskSource& source) : page_(*source.answer) {}

  /// Looks at the page. Fills the members below.
  void read();

  uint32_t sequence = 0;  ///< value of the page's futex word, read before anything else
  uint32_t state = 0;
  uint32_t transition = 0;
  bool stops = false;      ///< has been seen in StopSideTask: whatever it says from then on, it is to end
  bool executing = false;  ///< has not paused, as far as it says; StopSideTask has a bound of its own

  /// What it says, as one of the rights' claims.
  policy::Claim claim() const;
  bool initialised() const { return state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING; }
  /// Whether its state is another than at the last call; RUNNING and PAUSED, which alternate with the bubbles, count as
  /// one.
  bool take_state_change();
  /// Time in steps, up to `now_ns` in the one that is under way.
  int64_t in_steps_ns(int64_t now_ns) const;
  const freeride_answer_page& page() const { return page_; }

 private:
  const freeride_answer_page& page_;
  uint32_t told_state_ = FREERIDE_STATE_SUBMITTED;
};

/// The paper's name of a FREERIDE_STATE_* value, PAUSED for any other: a page that lies changes no state.
const char* state_name(uint32_t state);

}  // namespace freeride::worker
