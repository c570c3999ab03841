// libfreeride_memory.so: a cudaMalloc that is refused is tried again, after side tasks had time to go.
//
// PyTorch tells of an allocation that failed only when it has given up. So this library comes between: loaded with
// RTLD_GLOBAL before torch is, its cudaMalloc is the one that torch's allocator finds, by the rules that every
// LD_PRELOAD relies on. It calls the caller's own one, and only when that says that there is no memory, and a hook is
// attached, it asks for some (freeride_hook_want_memory()) and tries again for a bounded time. Loaded on its own, or
// after torch, it does nothing.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>

#define FREERIDE_MEMORY_API extern "C" __attribute__((visibility("default")))

namespace {

using Malloc = int (*)(void**, size_t);
using LastError = int (*)();
using Ask = int (*)(void* context, uint64_t bytes);

constexpr int kErrorInitialization = 3, kErrorMemory = 2;  // cudaError_t
constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs;
// A side task's process is off the GPU 0.1 s after its kill (H200), and a worker looks every 10 ms.
constexpr int64_t kPatience = kSecond;
constexpr int64_t kBetween = 5 * kMs;
// After a time of trying that brought nothing: PyTorch meets refusals of its own making, and goes on from them.
constexpr int64_t kShortestRest = 60 * kSecond, kLongestRest = 3600 * kSecond;

struct Real {
  Malloc malloc = nullptr;
  LastError last_error = nullptr;
};

std::atomic<Ask> ask{nullptr};
std::atomic<void*> ask_context{nullptr};
std::atomic<int64_t> rest_until_ns{0}, rest_ns{kShortestRest};
std::atomic<uint64_t> refused{0}, saved{0};

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Of the library that has called: the one that it was linked with, of two CUDA runtimes in a process.
Real real_of(void* caller) {
  static std::atomic<void*> known_base{nullptr};
  static std::atomic<Malloc> known_malloc{nullptr};
  static std::atomic<LastError> known_last_error{nullptr};
  Dl_info info{};
  if (dladdr(caller, &info) == 0) info.dli_fbase = nullptr;
  if (info.dli_fbase != nullptr && known_base.load(std::memory_order_acquire) == info.dli_fbase) {
    return {known_malloc.load(), known_last_error.load()};
  }
  Real real;
  // Never closed: it is loaded anyway, and stays.
  void* library = info.dli_fname == nullptr ? nullptr : dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  for (void* where : {library, RTLD_NEXT}) {
    if (where == nullptr || real.malloc != nullptr) continue;
    real.malloc = reinterpret_cast<Malloc>(dlsym(where, "cudaMalloc"));
    real.last_error = reinterpret_cast<LastError>(dlsym(where, "cudaGetLastError"));
  }
  if (real.malloc == nullptr || real.last_error == nullptr || known_base.load() != nullptr) return real;
  known_malloc.store(real.malloc);
  known_last_error.store(real.last_error);
  known_base.store(info.dli_fbase, std::memory_order_release);
  return real;
}

}  // namespace

/// From now on `wanted(context, bytes)` is called where an allocation of so many bytes was refused, and with 0 when
/// trying is over; it says whether somebody may make room. Null: nobody is asked any more. Any thread.
FREERIDE_MEMORY_API void freeride_memory_serve(int (*wanted)(void* context, uint64_t bytes), void* context) {
  ask_context.store(context);
  ask.store(wanted);
}

/// Allocations that were refused and tried again, and those of them that then succeeded. Any thread.
FREERIDE_MEMORY_API void freeride_memory_counters(uint64_t* refused_count, uint64_t* saved_count) {
  *refused_count = refused.load();
  *saved_count = saved.load();
}

FREERIDE_MEMORY_API int cudaMalloc(void** address, size_t bytes) {
  const Real real = real_of(__builtin_return_address(0));
  if (real.malloc == nullptr) return kErrorInitialization;
  int error = real.malloc(address, bytes);
  if (error != kErrorMemory || real.last_error == nullptr) return error;
  const Ask wanted = ask.load();
  int64_t now = now_ns();
  if (wanted == nullptr || now < rest_until_ns.load() || wanted(ask_context.load(), bytes) == 0) return error;
  refused.fetch_add(1);
  const int64_t until_ns = now + kPatience;
  while (error == kErrorMemory && now < until_ns) {
    const timespec pause{0, kBetween};
    nanosleep(&pause, nullptr);
    real.last_error();  // the refusal, which the caller would find behind an allocation that has succeeded
    error = real.malloc(address, bytes);
    now = now_ns();
  }
  wanted(ask_context.load(), 0);
  if (error == kErrorMemory) {
    const int64_t rest = rest_ns.load();
    rest_until_ns.store(now + rest);
    rest_ns.store(rest * 2 < kLongestRest ? rest * 2 : kLongestRest);
  } else {
    saved.fetch_add(1);
    rest_ns.store(kShortestRest);
  }
  return error;
}
