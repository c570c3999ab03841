// What a side task makes of bubbles of one length, with the real supervisor and runner and hand-made leases: no worker,
// no manager, no training, so that only task and runner are seen. Prints one JSON object a line, for each length.
//
//   bench-leases RUNNER PLUGIN DEVICE BUBBLE_MS[,BUBBLE_MS...] COUNT [KEY=VALUE...]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "freeride/base/clock.hpp"
#include "harness.hpp"

using namespace freeride;
using namespace freeride::runner;

namespace {

constexpr int64_t kInitMs = 180'000;

int complain(const std::string& what) {
  std::cerr << "bench-leases: " << what << "\n";
  return EXIT_FAILURE;
}

void sleep_until(int64_t ns) {
  const timespec time{ns / kNsPerSec, ns % kNsPerSec};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

bool paused(const freeride_answer_page& answer) {
  return pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED &&
         pages::load_acquire(answer.transition) == FREERIDE_IN_NONE;
}

double at(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

struct Harvest {
  double share_pct = 0;
  std::vector<double> overrun_us;
  uint64_t steps = 0;
};

// `count` bubbles of `bubble_ms` with gaps of the same length; empty when the task has ended.
std::optional<Harvest> harvest(Harness& harness, int64_t bubble_ms, int count) {
  Harvest result;
  const auto& answer = harness.answer();
  const uint64_t steps = pages::load_acquire(answer.steps), in_steps = pages::load_relaxed(answer.lease_step_ns);
  for (int i = 0; i < count; ++i) {
    harness.open(FREERIDE_LEASE_BUBBLE, bubble_ms);
    const auto end_ns = static_cast<int64_t>(harness.lease().deadline_ns);
    sleep_until(end_ns);
    harness.revoke();
    if (!harness.wait_until(paused)) return std::nullopt;
    const auto last_ns = static_cast<int64_t>(pages::load_relaxed(answer.last_paused_ns));
    result.overrun_us.push_back(static_cast<double>(std::max<int64_t>(0, last_ns - end_ns)) / 1e3);
    sleep_until(std::max(end_ns + bubble_ms * kNsPerMs, SteadyClock::now()));
  }
  result.steps = pages::load_acquire(answer.steps) - steps;
  result.share_pct = 100.0 * static_cast<double>(pages::load_relaxed(answer.lease_step_ns) - in_steps) /
                     static_cast<double>(bubble_ms * kNsPerMs * count);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return complain("usage: bench-leases RUNNER PLUGIN DEVICE BUBBLE_MS[,...] COUNT [KEY=VALUE...]");
  char scratch[] = "/tmp/freeride-bench-leases-XXXXXX";
  if (mkdtemp(scratch) == nullptr) return complain("no temporary folder");
  Harness::Options options;
  options.runner = argv[1];
  options.plugin = argv[2];
  options.device = argv[3];
  options.scratch = scratch;
  options.grace_ms = 1'000;
  options.create_ms = kInitMs;
  for (int i = 6; i < argc; ++i) {
    const std::string pair = argv[i];
    options.params.emplace_back(pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
  }
  auto started = Harness::start(options);
  if (!started.ok()) return complain(started.error().text());
  Harness& harness = **started;
  const auto ended = [&] {
    const auto outcome = harness.verdict(1'000);
    std::cerr << harness.log();
    return complain(outcome ? outcome->kind + ": " + outcome->reason : "the task does not answer");
  };
  if (!harness.wait_state(FREERIDE_STATE_CREATED, kInitMs)) return ended();
  harness.open(FREERIDE_LEASE_INIT, kInitMs);
  if (!harness.wait_paused(kInitMs)) return ended();
  harness.revoke();
  // Warm, and learned, in one long bubble.
  harness.open(FREERIDE_LEASE_BUBBLE, 3'000);
  sleep_until(static_cast<int64_t>(harness.lease().deadline_ns));
  harness.revoke();
  if (!harness.wait_until(paused)) return ended();

  std::istringstream lengths(argv[4]);
  for (std::string length; std::getline(lengths, length, ',');) {
    const auto result = harvest(harness, std::atoll(length.c_str()), std::atoi(argv[5]));
    if (!result) return ended();
    printf(
        "{\"bubble_ms\": %s, \"share_pct\": %.2f, \"overrun_p50_us\": %.1f, \"overrun_p99_us\": %.1f, \"steps\": "
        "%llu}\n",
        length.c_str(), result->share_pct, at(result->overrun_us, 0.5), at(result->overrun_us, 0.99),
        static_cast<unsigned long long>(result->steps));
    fflush(stdout);
  }
  harness.revoke(FREERIDE_ORDER_STOP);
  harness.verdict();
  std::error_code ignored;
  std::filesystem::remove_all(scratch, ignored);
  return EXIT_SUCCESS;
}
