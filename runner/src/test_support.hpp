// What the runner's process tests share.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "harness.hpp"

namespace freeride::runner::test {

using policy::Cause;
using policy::VerdictKind;

inline const std::string kRunner = std::string(FREERIDE_BUILD_DIR) + "/bin/freeride-runner";

inline std::string plugin(const std::string& name) {
  return std::string(FREERIDE_BUILD_DIR) + "/test-plugins/" + name + ".so";
}

class TempDir {
 public:
  explicit TempDir(const std::string& below = "/tmp") : path_(below + "/freeride-runner-test-XXXXXX") {
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A task of `name`.so, not yet waited for.
inline std::unique_ptr<Harness> start(const std::string& name, const TempDir& scratch, Params params = {},
                                      Harness::Options options = {}) {
  options.runner = kRunner;
  options.plugin = plugin(name);
  options.scratch = scratch.path();
  options.params = std::move(params);
  auto harness = Harness::start(options);
  INFO((harness.ok() ? "" : harness.error().text()));
  REQUIRE(harness.ok());
  return std::move(*harness);
}

/// The same, initialised and PAUSED, without a lease.
inline std::unique_ptr<Harness> start_paused(const std::string& name, const TempDir& scratch, Params params = {},
                                             Harness::Options options = {}) {
  auto harness = start(name, scratch, std::move(params), std::move(options));
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_INIT, 60'000);
  REQUIRE(harness->wait_paused());
  harness->revoke();
  return harness;
}

inline uint64_t steps(const Harness& harness) {
  return pages::load_acquire(harness.answer().steps);
}

inline bool wait_steps(Harness& harness, uint64_t count) {
  return harness.wait_until([count](const auto& answer) { return pages::load_acquire(answer.steps) >= count; });
}

/// Opens leases of `length_ms` until the task has taken one up (on a busy machine a short one can pass before the task
/// gets to look at it) and `true_of` its answer page, or a verdict came.
inline bool open_until(Harness& harness, uint32_t kind, int64_t length_ms,
                       const std::function<bool(const freeride_answer_page&)>& true_of) {
  for (int tries = 0; tries < 1000; ++tries) {
    harness.open(kind, length_ms);
    bool missed = false;
    harness.wait_until([&](const auto& answer) {
      if (true_of(answer)) return true;
      const uint32_t state = pages::load_acquire(answer.state);
      missed = SteadyClock::now() > static_cast<int64_t>(harness.lease().deadline_ns) &&
               pages::load_acquire(answer.transition) == FREERIDE_IN_NONE &&
               (state == FREERIDE_STATE_CREATED || state == FREERIDE_STATE_PAUSED);
      return missed;
    });
    if (true_of(harness.answer())) return true;
    if (!missed) return false;
  }
  return false;
}

/// Drives a task through its whole life, with bubbles of `bubble_ms`, until it ends, and returns how it ended.
inline Outcome live(Harness& harness, int64_t bubble_ms = 60'000, int64_t init_ms = 60'000) {
  const auto verdict = [&] {
    auto outcome = harness.verdict();
    REQUIRE(outcome.has_value());
    return *outcome;
  };
  if (!harness.wait_state(FREERIDE_STATE_CREATED)) return verdict();
  const auto paused = [](const auto& answer) { return pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED; };
  if (!open_until(harness, FREERIDE_LEASE_INIT, init_ms, paused)) return verdict();
  harness.revoke();
  const auto stepped = [](const auto& answer) { return pages::load_acquire(answer.steps) > 0; };
  if (!open_until(harness, FREERIDE_LEASE_BUBBLE, bubble_ms, stepped)) return verdict();
  harness.revoke();
  if (!harness.wait_paused()) return verdict();
  harness.revoke(FREERIDE_ORDER_STOP);
  return verdict();
}

/// A process to be seen ending, whoever its parent is.
class Watched {
 public:
  explicit Watched(pid_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  bool ends(int most_ms = static_cast<int>(Harness::kWatchdogMs)) const {
    if (!fd_.valid()) return true;
    pollfd ended{fd_.get(), POLLIN, 0};
    return poll(&ended, 1, most_ms) == 1;
  }

 private:
  Fd fd_;
};

/// One call of the counter plugin, from its trace file.
struct Call {
  std::string name;
  int64_t begin_ns = 0, end_ns = 0;
};

inline std::vector<Call> read_trace(const TempDir& scratch) {
  std::vector<Call> calls;
  std::ifstream file(scratch.path() + "/trace");
  for (Call call; file >> call.name >> call.begin_ns >> call.end_ns;) calls.push_back(call);
  return calls;
}

}  // namespace freeride::runner::test
