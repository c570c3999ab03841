// The plugin that the SDK's test drives: every ability once, and a way to fail in each transition in each way.
#include "freeride/plugin.hpp"

namespace {

/// Remembers what it was asked to wait for.
struct Queue {
  void mark() { ++marked; }
  void wait(bool all) {
    if (marked > 1) throw freeride::TaskError("the queue has failed");
    left = all ? 0 : 1;
  }
  int marked = 0, left = -1;
};

class SdkSample : public freeride::SideTask {
  freeride::Param<int> steps_{this, "steps", 3, "steps until it is finished", {1, 100}};
  freeride::Param<double> share_{this, "share", 0.1, "a share", {0, 1}};
  freeride::Param<std::uint8_t> byte_{this, "byte", 7, "a byte"};
  freeride::Param<bool> loud_{this, "loud", false, "whether to log"};
  freeride::Param<std::string> colour_{this, "colour", "red", "a colour", {"red", "blue"}};
  freeride::Param<std::string> fail_in_{this, "fail-in", "", "the transition to fail in"};
  freeride::Param<std::string> fail_how_{
      this, "fail-how", "error", "how", {"error", "memory", "unavailable", "parameter", "int"}};
  int done_ = 0;
  Queue queue_;

  void maybe_fail(const std::string& transition) const {
    if (fail_in_.get() != transition) return;
    if (fail_how_.get() == "memory") throw std::bad_alloc();
    if (fail_how_.get() == "unavailable") throw freeride::Unavailable("the device sleeps");
    if (fail_how_.get() == "parameter") throw freeride::BadParameter("steps and share do not go together");
    if (fail_how_.get() == "int") throw 42;
    throw freeride::TaskError("failed as told in " + transition);
  }

  void CreateSideTask() override {
    maybe_fail("create");
    log("created " + task_name() + " on " + device());
  }
  void InitSideTask() override { maybe_fail("init"); }
  void StartSideTask() override { maybe_fail("start"); }
  freeride::Step RunNextStep() override {
    maybe_fail("step");
    yield_point(queue_);
    metric("marked", queue_.marked);
    metric("left", queue_.left);
    ++done_;
    metric("done", done_);
    metric("share", share_);
    metric("byte", byte_);
    if (loud_) warn("colour " + colour_.get());
    return done_ < steps_ ? freeride::Step::kMore : freeride::Step::kFinished;
  }
  void PauseSideTask() override { maybe_fail("pause"); }
  void StopSideTask() override {
    maybe_fail("stop");
    log("stopped after " + std::to_string(done_) + ", scratch " + scratch_path("x"));
  }

 public:
  static const void* extension(const char* name) { return std::string(name) == "test.sample/1" ? "here" : nullptr; }
};

}  // namespace

FREERIDE_PLUGIN(SdkSample, "sdk-sample", "1.2", "what the SDK's test drives")
