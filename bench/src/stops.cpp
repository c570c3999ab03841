// bench-stops: what it costs to stop a process between leases, as the acting thread stops a GPU's side task, against
// waking one that only sleeps. In turns, in one run, for processes of few and many threads, and while control groups
// come and go. Prints one JSON object a line.
//
//     bench-stops [ROUNDS]
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "freeride/base/clock.hpp"
#include "stats.hpp"

namespace freeride::bench {
namespace {

constexpr int64_t kRestNs = 2 * kNsPerMs;  // for a stop to take hold

/// What both processes see.
struct Shared {
  alignas(64) std::atomic<uint32_t> lease{0};  ///< futex word
  alignas(64) std::atomic<int64_t> woke_ns{0};
  alignas(64) std::atomic<int64_t> spinning_ns{0};  ///< the latest look of the thread that never sleeps
};

struct Case {
  const char* name;
  int asleep;  ///< threads besides the one that is woken
  bool spins;  ///< one more, which never sleeps
  bool churn;  ///< control groups come and go meanwhile
};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

void rest(int64_t ns) {
  const timespec time{0, ns};
  nanosleep(&time, nullptr);
}

[[noreturn]] void side_task(Shared& shared, const Case& one) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::vector<std::thread> threads;
  for (int i = 0; i < one.asleep; ++i) threads.emplace_back([] { pause(); });
  if (one.spins) {
    threads.emplace_back([&] {
      for (;;) shared.spinning_ns.store(SteadyClock::now(), std::memory_order_relaxed);
    });
  }
  for (uint32_t seen = 0;;) {
    futex(shared.lease, FUTEX_WAIT, seen);
    const uint32_t now = shared.lease.load();
    if (now == seen) continue;
    seen = now;
    shared.woke_ns.store(SteadyClock::now());
  }
}

[[noreturn]] void churn() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char* root = access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
  const std::string group = std::string(root) + "/freeride-bench-" + std::to_string(getpid());
  for (;;) {
    if (mkdir(group.c_str(), 0755) != 0) _exit(1);
    std::ofstream(group + "/cgroup.procs") << getpid();
    std::ofstream(std::string(root) + "/cgroup.procs") << getpid();
    rmdir(group.c_str());
    rest(200'000);
  }
}

// From the wake to the first instruction, the stop's end included where there was one.
int64_t wake(Shared& shared, pid_t pid, bool stopped) {
  shared.woke_ns.store(0);
  const int64_t began_ns = SteadyClock::now();
  if (stopped) kill(pid, SIGCONT);
  shared.lease.fetch_add(1);
  futex(shared.lease, FUTEX_WAKE, INT_MAX);
  while (shared.woke_ns.load() == 0) rest(50'000);
  return shared.woke_ns.load() - began_ns;
}

void measure(const Case& one, int rounds) {
  void* page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) std::abort();
  auto& shared = *new (page) Shared;
  const pid_t task = fork();
  if (task == 0) side_task(shared, one);
  const pid_t churning = one.churn ? fork() : -1;
  if (churning == 0) churn();
  rest(200 * kNsPerMs);
  std::vector<int64_t> sleeper_ns, stopped_ns, still_ns;
  for (int i = 0; i < rounds; ++i) {
    rest(kRestNs);
    sleeper_ns.push_back(wake(shared, task, false));
    rest(kRestNs);
    const int64_t stop_ns = SteadyClock::now();
    kill(task, SIGSTOP);
    rest(kRestNs);
    if (one.spins) still_ns.push_back(std::max<int64_t>(0, shared.spinning_ns.load() - stop_ns));
    stopped_ns.push_back(wake(shared, task, true));
  }
  std::string more;
  if (churning > 0) {
    if (waitpid(churning, nullptr, WNOHANG) != 0) more = ", \"churn\": \"not allowed here\"";
    kill(churning, SIGKILL);
    waitpid(churning, nullptr, 0);
  }
  kill(task, SIGKILL);
  waitpid(task, nullptr, 0);
  munmap(page, sizeof(Shared));
  const auto us = [](const std::vector<int64_t>& ns, double share) { return quantile(ns, share) / 1e3; };
  std::printf(
      "{\"case\": \"%s\", \"threads\": %d, \"rounds\": %d, \"wake_p50_us\": %.1f, \"wake_p99_us\": %.1f, "
      "\"stopped_wake_p50_us\": %.1f, \"stopped_wake_p99_us\": %.1f",
      one.name, 1 + one.asleep + (one.spins ? 1 : 0), rounds, us(sleeper_ns, 0.5), us(sleeper_ns, 0.99),
      us(stopped_ns, 0.5), us(stopped_ns, 0.99));
  if (one.spins)
    std::printf(", \"stop_to_still_p50_us\": %.1f, \"stop_to_still_p99_us\": %.1f", us(still_ns, 0.5),
                us(still_ns, 0.99));
  std::printf("%s}\n", more.c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  using freeride::bench::measure;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: bench-stops [ROUNDS]\n");
    return 2;
  }
  measure({"one thread", 0, false, false}, rounds);
  measure({"one more that never sleeps", 0, true, false}, rounds);
  measure({"63 more that sleep", 63, false, false}, rounds);
  measure({"62 more that sleep, one that never does", 62, true, false}, rounds);
  measure({"the same, while control groups come and go", 62, true, true}, rounds);
  return 0;
}
