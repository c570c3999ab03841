// A CUDA driver without a GPU: streams are threads that do what they are told, in order, and kernels pause. It has what
// the shim's tests call of the driver's ABI. A module's function "NAME:NS" is a kernel that takes so many ns.
#include "played_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define PLAYED extern "C" __attribute__((visibility("default")))

namespace {

using Code = int;
constexpr Code kSuccess = 0, kInvalidContext = 201, kNotFound = 500, kNotReady = 600;

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

struct Played {
  std::mutex mutex;
  std::vector<std::unique_ptr<played_record>> records;
  int64_t queued_ns = 0, most_queued_ns = 0;
  std::atomic<int> secrets{0}, failure{0};
  std::atomic<uint64_t> allocated{0};
  std::atomic<void (*)()> launching{nullptr};
};
Played& played() {
  static auto* one = new Played;
  return *one;
}

class Stream {
 public:
  Stream() {
    std::thread([this] { run(); }).detach();  // streams are never destroyed: the process ends under them
  }
  void add(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
  }
  std::atomic<bool> capturing{false};
  std::atomic<int> captured{0};

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !work_.empty(); });
      const auto work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
};

struct Event {
  std::atomic<int> pending{0};
  std::atomic<int64_t> at_ns{0};
};
struct Kernel {
  std::atomic<int64_t> ns;
};
struct Graph {
  int64_t ns;
};

thread_local void* current = nullptr;
int the_context;

Stream& stream_of(void* handle, bool thread = false) {
  static auto* legacy = new Stream;
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number == 2 || (number == 0 && thread)) {
    static thread_local auto* own = new Stream;
    return *own;
  }
  return number <= 1 ? *legacy : *static_cast<Stream*>(handle);
}

Code add(Stream& stream, const char* what, int64_t ns, std::function<void()> more = {}) {
  if (current == nullptr) return kInvalidContext;
  if (const int code = played().failure.load(); code != 0) return code;
  if (stream.capturing) {
    ++stream.captured;
    return kSuccess;
  }
  auto record = std::make_unique<played_record>();
  std::strncpy(record->what, what, sizeof(record->what) - 1);
  record->submitted_ns = now_ns();
  played_record* const place = record.get();
  {
    const std::lock_guard lock(played().mutex);
    played().records.push_back(std::move(record));
    played().queued_ns += ns;
    played().most_queued_ns = std::max(played().most_queued_ns, played().queued_ns);
  }
  stream.add([place, ns, more = std::move(more)] {
    {
      const std::lock_guard lock(played().mutex);
      place->begun_ns = now_ns();
    }
    if (ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    if (more) more();
    const std::lock_guard lock(played().mutex);
    place->ended_ns = now_ns();
    played().queued_ns -= ns;
  });
  return kSuccess;
}

Code signal(void* stream, bool thread, uint64_t address, uint32_t value, bool wait) {
  return add(stream_of(stream, thread), "signal", 0, [=] {
    auto* word = reinterpret_cast<uint32_t*>(address);
    if (!wait) {
      __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    } else {
      while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_SEQ_CST) - value) < 0)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
}

}  // namespace

PLAYED int played_records(played_record* records, int most) {
  const std::lock_guard lock(played().mutex);
  const auto& all = played().records;
  const int count = static_cast<int>(all.size());
  const int first = std::max(0, count - most);
  for (int i = first; i < count; ++i) records[i - first] = *all[static_cast<size_t>(i)];
  return count;
}
PLAYED int64_t played_most_queued_ns() {
  const std::lock_guard lock(played().mutex);
  return std::exchange(played().most_queued_ns, 0);
}
PLAYED void played_takes(void* kernel, int64_t ns) {
  static_cast<Kernel*>(kernel)->ns = ns;
}
PLAYED void played_launching(void (*called)()) {
  played().launching.store(called);
}
PLAYED int played_secrets() {
  return played().secrets.load();
}
PLAYED void played_fail(int code) {
  played().failure.store(code);
}

PLAYED Code cuInit(unsigned) {
  return kSuccess;
}
PLAYED Code cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
PLAYED Code cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
PLAYED Code cuCtxGetCurrent(void** context) {
  *context = current;
  return kSuccess;
}
PLAYED Code cuCtxSetCurrent(void* context) {
  current = context;
  return kSuccess;
}
PLAYED Code cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &the_context;
  return kSuccess;
}
PLAYED Code cuCtxPushCurrent_v2(void* context) {
  current = context;
  return kSuccess;
}
PLAYED Code cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = nullptr;
  return kSuccess;
}
PLAYED Code cuThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int present = 0;
  std::swap(*mode, present);
  return kSuccess;
}
PLAYED Code cuStreamCreate(void** stream, unsigned) {
  *stream = new Stream;
  return kSuccess;
}
PLAYED Code cuStreamDestroy_v2(void*) {
  return kSuccess;
}
PLAYED Code cuStreamGetCtx(void*, void** context) {
  *context = &the_context;
  return kSuccess;
}
PLAYED Code cuStreamSynchronize(void* stream) {
  stream_of(stream).synchronize();
  return kSuccess;
}
PLAYED Code cuStreamIsCapturing(void* stream, int* status) {
  *status = stream_of(stream).capturing ? 1 : 0;
  return kSuccess;
}
PLAYED Code cuStreamBeginCapture_v2(void* stream, int) {
  stream_of(stream).capturing = true;
  return kSuccess;
}
PLAYED Code cuStreamEndCapture(void* stream, void** graph) {
  stream_of(stream).capturing = false;
  *graph = new Graph{stream_of(stream).captured.exchange(0) * 100'000};
  return kSuccess;
}
PLAYED Code cuEventCreate(void** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
PLAYED Code cuEventDestroy_v2(void*) {
  return kSuccess;
}
PLAYED Code cuEventRecord(void* event, void* stream) {
  auto* one = static_cast<Event*>(event);
  ++one->pending;
  stream_of(stream).add([one] {
    one->at_ns = now_ns();
    --one->pending;
  });
  return kSuccess;
}
PLAYED Code cuEventQuery(void* event) {
  return static_cast<Event*>(event)->pending > 0 ? kNotReady : kSuccess;
}
PLAYED Code cuEventElapsedTime(float* ms, void* begin, void* end) {
  *ms = static_cast<float>(static_cast<Event*>(end)->at_ns - static_cast<Event*>(begin)->at_ns) / 1e6F;
  return kSuccess;
}
PLAYED Code cuModuleGetFunction(void** function, void*, const char* name) {
  const char* colon = std::strrchr(name, ':');
  *function = new Kernel{colon == nullptr ? 0 : std::strtoll(colon + 1, nullptr, 10)};
  return kSuccess;
}
PLAYED Code cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           void* stream, void**, void**) {
  static thread_local bool inside = false;
  if (auto* called = played().launching.load(); called != nullptr && !inside) {
    inside = true;
    called();
    inside = false;
  }
  return add(stream_of(stream), "kernel", static_cast<Kernel*>(function)->ns);
}
PLAYED Code cuLaunchKernel_ptsz(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                void* stream, void**, void**) {
  return add(stream_of(stream, true), "kernel", static_cast<Kernel*>(function)->ns);
}
PLAYED Code cuLaunchKernelEx(const void* config, void* function, void**, void**) {
  void* stream = nullptr;
  std::memcpy(&stream, static_cast<const char*>(config) + 32, sizeof(stream));
  return add(stream_of(stream), "kernel", static_cast<Kernel*>(function)->ns);
}
PLAYED Code cuLaunchCooperativeKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, void* stream, void**) {
  return add(stream_of(stream), "kernel", static_cast<Kernel*>(function)->ns);
}
PLAYED Code cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long) {
  *exec = graph;
  return kSuccess;
}
PLAYED Code cuGraphLaunch(void* exec, void* stream) {
  return add(stream_of(stream), "graph", static_cast<Graph*>(exec)->ns);
}
PLAYED Code cuMemcpyHtoDAsync_v2(uint64_t, const void*, size_t bytes, void* stream) {
  return add(stream_of(stream), "copy", static_cast<int64_t>(bytes));
}
PLAYED Code cuMemcpyHtoDAsync_v2_ptsz(uint64_t, const void*, size_t bytes, void* stream) {
  return add(stream_of(stream, true), "copy", static_cast<int64_t>(bytes));
}
PLAYED Code cuMemcpyHtoD_v2(uint64_t, const void*, size_t bytes) {
  const Code code = add(stream_of(nullptr), "copy", static_cast<int64_t>(bytes));
  stream_of(nullptr).synchronize();
  return code;
}
PLAYED Code cuMemsetD8Async(uint64_t, unsigned char, size_t bytes, void* stream) {
  return add(stream_of(stream), "copy", static_cast<int64_t>(bytes));
}
PLAYED Code cuMemPrefetchAsync(uint64_t, size_t bytes, int, void* stream) {
  return add(stream_of(stream), "copy", static_cast<int64_t>(bytes));
}
PLAYED Code cuMemPrefetchAsync_v2(uint64_t, size_t bytes, uint64_t, unsigned, void* stream) {
  return add(stream_of(stream), "copy", static_cast<int64_t>(bytes));
}
PLAYED Code cuLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
  stream_of(stream).add([=] { function(context); });
  return kSuccess;
}
PLAYED Code cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned) {
  return signal(stream, false, address, value, true);
}
PLAYED Code cuStreamWriteValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned) {
  return signal(stream, false, address, value, false);
}
PLAYED Code cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = reinterpret_cast<uint64_t>(new char);
  played().allocated += bytes;
  return kSuccess;
}
PLAYED Code cuMemFree_v2(uint64_t) {
  return kSuccess;
}
PLAYED Code cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = size_t{64} << 30;
  *free = *total - played().allocated.load();
  return kSuccess;
}
PLAYED Code cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{64} << 30;
  return kSuccess;
}
PLAYED Code cuGetExportTable(const void** table, const void*) {
  static const void* const kTable[2] = {};
  *table = kTable;
  return kSuccess;
}

// Of no header: what a later driver has.
static Code secret(Code a, double b, Code c, Code d, Code e, Code f, Code g, Code h) {
  ++played().secrets;
  return a + static_cast<Code>(b) + c + d + e + f + g + h;
}
// One that the driver gives and does not export.
static Code inner_prefetch(uint64_t address, size_t bytes, uint64_t place, unsigned flags, void* stream) {
  return cuMemPrefetchAsync_v2(address, bytes, place, flags, stream);
}

PLAYED Code cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags);
PLAYED Code cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  static const std::map<std::string, std::vector<std::pair<int, const char*>>> kVariants = {
      {"cuLaunchKernel", {{4000, "cuLaunchKernel"}}},
      {"cuMemcpyHtoDAsync", {{3020, "cuMemcpyHtoDAsync_v2"}}},
      {"cuMemcpyHtoD", {{3020, "cuMemcpyHtoD_v2"}}},
      {"cuMemGetInfo", {{3020, "cuMemGetInfo_v2"}}},
      {"cuGetProcAddress", {{11030, "cuGetProcAddress"}, {12000, "cuGetProcAddress_v2"}}},
      {"cuStreamBeginCapture", {{10010, "cuStreamBeginCapture_v2"}}}};
  if (status != nullptr) *status = 0;
  *function = nullptr;
  const std::string name = symbol;
  if (name == "cuPlayedSecret") {
    *function = reinterpret_cast<void*>(secret);
    return kSuccess;
  }
  if (name == "cuMemPrefetchAsync" && version >= 12020) {
    *function = reinterpret_cast<void*>(inner_prefetch);
    return kSuccess;
  }
  std::string wanted = name;
  if (const auto found = kVariants.find(name); found != kVariants.end()) {
    for (const auto& [since, variant] : found->second) {
      if (since <= version) wanted = variant;
    }
  }
  // By its own handle: the process has the shim of the same name.
  static void* const self = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(inner_prefetch), &info) == 0 ? nullptr
                                                                       : dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  if ((flags & 2) != 0) *function = dlsym(self, (wanted + "_ptsz").c_str());
  if (*function == nullptr) *function = dlsym(self, wanted.c_str());
  if (*function == nullptr && status != nullptr) *status = 1;
  return *function == nullptr ? kNotFound : kSuccess;
}
PLAYED Code cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
