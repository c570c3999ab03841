// A CUDA program that knows nothing of FreeRide, for tests/gpu/shim.py: it is told on stdin what to launch, and says on
// stdout when each kernel was on the GPU, by the GPU's own clock.
//
// Lines of stdin, each answered by one line of JSON:
//   tiny N S       N empty kernels on one stream, then a synchronisation: begin and end, by the host's clock. By the
//                  shim where S is 1, else by the driver (libswitched_cuda.so)
//   stamps FILE N  N kernels of 20 to 400 µs on three streams, with copies between: FILE gets begin and end of each, in
//                  CLOCK_MONOTONIC ns, as pairs of little-endian 64-bit numbers; "sum" tells what they computed
//   long NS N      N kernels of so many ns
//   refused        launches one kernel and tells the runtime's error
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace {

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("{\"error\": \"%s: %s\"}\n", what, cudaGetErrorString(error));
  std::fflush(stdout);
  std::_Exit(1);
}
#define CHECK(call) check((call), #call)

__device__ uint64_t gpu_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void empty() {}

// Computes for so long, in one block, so that kernels of several streams run beside each other.
__global__ void stamp(uint64_t* stamps, unsigned* sums, int index, int64_t ns) {
  if (threadIdx.x != 0) return;
  const uint64_t begin = gpu_ns();
  unsigned sum = index;
  while (gpu_ns() - begin < static_cast<uint64_t>(ns)) sum = sum * 1 + 0;
  stamps[2 * index] = begin;
  stamps[2 * index + 1] = gpu_ns();
  sums[index] = sum * 2654435761u;
}

__global__ void tell_time(volatile uint64_t* host) {
  host[0] = gpu_ns();
  __threadfence_system();
  host[1] = 1;
}

// What is to be added to the GPU's clock for the host's: of many tries the one that took least.
int64_t offset_ns(uint64_t* host) {
  int64_t best = INT64_MAX;
  int64_t offset = 0;
  for (int i = 0; i < 50; ++i) {
    host[1] = 0;
    const int64_t begin = now_ns();
    tell_time<<<1, 1>>>(host);
    CHECK(cudaGetLastError());
    while (reinterpret_cast<volatile uint64_t*>(host)[1] == 0) {
    }
    const int64_t end = now_ns();
    if (end - begin < best) {
      best = end - begin;
      offset = end - static_cast<int64_t>(host[0]);
    }
  }
  CHECK(cudaDeviceSynchronize());
  return offset;
}

void stamps(const char* path, int count) {
  uint64_t* device = nullptr;
  unsigned* sums = nullptr;
  uint64_t* clock = nullptr;
  char* copied = nullptr;
  std::vector<char> host(1 << 20);
  CHECK(cudaMalloc(&device, sizeof(uint64_t) * 2 * count));
  CHECK(cudaMalloc(&sums, sizeof(unsigned) * count));
  CHECK(cudaMalloc(&copied, host.size()));
  CHECK(cudaMallocHost(&clock, 2 * sizeof(uint64_t)));
  CHECK(cudaMemset(device, 0, sizeof(uint64_t) * 2 * count));
  cudaStream_t streams[3];
  for (auto& stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const int64_t lengths[] = {20'000, 50'000, 100'000, 30'000, 400'000, 20'000, 200'000};
  const int64_t before = offset_ns(clock);
  const int64_t begin = now_ns();
  for (int i = 0; i < count; ++i) {
    stamp<<<1, 32, 0, streams[i % 3]>>>(device, sums, i, lengths[i % 7]);
    CHECK(cudaGetLastError());
    if (i % 16 == 0) CHECK(cudaMemcpyAsync(copied, host.data(), host.size(), cudaMemcpyHostToDevice, streams[i % 3]));
    if (i % 64 == 63) CHECK(cudaStreamSynchronize(streams[0]));
  }
  CHECK(cudaDeviceSynchronize());
  const int64_t end = now_ns();
  const int64_t after = offset_ns(clock);
  std::vector<uint64_t> times(2 * count);
  std::vector<unsigned> results(count);
  CHECK(cudaMemcpy(times.data(), device, sizeof(uint64_t) * times.size(), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(results.data(), sums, sizeof(unsigned) * results.size(), cudaMemcpyDeviceToHost));
  uint64_t sum = 0;
  for (const unsigned one : results) sum = sum * 31 + one;
  for (auto& one : times) {
    // The two clocks drift apart: what lies between the two looks is divided evenly.
    const double part = (static_cast<double>(one) + before - begin) / static_cast<double>(end - begin);
    one += before + static_cast<int64_t>(part * static_cast<double>(after - before));
  }
  FILE* file = std::fopen(path, "wb");
  if (file == nullptr || std::fwrite(times.data(), sizeof(uint64_t), times.size(), file) != times.size()) {
    std::printf("{\"error\": \"cannot write %s\"}\n", path);
    std::_Exit(1);
  }
  std::fclose(file);
  std::printf("{\"begin_ns\": %lld, \"end_ns\": %lld, \"sum\": %llu, \"drift_ns\": %lld}\n",
              static_cast<long long>(begin), static_cast<long long>(end), static_cast<unsigned long long>(sum),
              static_cast<long long>(after - before));
  for (auto& stream : streams) CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(device));
  CHECK(cudaFree(sums));
  CHECK(cudaFree(copied));
  CHECK(cudaFreeHost(clock));
}

void switch_to(int shim) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* to = library == nullptr ? nullptr : reinterpret_cast<void (*)(int)>(dlsym(library, "freeride_switch"));
  if (to == nullptr) {
    std::printf("{\"error\": \"libcuda.so.1 is not libswitched_cuda.so\"}\n");
    std::_Exit(1);
  }
  to(shim);
}

void tiny(int count) {
  empty<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize());
  const int64_t begin = now_ns();
  for (int i = 0; i < count; ++i) empty<<<1, 1>>>();
  CHECK(cudaDeviceSynchronize());
  const int64_t end = now_ns();
  CHECK(cudaGetLastError());
  std::printf("{\"begin_ns\": %lld, \"end_ns\": %lld}\n", static_cast<long long>(begin), static_cast<long long>(end));
}

void long_kernels(int64_t ns, int count) {
  uint64_t* device = nullptr;
  unsigned* sums = nullptr;
  CHECK(cudaMalloc(&device, sizeof(uint64_t) * 2));
  CHECK(cudaMalloc(&sums, sizeof(unsigned)));
  const int64_t begin = now_ns();
  for (int i = 0; i < count; ++i) stamp<<<1, 32>>>(device, sums, 0, ns);
  CHECK(cudaDeviceSynchronize());
  const int64_t end = now_ns();
  CHECK(cudaFree(device));
  CHECK(cudaFree(sums));
  std::printf("{\"begin_ns\": %lld, \"end_ns\": %lld}\n", static_cast<long long>(begin), static_cast<long long>(end));
}

}  // namespace

int main() {
  char line[4096];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    char path[4000];
    int count = 0;
    long long ns = 0;
    int shim = 0;
    if (std::sscanf(line, "tiny %d %d", &count, &shim) == 2) {
      switch_to(shim);
      tiny(count);
    } else if (std::sscanf(line, "stamps %3999s %d", path, &count) == 2) {
      stamps(path, count);
    } else if (std::sscanf(line, "long %lld %d", &ns, &count) == 2) {
      long_kernels(ns, count);
    } else if (std::strncmp(line, "refused", 7) == 0) {
      empty<<<1, 1>>>();
      std::printf("{\"code\": %d}\n", static_cast<int>(cudaGetLastError()));
    } else {
      std::printf("{\"error\": \"unknown line\"}\n");
    }
    std::fflush(stdout);
  }
  return 0;
}
