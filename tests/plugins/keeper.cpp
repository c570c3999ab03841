// Keeps its progress over a replacement, unless told to fail on the way: n goes on where a state was restored, and
// begins at 0 where none was.
#include <string>

#include "freeride/plugin.hpp"

namespace {

class Keeper : public freeride::SideTask, public freeride::KeepsState {
  freeride::Param<int> step_us_{this, "step_us", 300, "how long a step is busy", {0, 1000000}};
  freeride::Param<std::string> fail_in_{
      this, "fail_in", "", "where to fail", {"", "create", "init", "save", "restore", "stop"}};
  freeride::Param<std::string> fail_how_{this, "fail_how", "throw", "how", {"throw", "abort", "hang"}};
  freeride::Param<std::uint64_t> ballast_{this, "ballast", 0, "bytes of state beside the count", {0, 1ULL << 27}};
  std::uint64_t n_ = 0, restored_ = 0;

  void maybe_fail(const char* where) const {
    if (fail_in_.get() != where) return;
    if (fail_how_.get() == "abort") __builtin_trap();
    volatile bool hangs = fail_how_.get() == "hang";  // volatile: a loop without effects may be left out
    while (hangs) {
    }
    throw freeride::TaskError(std::string("failed as told in ") + where);
  }

  void CreateSideTask() override { maybe_fail("create"); }
  void InitSideTask() override { maybe_fail("init"); }
  void StopSideTask() override { maybe_fail("stop"); }
  freeride::Step RunNextStep() override {
    for (freeride::StepTimer timer(step_us_ / 1000.0); !timer.over();) {
    }
    metric("n", static_cast<double>(++n_));
    metric("restored", static_cast<double>(restored_));
    return freeride::Step::kMore;
  }

  std::string SaveState() override {
    maybe_fail("save");
    return std::to_string(n_) + " " + std::string(ballast_, 'x');
  }
  void RestoreState(std::uint32_t version, const std::string& state) override {
    maybe_fail("restore");
    if (version != kStateVersion) throw freeride::TaskError("a state of version " + std::to_string(version));
    n_ = restored_ = std::stoull(state);
    metric("n", static_cast<double>(n_));
  }
};

}  // namespace

FREERIDE_PLUGIN(Keeper, "keeper", "1", "keeps its progress over a replacement")
