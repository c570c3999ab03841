#include "check.hpp"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "describe.hpp"
#include "elf_symbols.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/task_env.hpp"
#include "freeride/base/waiting.hpp"
#include "harness.hpp"
#include "saved_state.hpp"

namespace freeride::runner {
namespace {

using nlohmann::json;

// A paused task's CPU clock is looked at for so long, and may show a fiftieth of that: a thread that waits for an
// interpreter's lock wakes every 5 ms. What shows more is looked at for longer before it is called executing: a clock
// is also charged what an interrupt, or the host of a virtual machine, takes from it at once, some milliseconds; that
// is soon outweighed, and execution goes on.
constexpr int64_t kStillMs = 100, kStillMostMs = 500;
constexpr int64_t kStillShare = 50;
// Steps longer than this fit few bubbles (they are some 10 to 100 ms long).
constexpr int64_t kLongStepNs = 10'000'000;
// A lease in the imperative interface.
constexpr int64_t kWorkloadMs = 300;
constexpr int64_t kGraceMs = 2'000;
constexpr int64_t kHangMs = 10'000;

std::string milliseconds(int64_t ns) {
  char text[32];
  snprintf(text, sizeof(text), "%.3g ms", static_cast<double>(ns) / kNsPerMs);
  return text;
}

/// Collects the lines and prints them as they come.
class Findings {
 public:
  explicit Findings(bool as_json) : as_json_(as_json) {}
  void ok(const std::string& name, const std::string& text) { add("ok", name, text); }
  void warn(const std::string& name, const std::string& text) { add("warn", name, text); }
  void problem(const std::string& name, const std::string& text) {
    ++problems_;
    add("FAIL", name, text);
  }
  bool finish(const std::string& plugin) {
    if (as_json_) {
      std::cout << json{{"plugin", plugin}, {"ok", problems_ == 0}, {"problems", problems_}, {"checks", checks_}}.dump(
                       2, ' ', false, json::error_handler_t::replace)
                << "\n";
    } else {
      std::cout << (problems_ == 0 ? "ok" : std::to_string(problems_) + (problems_ == 1 ? " problem" : " problems"))
                << "\n";
    }
    return problems_ == 0;
  }

 private:
  void add(const char* result, const std::string& name, const std::string& text) {
    checks_.push_back({{"name", name}, {"result", result}, {"text", text}});
    if (!as_json_) {
      printf("%-5s %-9s %s\n", result, name.c_str(), text.c_str());
      fflush(stdout);
    }
  }
  bool as_json_;
  int problems_ = 0;
  json checks_ = json::array();
};

/// A scratch folder for the time of the check.
class Scratch {
 public:
  Scratch() {
    const char* base = std::getenv("TMPDIR");
    std::string text = std::string(base != nullptr ? base : "/tmp") + "/freeride-check-XXXXXX";
    if (mkdtemp(text.data()) != nullptr) path_ = text;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Peak resident memory of a process, MiB; 0 when it is gone.
int64_t peak_mib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) / 1024;
  }
  return 0;
}

/// The dynamic part: one task through its whole life. Each phase says what it found and whether the next makes sense.
class LifeCheck {
 public:
  LifeCheck(const CheckOptions& options, const Harness::Options& harness_options, Harness& harness, Findings& findings)
      : options_(options),
        harness_options_(harness_options),
        harness_(harness),
        findings_(findings),
        most_ms_(options.timeout_s * 1000LL) {}

  void run() {
    if (create() && init() && steps("step", options_.steps - options_.steps / 2) && resume()) {
      memory();
      state();
      stop();
    }
    print_log();
  }

 private:
  // What may take its time, told while it does; nothing else is printed meanwhile.
  template <class Wait>
  bool waited(const char* what, Wait wait) {
    const Waiting waiting("plugin check: waiting for " + std::string(what) + ", for " +
                          std::to_string(options_.timeout_s) + " s at most");
    return wait();
  }

  // A wait failed: because of a verdict, or because nothing happened.
  bool give_up(const std::string& name, const std::string& awaited) {
    const auto outcome = harness_.verdict(1);
    findings_.problem(name, outcome ? text_of(outcome->verdict)
                                    : "no " + awaited + " within " + std::to_string(options_.timeout_s) +
                                          " s; use --timeout-s if it needs longer");
    return false;
  }

  bool create() {
    if (!waited("CreateSideTask", [&] { return harness_.wait_state(FREERIDE_STATE_CREATED, most_ms_); }))
      return give_up("create", "CreateSideTask");
    findings_.ok("create", "CreateSideTask took " + milliseconds(static_cast<int64_t>(harness_.answer().create_ns)));
    return true;
  }

  bool init() {
    harness_.open(FREERIDE_LEASE_INIT, most_ms_);
    if (!waited("InitSideTask", [&] { return harness_.wait_paused(most_ms_); })) return give_up("init", "InitSideTask");
    harness_.revoke();
    findings_.ok("init", "InitSideTask took " + milliseconds(static_cast<int64_t>(harness_.answer().init_ns)));
    return stands_still("init");
  }

  bool is_imperative() const {
    for (const auto& [key, value] : options_.params) {
      if (key == kInterfaceParam) return value == "imperative";
    }
    return false;
  }

  bool resume() { return options_.steps < 2 || steps("resume", options_.steps / 2); }

  // Until `wanted` steps more are done, the task's work is finished, or the time is up; then pause.
  bool steps(const std::string& name, uint64_t wanted) {
    const uint64_t before = pages::load_acquire(harness_.answer().steps);
    // In the imperative interface a lease is one step.
    if (is_imperative()) wanted = 1;
    harness_.open(FREERIDE_LEASE_BUBBLE, is_imperative() ? kWorkloadMs : most_ms_);
    const auto enough = [&](const auto& answer) {
      return pages::load_acquire(answer.steps) >= before + wanted || pages::load_acquire(answer.finished) != 0;
    };
    const bool done = waited("steps", [&] { return harness_.wait_until(enough, most_ms_); });
    if (!done && harness_.verdict(1)) return give_up(name, "steps");
    if (!done && pages::load_acquire(harness_.answer().steps) == before) {
      findings_.problem(name, "no step has ended within " + std::to_string(options_.timeout_s) +
                                  " s, and one is to fit a bubble: make it shorter, or add yield points; use "
                                  "--timeout-s if it needs longer here");
      return false;
    }
    if (pages::load_acquire(harness_.answer().finished) != 0) return finished();
    harness_.revoke();
    if (!harness_.wait_paused(kHangMs + 2 * kGraceMs)) return give_up("pause", "PauseSideTask");
    const uint64_t count = harness_.answer().steps;
    findings_.ok(name, std::to_string(count - before) + " steps, " +
                           milliseconds(static_cast<int64_t>(harness_.answer().step_ns / count)) + " each on average");
    return stands_still("pause");
  }

  // A short task may be done before we are: then its end has been checked too.
  bool finished() {
    findings_.ok("step", "the task finished by itself");
    end();
    return false;
  }

  bool stands_still(const std::string& name) {
    const int64_t cpu_before = harness_.cpu_ns();
    const uint64_t steps_before = harness_.answer().steps;
    const int64_t begin_ns = SteadyClock::now();
    int64_t executed_ns = 0, watched_ns = 0;
    do {
      const timespec time{0, kStillMs * kNsPerMs};
      nanosleep(&time, nullptr);
      executed_ns = harness_.cpu_ns() - cpu_before;
      watched_ns = SteadyClock::now() - begin_ns;
    } while (executed_ns > watched_ns / kStillShare && watched_ns < kStillMostMs * kNsPerMs);
    if (const auto outcome = harness_.verdict(1)) return give_up(name, "pause");
    if (executed_ns > watched_ns / kStillShare || harness_.answer().steps != steps_before) {
      findings_.problem(name, "executes though it is paused: " + milliseconds(executed_ns) + " of CPU time in " +
                                  milliseconds(watched_ns) + "; join or block its threads before returning");
      return true;  // the rest can still be told
    }
    findings_.ok(name, "nothing executes afterwards");
    return true;
  }

  void memory() { findings_.ok("memory", "peak " + std::to_string(peak_mib(harness_.task())) + " MiB of host memory"); }

  // freeride.state/1: saves, and lets a second task go on from that. Whatever comes of it, this one can still be
  // stopped.
  void state() {
    const uint64_t save_lease = harness_.open(FREERIDE_LEASE_SAVE, most_ms_, FREERIDE_ORDER_PAUSE);
    const bool answered = harness_.wait_until(
        [&](const auto& answer) { return pages::load_acquire(answer.saved_lease) == save_lease; }, most_ms_);
    harness_.revoke();
    if (!answered) {
      give_up("state", "SaveState");
      return;
    }
    const auto saved = read_saved_state(harness_.state_fd());
    if (!saved.ok() || !saved->has_value()) {
      findings_.problem("state", "SaveState failed: " + (saved.ok() ? "nothing was saved" : saved.error().message));
      return;
    }
    if (!(*saved)->present) {
      findings_.ok("state", "none is kept: a replaced task starts from zero");
      return;
    }
    Harness::Options options = harness_options_;
    options.state_in_fd = harness_.state_fd();
    auto next = Harness::start(options);
    if (!next.ok()) return findings_.problem("state", next.error().text());
    const auto failed = [&] {
      const auto outcome = (*next)->verdict(1);
      findings_.problem("state", outcome ? text_of(outcome->verdict) : "RestoreState did not return");
    };
    if (!(*next)->wait_state(FREERIDE_STATE_CREATED, most_ms_)) return failed();
    (*next)->open(FREERIDE_LEASE_INIT, most_ms_);
    if (!(*next)->wait_paused(most_ms_)) return failed();
    (*next)->revoke(FREERIDE_ORDER_STOP);
    (*next)->verdict(most_ms_);
    findings_.ok("state", std::to_string((*saved)->bytes.size()) + " bytes of version " +
                              std::to_string((*saved)->version) + ", saved and restored");
  }

  void stop() {
    harness_.revoke(FREERIDE_ORDER_STOP);
    end();
  }

  void end() {
    const auto outcome = harness_.verdict(most_ms_);
    if (!outcome || (outcome->verdict.kind != policy::VerdictKind::kStopped &&
                     outcome->verdict.kind != policy::VerdictKind::kFinished)) {
      give_up("stop", "end");
      return;
    }
    findings_.ok("stop", "StopSideTask and destroy: " + outcome->verdict.message);
    if (outcome->threads_left > 0) {
      const std::string text = std::to_string(outcome->threads_left) + " thread(s) outlived StopSideTask";
      // Those that a library keeps for later (PyTorch's, OpenMP's) can be joined by nobody, and end with the process.
      if (outcome->threads_awake == 0) {
        findings_.ok("threads", text + ", asleep: fine if a library keeps them, else join them in it");
      } else {
        findings_.problem("threads", text + " and execute; join them in it");
      }
    } else {
      findings_.ok("threads", "none is left after StopSideTask");
    }
    if (outcome->processes_left > 0) {
      findings_.problem("processes",
                        std::to_string(outcome->processes_left) + " process(es) were left behind and killed");
    }
    const std::string text = "p50 " + milliseconds(outcome->step_p50_ns) + ", p90 " +
                             milliseconds(outcome->step_p90_ns) + ", longest of the last " +
                             milliseconds(outcome->step_max_ns);
    if (outcome->step_p90_ns > kLongStepNs) {
      findings_.warn("duration", text + ": long steps fit few bubbles; aim at 0.5 to 5 ms");
    } else {
      findings_.ok("duration", text);
    }
  }

  void print_log() {
    if (options_.format == "json") return;
    std::istringstream log(harness_.log());
    int lines = 0;
    for (std::string line; std::getline(log, line) && lines < 20; ++lines) printf("      log: %s\n", line.c_str());
  }

  const CheckOptions& options_;
  const Harness::Options& harness_options_;
  Harness& harness_;
  Findings& findings_;
  const int64_t most_ms_;
};

// What the standard library's headers export whatever the compiler was told: they ask for it.
bool is_of_the_library(const std::string& mangled) {
  size_t at = mangled.rfind("_Z", 0) == 0 ? 2 : std::string::npos;
  if (at == std::string::npos) return false;
  for (const char* kind : {"TV", "TI", "TS", "TT", "GV", "GR"}) {
    if (mangled.compare(at, 2, kind) == 0) {
      at += 2;
      break;
    }
  }
  at = mangled.find_first_not_of("ZNKVrO", at);
  if (at == std::string::npos) return false;
  for (const char* name : {"St", "Sa", "Ss", "Sb", "Si", "So", "Sd", "9__gnu_cxx", "10__cxxabiv1"}) {
    if (mangled.compare(at, std::char_traits<char>::length(name), name) == 0) return true;
  }
  return false;
}

void check_exports(const std::string& path, Findings& findings) {
  auto exports = read_exports(path);
  if (!exports.ok()) return;
  std::erase_if(exports->unique, is_of_the_library);
  std::erase_if(exports->others, is_of_the_library);
  const auto first = [](const std::vector<std::string>& names) {
    return "'" + names.front() + "'" + (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "");
  };
  if (!exports->unique.empty()) {
    findings.warn("symbols", "GNU unique symbols, shared between plugins: " + first(exports->unique) +
                                 "; compile with -fvisibility=hidden");
  } else if (!exports->others.empty()) {
    findings.warn("symbols", "exports more than its entry: " + first(exports->others) +
                                 "; compile with -fvisibility=hidden, or use freeride_add_plugin()");
  } else {
    findings.ok("symbols", "exports nothing but its entry");
  }
}

}  // namespace

bool check_plugin(const CheckOptions& options) {
  Findings findings(options.format == "json");
  const auto description = describe_plugin(options.plugin, options.params, options.timeout_s);
  if (!description.ok()) {
    findings.problem("load", description.error().text());
    return findings.finish(options.plugin);
  }
  const bool script = is_script_name(options.plugin);
  findings.ok("load", std::string(script ? "a Python file" : "an ELF shared object for this machine") +
                          "; plugin ABI version " + std::to_string(FREERIDE_ABI_VERSION));
  findings.ok("table", description->name + " " + description->version + ": " + description->summary);
  std::string known;
  for (const auto& param : description->params) {
    known += (known.empty() ? "" : ", ") + param.key + "=" + param.default_value;
  }
  findings.ok("params", known.empty() ? "none" : known);
  if (!script) check_exports(options.plugin, findings);

  const Scratch scratch;
  if (scratch.path().empty()) {
    findings.problem("scratch", "cannot make a temporary folder; set TMPDIR to a writable one");
    return findings.finish(options.plugin);
  }
  // As the worker does.
  for (const auto& [name, value] : sleeping_threads()) setenv(name.c_str(), value.c_str(), 0);
  for (const auto& [name, value] : library_caches(scratch.path(), false)) setenv(name.c_str(), value.c_str(), 1);
  Harness::Options harness_options;
  harness_options.plugin = options.plugin;
  harness_options.scratch = scratch.path();
  harness_options.params = options.params;
  harness_options.device = options.device;
  harness_options.create_ms = options.timeout_s * 1000LL;
  harness_options.grace_ms = kGraceMs;
  harness_options.hang_ms = kHangMs;
  auto harness = Harness::start(harness_options);
  if (!harness.ok()) {
    findings.problem("start", harness.error().text());
    return findings.finish(options.plugin);
  }
  LifeCheck(options, harness_options, **harness, findings).run();
  return findings.finish(options.plugin);
}

}  // namespace freeride::runner
