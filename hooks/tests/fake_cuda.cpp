// A CUDA driver without a GPU: streams are threads that do what they are told, in order. What the hook uses of the
// driver's ABI, and a few functions for tests. Its soname is the driver's, so whoever links it is found by dlopen().
#include "fake_cuda.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void add(std::function<void(const std::atomic<bool>&)> work) {
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

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (stopping_) return;
      const auto work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      work(stopping_);
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void(const std::atomic<bool>&)>> work_;
  bool busy_ = false;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

std::atomic<int> left_until_failure{-1}, kernels{0};
std::atomic<bool> kernels_refused{false};
constexpr int kSuccess = 0, kNotReady = 600, kNoBinary = 209, kLaunchFailed = 719;

int result() {
  int left = left_until_failure.load();
  while (left > 0 && !left_until_failure.compare_exchange_weak(left, left - 1)) {
  }
  return left == 0 ? kLaunchFailed : kSuccess;
}

struct Event {
  std::mutex mutex;
  uint64_t recorded = 0, over = 0;
  std::chrono::steady_clock::time_point at;
};

// The hook never destroys what it has made, so something must still point to it at the end.
void* kept(void* made) {
  static std::mutex mutex;
  static auto& all = *new std::vector<void*>;
  const std::lock_guard lock(mutex);
  return all.emplace_back(made);
}

}  // namespace

extern "C" {

void* fake_cuda_stream() {
  return new Stream;
}
void fake_cuda_destroy(void* stream) {
  delete static_cast<Stream*>(stream);
}
void fake_cuda_run(void* stream, void (*function)(void*), void* context) {
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>&) { function(context); });
}
void fake_cuda_work(void* stream, int64_t ns) {
  static_cast<Stream*>(stream)->add(
      [=](const std::atomic<bool>&) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); });
}
void fake_cuda_synchronize(void* stream) {
  static_cast<Stream*>(stream)->synchronize();
}
void fake_cuda_fail_after(int calls) {
  left_until_failure.store(calls);
}
int fake_cuda_kernels() {
  return kernels.load();
}
void fake_cuda_refuse_kernels(int on) {
  kernels_refused.store(on != 0);
}
void fake_cuda_capture(void* stream, int on) {
  static_cast<Stream*>(stream)->capturing.store(on != 0);
}

int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_LAUNCH_FAILED";
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  *context = &left_until_failure;
  return kSuccess;
}
int cuCtxGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cuDeviceGetUuid_v2(unsigned char* bytes, int) {
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<unsigned char>(0x10 + i);
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int, int) {
  *value = 1;
  return kSuccess;
}
int cuMemHostRegister_v2(void*, size_t, unsigned) {
  return result();
}
int cuMemHostGetDevicePointer_v2(unsigned long long* address, void* memory, unsigned) {
  *address = reinterpret_cast<unsigned long long>(memory);
  return kSuccess;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return kSuccess;
}
int cuModuleLoadData(void** module, const void*) {
  *module = &kernels;
  return kernels_refused.load() ? kNoBinary : kSuccess;
}
int cuModuleGetFunction(void** function, void* module, const char*) {
  *function = module;
  return kSuccess;
}
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream, void**,
                   void**) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return kSuccess;  // the thread's own stream
  if (const int code = result(); code != kSuccess) return code;
  static_cast<Stream*>(stream)->add([](const std::atomic<bool>&) { ++kernels; });
  return kSuccess;
}
int cuStreamIsCapturing(void* stream, int* status) {
  *status = static_cast<Stream*>(stream)->capturing.load() ? 1 : 0;
  return kSuccess;
}
int cuStreamWriteValue64_v2(void* stream, unsigned long long address, uint64_t value, unsigned) {
  if (const int code = result(); code != kSuccess) return code;
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>&) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(address), value, __ATOMIC_SEQ_CST);
  });
  return kSuccess;
}
int cuStreamWriteValue32_v2(void* stream, unsigned long long address, uint32_t value, unsigned) {
  if (const int code = result(); code != kSuccess) return code;
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>&) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_SEQ_CST);
  });
  return kSuccess;
}
int cuStreamWaitValue32_v2(void* stream, unsigned long long address, uint32_t value, unsigned flags) {
  if (flags != 0) return 1;  // only "greater or equal" is used
  if (const int code = result(); code != kSuccess) return code;
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>& stopping) {
    // The GPU's own comparison, which is cyclic.
    while (!stopping &&
           static_cast<int32_t>(__atomic_load_n(reinterpret_cast<uint32_t*>(address), __ATOMIC_SEQ_CST) - value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return kSuccess;
}

int cuStreamCreate(void** stream, unsigned) {
  *stream = kept(new Stream);
  return kSuccess;
}
int cuEventCreate(void** event, unsigned) {
  *event = kept(new Event);
  return kSuccess;
}
int cuEventRecord(void* event, void* stream) {
  if (const int code = result(); code != kSuccess) return code;
  auto* of = static_cast<Event*>(event);
  uint64_t number = 0;
  {
    const std::lock_guard lock(of->mutex);
    number = ++of->recorded;
  }
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>&) {
    const std::lock_guard lock(of->mutex);
    of->over = number;
    of->at = std::chrono::steady_clock::now();
  });
  return kSuccess;
}
int cuEventQuery(void* event) {
  auto* of = static_cast<Event*>(event);
  const std::lock_guard lock(of->mutex);
  return of->over == of->recorded ? kSuccess : kNotReady;
}
int cuEventElapsedTime(float* ms, void* from, void* to) {
  auto *first = static_cast<Event*>(from), *second = static_cast<Event*>(to);
  const std::scoped_lock lock(first->mutex, second->mutex);
  *ms = std::chrono::duration<float, std::milli>(second->at - first->at).count();
  return kSuccess;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (const int code = result(); code != kSuccess) return code;
  auto* of = static_cast<Event*>(event);
  uint64_t number = 0;
  {
    const std::lock_guard lock(of->mutex);
    number = of->recorded;
  }
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>& stopping) {
    for (;;) {
      {
        const std::lock_guard lock(of->mutex);
        if (of->over >= number) return;
      }
      if (stopping) return;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return kSuccess;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* context) {
  if (const int code = result(); code != kSuccess) return code;
  static_cast<Stream*>(stream)->add([=](const std::atomic<bool>&) { function(context); });
  return kSuccess;
}

}  // extern "C"
