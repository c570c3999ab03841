// bench-side-task: a side task beside the same work without FreeRide. bench/side_tasks.py starts it; --help says how.
//
// `run` is the plain program: the plugin's own functions, called one after the other; with --serve, on orders from its
// standard input. `train` is a training rank with bubbles and gaps of one length, whose bubbles the side task of that
// name is to harvest; then, in turns, long bubbles in which the side task works under the real runner and gaps of the
// same length in which this process does the same work by itself, on the same device, and then its twin: a plain
// program that whoever started both has given the side task's circumstances.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "answer_page.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/hook.h"
#include "plugin_driver.hpp"
#include "stats.hpp"

namespace freeride::bench {
namespace {

using freeride::testing::Driver;

// Before a bubble's end the processor is kept awake: a timer alone would end it late, and every one by another time.
constexpr int64_t kAwakeNs = 300 * kNsPerUs;
constexpr int64_t kStepsInBlock = 14;             // at least: it is looked at within a tenth of a block
constexpr int kWarmUp = 10;                       // bubbles of a length that are not counted: it has to be learned
constexpr int64_t kPatienceNs = 240 * kNsPerSec;  // a bound against hanging for ever, not a limit on speed

struct Options {
  std::string plugin, device = "cpu-0", scratch = ".", run_dir, task, work;
  std::vector<std::string> params;
  std::vector<double> bubbles_ms{5, 10, 20, 50, 100};
  std::vector<int> count{40};  // for each length; the last one for those left
  int pairs = 10;
  double block_ms = 300;
  uint64_t steps = 0;
  int twin_in = -1, twin_out = -1;
  bool hold = false, serve = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "bench-side-task: " << what << "\n";
  std::exit(1);
}

/// Set by SIGTERM: `run` ends after the step.
volatile sig_atomic_t told_to_end = 0;

void say(const nlohmann::json& line) {
  std::cout << line.dump() << std::endl;
}

void wait_until(int64_t until_ns) {
  const int64_t wake_ns = until_ns - kAwakeNs;
  if (SteadyClock::now() < wake_ns) {
    const timespec wake = {wake_ns / kNsPerSec, wake_ns % kNsPerSec};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr) == EINTR) {
    }
  }
  while (SteadyClock::now() < until_ns) {
  }
}

/// The plugin in this process.
class Plain {
 public:
  explicit Plain(const Options& options)
      : driver_(testing::open_plugin(options.plugin), options.scratch, params(options)) {
    driver_.device = options.device;
  }
  void must(const char* what, freeride_status status) const {
    if (status != FREERIDE_OK) fail(std::string(what) + " of the plugin failed: " + driver_.failure);
  }
  void create() {
    if (!std::exchange(created_, true)) must("CreateSideTask", driver_.create());
  }
  void init() { must("InitSideTask", driver_.init()); }
  /// Steps one after the other for `length_ns`, or `most` of them. Returns false when the task has finished.
  bool work(int64_t length_ns, uint64_t most) {
    must("StartSideTask", driver_.start());
    const int64_t end_ns = SteadyClock::now() + length_ns;
    freeride_status status = FREERIDE_OK;
    int64_t before_ns = SteadyClock::now();
    for (uint64_t i = 0; i < most && status == FREERIDE_OK && before_ns < end_ns && told_to_end == 0; ++i) {
      status = driver_.step();
      const int64_t now_ns = SteadyClock::now();
      steps_ns.push_back(now_ns - before_ns);
      before_ns = now_ns;
    }
    if (status != FREERIDE_FINISHED) must("RunNextStep", status);
    must("PauseSideTask", driver_.pause());
    return status != FREERIDE_FINISHED;
  }
  void stop() { must("StopSideTask", driver_.stop()); }
  /// The task's own metric, or "steps".
  double metric(const std::string& name) const {
    const auto it = driver_.metrics.find(name);
    if (it != driver_.metrics.end()) return it->second;
    return name == "steps" ? static_cast<double>(steps_ns.size()) : 0;
  }
  /// Work by `metric` in steps for `length_ns`, the last of them finished.
  struct Done {
    double work = 0;
    int64_t began_ns = 0, ns = 0;
    double rate() const { return 1e9 * work / static_cast<double>(ns); }
  };
  Done done(const std::string& name, int64_t length_ns) {
    Done done;
    const double before = metric(name);
    done.began_ns = SteadyClock::now();
    work(length_ns, UINT64_MAX);
    done.ns = SteadyClock::now() - done.began_ns;
    done.work = metric(name) - before;
    return done;
  }
  double rate(const std::string& name, int64_t length_ns) { return done(name, length_ns).rate(); }
  const std::map<std::string, double>& metrics() const { return driver_.metrics; }

  std::vector<int64_t> steps_ns;

 private:
  static std::map<std::string, std::string> params(const Options& options) {
    std::map<std::string, std::string> all;
    for (const auto& text : options.params) {
      const auto equal = text.find('=');
      if (equal == std::string::npos) fail("--param " + text + ": expected KEY=VALUE");
      all[text.substr(0, equal)] = text.substr(equal + 1);
    }
    return all;
  }
  Driver driver_;
  bool created_ = false;
};

void held(const Options& options, const char* state) {
  if (!options.hold) return;
  say({{"state", state}});
  std::string line;
  std::getline(std::cin, line);
}

// A line of input for each: "create", "init" (which creates as well), so many "steps", answered by their milliseconds;
// or so many nanoseconds of work, answered by its rate, and when it was done. Nothing before that: a library that only
// asks for the driver is a client of the MPS server already, and the worker takes no side task beside another MPS.
int serve(const Options& options) {
  Plain plain(options);
  for (std::string line; std::getline(std::cin, line);) {
    const int64_t begin_ns = SteadyClock::now();
    const auto ms = [&] { return 1e-6 * static_cast<double>(SteadyClock::now() - begin_ns); };
    if (line == "create") {
      plain.create();
      say({{"ms", ms()}});
    } else if (line == "init") {
      plain.create();
      plain.init();
      const double init_ms = ms();
      say({{"ms", init_ms}, {"rate", plain.rate(options.work, kNsPerSec / 5)}});
    } else if (line.ends_with(" steps")) {
      const uint64_t count = std::strtoull(line.c_str(), nullptr, 10);
      plain.work(INT64_MAX / 4, count);
      say({{"ms", ms() / static_cast<double>(count)}});
    } else {
      const auto done = plain.done(options.work, std::strtoll(line.c_str(), nullptr, 10));
      say({{"rate", done.rate()}, {"work", done.work}, {"began_ns", done.began_ns}, {"ns", done.ns}});
    }
  }
  plain.stop();
  return 0;
}

/// The other end of serve().
class Twin {
 public:
  Twin(int in, int out) : in_(in), out_(out) {}
  bool there() const { return in_ >= 0 && out_ >= 0; }
  double ask(const std::string& order) const {
    const std::string line = order + "\n";
    if (::write(in_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) fail("the twin has ended");
    std::string answer;
    for (char c = 0; c != '\n';) {
      if (::read(out_, &c, 1) != 1) fail("the twin has ended");
      answer += c;
    }
    return nlohmann::json::parse(answer)["rate"].get<double>();
  }

 private:
  int in_, out_;
};

int run(const Options& options) {
  if (options.serve) return serve(options);
  ::signal(SIGTERM, [](int) { told_to_end = 1; });
  Plain plain(options);
  plain.create();
  held(options, "CREATED");
  const int64_t began_ns = SteadyClock::now();
  plain.init();
  const int64_t init_ns = SteadyClock::now() - began_ns;
  held(options, "PAUSED");
  const uint64_t most = options.steps > 0 ? options.steps : UINT64_MAX;
  const int64_t started_ns = SteadyClock::now();
  const bool goes_on = plain.work(INT64_MAX / 4, most);
  const int64_t work_ns = SteadyClock::now() - started_ns;
  held(options, "PAUSED AGAIN");
  plain.stop();
  held(options, "STOPPED");
  say({{"finished", !goes_on},
       {"steps", plain.steps_ns.size()},
       {"work_ms", 1e-6 * static_cast<double>(work_ns)},
       {"init_ms", 1e-6 * static_cast<double>(init_ns)},
       {"step_p50_ms", 1e-6 * quantile(plain.steps_ns, 0.5)},
       {"step_p99_ms", 1e-6 * quantile(plain.steps_ns, 0.99)},
       {"metrics", plain.metrics()}});
  return 0;
}

/// The training rank.
class Rank {
 public:
  explicit Rank(const Options& options) {
    freeride_hook_config config{};
    config.struct_size = sizeof config;
    config.job = "side-tasks";
    config.device = options.device.c_str();
    config.framework = "bench";
    config.run_dir = options.run_dir.c_str();
    config.stages = config.replicas = 1;
    hook_ = freeride_hook_attach(&config);
    if (hook_ == nullptr) fail("the hook did not attach");
  }
  ~Rank() { freeride_hook_detach(hook_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  struct Bubble {
    int64_t begin_ns, end_ns;
  };
  /// One iteration: a bubble, then `gap`, which is training's.
  template <class Gap>
  Bubble iterate(int64_t length_ns, Gap&& gap) {
    return iterate(
        length_ns, [](int64_t) {}, gap);
  }
  /// `inside` is called with the bubble's begin and has to return before its end.
  template <class Inside, class Gap>
  Bubble iterate(int64_t length_ns, Inside&& inside, Gap&& gap) {
    const int64_t begin_ns = SteadyClock::now();
    freeride_hook_mark_begin(hook_);
    inside(begin_ns);
    wait_until(begin_ns + length_ns);
    freeride_hook_mark_end(hook_);
    const int64_t end_ns = SteadyClock::now();
    gap();
    freeride_hook_iteration_end(hook_);
    return {begin_ns, end_ns};
  }

 private:
  freeride_hook* hook_;
};

/// What a side task had done when its work last went on, and when a step of it last ended.
struct Look {
  int64_t at_ns = 0, step_end_ns = 0, in_steps_ns = 0;
  double work = 0;
};

/// `work` of the answer page: the task's own metric, or its steps.
double work_of(const AnswerPage& page, const std::string& work) {
  const double own = page.metric(work);
  return own == 0 && work == "steps" ? static_cast<double>(page.steps()) : own;
}

/// Waits for the next of either, until `latest_ns` at most.
Look look(const AnswerPage& page, const std::string& work, int64_t latest_ns) {
  const auto wait_for_change = [&](auto&& value) {
    const auto before = value();
    while (value() == before && SteadyClock::now() < latest_ns) {
      const timespec moment = {0, 5000};  // asleep: on a CPU device the task may need this core
      ::clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, nullptr);
    }
    return SteadyClock::now();
  };
  Look seen;
  seen.at_ns = wait_for_change([&] { return work_of(page, work); });
  seen.work = work_of(page, work);
  seen.step_end_ns = wait_for_change([&] { return page.in_steps_ns(); });
  seen.in_steps_ns = page.in_steps_ns();
  return seen;
}

int train(const Options& options) {
  Plain program(options);
  program.create();
  program.init();
  program.work(kNsPerSec / 5, UINT64_MAX);  // its pieces have the right length from now on
  Rank rank(options);
  say({{"state", "attached"}});
  const auto idle = [](int64_t length_ns) { return [length_ns] { wait_until(SteadyClock::now() + length_ns); }; };
  // Until the task works.
  std::optional<AnswerPage> page;
  const int64_t patience_ns = SteadyClock::now() + kPatienceNs;
  while (!page || page->steps() < 20) {
    if (SteadyClock::now() > patience_ns) fail("the side task " + options.task + " has not made 20 steps within 240 s");
    rank.iterate(20 * kNsPerMs, idle(10 * kNsPerMs));
    if (!page) page = AnswerPage::find(options.task);
  }
  for (size_t at = 0; at < options.bubbles_ms.size(); ++at) {
    const double bubble_ms = options.bubbles_ms[at];
    const int count = options.count[std::min(at, options.count.size() - 1)];
    const auto length_ns = static_cast<int64_t>(bubble_ms * 1e6);
    for (int i = 0; i < kWarmUp; ++i) rank.iterate(length_ns, idle(length_ns));
    const int64_t from_ns = SteadyClock::now();
    for (int i = 0; i < count; ++i) rank.iterate(length_ns, idle(length_ns));
    say({{"bubble_ms", bubble_ms}, {"from_ns", from_ns}, {"to_ns", SteadyClock::now()}});
  }
  const auto block_ns = std::max(static_cast<int64_t>(options.block_ms * 1e6),
                                 kStepsInBlock * static_cast<int64_t>(quantile(program.steps_ns, 0.5)));
  const Twin twin(options.twin_in, options.twin_out);
  if (options.pairs > 0 && twin.there()) twin.ask("init");
  for (int i = 0; i < kWarmUp / 2; ++i) rank.iterate(block_ns, idle(20 * kNsPerMs));
  for (int i = 0; i < options.pairs; ++i) {
    Look first, last;
    double plain = 0, like = 0;
    // Looked at within the first lease, so that what is measured is the runner's work and not how bubbles are cut.
    const auto inside = [&](int64_t begin_ns) {
      wait_until(begin_ns + block_ns / 10);
      first = look(*page, options.work, begin_ns + block_ns / 2);
      wait_until(begin_ns + block_ns * 8 / 10);
      last = look(*page, options.work, begin_ns + block_ns * 9 / 10);
    };
    const auto gap = [&] {
      wait_until(SteadyClock::now() + 10 * kNsPerMs);  // it has paused
      if (twin.there()) like = twin.ask(std::to_string(block_ns));
      plain = program.rate(options.work, block_ns);
    };
    rank.iterate(block_ns, inside, gap);
    const int64_t side_ns = last.at_ns - first.at_ns;
    say({{"pair", i},
         {"side_per_s", side_ns > 0 ? 1e9 * (last.work - first.work) / static_cast<double>(side_ns) : 0.0},
         {"in_steps_ns", last.in_steps_ns - first.in_steps_ns},
         {"steps_wall_ns", last.step_end_ns - first.step_end_ns},
         {"like_per_s", like},
         {"plain_per_s", plain}});
  }
  say({{"step_p50_ms", 1e-6 * quantile(program.steps_ns, 0.5)},
       {"step_p99_ms", 1e-6 * quantile(program.steps_ns, 0.99)},
       {"metrics", program.metrics()}});
  program.stop();
  return 0;
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  using namespace freeride::bench;
  Options options;
  CLI::App app("A side task beside the same work without FreeRide; bench/side_tasks.py starts this.");
  app.require_subcommand(1);
  auto* run_command =
      app.add_subcommand("run", "the plugin's steps, one after the other; SIGTERM ends it; prints one JSON object");
  auto* train_command = app.add_subcommand("train", "a training rank with bubbles; prints JSON objects, a line each");
  for (auto* command : {run_command, train_command}) {
    command->add_option("--plugin", options.plugin, "the .so")->required()->check(CLI::ExistingFile);
    command->add_option("--device", options.device, "cpu-N or a GPU's UUID");
    command->add_option("--scratch", options.scratch, "folder for what the plugin writes")
        ->check(CLI::ExistingDirectory);
    command->add_option("--param", options.params, "KEY=VALUE of the plugin")->take_all();
  }
  run_command->add_option("--steps", options.steps, "at most; 0: until it has finished");
  run_command->add_flag("--serve", options.serve, "work on orders: a line \"init\", then nanoseconds, each answered");
  run_command->add_option("--work", options.work, "with --serve: the metric that counts the work");
  run_command->add_flag("--hold", options.hold, "wait for a line on the standard input in each state");
  train_command->add_option("--run-dir", options.run_dir, "of the worker")->required();
  train_command->add_option("--task", options.task, "name of the side task under the worker")->required();
  train_command->add_option("--work", options.work, "the metric that counts its work")->required();
  train_command->add_option("--bubbles-ms", options.bubbles_ms, "lengths of bubbles and gaps")->delimiter(',');
  train_command->add_option("--count", options.count, "bubbles of each length")->delimiter(',');
  train_command->add_option("--pairs", options.pairs, "blocks of side task and plain program, in turns");
  train_command->add_option("--twin-in", options.twin_in, "descriptor of the standard input of a run --serve");
  train_command->add_option("--twin-out", options.twin_out, "descriptor of its output");
  train_command->add_option("--block-ms", options.block_ms, "length of a block");
  CLI11_PARSE(app, argc, argv);
  return run_command->parsed() ? run(options) : train(options);
}
