// The CUDA driver as the shim sees it: names, what they do, and where the real functions are.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "in_flight.hpp"

namespace freeride::shim {

/// One argument of a driver function, as the calling convention passes every integer and pointer.
using Word = uint64_t;
/// All arguments that a wrapped function can have; those that it has not are whatever was there, and passed on.
using Words = std::array<Word, 12>;
/// A CUresult; the codes that the shim itself gives.
using Code = int;
constexpr Code kSuccess = 0, kNotReady = 600, kSharedObjectInitFailed = 303, kNotPermitted = 800, kNotSupported = 801;

/// What a wrapped function does.
enum class What : uint8_t {
  // submits, and waits at the gate:
  kKernel,       ///< a kernel: function, grid, block, …
  kConfig,       ///< a kernel by a structure: configuration, function, …
  kCooperative,  ///< a kernel whose blocks wait for each other: as kKernel
  kFunction,     ///< a kernel, the old way: function, …
  kSeveral,      ///< kernels on several devices
  kGraph,        ///< a graph
  kCopy,         ///< a copy, or a memory set
  kSignal,       ///< a wait or a write in stream order
  // passes, and is taken note of:
  kHost,           ///< a host function in stream order
  kBeginCapture,   ///< stream
  kEndCapture,     ///< stream
  kDestroyStream,  ///< stream
  kForget,         ///< a context ends
  kAllocate,       ///< where to, size
  kFree,           ///< what
  kNames,          ///< function to, where from, name
  kRenames,        ///< function to, kernel from
};

/// A row of driver.inc.
struct Wrapped {
  const char* name;
  What what;
  int stream;   ///< argument; -1: the default stream
  int size;     ///< argument; -1: none
  bool thread;  ///< the default stream is the thread's own
};

// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
constexpr Word kLegacy = 1, kPerThread = 2;

/// Calls by this handle are on the stream that the function means.
inline void* stream_handle(const Wrapped& what, Word stream) {
  return reinterpret_cast<void*>(stream != 0 ? stream : what.thread ? kPerThread : kLegacy);
}

/// A kernel's launch. Grid and block are 32-bit numbers, in words or not.
struct Launch {
  Word function;
  Word grid[3], block[3];
  Word stream;
};

/// By CUlaunchConfig, of which the first fields are the driver's ABI. `config` is not null.
inline Launch launch_of(Word config, Word function) {
  struct {
    uint32_t grid[3], block[3], shared_bytes;
    void* stream;
  } fields;
  std::memcpy(&fields, reinterpret_cast<const void*>(config), sizeof(fields));
  return {function,
          {fields.grid[0], fields.grid[1], fields.grid[2]},
          {fields.block[0], fields.block[1], fields.block[2]},
          reinterpret_cast<Word>(fields.stream)};
}

/// Calls the real function with all words.
Code call(void* real, const Words& words);

/// The real driver's events and streams, for InFlight. Any thread.
class RealEvents final : public Events {
 public:
  void* context_of(void* stream) override;
  void* make(void* context, bool takes_times) override;
  bool record(void* context, void* event, void* stream) override;
  State query(void* event) override;
  int64_t elapsed_ns(void* begin, void* end) override;

  /// The thread's current context; null: none.
  static void* current_context();
  /// Does the stream capture, or may it not be asked now since another one does?
  bool capturing(void* stream) const;

  /// Streams that capture now, at least; while 0, none is asked.
  std::atomic<int32_t> captures{0};
};

}  // namespace freeride::shim
