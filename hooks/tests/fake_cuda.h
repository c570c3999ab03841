/* For tests: the driver of fake_cuda.cpp. */
#pragma once

#include <stdint.h>

extern "C" {
void* fake_cuda_stream();
/* Drops what is still to be done. */
void fake_cuda_destroy(void* stream);
void fake_cuda_run(void* stream, void (*function)(void*), void* context);
void fake_cuda_work(void* stream, int64_t ns);
void fake_cuda_synchronize(void* stream);
/* After so many calls that succeed, all fail; -1: none does. */
void fake_cuda_fail_after(int calls);
/* Kernels that have run, and whether none can be loaded. */
int fake_cuda_kernels();
void fake_cuda_refuse_kernels(int on);
void fake_cuda_capture(void* stream, int on);
}
