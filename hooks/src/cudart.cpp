// libfreeride_cudart.so: what comes between torch and its CUDA runtime.
//
// - A cudaMalloc that is refused is tried again, after side tasks had time to go. PyTorch tells of an allocation that
//   failed only when it has given up.
// - Events that are recorded and waited for are told to the hook, so that streams that wait for one behind a hold wait
//   for the hold's counters (followers.hpp).
//
// Loaded with RTLD_GLOBAL before torch is, these functions are the ones that torch finds, by the rules that every
// LD_PRELOAD relies on. They call the caller's own ones. Loaded on its own, or after torch, this does nothing.
#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <type_traits>

#define FREERIDE_CUDART_API extern "C" __attribute__((visibility("default")))

namespace {

using Malloc = int (*)(void**, size_t);
using LastError = int (*)();
using EventRecord = int (*)(void* event, void* stream);
using EventRecordWithFlags = int (*)(void* event, void* stream, unsigned flags);
using StreamWaitEvent = int (*)(void* stream, void* event, unsigned flags);
using Ask = int (*)(void* context, uint64_t bytes);
using Tell = void (*)(void* context, void* event, void* stream);

constexpr int kErrorInitialization = 3, kErrorMemory = 2;  // cudaError_t
constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs;
// A side task's process is off the GPU 0.1 s after its kill (H200), and a worker looks every 10 ms.
constexpr int64_t kPatience = kSecond;
constexpr int64_t kBetween = 5 * kMs;
// After a time of trying that brought nothing: PyTorch meets refusals of its own making, and goes on from them.
constexpr int64_t kShortestRest = 60 * kSecond, kLongestRest = 3600 * kSecond;

struct Real {
  const void* base = nullptr;  // of the library that calls
  Malloc malloc = nullptr;
  LastError last_error = nullptr;
  EventRecord event_record = nullptr;
  EventRecordWithFlags event_record_with_flags = nullptr;
  StreamWaitEvent stream_wait_event = nullptr;
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

std::atomic<Tell> tell_recorded{nullptr}, tell_wait{nullptr};
std::atomic<void*> tell_context{nullptr};

// A CUDA runtime that is loaded, for callers that were linked with none: code that was made at run time, or that has
// found our function by name.
void* any_runtime() {
  void* found = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        const char* name = std::strrchr(info->dlpi_name, '/');
        if (name == nullptr || std::strncmp(name, "/libcudart.so", 13) != 0) return 0;
        *static_cast<const char**>(result) = info->dlpi_name;
        return 1;
      },
      &found);
  return found == nullptr ? nullptr : dlopen(static_cast<const char*>(found), RTLD_LAZY | RTLD_NOLOAD);
}

// Of the library that has called: the one that it was linked with, of two CUDA runtimes in a process.
Real look_up(const Dl_info& info) {
  Real real;
  real.base = info.dli_fbase;
  // Never closed: it is loaded anyway, and stays.
  void* library = info.dli_fname == nullptr ? nullptr : dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  const auto find = [library](auto& function, const char* name) {
    void* found = library == nullptr ? nullptr : dlsym(library, name);
    if (found == nullptr) found = dlsym(RTLD_NEXT, name);
    if (void* runtime = found == nullptr ? any_runtime() : nullptr) found = dlsym(runtime, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(real.malloc, "cudaMalloc");
  find(real.last_error, "cudaGetLastError");
  find(real.event_record, "cudaEventRecord");
  find(real.event_record_with_flags, "cudaEventRecordWithFlags");
  find(real.stream_wait_event, "cudaStreamWaitEvent");
  return real;
}

// A caller is a place in some library: known by each thread for the places that it came from last, and for all
// libraries together.
const Real& real_of(void* caller) {
  struct Known {
    void* caller = nullptr;
    const Real* real = nullptr;
  };
  constexpr size_t kPlaces = 32, kLibraries = 64;
  thread_local std::array<Known, kPlaces> places;
  Known& place = places[(reinterpret_cast<uintptr_t>(caller) >> 2) % kPlaces];
  if (place.caller == caller) return *place.real;
  static std::mutex mutex;
  static std::array<Real, kLibraries> libraries;
  static size_t count = 0;
  Dl_info info{};
  if (dladdr(caller, &info) == 0) info = {};
  size_t at = 0;
  const auto known = [&] {
    at = 0;
    while (at < count && libraries[at].base != info.dli_fbase) ++at;
    return at < count;
  };
  std::unique_lock lock(mutex);
  if (!known()) {
    lock.unlock();  // looking it up takes the loader's lock, under which others may come here
    const Real found = look_up(info);
    lock.lock();
    if (!known()) {
      if (count == kLibraries) {  // as many as no trainer has: looked up each time
        thread_local Real uncached;
        return uncached = found;
      }
      libraries[count++] = found;
    }
  }
  place = {caller, &libraries[at]};
  return libraries[at];
}

void tell(const std::atomic<Tell>& what, void* event, void* stream) {
  if (const Tell function = what.load(std::memory_order_acquire)) function(tell_context.load(), event, stream);
}

}  // namespace

/// From now on `wanted(context, bytes)` is called where an allocation of so many bytes was refused, and with 0 when
/// trying is over; it says whether somebody may make room. Null: nobody is asked any more. Any thread.
FREERIDE_CUDART_API void freeride_cudart_serve(int (*wanted)(void* context, uint64_t bytes), void* context) {
  ask_context.store(context);
  ask.store(wanted);
}

/// Allocations that were refused and tried again, and those of them that then succeeded. Any thread.
FREERIDE_CUDART_API void freeride_cudart_counters(uint64_t* refused_count, uint64_t* saved_count) {
  *refused_count = refused.load();
  *saved_count = saved.load();
}

FREERIDE_CUDART_API int cudaMalloc(void** address, size_t bytes) {
  const Real& real = real_of(__builtin_return_address(0));
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

/// From now on `recorded` and `about_to_wait` are called with (context, event, stream) before an event is recorded on a
/// stream, and before a stream is told to wait for one. Null: no longer. Any thread.
FREERIDE_CUDART_API void freeride_cudart_follow(Tell recorded, Tell about_to_wait, void* context) {
  tell_context.store(context);
  tell_recorded.store(recorded, std::memory_order_release);
  tell_wait.store(about_to_wait, std::memory_order_release);
}

FREERIDE_CUDART_API int cudaEventRecord(void* event, void* stream) {
  const Real& real = real_of(__builtin_return_address(0));
  if (real.event_record == nullptr) return kErrorInitialization;
  tell(tell_recorded, event, stream);
  return real.event_record(event, stream);
}

FREERIDE_CUDART_API int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  const Real& real = real_of(__builtin_return_address(0));
  if (real.event_record_with_flags == nullptr) return kErrorInitialization;
  tell(tell_recorded, event, stream);
  return real.event_record_with_flags(event, stream, flags);
}

FREERIDE_CUDART_API int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  const Real& real = real_of(__builtin_return_address(0));
  if (real.stream_wait_event == nullptr) return kErrorInitialization;
  tell(tell_wait, event, stream);
  return real.stream_wait_event(stream, event, flags);
}
