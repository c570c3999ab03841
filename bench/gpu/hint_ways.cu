// How soon a host learns that a stream has come to a point, by several ways, and what each costs the stream:
//
//     nvcc -O2 -std=c++17 -arch=native bench/gpu/hint_ways.cu -o hint_ways && ./hint_ways
//
// A stream has work without a gap: 8 kernels that fill the GPU, and a point, 400 times. When it comes to the point is
// seen by a thread that does not sleep, at a word that the stream writes.
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr int kPoints = 400, kKernels = 8, kAhead = 3;
constexpr long kLookNs = 50'000;

int64_t clock_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

void pause_ns(long ns) {
  const timespec length{0, ns};
  nanosleep(&length, nullptr);
}

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

__global__ void busy(float* out, int64_t cycles) {
  float value = threadIdx.x;
  const int64_t end = clock64() + cycles;
  while (clock64() < end) {
    for (int i = 0; i < 64; ++i) value = value * 1.0001f + 0.5f;
  }
  if (value == 1.5f) *out = value;
}

cudaEvent_t new_event(unsigned flags) {
  cudaEvent_t event;
  must(cudaEventCreateWithFlags(&event, flags));
  return event;
}

enum class Way { kNothing, kSideStream, kUrgentSideStream, kBlockingEvent, kOwnStream, kLooks };
struct Named {
  Way way;
  const char* name;
};
constexpr Named kWays[] = {{Way::kNothing, "nothing"},
                           {Way::kSideStream, "a function on a stream apart"},
                           {Way::kUrgentSideStream, "a function on an urgent stream"},
                           {Way::kBlockingEvent, "a thread that waits for an event"},
                           {Way::kOwnStream, "a function on the stream itself"},
                           {Way::kLooks, "a look at the word each 50 us"}};

struct Note {
  int64_t ns = 0;
};
void note(void* context) {
  static_cast<Note*>(context)->ns = clock_ns();
}

using Write = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

struct Bench {
  cudaStream_t stream, side, urgent;
  Write write = nullptr;
  volatile uint32_t* word = nullptr;
  CUdeviceptr word_there = 0;
  float* out = nullptr;

  Bench() {
    int least = 0, most = 0;
    must(cudaDeviceGetStreamPriorityRange(&least, &most));
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    must(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, most));
    void *here = nullptr, *there = nullptr;
    must(cudaHostAlloc(&here, 4096, cudaHostAllocMapped));
    must(cudaHostGetDevicePointer(&there, here, 0));
    word = static_cast<volatile uint32_t*>(here);
    word_there = reinterpret_cast<CUdeviceptr>(there);
    must(cudaMalloc(&out, sizeof(*out)));
    cudaDriverEntryPointQueryResult found;
    must(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", reinterpret_cast<void**>(&write), 12000,
                                          cudaEnableDefault, &found));
  }

  void run(const Named& named) {
    const Way way = named.way;
    *word = 0;
    std::vector<int64_t> seen(kPoints);
    std::vector<Note> told(kPoints);
    std::atomic<bool> stop{false};
    std::thread observer([&] {
      for (uint32_t last = 0; !stop;) {
        for (const uint32_t now = *word; last < now; ++last) seen[last] = clock_ns();
      }
    });
    std::mutex mutex;
    std::condition_variable some;
    std::deque<std::pair<int, cudaEvent_t>> recorded;
    int64_t cpu_ns = 0;
    std::thread waiter([&] {
      prctl(PR_SET_TIMERSLACK, 1000ul);
      for (int i = 0; way == Way::kBlockingEvent && i < kPoints; ++i) {
        std::unique_lock lock(mutex);
        some.wait(lock, [&] { return !recorded.empty(); });
        const auto [point, event] = recorded.front();
        recorded.pop_front();
        lock.unlock();
        must(cudaEventSynchronize(event));
        note(&told[point]);
      }
      for (uint32_t last = 0; way == Way::kLooks && last < kPoints; pause_ns(kLookNs)) {
        for (const uint32_t now = *word; last < now; ++last) note(&told[last]);
      }
      cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    });

    const unsigned flags = cudaEventDisableTiming | (way == Way::kBlockingEvent ? cudaEventBlockingSync : 0u);
    const cudaEvent_t begin = new_event(0), end = new_event(0);
    std::vector<cudaEvent_t> events, passed;
    for (int i = 0; i < kPoints; ++i) {
      events.push_back(new_event(flags));
      passed.push_back(new_event(cudaEventDisableTiming));
    }
    must(cudaEventRecord(begin, stream));
    const int64_t from_ns = clock_ns();
    for (int i = 0; i < kPoints; ++i) {
      for (int k = 0; k < kKernels; ++k) busy<<<528, 256, 0, stream>>>(out, 800'000);
      write(stream, word_there, static_cast<cuuint32_t>(i + 1), 0);
      if (way == Way::kSideStream || way == Way::kUrgentSideStream) {
        const cudaStream_t apart = way == Way::kSideStream ? side : urgent;
        must(cudaEventRecord(events[i], stream));
        must(cudaStreamWaitEvent(apart, events[i], 0));
        must(cudaLaunchHostFunc(apart, note, &told[i]));
      }
      if (way == Way::kBlockingEvent) {
        must(cudaEventRecord(events[i], stream));
        const std::lock_guard lock(mutex);
        recorded.emplace_back(i, events[i]);
        some.notify_one();
      }
      if (way == Way::kOwnStream) must(cudaLaunchHostFunc(stream, note, &told[i]));
      must(cudaEventRecord(passed[i], stream));
      while (i >= kAhead && cudaEventQuery(passed[i - kAhead]) != cudaSuccess) pause_ns(200'000);
    }
    must(cudaEventRecord(end, stream));
    must(cudaDeviceSynchronize());
    const auto took_ns = static_cast<double>(clock_ns() - from_ns);
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    waiter.join();
    pause_ns(50'000'000);
    stop = true;
    observer.join();

    std::vector<double> after_us;
    for (int i = 0; i < kPoints; ++i) {
      if (told[i].ns != 0) after_us.push_back(static_cast<double>(told[i].ns - seen[i]) / 1e3);
    }
    std::sort(after_us.begin(), after_us.end());
    const auto at = [&](size_t pct) { return after_us.empty() ? 0 : after_us[(after_us.size() - 1) * pct / 100]; };
    std::printf(
        "%-34s %7.3f ms a point; told after p50 %6.1f, p90 %6.1f, p99 %6.1f us; waiting thread %5.2f %% of a core\n",
        named.name, ms / kPoints, at(50), at(90), at(99), 100 * static_cast<double>(cpu_ns) / took_ns);
    std::fflush(stdout);
  }
};

}  // namespace

int main() {
  prctl(PR_SET_TIMERSLACK, 1000ul);
  Bench bench;
  for (const Named& way : kWays) bench.run(way);
}
