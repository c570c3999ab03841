#include "driver.hpp"

#include "real.h"

namespace freeride::shim {
namespace {

// The real driver knows nothing of these calls' purpose, and a thread that captures must not notice them.
constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED

template <class... Arguments>
__attribute__((no_sanitize("undefined"))) Code real(void* function, Arguments... arguments) {
  return reinterpret_cast<Code (*)(Arguments...)>(function)(arguments...);
}

class Uncaptured {
 public:
  Uncaptured() { done_ = real(freeride_real_cuThreadExchangeStreamCaptureMode, &mode_) == kSuccess; }
  ~Uncaptured() {
    if (done_) real(freeride_real_cuThreadExchangeStreamCaptureMode, &mode_);
  }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;

 private:
  int mode_ = kRelaxed;
  bool done_ = false;
};

class Current {
 public:
  explicit Current(void* context) {
    if (context != nullptr && RealEvents::current_context() != context)
      pushed_ = real(freeride_real_cuCtxPushCurrent_v2, context) == kSuccess;
  }
  ~Current() {
    void* popped = nullptr;
    if (pushed_) real(freeride_real_cuCtxPopCurrent_v2, &popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace

__attribute__((no_sanitize("undefined"))) Code call(void* function, const Words& w) {
  using Function = Code (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);
  return reinterpret_cast<Function>(function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
}

void* RealEvents::current_context() {
  void* context = nullptr;
  return real(freeride_real_cuCtxGetCurrent, &context) == kSuccess ? context : nullptr;
}

void* RealEvents::context_of(void* stream) {
  void* context = nullptr;
  return real(freeride_real_cuStreamGetCtx, stream, &context) == kSuccess ? context : current_context();
}

void* RealEvents::make(void* context, bool takes_times) {
  constexpr unsigned kDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
  const Uncaptured uncaptured;
  const Current current(context);
  void* event = nullptr;
  return real(freeride_real_cuEventCreate, &event, takes_times ? 0U : kDisableTiming) == kSuccess ? event : nullptr;
}

bool RealEvents::record(void* context, void* event, void* stream) {
  const Uncaptured uncaptured;
  const Current current(context);
  if (capturing(stream)) return false;
  return real(freeride_real_cuEventRecord, event, stream) == kSuccess;
}

Events::State RealEvents::query(void* event) {
  const Uncaptured uncaptured;
  const Code code = real(freeride_real_cuEventQuery, event);
  return code == kSuccess ? State::kDone : code == kNotReady ? State::kPending : State::kLost;
}

int64_t RealEvents::elapsed_ns(void* begin, void* end) {
  const Uncaptured uncaptured;
  constexpr double kNsPerMs = 1e6;
  float ms = 0;
  if (real(freeride_real_cuEventElapsedTime, &ms, begin, end) != kSuccess) return -1;
  return static_cast<int64_t>(static_cast<double>(ms) * kNsPerMs);
}

bool RealEvents::capturing(void* stream) const {
  if (captures.load(std::memory_order_relaxed) <= 0) return false;
  int status = 0;
  return real(freeride_real_cuStreamIsCapturing, stream, &status) != kSuccess || status != 0;
}

}  // namespace freeride::shim
