#!/usr/bin/env bash
# A stream that waits for another stream's event keeps its process's time slices on the GPU; one that waits for a value in memory does not.
#
# Believed: a process gives its time on the GPU to others as long as only one of its streams waits, whatever for; with two streams waiting
#   it keeps its slices, and CUDA_DEVICE_MAX_CONNECTIONS=1 is what helps.
# Seen (H200, driver 580.159.04, CUDA 13.0; first with torch 2.11.0 and NCCL 2.28.9): how many streams wait makes no difference. Beside one or
#   two streams that wait by cuStreamWaitValue32 another process makes 99 % of its steps. Where the second stream waits by
#   cudaStreamWaitEvent for an event of the first, it makes 10 %, though that stream can do nothing either. A wait for the same value in
#   front of the wait for the event, which is never the later one, gives the 99 % back. With one connection both streams share a queue,
#   in which the value is waited for first: 99 % in any case.
# Why it matters here: a pipeline's receive is held on training's stream, and NCCL's stream waits for an event behind the hold. The hook
#   therefore lets streams that wait for such an event wait for the hold's value first; training's thread need not sleep, and nobody has to
#   set CUDA_DEVICE_MAX_CONNECTIONS.
#
# Needs an NVIDIA GPU of Volta or later that nobody else uses, and nvcc; installs nothing. Exit 77: neither is here. Exit 1: it is otherwise.
set -euo pipefail
command -v nvcc > /dev/null && nvidia-smi -L > /dev/null 2>&1 || { echo "needs a GPU and nvcc"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/slices.cu" <<'CODE'
#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define CHECK(call) do { const int code = (int)(call); if (code) { fprintf(stderr, "%s: %d\n", #call, code); exit(2); } } while (0)
struct Page { volatile uint32_t value, wanted, waiting, quit; };
static int64_t now_ns() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
__global__ void step(float* x, int n) { float v = x[threadIdx.x]; for (int i = 0; i < n; ++i) v = v * 1.0001f + 0.1f; x[threadIdx.x] = v; }

// Waits on its streams for page->value, as often as it is asked to, and has nothing else to do.
static void waiter(Page* page, int streams, bool value_first) {
  CHECK(cudaFree(0));
  void* at; cudaStream_t stream[2]; cudaEvent_t before, behind; float* x;
  CHECK(cudaHostRegister((void*)page, 4096, cudaHostRegisterMapped)); CHECK(cudaHostGetDevicePointer(&at, (void*)page, 0));
  for (auto& one : stream) CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
  CHECK(cudaEventCreateWithFlags(&before, cudaEventDisableTiming)); CHECK(cudaEventCreateWithFlags(&behind, cudaEventDisableTiming));
  CHECK(cudaMalloc(&x, 4096));
  for (auto& one : stream) step<<<1, 32, 0, one>>>(x, 1);
  CHECK(cudaDeviceSynchronize());
  page->waiting = 1;
  for (uint32_t round = 1; !page->quit; ) {
    if (page->wanted < round) { usleep(100); continue; }
    CHECK(cuStreamWaitValue32_v2(stream[0], (CUdeviceptr)at, round, CU_STREAM_WAIT_VALUE_GEQ));
    if (streams == 2) {
      CHECK(cudaEventRecord(before, stream[0]));
      if (value_first) CHECK(cuStreamWaitValue32_v2(stream[1], (CUdeviceptr)at, round, CU_STREAM_WAIT_VALUE_GEQ));
      CHECK(cudaStreamWaitEvent(stream[1], before, 0)); step<<<1, 32, 0, stream[1]>>>(x, 1);
      CHECK(cudaEventRecord(behind, stream[1])); CHECK(cudaStreamWaitEvent(stream[0], behind, 0));
    }
    step<<<1, 32, 0, stream[0]>>>(x, 1);
    page->waiting = ++round;
    CHECK(cudaDeviceSynchronize());
  }
  exit(0);
}

int main() {
  const struct { const char* what; int streams; bool value_first; } ways[] = {
      {"one stream, for a value", 1, false}, {"a second one, for its event", 2, false}, {"a second one, for the value, then its event", 2, true}};
  double share[3];
  for (int way = 0; way < 3; ++way) {
    Page* page = (Page*)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const pid_t child = fork();  // before CUDA is there
    if (child == 0) waiter(page, ways[way].streams, ways[way].value_first);
    const pid_t other = fork();
    if (other == 0) {
      float* x; int n = 1000; CHECK(cudaMalloc(&x, 4096));
      const auto steps_in = [&](double s) { long made = 0; for (const int64_t end = now_ns() + int64_t(s * 1e9); now_ns() < end; ++made) { step<<<1, 256>>>(x, n); CHECK(cudaDeviceSynchronize()); } return made / s; };
      for (int i = 0; i < 6; ++i) n = (int)(n * (steps_in(0.05) / 5000) + 1);  // 0.2 ms a step
      while (page->waiting == 0) usleep(1000);
      const double alone = steps_in(0.5);
      double beside = 0;
      for (uint32_t round = 1; round <= 5; ++round) {
        page->wanted = round;
        while (page->waiting <= round) usleep(100);
        beside += steps_in(0.2) / 5;
        page->value = round;
        usleep(20000);
      }
      page->quit = 1;
      *(volatile double*)((char*)page + 64) = 100 * beside / alone;
      _exit(0);
    }
    int status = 0;
    waitpid(other, &status, 0);
    if (status != 0) return 2;
    waitpid(child, &status, 0);
    share[way] = *(volatile double*)((char*)page + 64);
    printf("%-46s %5.1f %% of the other process's steps\n", ways[way].what, share[way]);
    fflush(stdout);
  }
  return share[0] > 80 && share[1] < 40 && share[2] > 80 ? 0 : 1;
}
CODE
nvcc -O2 -o "$folder/slices" "$folder/slices.cu" -lcuda 2> "$folder/said" || { cat "$folder/said"; exit 2; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1
for connections in 8 1; do
  echo "CUDA_DEVICE_MAX_CONNECTIONS=$connections"
  status=0
  CUDA_DEVICE_MAX_CONNECTIONS=$connections timeout 120 "$folder/slices" || status=$?
  # With one connection all streams share one queue, and the second one's wait stands behind the first one's.
  [ "$connections" = 1 ] || [ "$status" = 0 ] || { echo "not as described above"; exit 1; }
done
