// Steps of several pieces with a yield point after each but the last. A piece is busy for piece_us and appends "piece N
// begin_ns end_ns" to <scratch>/pieces. Keeps the number of whole steps as its state.

#include <fstream>

#include "freeride/plugin.hpp"

class Yielding : public freeride::SideTask, public freeride::KeepsState {
  freeride::Param<int> pieces_{this, "pieces", 6, "of a step"};
  freeride::Param<int> piece_us_{this, "piece_us", 10000, "busy for so long"};
  std::ofstream trace_;
  long steps_ = 0;
  int abandoned_ = 0;

  static long long now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void CreateSideTask() override { trace_.open(scratch_path("pieces")); }
  void PauseSideTask() override { trace_ << "pause " << steps_ << " " << now_ns() << " " << now_ns() << std::endl; }

  freeride::Step RunNextStep() override {
    try {
      for (int i = 0; i < pieces_; ++i) {
        if (i > 0) yield_point();
        const auto begin_ns = now_ns();
        for (freeride::StepTimer timer(piece_us_ / 1000.0); !timer.over();) {
        }
        trace_ << "piece " << i << " " << begin_ns << " " << now_ns() << std::endl;
      }
    } catch (const freeride::StepAbandoned&) {
      metric("abandoned", ++abandoned_);
      throw;
    }
    metric("steps", static_cast<double>(++steps_));
    return freeride::Step::kMore;
  }

  std::string SaveState() override { return std::to_string(steps_); }
  void RestoreState(std::uint32_t, const std::string& state) override { steps_ = std::stol(state); }
};
FREERIDE_PLUGIN(Yielding)
