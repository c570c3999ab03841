// CudaDriver: the few functions of the CUDA driver that the hook needs, looked up at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::hooks {

/// A stream as CUDA knows it (CUstream, cudaStream_t); null is the context's default stream.
using CudaStream = void*;
/// An address as the GPU sees it (CUdeviceptr).
using CudaAddress = unsigned long long;
/// A kernel of the present context (CUfunction).
using CudaKernel = void*;
using CudaEvent = void*;

/// Nothing of CUDA is linked, so that the library loads where there is none, and no header of CUDA is needed to build
/// it: the driver's ABI is stable. All functions work on the context that is current on the calling thread. Stateless;
/// any thread.
class CudaDriver {
 public:
  /// The trainer's own libcuda: it is loaded already, or there is none. Errors: kNotFound (none, or one too old).
  static Result<CudaDriver> load();

  /// The context that is current on this thread; null: none.
  const void* context() const;
  /// UUID of the present context's device, as NVML and nvidia-smi write it. Errors: kUnavailable (no context on this
  /// thread).
  Result<std::string> device_uuid() const;
  /// Whether streams can write 64-bit values.
  bool can_write_64() const;
  /// Lets the GPU read and write this memory, for as long as the context lives; its address there.
  Result<CudaAddress> share(void* memory, size_t bytes) const;
  /// Whether the stream's work is being recorded into a graph.
  bool is_capturing(CudaStream stream) const;
  /// A kernel that does nothing. It has been launched once: a first launch may load it, which waits for all of the
  /// context's streams, and one of them may be held.
  Result<CudaKernel> empty_kernel() const;
  /// Free memory of the device now; 0 if it cannot be told.
  uint64_t free_bytes() const;

  // In stream order. A write is seen after all that the stream did before it; a wait is satisfied once
  // (int32_t)(value at the address - value) >= 0.
  Status write_64(CudaStream stream, CudaAddress address, uint64_t value) const;
  Status write_32(CudaStream stream, CudaAddress address, uint32_t value) const;
  Status wait_32(CudaStream stream, CudaAddress address, uint32_t value) const;
  Status launch(CudaStream stream, CudaKernel kernel) const;

  /// Whether the driver has what the following need.
  bool can_time() const { return event_create_ != nullptr; }
  /// A stream that waits for no other. It is never destroyed.
  Result<CudaStream> new_stream() const;
  /// An event that tells times; never destroyed. One that is recorded again forgets what it was recorded at before.
  Result<CudaEvent> new_event() const;
  Status record(CudaEvent event, CudaStream stream) const;
  /// Whether its stream has come past it. Errors: the context is broken.
  Result<bool> is_over(CudaEvent event) const;
  /// Between two that are over, on the GPU's clock.
  Result<int64_t> between_ns(CudaEvent from, CudaEvent to) const;
  Status wait_event(CudaStream stream, CudaEvent event) const;
  /// Calls function(context) once the stream has come to it, on a thread of the driver's, where CUDA must not be
  /// called.
  Status call(CudaStream stream, void (*function)(void*), void* context) const;

 private:
  Status status(int code, const char* what) const;

  int (*get_error_name_)(int, const char**) = nullptr;
  int (*ctx_get_current_)(void**) = nullptr;
  int (*ctx_get_device_)(int*) = nullptr;
  int (*device_get_uuid_)(unsigned char*, int) = nullptr;
  int (*device_get_attribute_)(int*, int, int) = nullptr;
  int (*mem_host_register_)(void*, size_t, unsigned) = nullptr;
  int (*mem_host_get_device_pointer_)(CudaAddress*, void*, unsigned) = nullptr;
  int (*mem_get_info_)(size_t*, size_t*) = nullptr;
  int (*module_load_data_)(void**, const void*) = nullptr;
  int (*module_get_function_)(CudaKernel*, void*, const char*) = nullptr;
  int (*launch_kernel_)(CudaKernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CudaStream,
                        void**, void**) = nullptr;
  int (*stream_is_capturing_)(CudaStream, int*) = nullptr;
  int (*stream_write_value_64_)(CudaStream, CudaAddress, uint64_t, unsigned) = nullptr;
  int (*stream_write_value_32_)(CudaStream, CudaAddress, uint32_t, unsigned) = nullptr;
  int (*stream_wait_value_32_)(CudaStream, CudaAddress, uint32_t, unsigned) = nullptr;
  int (*stream_create_)(CudaStream*, unsigned) = nullptr;
  int (*stream_wait_event_)(CudaStream, CudaEvent, unsigned) = nullptr;
  int (*launch_host_func_)(CudaStream, void (*)(void*), void*) = nullptr;
  int (*event_create_)(CudaEvent*, unsigned) = nullptr;
  int (*event_record_)(CudaEvent, CudaStream) = nullptr;
  int (*event_query_)(CudaEvent) = nullptr;
  int (*event_elapsed_time_)(float*, CudaEvent, CudaEvent) = nullptr;
};

}  // namespace freeride::hooks
