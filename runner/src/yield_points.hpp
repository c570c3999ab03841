// YieldPoints: what a plugin's call from within a step does.
#pragma once

#include "turn.hpp"

namespace freeride::runner {

/// freeride.yield/1 in the iterative interface. Between two pieces of a step it returns at once while the next piece
/// may begin, else blocks, PAUSED, until a lease has room for it. Main thread; parts and turn are the caller's.
class YieldPoints {
 public:
  YieldPoints(TaskParts& parts, Turn& turn) : parts_(parts), turn_(turn) {}

  /// RunNextStep is called, and has returned. Outside of it a yield point does nothing.
  void step_begins() {
    parts_.admission.step_begins();
    given_up_ = false;
    in_step_ = true;
  }
  void step_ended() { in_step_ = false; }
  /// Has the present or last step been told to give up?
  bool given_up() const { return given_up_; }

  freeride_status pass();
  /// As pass(), but one piece ahead of the GPU while that one and the next fit.
  freeride_status pass_queued(const Host::Wait& wait);

 private:
  freeride_status end_of_piece(bool open);
  void piece_ends();
  bool may_go_on();
  freeride_status give_up();
  freeride_status wait();
  bool resume(const SeenLease& seen);

  TaskParts& parts_;
  Turn& turn_;
  bool in_step_ = false;
  bool given_up_ = false;
};

}  // namespace freeride::runner
