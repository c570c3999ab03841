/* A CUDA runtime without a GPU, for test_cudart.py: a memory that others hold some of, and events that are counted. Its
 * soname is a runtime's. */
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

static int calls[3];

int fake_cudart_calls(int which) {
  return calls[which];
}

int cudaEventRecord(void* event, void* stream) {
  (void)event, (void)stream;
  return calls[0]++, 0;
}

int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  (void)event, (void)stream, (void)flags;
  return calls[1]++, 0;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  (void)stream, (void)event, (void)flags;
  return calls[2]++, 0;
}
