// A FreeRide side task, to be copied: counts the primes up to `limit`, a slice of numbers in every step.
//
// Build it with CMake (CMakeLists.txt beside this file), or with one line:
//   g++ -std=c++17 -O2 -shared -fPIC -fvisibility=hidden my_task.cpp -o my_task.so
// (with -I PREFIX/include where FreeRide is installed elsewhere than in /usr). Then:
//   freeride-ctl plugin check ./my_task.so
//   freeride-ctl load ./my_task.so --stage 1 --param limit=1000000
#include <fstream>

#include <freeride/plugin.hpp>

namespace {

class MyTask : public freeride::SideTask {
  freeride::Param<std::int64_t> limit_{this, "limit", 10000000, "count the primes up to this number", {2, 1000000000}};
  freeride::Param<double> step_ms_{this, "step_ms", 1.0, "length of a step", {0.1, 100}};

  // SUBMITTED -> CREATED: load what the task works on into host memory. InitSideTask, StartSideTask and PauseSideTask
  // may be overridden in the same way; this task needs none of them.
  void CreateSideTask() override { log("counting the primes up to " + std::to_string(limit_)); }

  // RUNNING: a short piece of work, again and again, within bubbles. Everything that the next step needs is in members.
  freeride::Step RunNextStep() override {
    for (freeride::StepTimer timer(step_ms_); !timer.over();) {
      for (int i = 0; i < 100; ++i, ++next_) {
        if (next_ > limit_) return freeride::Step::kFinished;
        if (is_prime(next_)) ++primes_;
      }
    }
    metric("primes", static_cast<double>(primes_));
    return freeride::Step::kMore;
  }

  // -> STOPPED: write what is there. The scratch folder is the task's own.
  void StopSideTask() override {
    std::ofstream out(scratch_path("primes.txt"));
    out << primes_ << " primes below " << next_ << "\n";
    if (!out.flush()) throw freeride::TaskError("cannot write " + scratch_path("primes.txt"));
  }

  static bool is_prime(std::int64_t n) {
    for (std::int64_t d = 2; d * d <= n; ++d) {
      if (n % d == 0) return false;
    }
    return true;
  }

  std::int64_t next_ = 2;
  std::int64_t primes_ = 0;
};

}  // namespace

FREERIDE_PLUGIN(MyTask, "my-task", "1.0", "counts primes")
