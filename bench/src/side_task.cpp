// bench-side-task: a side task's own program, without FreeRide: the plugin's functions, called one after the other.
//
// `run` makes steps until SIGTERM, or so many, and prints one JSON object. With --serve it works on orders from its
// standard input, which bench/tables gives.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "freeride/base/clock.hpp"
#include "plugin_driver.hpp"

namespace freeride::bench {
namespace {

using freeride::testing::Driver;

struct Options {
  std::string plugin, device = "cpu-0", scratch = ".", work;
  std::vector<std::string> params;
  uint64_t steps = 0;
  bool hold = false, serve = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::cerr << "bench-side-task: " << what << "\n";
  std::exit(1);
}

/// Set by SIGTERM: `run` ends after the step.
volatile sig_atomic_t told_to_end = 0;

void say(const nlohmann::json& line) {
  std::cout << line.dump() << std::endl;  // NOLINT(performance-avoid-endl): somebody waits for it
}

double quantile_ms(std::vector<int64_t> values_ns, double share) {
  if (values_ns.empty()) return 0;
  std::sort(values_ns.begin(), values_ns.end());
  const auto place = std::lround(share * static_cast<double>(values_ns.size() - 1));
  return 1e-6 * static_cast<double>(values_ns[static_cast<size_t>(place)]);
}

/// The plugin in this process.
class Plain {
 public:
  explicit Plain(const Options& options)
      : driver_(testing::open_plugin(options.plugin), options.scratch, params(options)) {
    driver_.device = options.device;
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
  /// Work by the task's own metric `name`, or "steps", in steps for `length_ns`, the last of them finished; its rate,
  /// and when it was done.
  nlohmann::json done(const std::string& name, int64_t length_ns) {
    const double before = metric(name);
    const int64_t began_ns = SteadyClock::now();
    work(length_ns, UINT64_MAX);
    const int64_t ns = SteadyClock::now() - began_ns;
    const double work = metric(name) - before;
    return {{"rate", 1e9 * work / static_cast<double>(ns)}, {"work", work}, {"began_ns", began_ns}, {"ns", ns}};
  }
  const std::map<std::string, double>& metrics() const { return driver_.metrics; }

  std::vector<int64_t> steps_ns;

 private:
  void must(const char* what, freeride_status status) const {
    if (status != FREERIDE_OK) fail(std::string(what) + " of the plugin failed: " + driver_.failure);
  }
  double metric(const std::string& name) const {
    const auto it = driver_.metrics.find(name);
    if (it != driver_.metrics.end()) return it->second;
    return name == "steps" ? static_cast<double>(steps_ns.size()) : 0;
  }
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

// A line of input for each: "init", or so many nanoseconds of work, answered by its rate, and when it was done. Nothing
// before that: a library that only asks for the driver is a client of the MPS server already, and the worker takes no
// side task beside another MPS.
int serve(const Options& options) {
  Plain plain(options);
  for (std::string line; std::getline(std::cin, line);) {
    const bool init = line == "init";
    if (init) plain.create(), plain.init();
    say(plain.done(options.work, init ? kNsPerSec / 5 : std::strtoll(line.c_str(), nullptr, 10)));
  }
  plain.stop();
  return 0;
}

int run(const Options& options) {
  ::signal(SIGTERM, [](int) { told_to_end = 1; });
  const auto held = [&](const char* state) {
    if (!options.hold) return;
    say({{"state", state}});
    std::string line;
    std::getline(std::cin, line);
  };
  Plain plain(options);
  plain.create();
  held("CREATED");
  const int64_t began_ns = SteadyClock::now();
  plain.init();
  const int64_t init_ns = SteadyClock::now() - began_ns;
  held("PAUSED");
  const int64_t started_ns = SteadyClock::now();
  const bool goes_on = plain.work(INT64_MAX / 4, options.steps > 0 ? options.steps : UINT64_MAX);
  const int64_t work_ns = SteadyClock::now() - started_ns;
  held("PAUSED AGAIN");
  plain.stop();
  held("STOPPED");
  say({{"finished", !goes_on},
       {"steps", plain.steps_ns.size()},
       {"work_ms", 1e-6 * static_cast<double>(work_ns)},
       {"init_ms", 1e-6 * static_cast<double>(init_ns)},
       {"step_p50_ms", quantile_ms(plain.steps_ns, 0.5)},
       {"step_p99_ms", quantile_ms(plain.steps_ns, 0.99)},
       {"metrics", plain.metrics()}});
  return 0;
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  using namespace freeride::bench;
  Options options;
  CLI::App app("A side task's own program, without FreeRide.");
  app.require_subcommand(1);
  auto* command =
      app.add_subcommand("run", "the plugin's steps, one after the other; SIGTERM ends it; prints one JSON object");
  command->add_option("--plugin", options.plugin, "the .so")->required()->check(CLI::ExistingFile);
  command->add_option("--device", options.device, "cpu-N or a GPU's UUID");
  command->add_option("--scratch", options.scratch, "folder for what the plugin writes")->check(CLI::ExistingDirectory);
  command->add_option("--param", options.params, "KEY=VALUE of the plugin")->take_all();
  command->add_option("--steps", options.steps, "at most; 0: until it has finished");
  command->add_flag("--serve", options.serve, "work on orders: a line \"init\", then nanoseconds, each answered");
  command->add_option("--work", options.work, "with --serve: the metric that counts the work");
  command->add_flag("--hold", options.hold, "wait for a line on the standard input in each state");
  CLI11_PARSE(app, argc, argv);
  return options.serve ? serve(options) : run(options);
}
