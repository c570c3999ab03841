// What the library shows: the driver's functions that are not plain jumps (trampolines.c).
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "shim.hpp"

#define SHIM_API extern "C" __attribute__((visibility("default")))

namespace freeride::shim {
namespace {

Shim* shim = nullptr;

constexpr bool ends_with(const char* text, const char* end) {
  const char* last = text;
  while (*last != '\0') ++last;
  const char* other = end;
  while (*other != '\0') ++other;
  while (other != end) {
    if (last == text || *--last != *--other) return false;
  }
  return true;
}

constexpr bool thread_of(const char* name) {
  return ends_with(name, "_ptsz") || ends_with(name, "_ptds");
}

template <class Result, class... Arguments>
__attribute__((no_sanitize("undefined"))) Result real(void* function, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

// Before any other code of the program can call: whoever finds these functions has loaded the library.
__attribute__((constructor)) void load() {
  shim = new Shim;
  pthread_atfork([] { shim->lock(); }, [] { shim->unlock(); }, [] { shim->unlock(); });
}

template <class Size>
Code memory_info(void* function, Size* free, Size* total) {
  const Code code = real<Code>(function, free, total);
  if (code != kSuccess || free == nullptr || total == nullptr) return code;
  const uint64_t free_bytes = *free;
  const uint64_t total_bytes = *total;
  *free = static_cast<Size>(shim->memory().free(free_bytes, total_bytes));
  *total = static_cast<Size>(shim->memory().total(total_bytes));
  return code;
}

template <class Size>
Code total_memory(void* function, Size* bytes, int device) {
  const Code code = real<Code>(function, bytes, device);
  if (code == kSuccess && bytes != nullptr) *bytes = static_cast<Size>(shim->memory().total(*bytes));
  return code;
}

}  // namespace
}  // namespace freeride::shim

using freeride::shim::Code;
using freeride::shim::Launch;
using freeride::shim::shim;
using freeride::shim::What;
using freeride::shim::Word;
using freeride::shim::Wrapped;

#define FREERIDE_WORDS Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k, Word l
#define FREERIDE_GIVEN a, b, c, d, e, f, g, h, i, j, k, l
#define FREERIDE_WRAPPER(name, kind, stream, size, verb)                                               \
  SHIM_API Code name(FREERIDE_WORDS) {                                                                 \
    static constexpr Wrapped kThis{#name, What::kind, stream, size, freeride::shim::thread_of(#name)}; \
    return shim->verb(kThis, freeride_real_##name, {FREERIDE_GIVEN});                                  \
  }
// A launch on credit is a jump: the rest is not touched. Arguments are passed again there, and where a function has
// fewer than twelve the places of the others are its caller's. So these have no more than the function has.
#define FREERIDE_SUBMIT_kKernel(name, kind, stream, size)                                                            \
  static constexpr Wrapped wrapped_##name{#name, What::kind, stream, size, freeride::shim::thread_of(#name)};        \
  [[gnu::noinline]] static Code asked_##name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, \
                                             Word j, Word k) {                                                       \
    return shim->submit(wrapped_##name, freeride_real_##name, {a, b, c, d, e, f, g, h, i, j, k});                    \
  }                                                                                                                  \
  SHIM_API Code name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k) {       \
    if (shim->on_credit(wrapped_##name, [&] { return Launch{a, {b, c, d}, {e, f, g}, i}; }))                         \
      return freeride::shim::real<Code>(freeride_real_##name, a, b, c, d, e, f, g, h, i, j, k);                      \
    return asked_##name(a, b, c, d, e, f, g, h, i, j, k);                                                            \
  }
#define FREERIDE_SUBMIT_kConfig(name, kind, stream, size)                                                     \
  static constexpr Wrapped wrapped_##name{#name, What::kind, stream, size, freeride::shim::thread_of(#name)}; \
  [[gnu::noinline]] static Code asked_##name(Word a, Word b, Word c, Word d) {                                \
    return shim->submit(wrapped_##name, freeride_real_##name, {a, b, c, d});                                  \
  }                                                                                                           \
  SHIM_API Code name(Word a, Word b, Word c, Word d) {                                                        \
    if (a != 0 && shim->on_credit(wrapped_##name, [&] { return freeride::shim::launch_of(a, b); }))           \
      return freeride::shim::real<Code>(freeride_real_##name, a, b, c, d);                                    \
    return asked_##name(a, b, c, d);                                                                          \
  }
#define FREERIDE_SUBMIT_kCooperative(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_SUBMIT_kFunction(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_SUBMIT_kSeveral(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_SUBMIT_kGraph(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_SUBMIT_kCopy(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_SUBMIT_kSignal(name, kind, stream, size) FREERIDE_WRAPPER(name, kind, stream, size, submit)
#define FREERIDE_PASS(name)
#define FREERIDE_SUBMIT(name, kind, stream, size, since) FREERIDE_SUBMIT_##kind(name, kind, stream, size)
#define FREERIDE_NOTICE(name, kind, stream, since) FREERIDE_WRAPPER(name, kind, stream, -1, notice)
#define FREERIDE_OWN(name, since)
#include "driver.inc"
#undef FREERIDE_PASS
#undef FREERIDE_SUBMIT
#undef FREERIDE_NOTICE
#undef FREERIDE_OWN

SHIM_API int freeride_shim_version() {
  return static_cast<int>(FREERIDE_SHIM_VERSION);
}

SHIM_API Code cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  const Code code = freeride::shim::real<Code>(freeride_real_cuGetProcAddress, symbol, function, version, flags);
  if (code == 0 && symbol != nullptr && function != nullptr && *function != nullptr)
    *function = shim->instead_of(symbol, *function, version, flags);
  return code;
}

SHIM_API Code cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags, int* status) {
  const Code code =
      freeride::shim::real<Code>(freeride_real_cuGetProcAddress_v2, symbol, function, version, flags, status);
  if (code == 0 && symbol != nullptr && function != nullptr && *function != nullptr)
    *function = shim->instead_of(symbol, *function, version, flags);
  return code;
}

SHIM_API Code cuGetExportTable(const void** table, const unsigned char* id) {
  const Code code = freeride::shim::real<Code>(freeride_real_cuGetExportTable, table, id);
  if (code == 0 && id != nullptr) {
    unsigned char copy[16];
    std::memcpy(copy, id, sizeof(copy));
    shim->export_table(copy);
  }
  return code;
}

SHIM_API Code cuMemGetInfo(uint32_t* free, uint32_t* total) {
  return freeride::shim::memory_info(freeride_real_cuMemGetInfo, free, total);
}

SHIM_API Code cuMemGetInfo_v2(uint64_t* free, uint64_t* total) {
  return freeride::shim::memory_info(freeride_real_cuMemGetInfo_v2, free, total);
}

SHIM_API Code cuDeviceTotalMem(uint32_t* bytes, int device) {
  return freeride::shim::total_memory(freeride_real_cuDeviceTotalMem, bytes, device);
}

SHIM_API Code cuDeviceTotalMem_v2(uint64_t* bytes, int device) {
  return freeride::shim::total_memory(freeride_real_cuDeviceTotalMem_v2, bytes, device);
}
