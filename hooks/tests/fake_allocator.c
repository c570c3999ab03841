/* What torch's allocator is to libfreeride_cudart.so: a library that was linked with the CUDA runtime. */
#include <stddef.h>

int cudaMalloc(void** address, size_t bytes);
int cudaGetLastError(void);

int fake_allocator_take(size_t bytes, int* error_left) {
  void* address = NULL;
  const int error = cudaMalloc(&address, bytes);
  *error_left = cudaGetLastError();
  return error;
}
