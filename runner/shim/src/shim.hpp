// Shim: all that this process's wrappers share. One, made when the library is loaded, and never destroyed: threads may
// call until the process is gone.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "credit.hpp"
#include "driver.hpp"
#include "freeride/pages/mapping.hpp"
#include "gate.hpp"
#include "learned.hpp"
#include "memory.hpp"
#include "real.h"
#include "shim_page.hpp"

namespace freeride::shim {

/// What a call submits.
struct Work {
  void* stream = nullptr;
  uint64_t key = 0, handle = 0, blocks = 0;
  bool weightless = false;
};

inline Work kernel_work(const Wrapped& what, const Launch& launch) {
  const auto number = [](Word word) { return uint64_t{static_cast<uint32_t>(word)}; };
  const auto pair = [&](Word low, Word high) { return number(low) | high << 32; };
  const auto& [function, grid, block, stream] = launch;
  // The product fits for every grid that the driver takes.
  return {stream_handle(what, stream),
          mix(reinterpret_cast<uint64_t>(what.name), function, pair(grid[0], grid[1]), pair(grid[2], block[0]),
              pair(block[1], block[2])),
          function, number(grid[0]) * number(grid[1]) * number(grid[2]), false};
}

/// The calling thread's.
extern constinit thread_local Credit thread_credit;

/// Any thread. submit() blocks at the gate; nothing else does.
class Shim {
 public:
  /// Reads the environment, opens the real driver and the pages. What is missing is said on stderr in a sentence each.
  Shim();

  /// May this be submitted at once, without submit()? It counts as submitted then. Most launches of a program that
  /// launches much, so it is inline.
  /// `launch_of` says what is launched.
  template <class LaunchOf>
  [[gnu::always_inline]] bool on_credit(const Wrapped& what, LaunchOf&& launch_of) {
    Credit* own = &thread_credit;
    asm("" : "+r"(own));  // else it is found again behind each call
    Credit& credit = *own;
    if (credit.left_ns <= 0) return false;
    const Launch launch = launch_of();
    if (!credit.is_for(stream_handle(what, launch.stream))) return false;
    const Work work = kernel_work(what, launch);
    Cost* cost = learned_.find(work.key, work.handle, work.blocks);
    const int64_t expected_ns = cost->expected_ns();
    return expected_ns > 0 && cost->skip_next() && credit.spend(expected_ns, limits_.short_ns);
  }
  /// A wrapped function that submits: at the gate, timed now and then, and what the real one returns.
  Code submit(const Wrapped& what, void* real, const Words& words);
  /// One that is taken note of.
  Code notice(const Wrapped& what, void* real, const Words& words);
  /// What cuGetProcAddress gives for what the real one has given.
  void* instead_of(const char* symbol, void* real, int version, uint64_t flags);
  /// The program was given one of the driver's tables of functions.
  void export_table(const unsigned char (&id)[16]);

  Memory& memory() { return memory_; }

  void lock();
  void unlock();

 private:
  void open_real();
  void open_lease();
  Work work_of(const Wrapped& what, const Words& words) const;
  Stream* stream_of(void* handle, bool& none);
  Code refuse();
  void* unknown(const std::string& name, void* real);
  void log(const char* what, const std::string& name);
  std::string name_of(const Cost* cost);

  Limits limits_;
  SteadyClock clock_;
  RealEvents events_;
  ShimPage page_;
  Memory memory_;
  Learned learned_;
  InFlight queue_{events_};
  pages::Mapped<const freeride_lease_page> lease_;
  std::optional<Gate> gate_;
  std::atomic<bool> refused_{false};
  std::unordered_multimap<void*, const freeride_function*> by_address_;
  std::unordered_multimap<std::string, const freeride_function*> by_name_;  ///< without suffixes
  int log_fd_ = -1;
  std::mutex mutex_;  ///< of what follows
  std::set<std::string> logged_;
  std::unordered_map<std::string, int> unknown_;
  std::unordered_map<uint64_t, std::string> names_;
};

}  // namespace freeride::shim
