// What the time is and how many cycles some multiprocessors have counted, in stream order: their clock between two
// looks is the quotient of the differences, to a thousandth over a millisecond. The driver's own figure is for a
// moment, and some milliseconds old.
#include <cstdint>

namespace {

struct Look {
  uint64_t ns, cycles;
};
constexpr int kMultiprocessors = 4;
Look* looks = nullptr;

// As many blocks as fill all multiprocessors, so that the first few have one of them.
__global__ void look(Look* at) {
  uint32_t multiprocessor = 0;
  uint64_t ns = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  if (threadIdx.x == 0 && multiprocessor < kMultiprocessors)
    at[multiprocessor] = {ns, static_cast<uint64_t>(clock64())};
}

}  // namespace

extern "C" int clock_init(int most) {
  const size_t bytes = sizeof(Look) * kMultiprocessors * static_cast<size_t>(most);
  return cudaMalloc(&looks, bytes) != cudaSuccess || cudaMemset(looks, 0, bytes) != cudaSuccess;
}

extern "C" int clock_look(void* stream, int index) {
  look<<<264, 32, 0, static_cast<cudaStream_t>(stream)>>>(looks + static_cast<size_t>(index) * kMultiprocessors);
  return cudaGetLastError();
}

extern "C" int clock_read(uint64_t* out, int count) {
  return cudaMemcpy(out, looks, sizeof(Look) * kMultiprocessors * static_cast<size_t>(count), cudaMemcpyDeviceToHost);
}
