// Plays libcuda.so.1 for tests, as far as the GPU probe needs it: a kernel "executes" on a thread and writes its beats
// by a clock of its own. The file $FREERIDE_FAKE_GPU may say "busy NS": so long a kernel waits before it begins, as one
// does where another context executes; "launch_error N": what every launch returns.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned long long said(const char* key) {
  FILE* file = fopen(getenv("FREERIDE_FAKE_GPU"), "r");
  char line[256], word[64];
  unsigned long long number = 0, value = 0;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (sscanf(line, "%63s %llu", word, &number) == 2 && strcmp(word, key) == 0) value = number;
  }
  if (file != NULL) fclose(file);
  return value;
}

// Another clock than the host's, and another zero.
static uint64_t gpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec + 7777777777u;
}

struct launch {
  volatile uint64_t* beats;  // began, ended, gap, beat
  uint64_t for_ns, busy_ns, begin;
};

// A GPU is on time however busy the host is: what is written late says when it was to be.
static void* execute(void* argument) {
  struct launch* launch = argument;
  const struct timespec busy = {(time_t)(launch->busy_ns / 1000000000u), (long)(launch->busy_ns % 1000000000u)};
  if (launch->busy_ns != 0) nanosleep(&busy, NULL);
  launch->beats[0] = launch->begin;
  for (uint64_t now = gpu_ns(); now - launch->begin < launch->for_ns; now = gpu_ns()) launch->beats[3] = now;
  launch->beats[2] = 40;
  __sync_synchronize();
  launch->beats[1] = launch->begin + launch->for_ns;
  free(launch);
  return NULL;
}

int cuInit(unsigned flags) {
  return (int)flags;
}
int cuDeviceGet(int* device, int number) {
  *device = number;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &execute;
  return device;
}
int cuCtxSetCurrent(void* context) {
  return context == NULL;
}
int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return pointer == NULL || bytes == 0 || flags != 2;
}
int cuMemHostGetDevicePointer_v2(unsigned long long* device, void* host, unsigned flags) {
  *device = (unsigned long long)(uintptr_t)host;
  return (int)flags;
}
int cuModuleLoadData(void** module, const void* image) {
  *module = &execute;
  return strstr(image, "freeride_probe") == NULL;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return strcmp(name, "freeride_probe") != 0;
}
int cuStreamCreate(void** stream, unsigned flags) {
  *stream = &execute;
  return flags != 1;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  (void)function, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
  if (said("launch_error") != 0) return (int)said("launch_error");
  struct launch* launch = malloc(sizeof(*launch));
  launch->beats = (volatile uint64_t*)(uintptr_t) * (unsigned long long*)arguments[0];
  launch->for_ns = *(unsigned long long*)arguments[1];
  launch->busy_ns = said("busy");
  launch->begin = gpu_ns() + launch->busy_ns;
  if (launch->busy_ns == 0) launch->beats[0] = launch->begin;
  pthread_t thread;
  if (pthread_create(&thread, NULL, execute, launch) != 0) return 999;
  pthread_detach(thread);
  return 0;
}
