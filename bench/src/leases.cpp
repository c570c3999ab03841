// What a side task makes of bubbles of one length, with the real supervisor and runner and hand-made leases: no worker,
// no manager, no training, so that only task and runner are seen. Prints one JSON object a line, for each length.
//
//   bench-leases RUNNER PLUGIN DEVICE BUBBLE_MS[,BUBBLE_MS...] COUNT [KEY=VALUE...]
//
// With random:PERIOD_MS:BLOCK_MS:SECONDS before the lengths (random:234:2000:60:31,9,9,19) it is the control of a
// harvest: in each period leases of all these lengths, at random times, in every second block. Blocks are counted from
// the epoch of CLOCK_MONOTONIC, so those of two GPUs coincide. Prints a line when it begins, and one for each block.
//
// With "serve" instead of lengths it gives a lease of so many milliseconds for every line of its standard input, and
// answers with milliseconds a step, from the first step that ended in it to the last.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <random>
#include <sstream>
#include <vector>

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
  return values[static_cast<size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
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

// Of one lease; 0 where fewer than two steps ended in it, nothing when the task has ended.
std::optional<double> step_ms(Harness& harness, int64_t lease_ms) {
  constexpr int64_t kLookNs = 20'000;
  const auto& answer = harness.answer();
  uint64_t before = pages::load_acquire(answer.steps);
  harness.open(FREERIDE_LEASE_BUBBLE, lease_ms);
  const auto end_ns = static_cast<int64_t>(harness.lease().deadline_ns);
  int64_t first_ns = 0, last_ns = 0;
  uint64_t steps = 0;
  for (int64_t now_ns = SteadyClock::now(); now_ns < end_ns; now_ns = SteadyClock::now()) {
    if (const uint64_t now = pages::load_acquire(answer.steps); now != before) {
      if (first_ns != 0) steps += now - before;
      (first_ns == 0 ? first_ns : last_ns) = now_ns;
      before = now;
    }
    sleep_until(now_ns + kLookNs);
  }
  harness.revoke();
  if (!harness.wait_until(paused)) return std::nullopt;
  return steps == 0 ? 0 : 1e-6 * static_cast<double>(last_ns - first_ns) / static_cast<double>(steps);
}

bool serve(Harness& harness) {
  printf("ready\n");
  fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto took_ms = step_ms(harness, std::atoll(line.c_str()));
    if (!took_ms) return false;
    printf("%.6f\n", *took_ms);
    fflush(stdout);
  }
  return true;
}

struct Control {
  int64_t period_ms = 0, block_ms = 0, seconds = 0;
  std::vector<int64_t> lengths_ms;
};

// random:PERIOD_MS:BLOCK_MS:SECONDS:LENGTH_MS,...
std::optional<Control> parse_control(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  Control control;
  if (!std::getline(words, word, ':') || word != "random") return std::nullopt;
  for (int64_t* number : {&control.period_ms, &control.block_ms, &control.seconds}) {
    if (!std::getline(words, word, ':') || (*number = std::atoll(word.c_str())) <= 0) return std::nullopt;
  }
  while (std::getline(words, word, ',')) control.lengths_ms.push_back(std::max<int64_t>(1, std::atoll(word.c_str())));
  return control;
}

// One period from now on: leases of all lengths in random order, what is left of it divided at random among the gaps
// between them. False when the task has ended.
bool random_period(Harness& harness, const Control& control, std::mt19937_64& random) {
  auto lengths = control.lengths_ms;
  std::shuffle(lengths.begin(), lengths.end(), random);
  double left_ns = static_cast<double>(control.period_ms * kNsPerMs);
  for (const int64_t length : lengths) left_ns -= static_cast<double>(length * kNsPerMs);
  std::vector<double> gaps(lengths.size() + 1);
  double sum = 0;
  for (double& gap : gaps) sum += gap = std::exponential_distribution<double>()(random);
  int64_t at_ns = SteadyClock::now();
  const int64_t end_ns = at_ns + control.period_ms * kNsPerMs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    at_ns += static_cast<int64_t>(std::max(0.0, left_ns) * gaps[i] / sum);
    sleep_until(at_ns);
    harness.open(FREERIDE_LEASE_BUBBLE, lengths[i]);
    sleep_until(static_cast<int64_t>(harness.lease().deadline_ns));
    harness.revoke();
    if (!harness.wait_until(paused)) return false;
    at_ns += lengths[i] * kNsPerMs;
  }
  sleep_until(end_ns);
  return true;
}

bool run_control(Harness& harness, const Control& control) {
  std::mt19937_64 random(1);
  const auto& answer = harness.answer();
  const int64_t block_ns = control.block_ms * kNsPerMs, last_ns = SteadyClock::now() + control.seconds * kNsPerSec;
  printf("{\"began_ns\": %lld}\n", static_cast<long long>(SteadyClock::now()));
  fflush(stdout);
  for (int64_t now_ns = SteadyClock::now(); now_ns < last_ns; now_ns = SteadyClock::now()) {
    const int64_t block = now_ns / block_ns;
    const int64_t end_ns = (block + 1) * block_ns;
    if (block % 2 != 0) {
      sleep_until(end_ns);
      continue;
    }
    const uint64_t steps = pages::load_acquire(answer.steps), in_steps = pages::load_relaxed(answer.lease_step_ns);
    while (SteadyClock::now() + control.period_ms * kNsPerMs < end_ns) {
      if (!random_period(harness, control, random)) return false;
    }
    const int64_t done_ns = SteadyClock::now();
    sleep_until(end_ns);
    printf("{\"begin_ns\": %lld, \"end_ns\": %lld, \"steps\": %llu, \"in_steps_ns\": %llu}\n",
           static_cast<long long>(now_ns), static_cast<long long>(done_ns),
           static_cast<unsigned long long>(pages::load_acquire(answer.steps) - steps),
           static_cast<unsigned long long>(pages::load_relaxed(answer.lease_step_ns) - in_steps));
    fflush(stdout);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return complain("usage: bench-leases RUNNER PLUGIN DEVICE BUBBLE_MS[,...]|serve COUNT [KEY=VALUE...]");
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
    return complain(outcome ? policy::kind_name(outcome->verdict.kind) + (": " + outcome->verdict.message)
                            : "the task does not answer");
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

  if (const auto control = parse_control(argv[4])) {
    if (!run_control(harness, *control)) return ended();
    argv[4][0] = 0;  // no lengths besides
  }
  if (std::string(argv[4]) == "serve") {
    if (!serve(harness)) return ended();
    argv[4][0] = 0;
  }
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
