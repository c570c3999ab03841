/* What torch's allocator is to libfreeride_cudart.so: a library that was linked with the CUDA runtime. */
#include <stddef.h>

int cudaMalloc(void** address, size_t bytes);
int cudaGetLastError(void);
int cudaEventRecord(void* event, void* stream);
int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags);
int cudaStreamWaitEvent(void* stream, void* event, unsigned flags);

int fake_allocator_take(size_t bytes, int* error_left) {
  void* address = NULL;
  const int error = cudaMalloc(&address, bytes);
  *error_left = cudaGetLastError();
  return error;
}

int fake_allocator_follow(void* event, void* stream, void* other) {
  return cudaEventRecord(event, stream) + cudaEventRecordWithFlags(event, stream, 1) +
         cudaStreamWaitEvent(other, event, 0);
}
