// A libcuda.so.1 for measurements: one process calls the driver directly or through the shim, in turns. Two processes
// that do the same differ by some percent, whatever is between them and the driver.
//
// FREERIDE_SHIM_REAL names the driver, for the shim too, and FREERIDE_SWITCHED_SHIM the shim. freeride_switch(1) is
// called between two pieces of work of which nothing is left on the GPU: from there on all calls go through the shim.
// freeride_switch(0): directly. At first they go through the shim. A call costs one jump more than without this
// library.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

// Each function that is exported jumps to where its name points now, and each that cuGetProcAddress gives does too.
#define SWITCHED_ROOM 1024

extern "C" {
void* switched_now[SWITCHED_ROOM] __attribute__((visibility("hidden")));
extern const char switched_thunks[] __attribute__((visibility("hidden")));
}

#if !defined(__x86_64__)
#error "measured on x86-64"
#endif
#define THUNK_BYTES 16
asm(".text\n.p2align 4\n.globl switched_thunks\n.hidden switched_thunks\nswitched_thunks:\n"
    ".set switched_at, 0\n.rept 1024\n.p2align 4\nendbr64\njmp *switched_now+8*switched_at(%rip)\n"
    ".set switched_at, switched_at + 1\n.endr\n.p2align 4\n");

// The two that give functions are this library's own.
#define OWN_cuGetProcAddress
#define OWN_cuGetProcAddress_v2
#define OWN_cuGetExportTable FREERIDE_PASS(cuGetExportTable)
#define OWN_cuMemGetInfo FREERIDE_PASS(cuMemGetInfo)
#define OWN_cuMemGetInfo_v2 FREERIDE_PASS(cuMemGetInfo_v2)
#define OWN_cuDeviceTotalMem FREERIDE_PASS(cuDeviceTotalMem)
#define OWN_cuDeviceTotalMem_v2 FREERIDE_PASS(cuDeviceTotalMem_v2)
#define FREERIDE_SUBMIT(name, what, stream, size, since) FREERIDE_PASS(name)
#define FREERIDE_NOTICE(name, what, stream, since) FREERIDE_PASS(name)
#define FREERIDE_OWN(name, since) OWN_##name

// clang-format off
#define FREERIDE_PASS(name)                                                                        \
  extern "C" { __attribute__((visibility("hidden"))) void* switched_to_##name; }                   \
  asm(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\nendbr64\n"      \
      "jmp *switched_to_" #name "(%rip)\n.size " #name ", . - " #name "\n");
#include "driver.inc"
#undef FREERIDE_PASS
// clang-format on

namespace {

struct Place {
  const char* name;
  void** now;
  void* plain;
  void* shim;
};

Place exported[] = {
#define FREERIDE_PASS(name) {#name, &switched_to_##name, nullptr, nullptr},
#include "driver.inc"
#undef FREERIDE_PASS
};

Place given[SWITCHED_ROOM];
int used = 0;
bool shim_now = true;
std::mutex mutex;
void* real_library = nullptr;
void* shim_library = nullptr;

void* must_open(const char* variable) {
  const char* path = std::getenv(variable);
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "switched_cuda: %s: %s\n", variable, path == nullptr ? "is not set" : dlerror());
    std::_Exit(1);
  }
  return library;
}

int missing() {
  return 500;
}

void set(Place& place) {
  __atomic_store_n(place.now, shim_now ? place.shim : place.plain, __ATOMIC_RELEASE);
}

__attribute__((constructor)) void load() {
  real_library = must_open("FREERIDE_SHIM_REAL");
  shim_library = must_open("FREERIDE_SWITCHED_SHIM");
  for (auto& one : exported) {
    one.plain = dlsym(real_library, one.name);
    one.shim = dlsym(shim_library, one.name);
    if (one.plain == nullptr || one.shim == nullptr) one.plain = one.shim = reinterpret_cast<void*>(missing);
    set(one);
  }
}

// What of a function is given to the program: `plain` by the driver, `shim` by the shim.
void* switched(const char* name, void* plain, void* shim) {
  if (plain == shim || plain == nullptr || shim == nullptr) return shim;
  const std::lock_guard lock(mutex);
  for (int i = 0; i < used; ++i) {
    if (given[i].plain == plain && given[i].shim == shim) return const_cast<char*>(switched_thunks) + THUNK_BYTES * i;
  }
  if (used == SWITCHED_ROOM) {
    std::fprintf(stderr, "switched_cuda: more than %d functions: the last is %s\n", SWITCHED_ROOM, name);
    std::_Exit(1);
  }
  given[used] = {name, &switched_now[used], plain, shim};
  set(given[used]);
  return const_cast<char*>(switched_thunks) + THUNK_BYTES * used++;
}

}  // namespace

#define SWITCHED_API extern "C" __attribute__((visibility("default")))

SWITCHED_API void freeride_switch(int shim) {
  const std::lock_guard lock(mutex);
  shim_now = shim != 0;
  for (auto& one : exported) set(one);
  for (int i = 0; i < used; ++i) set(given[i]);
}

SWITCHED_API int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status);

SWITCHED_API int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

SWITCHED_API int cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  using Function = int (*)(const char*, void**, int, uint64_t, int*);
  static const auto real = reinterpret_cast<Function>(dlsym(real_library, "cuGetProcAddress_v2"));
  static const auto shim = reinterpret_cast<Function>(dlsym(shim_library, "cuGetProcAddress_v2"));
  const int code = shim(symbol, function, version, flags, status);
  if (code != 0 || symbol == nullptr || function == nullptr || *function == nullptr) return code;
  // What asks for this function must get this one, of the version that was asked for.
  constexpr int kWithStatus = 12000;
  if (std::strcmp(symbol, "cuGetProcAddress") == 0) {
    *function = version >= kWithStatus ? reinterpret_cast<void*>(cuGetProcAddress_v2)
                                       : reinterpret_cast<void*>(cuGetProcAddress);
    return code;
  }
  void* plain = nullptr;
  if (real(symbol, &plain, version, flags, nullptr) == 0) *function = switched(symbol, plain, *function);
  return code;
}
