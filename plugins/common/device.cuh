// The CUDA runtime for the shipped side tasks: errors as the SDK's exceptions, memory that frees itself, one stream.
// Nothing here touches the GPU before Device::open(), which belongs into InitSideTask.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "freeride/plugin.hpp"

namespace common {

/// Throws what `error` means for the task; `what` was being done.
inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that was read is not found again by the next call
  const std::string text = std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  switch (error) {
    case cudaErrorMemoryAllocation:
      throw freeride::OutOfMemory(text + "; raise the task's memory limit, or give it less to hold");
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
      throw freeride::Unavailable(text);
    default:
      throw freeride::TaskError(text);
  }
}

/// Memory on the GPU for `size()` values; empty until resize().
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  /// Content is undefined afterwards. Keeps the memory where it is enough.
  void resize(size_t size) {
    if (size > room_) {
      release();
      check(cudaMalloc(&data_, size * sizeof(T)),
            ("taking " + std::to_string(size * sizeof(T) >> 20) + " MiB of GPU memory").c_str());
      room_ = size;
    }
    size_ = size;
  }
  void release() {
    if (data_ != nullptr) cudaFree(data_);  // cudaFree(nullptr) would open the GPU
    data_ = nullptr;
    size_ = room_ = 0;
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t room_ = 0;
};

/// Pinned memory of the host's, which the GPU copies from and to by itself; empty until resize().
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { release(); }

  /// Content is undefined afterwards.
  void resize(size_t size) {
    release();
    check(cudaMallocHost(&data_, size * sizeof(T)), "taking pinned memory");
    size_ = size;
  }
  void release() {
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
    size_ = 0;
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

/// GPU 0 and the one stream that a task works on.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { close(); }

  /// Makes the context. `spin`: the host's thread looks for the end of a piece without pause, which costs a core during
  /// steps (that of the lowest priority) and saves the tens of microseconds of a wake-up in each.
  void open(bool spin) {
    if (stream_ != nullptr) return;
    check(cudaSetDeviceFlags(spin ? cudaDeviceScheduleSpin : cudaDeviceScheduleBlockingSync),
          "choosing how to wait for the GPU");
    check(cudaSetDevice(0), "opening the GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "opening the GPU");
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0), "asking the GPU");
  }
  void close() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    stream_ = nullptr;
  }
  bool is_open() const { return stream_ != nullptr; }
  cudaStream_t stream() const { return stream_; }
  unsigned multiprocessors() const { return static_cast<unsigned>(multiprocessors_); }

  /// Loads kernels now, in InitSideTask: else each would be loaded when it is first launched, in a bubble.
  template <class... Kernels>
  static void load(Kernels*... kernels) {
    cudaFuncAttributes ignored{};
    (check(cudaFuncGetAttributes(&ignored, reinterpret_cast<const void*>(kernels)), "loading a kernel"), ...);
  }

  /// What a block of `kernel` can have of shared memory, which is allowed to it from now on.
  template <class Kernel>
  size_t most_shared_memory(Kernel* kernel) const {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "asking the GPU");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "taking shared memory");
    return static_cast<size_t>(bytes);
  }

  /// Blocks until all that was launched is done. Throws what went wrong in it.
  void wait(const char* what) const {
    check(cudaGetLastError(), what);
    check(cudaStreamSynchronize(stream_), what);
  }
  template <class T>
  void upload(const T* from, size_t count, T* to) const {
    check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, stream_), "copying to the GPU");
  }
  /// Blocks.
  template <class T>
  void download(const T* from, size_t count, T* to) const {
    check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_), "copying from the GPU");
    wait("copying from the GPU");
  }
  template <class T>
  void clear(T* data, size_t count) const {
    check(cudaMemsetAsync(data, 0, count * sizeof(T), stream_), "clearing GPU memory");
  }

 private:
  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 1;
};

constexpr unsigned kWarp = 32;

/// Sum over the block's threads, valid in thread 0. All threads of a block of whole warps, at most 1024 threads.
__device__ inline double block_sum(double value) {
  __shared__ double of_warp[32];
  __syncthreads();  // a caller's earlier sum has been read
  for (unsigned d = kWarp / 2; d > 0; d /= 2) value += __shfl_down_sync(0xffffffffu, value, d);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  value = threadIdx.x < blockDim.x / kWarp ? of_warp[threadIdx.x] : 0;
  for (unsigned d = kWarp / 2; d > 0; d /= 2) value += __shfl_down_sync(0xffffffffu, value, d);
  return value;
}

}  // namespace common
