/* A CUDA runtime without a GPU, for test_memory.py: a memory that others hold some of. Its soname is a runtime's. */
#include <stddef.h>
#include <stdlib.h>

static size_t free_bytes;
static int last_error;

void fake_cudart_free(size_t bytes) {
  __atomic_store_n(&free_bytes, bytes, __ATOMIC_SEQ_CST);
}

int cudaMalloc(void** address, size_t bytes) {
  static char somewhere;
  if (bytes > __atomic_load_n(&free_bytes, __ATOMIC_SEQ_CST)) return last_error = 2;
  *address = &somewhere;
  return 0;
}

int cudaGetLastError(void) {
  const int error = last_error;
  last_error = 0;
  return error;
}
