/* Where the real functions are: filled in once, when the library is loaded, before anybody can call. C and C++. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FREERIDE_THUNKS 48

enum { FREERIDE_KIND_PASS = 0, FREERIDE_KIND_SUBMIT = 1, FREERIDE_KIND_NOTICE = 2, FREERIDE_KIND_OWN = 3 };

/* A function of driver.inc. */
struct freeride_function {
  const char* name;
  void** real;    /* where the trampoline or wrapper finds the real one */
  void* exported; /* what the program gets */
  int kind;
  int since; /* CUDA version of this variant, 1000 * major + 10 * minor */
};

/* All of them; the last has no name. */
extern const struct freeride_function freeride_functions[] __attribute__((visibility("hidden")));

/* Thunks for functions that nobody knows: thunk i adds one to *freeride_thunk_calls[i] and jumps to
 * freeride_thunk_targets[i]. Both are filled in before the thunk is handed out. */
extern uint64_t* freeride_thunk_calls[FREERIDE_THUNKS] __attribute__((visibility("hidden")));
extern void* freeride_thunk_targets[FREERIDE_THUNKS] __attribute__((visibility("hidden")));
void* freeride_thunk(int place) __attribute__((visibility("hidden")));

/* What a function answers that the real driver has not. */
extern int freeride_missing_code __attribute__((visibility("hidden")));

#define FREERIDE_PASS(name) extern void* freeride_real_##name __attribute__((visibility("hidden")));
#define FREERIDE_SUBMIT(name, what, stream, size, since) FREERIDE_PASS(name)
#define FREERIDE_NOTICE(name, what, stream, since) FREERIDE_PASS(name)
#define FREERIDE_OWN(name, since) FREERIDE_PASS(name)
#include "driver.inc"
#undef FREERIDE_PASS
#undef FREERIDE_SUBMIT
#undef FREERIDE_NOTICE
#undef FREERIDE_OWN

#ifdef __cplusplus
}
#endif
