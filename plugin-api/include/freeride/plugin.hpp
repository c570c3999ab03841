// FreeRide plugin SDK: C++17 over the C ABI of plugin.h. Header only, depends on nothing else of FreeRide.
//
//   #include <freeride/plugin.hpp>
//
//   class Squares : public freeride::SideTask {
//     freeride::Param<std::int64_t> limit_{this, "limit", 1000, "how far to count", {1, 1000000}};
//     std::int64_t next_ = 0;
//     freeride::Step RunNextStep() override {
//       metric("square", static_cast<double>(next_ * next_));
//       return ++next_ < limit_ ? freeride::Step::kMore : freeride::Step::kFinished;
//     }
//   };
//   FREERIDE_PLUGIN(Squares)
//
// Every call comes on the runner's main thread, one at a time. An exception that a plugin throws ends at the boundary:
// it becomes a status, and its what() is the reason that the user reads. docs/authors is the guide for authors.
#ifndef FREERIDE_PLUGIN_HPP
#define FREERIDE_PLUGIN_HPP

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <limits>
#include <locale>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "freeride/plugin.h"

namespace freeride {

/// What RunNextStep() says: there is another step, or this was the last one and the task's work is done.
enum class Step { kMore, kFinished };

/// Throw to fail a transition for good; `what` is one sentence for the user.
class TaskError : public std::runtime_error {
 public:
  explicit TaskError(const std::string& what) : std::runtime_error(what) {}
};

/// Thrown by yield_point() when the task is to stop or to save its state in the middle of a step. Let it through. It is
/// no std::exception, so that a plugin's own `catch` does not stop it by accident.
class StepAbandoned {};

/// Throw when something needed is not there now (a device, a file), so that trying again later can succeed.
class Unavailable : public std::runtime_error {
 public:
  explicit Unavailable(const std::string& what) : std::runtime_error(what) {}
};

/// Throw when the device's memory ran out. (Of host memory, std::bad_alloc says so.)
class OutOfMemory : public std::runtime_error {
 public:
  explicit OutOfMemory(const std::string& what) : std::runtime_error(what) {}
};

/// Throw from CreateSideTask when parameters make no sense, alone or together. (Param does so for its own range.)
class BadParameter : public std::runtime_error {
 public:
  explicit BadParameter(const std::string& what) : std::runtime_error(what) {}
};

/// Who a plugin is: FREERIDE_PLUGIN(MyTask, "my-task", "1.0", "what it does"). With the class alone, its name in
/// snake_case is the plugin's name.
struct PluginInfo {
  const char* name = nullptr;  ///< [a-z0-9_-]+
  const char* version = "0";   ///< free text
  const char* summary = "";    ///< one line
};

class SideTask;

/// A declared parameter without its type. Made by Param only.
class ParamBase {
 public:
  ParamBase(const ParamBase&) = delete;
  ParamBase& operator=(const ParamBase&) = delete;
  virtual ~ParamBase() = default;

  const std::string& key() const { return key_; }
  const std::string& default_text() const { return default_text_; }
  const std::string& help() const { return help_; }
  /// Takes `text` as the value. Throws BadParameter, with a sentence that says what is allowed.
  virtual void parse(const std::string& text) = 0;

 protected:
  ParamBase(SideTask* task, std::string key, std::string help);
  [[noreturn]] void refuse(const std::string& text, const std::string& wanted) const {
    throw BadParameter("parameter " + key_ + "=" + text + ": " + wanted);
  }

  std::string key_;
  std::string default_text_;
  std::string help_;
};

/// A parameter, declared once as a member of the task: key, default, help, and what is allowed. Allowed are {least,
/// greatest} of a number, and a list of words for a text. Reads like a T from CreateSideTask on. T: bool, an integer,
/// double or std::string.
template <class T>
class Param final : public ParamBase {
  static_assert(std::is_same_v<T, std::string> || std::is_same_v<T, bool> || std::is_integral_v<T> ||
                    std::is_same_v<T, double>,
                "a parameter is a bool, an integer, a double or a std::string");

 public:
  Param(SideTask* task, std::string key, T default_value, std::string help, std::initializer_list<T> allowed = {})
      : ParamBase(task, std::move(key), std::move(help)), value_(std::move(default_value)), allowed_(allowed) {
    if constexpr (!std::is_same_v<T, std::string>) {
      // For the declaration's author, at load: {least, greatest} or nothing.
      if (!allowed_.empty() && (allowed_.size() != 2 || allowed_[1] < allowed_[0])) {
        throw std::logic_error("parameter " + key_ + ": its range must be {least, greatest}");
      }
    }
    default_text_ = to_text(value_);
    if (!allowed_.empty()) help_ += " (" + wanted_range() + ")";
  }

  const T& get() const { return value_; }
  operator const T&() const { return value_; }  // NOLINT: to be read like a T is the point

  void parse(const std::string& text) override {
    T value{};
    if (!from_text(text, value)) refuse(text, wanted());
    if (!is_allowed(value)) refuse(text, wanted());
    value_ = std::move(value);
  }

 private:
  static std::string to_text(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      return value;
    } else {
      // The shortest text that reads back as the same number.
      for (int digits = 6;; ++digits) {
        std::ostringstream out;
        out.imbue(std::locale::classic());
        out.precision(digits);
        out << +value;
        T again{};
        if (digits >= std::numeric_limits<double>::max_digits10 || (from_text(out.str(), again) && again == value))
          return out.str();
      }
    }
  }

  static bool from_text(const std::string& text, T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = text;
      return true;
    } else if constexpr (std::is_same_v<T, bool>) {
      value = text == "1" || text == "true" || text == "yes" || text == "on";
      return value || text == "0" || text == "false" || text == "no" || text == "off";
    } else {
      std::istringstream in(text);
      in.imbue(std::locale::classic());
      if constexpr (std::is_same_v<T, double>) {
        return (in >> std::noskipws >> value) && in.peek() == std::istringstream::traits_type::eof() &&
               std::isfinite(value);
      } else {
        // Streams would take "-1" for an unsigned and "a" for a char: read the widest integer, then look whether it
        // fits.
        using Wide = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
        if (!std::is_signed_v<T> && !text.empty() && text[0] == '-') return false;
        Wide wide = 0;
        if (!(in >> std::noskipws >> wide) || in.peek() != std::istringstream::traits_type::eof()) return false;
        if (wide < static_cast<Wide>(std::numeric_limits<T>::min()) ||
            wide > static_cast<Wide>(std::numeric_limits<T>::max())) {
          return false;
        }
        value = static_cast<T>(wide);
        return true;
      }
    }
  }

  bool is_allowed(const T& value) const {
    if (allowed_.empty()) return true;
    if constexpr (std::is_same_v<T, std::string>) {
      for (const auto& word : allowed_) {
        if (word == value) return true;
      }
      return false;
    } else {
      return !(value < allowed_[0]) && !(allowed_[1] < value);
    }
  }

  std::string wanted_range() const {
    if constexpr (std::is_same_v<T, std::string>) {
      std::string words;
      for (const auto& word : allowed_) words += (words.empty() ? "" : "|") + word;
      return words;
    } else {
      return to_text(allowed_[0]) + ".." + to_text(allowed_[1]);
    }
  }

  std::string wanted() const {
    std::string what = "one of";
    if constexpr (std::is_same_v<T, bool>) return "must be 0 or 1";
    if constexpr (std::is_integral_v<T>) what = "a whole number";
    if constexpr (std::is_same_v<T, double>) what = "a number";
    if (allowed_.empty()) return "must be " + what;
    if constexpr (std::is_same_v<T, std::string>) return "must be one of " + wanted_range();
    return "must be " + what + " in " + wanted_range();
  }

  T value_;
  std::vector<T> allowed_;
};

/// A side task: inherit, override what is needed (RunNextStep is a must), end the source with
/// FREERIDE_PLUGIN(YourClass).
///
/// The constructor must be cheap and touch nothing outside the object. The SDK also makes one object at load, only to
/// read which parameters are declared. Real work starts in CreateSideTask. The destructor frees what StopSideTask did
/// not free. All six functions are called on the [main] thread. They may throw (see above), and may block; the guide
/// says how long a step should be.
class SideTask {
 public:
  SideTask() = default;
  SideTask(const SideTask&) = delete;
  SideTask& operator=(const SideTask&) = delete;
  virtual ~SideTask() = default;

  /// SUBMITTED -> CREATED. Parameters are set. Load data into host memory here; touch no GPU.
  virtual void CreateSideTask() {}
  /// CREATED -> PAUSED. Move the context to the device; return when that is done and nothing executes.
  virtual void InitSideTask() {}
  /// PAUSED -> RUNNING, at the begin of every bubble: keep it short or leave it out.
  virtual void StartSideTask() {}
  /// RUNNING: one short, regular piece of work (aim for 0.5 to 5 ms); return when it is done, on the GPU too.
  virtual Step RunNextStep() = 0;
  /// The imperative interface: what the thread of RunGpuWorkload() has to do for itself before it computes. For
  /// example, it finds kernels with a library that keeps them for each thread. Called in that thread, after
  /// InitSideTask() and under its lease. [workload] thread; may throw.
  virtual void PrepareGpuWorkload() {}
  /// The imperative interface: all of the work, in a thread of its own, called once instead of RunNextStep(). It is
  /// used for a task that is loaded with `--interface imperative`. Call pass_gate() whenever the GPU has done what was
  /// launched, about every millisecond or more often (LaunchThrottle). Meanwhile StartSideTask() and PauseSideTask()
  /// are called on the main thread at the edges of bubbles. Between two bubbles the whole process is stopped. This
  /// default makes the steps of the iterative interface. [workload] thread; may throw.
  virtual void RunGpuWorkload() {
    double steps = 0;
    for (Step step = Step::kMore; step == Step::kMore; pass_gate()) {
      step = RunNextStep();
      metric("steps", ++steps);
      if (step == Step::kFinished) break;
    }
  }
  /// RUNNING -> PAUSED, at the end of every bubble: on return nothing of the task executes, no thread and no kernel.
  virtual void PauseSideTask() {}
  /// CREATED, PAUSED or RUNNING -> STOPPED. Write results, join threads, give back device memory. Not called after a
  /// kill.
  virtual void StopSideTask() {}

  /// The plugin's side of an extension, or nullptr. Shadow it in the class to offer one; [any] thread.
  static const void* extension(const char* /*name*/) { return nullptr; }

 protected:
  /// One line into the task's log, UTF-8. [any] thread, not in the constructor.
  void log(const std::string& text, std::int32_t level = FREERIDE_LOG_INFO) const {
    if (host_ != nullptr && host_->log != nullptr) host_->log(host_->context, level, text.c_str());
  }
  void warn(const std::string& text) const { log(text, FREERIDE_LOG_WARN); }

  /// Sets a figure of the task's own, which freeride-ctl and the bus show; at most 8 names of at most 23 bytes. [any]
  /// thread.
  void metric(const char* name, double value) const {
    if (host_ != nullptr && host_->metric != nullptr) host_->metric(host_->context, name, value);
  }

  /// The task's name; the device, "cpu-N" or a GPU's UUID (which the process sees as device 0); the task's own writable
  /// folder. After a restart on the same host the folder's content is there again, unless the worker was killed. All
  /// are valid from CreateSideTask on.
  const std::string& task_name() const { return name_; }
  const std::string& device() const { return device_; }
  const std::string& scratch_dir() const { return scratch_dir_; }
  std::string scratch_path(const std::string& file) const { return scratch_dir_ + "/" + file; }

  /// A yield point (freeride.yield/1): call it between the pieces of a long step, when nothing of the task executes, on
  /// the GPU either. It returns at once if the next piece fits the lease, by what the same piece took in earlier steps.
  /// Otherwise it waits, paused, for a later bubble.
  ///
  /// Throws StepAbandoned when the task is to stop or to save its state. Then the step does not count, and
  /// RunNextStep() may be called again and must start a step afresh. Does nothing outside RunNextStep(), and with a
  /// host that has no yield points. [main] thread.
  void yield_point() const {
    if (yield_ != nullptr && yield_->yield_point(host_->context) == FREERIDE_ABANDONED) throw StepAbandoned();
  }

  /// A yield point behind a piece that has been queued on a GPU and need not be done. The host stays one piece ahead of
  /// the GPU. Only near the lease's end it waits, and does as above.
  ///
  /// `queue` has two functions. `void mark()` is called first: what has been queued so far is a piece. `void wait(bool
  /// all)` blocks until the last marked piece is done, or without `all` until the one before it is. With several
  /// streams, mark where all of them have come together. At the end of a step wait for all of them.
  template <class Queue>
  void yield_point(Queue& queue) const {
    if (yield_ == nullptr) return;
    queue.mark();
    std::exception_ptr failure;
    struct Call {
      Queue& queue;
      std::exception_ptr& failure;
    } call{queue, failure};
    const auto wait = [](void* argument, std::int32_t all) -> freeride_status {
      auto& made = *static_cast<Call*>(argument);
      try {
        made.queue.wait(all != 0);
        return FREERIDE_OK;
      } catch (...) {
        made.failure = std::current_exception();
        return FREERIDE_ERROR;
      }
    };
    freeride_status status = FREERIDE_OK;
    if (FREERIDE_HAS(freeride_yield, yield_, yield_queued)) {
      status = yield_->yield_queued(host_->context, wait, &call);
    } else if (status = wait(&call, 1); status == FREERIDE_OK) {
      status = yield_->yield_point(host_->context);
    }
    if (failure) std::rethrow_exception(failure);
    if (status == FREERIDE_ABANDONED) throw StepAbandoned();
  }

  /// The gate of the imperative interface: waits from the end of a bubble until the next one. Throws StepAbandoned when
  /// the task is to stop: let it through. [workload] thread; elsewhere it does nothing.
  void pass_gate() const {
    if (gate_ != nullptr && gate_->pass(host_->context) == FREERIDE_ABANDONED) throw StepAbandoned();
  }

  /// The host's side of an extension, or nullptr. [any] thread.
  const void* host_extension(const char* name) const {
    return host_ != nullptr && host_->extension != nullptr ? host_->extension(host_->context, name) : nullptr;
  }

 private:
  friend class ParamBase;
  friend struct PluginGlue;

  void bind(const freeride_host* host, const freeride_task_info* info) {
    host_ = host;
    yield_ = static_cast<const freeride_yield*>(host_extension(FREERIDE_EXTENSION_YIELD));
    gate_ = static_cast<const freeride_gate*>(host_extension(FREERIDE_EXTENSION_IMPERATIVE));
    name_ = info->name != nullptr ? info->name : "";
    device_ = info->device != nullptr ? info->device : "";
    scratch_dir_ = info->scratch_dir != nullptr ? info->scratch_dir : ".";
    for (std::uint32_t i = 0; i < info->param_count; ++i) set(info->params[i].key, info->params[i].value);
  }

  void set(const std::string& key, const std::string& value) {
    std::string known;
    for (auto* param : params_) {
      if (param->key() == key) return param->parse(value);
      known += (known.empty() ? "" : ", ") + param->key();
    }
    throw BadParameter("unknown parameter '" + key + "'; " +
                       (known.empty() ? "this plugin has none" : "this plugin has: " + known));
  }

  std::vector<ParamBase*> params_;  // members of the derived class
  const freeride_host* host_ = nullptr;
  const freeride_yield* yield_ = nullptr;
  const freeride_gate* gate_ = nullptr;
  std::string name_;
  std::string device_;
  std::string scratch_dir_;
};

/// Bounds what is on the GPU when a bubble ends, for the imperative interface. Call launched() after every launch. It
/// learns how long launches take, and calls `synchronise` so often that what has been launched since the last call
/// stays below the bound. True when it has just synchronised: then pass the gate. One thread.
///
///   freeride::LaunchThrottle throttle(1.0);
///   for (...) {
///     kernel<<<...>>>(...);
///     if (throttle.launched([&] { cudaStreamSynchronize(stream); })) pass_gate();
///   }
class LaunchThrottle {
 public:
  explicit LaunchThrottle(double bound_ms) : bound_ns_(bound_ms * 1e6) {}

  template <class Synchronise>
  bool launched(Synchronise&& synchronise) {
    if (launches_ == 0) begin_ = std::chrono::steady_clock::now();
    if (++launches_ < allowed_) return false;
    synchronise();
    const double took_ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin_).count();
    const double fitting = bound_ns_ * static_cast<double>(launches_) / (took_ns > 1 ? took_ns : 1);
    // Grows slowly: a burst that is too long is overrun, one that is too short costs a synchronisation.
    allowed_ = static_cast<std::uint64_t>(fitting < 1 ? 1 : fitting);
    if (allowed_ > 2 * launches_) allowed_ = 2 * launches_;
    launches_ = 0;
    return true;
  }

 private:
  double bound_ns_;
  std::uint64_t allowed_ = 1;
  std::uint64_t launches_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// freeride.state/1: inherit this beside SideTask to keep the task's progress. The next process of the task gets it: a
/// newer content of the plugin (`freeride-ctl load --replace`), or the same content, started again.
///
///   class Counter : public freeride::SideTask, public freeride::KeepsState {
///     std::string SaveState() override { return std::to_string(n_); }
///     void RestoreState(std::uint32_t, const std::string& state) override { n_ = std::stoull(state); }
///
/// Shadow kStateVersion with a number of your own when the bytes' form changes. Both functions: [main] thread, in
/// PAUSED; may throw.
class KeepsState {
 public:
  static constexpr std::uint32_t kStateVersion = 1;
  KeepsState() = default;
  KeepsState(const KeepsState&) = delete;
  KeepsState& operator=(const KeepsState&) = delete;
  virtual ~KeepsState() = default;

  /// The progress as bytes, at most 512 MiB. It must change nothing, since the task may continue afterwards.
  virtual std::string SaveState() = 0;
  /// Takes over `state`, which was saved as `version`. Called after InitSideTask, and before the first StartSideTask.
  /// Throw if you do not understand it: then the task that this one was to replace continues.
  virtual void RestoreState(std::uint32_t version, const std::string& state) = 0;
};

inline ParamBase::ParamBase(SideTask* task, std::string key, std::string help)
    : key_(std::move(key)), help_(std::move(help)) {
  for (const auto* other : task->params_) {
    if (other->key_ == key_) throw std::logic_error("parameter " + key_ + " is declared twice");
  }
  task->params_.push_back(this);
}

/// Bounds a step in time: `for (freeride::StepTimer timer(step_ms); !timer.over();) work_on_a_little_piece();`. It
/// reads CLOCK_MONOTONIC each time, so make pieces of 10 µs and more. The step is too long by one piece at most. For
/// work on a CPU; measure kernels of a GPU, and choose their size by that.
class StepTimer {
 public:
  explicit StepTimer(double step_ms)
      : end_(std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(step_ms * 1e6))) {}
  bool over() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

/// What FREERIDE_PLUGIN() is made of; not for plugins to use. No static data in templates or inline functions here:
/// such symbols are unique in a process and would pin a closed plugin.
struct PluginGlue {
  /// Strings that `table` points to; made once, never freed, because the host may read them until the process ends.
  struct Module {
    freeride_plugin table{};
    std::string name;
    std::vector<std::string> texts;
    std::vector<freeride_param_spec> specs;
  };

  /// "ns::MyTask" -> "my_task"
  static std::string snake_case(std::string name) {
    const auto colon = name.rfind(':');
    if (colon != std::string::npos) name = name.substr(colon + 1);
    std::string out;
    for (std::size_t i = 0; i < name.size(); ++i) {
      const char c = name[i];
      const bool upper = c >= 'A' && c <= 'Z';
      const bool before_is_lower = i > 0 && !(name[i - 1] >= 'A' && name[i - 1] <= 'Z') && name[i - 1] != '_';
      if (upper && before_is_lower) out += '_';
      out += upper ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return out;
  }

  static void fail(const freeride_host* host, const std::string& text) {
    if (host != nullptr && host->fail != nullptr) host->fail(host->context, text.c_str());
  }

  /// Runs `body` and turns whatever it throws into a status and the host's reason. The one place where C++ errors
  /// become C ones.
  template <class Body>
  static freeride_status guard(const freeride_host* host, Body&& body) noexcept {
    try {
      try {
        return body();
      } catch (const std::bad_alloc&) {
        fail(host, "out of host memory");
        return FREERIDE_OUT_OF_MEMORY;
      } catch (const OutOfMemory& error) {
        fail(host, error.what());
        return FREERIDE_OUT_OF_MEMORY;
      } catch (const BadParameter& error) {
        fail(host, error.what());
        return FREERIDE_BAD_PARAMETER;
      } catch (const Unavailable& error) {
        fail(host, error.what());
        return FREERIDE_UNAVAILABLE;
      } catch (const std::exception& error) {
        fail(host, error.what());
        return FREERIDE_ERROR;
      } catch (...) {
        fail(host, "threw something that is no std::exception");
        return FREERIDE_ERROR;
      }
    } catch (...) {  // making the sentence ran out of memory
      return FREERIDE_OUT_OF_MEMORY;
    }
  }

  template <class Task>
  static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** out) noexcept {
    return guard(host, [&]() -> freeride_status {
      auto* task = new Task;  // NOLINT(bugprone-unhandled-exception-at-new): guard() turns it into OUT_OF_MEMORY
      try {
        as_side_task(task)->bind(host, info);
        as_side_task(task)->CreateSideTask();
      } catch (...) {
        delete task;
        throw;
      }
      *out = as_side_task(task);
      return FREERIDE_OK;
    });
  }

  template <void (SideTask::*function)()>
  static freeride_status transition(void* task) noexcept {
    auto* side_task = static_cast<SideTask*>(task);
    const auto status = guard(side_task->host_, [&]() -> freeride_status {
      (side_task->*function)();
      return FREERIDE_OK;
    });
    return status == FREERIDE_BAD_PARAMETER ? FREERIDE_ERROR : status;  // BAD_PARAMETER is create's alone
  }

  static freeride_status step(void* task) noexcept {
    auto* side_task = static_cast<SideTask*>(task);
    const auto status = guard(side_task->host_, [&]() -> freeride_status {
      try {
        return side_task->RunNextStep() == Step::kFinished ? FREERIDE_FINISHED : FREERIDE_OK;
      } catch (const StepAbandoned&) {
        return FREERIDE_ABANDONED;
      }
    });
    return status == FREERIDE_BAD_PARAMETER ? FREERIDE_ERROR : status;
  }

  static freeride_status workload(void* task) noexcept {
    auto* side_task = static_cast<SideTask*>(task);
    const auto status = guard(side_task->host_, [&]() -> freeride_status {
      try {
        side_task->RunGpuWorkload();
        return FREERIDE_FINISHED;
      } catch (const StepAbandoned&) {
        return FREERIDE_ABANDONED;
      }
    });
    return status == FREERIDE_BAD_PARAMETER ? FREERIDE_ERROR : status;
  }

  static void destroy(void* task) noexcept { delete static_cast<SideTask*>(task); }

  template <class Task>
  static KeepsState& keeper(SideTask* task) {
    return *static_cast<Task*>(task);
  }

  template <class Task>
  static freeride_status save(void* task, const freeride_state_sink* sink) noexcept {
    auto* side_task = static_cast<SideTask*>(task);
    const auto status = guard(side_task->host_, [&]() -> freeride_status {
      const std::string state = keeper<Task>(side_task).SaveState();
      return sink->write(sink->context, state.data(), state.size());
    });
    return status == FREERIDE_BAD_PARAMETER ? FREERIDE_ERROR : status;
  }

  template <class Task>
  static freeride_status restore(void* task, std::uint32_t version, const void* data, std::uint64_t size) noexcept {
    auto* side_task = static_cast<SideTask*>(task);
    const auto status = guard(side_task->host_, [&]() -> freeride_status {
      const std::string state(static_cast<const char*>(data), static_cast<std::size_t>(size));
      keeper<Task>(side_task).RestoreState(version, state);
      return FREERIDE_OK;
    });
    return status == FREERIDE_BAD_PARAMETER ? FREERIDE_ERROR : status;
  }

  /// Empty for a class that keeps none.
  template <class Task>
  static freeride_state make_state() {
    if constexpr (std::is_base_of_v<KeepsState, Task>) {
      return {sizeof(freeride_state), Task::kStateVersion, &save<Task>, &restore<Task>};
    } else {
      return {};
    }
  }

  template <class Task>
  static const void* find_extension(const char* name, const freeride_state* state,
                                    const freeride_imperative* imperative) {
    if (state->save != nullptr && std::strcmp(name, FREERIDE_EXTENSION_STATE) == 0) return state;
    if (std::strcmp(name, FREERIDE_EXTENSION_IMPERATIVE) == 0) return imperative;
    return Task::extension(name);
  }

  /// The plugin's table; `class_name` as written in FREERIDE_PLUGIN(). A class that cannot be constructed gives a table
  /// without parameters, and create() then says why.
  template <class Task>
  static const freeride_plugin* make_table(const char* class_name, const PluginInfo& info,
                                           const void* (*extension)(const char*) = &Task::extension) {
    static_assert(std::is_base_of_v<SideTask, Task>, "FREERIDE_PLUGIN needs a class that inherits freeride::SideTask");
    auto* module = new Module;
    try {
      Task declared;
      const auto& params = as_side_task(&declared)->params_;
      module->texts.reserve(params.size() * 3);
      for (const auto* param : params) {
        for (const auto* text : {&param->key(), &param->default_text(), &param->help()}) module->texts.push_back(*text);
        const auto* last = &module->texts.back();
        module->specs.push_back({last[-2].c_str(), last[-1].c_str(), last->c_str()});
      }
    } catch (...) {
      module->specs.clear();
    }
    module->name = info.name != nullptr ? info.name : snake_case(class_name);
    auto& table = module->table;
    table.struct_size = sizeof(freeride_plugin);
    table.abi_version = FREERIDE_ABI_VERSION;
    table.name = module->name.c_str();
    table.version = info.version;
    table.summary = info.summary;
    table.params = module->specs.data();
    table.param_count = static_cast<std::uint32_t>(module->specs.size());
    table.create = &create<Task>;
    table.init = &transition<&SideTask::InitSideTask>;
    table.start = &transition<&SideTask::StartSideTask>;
    table.run_next_step = &step;
    table.pause = &transition<&SideTask::PauseSideTask>;
    table.stop = &transition<&SideTask::StopSideTask>;
    table.destroy = &destroy;
    table.extension = extension;
    return &table;
  }

  static SideTask* as_side_task(SideTask* task) { return task; }
};

}  // namespace freeride

#define FREERIDE_FIRST_(first, ...) first
#define FREERIDE_TEXT_(text) #text
#define FREERIDE_CLASS_TEXT_(...) FREERIDE_TEXT_(__VA_ARGS__)
#define FREERIDE_REST_(first, ...) __VA_ARGS__

/// FREERIDE_PLUGIN(Class [, name, version, summary]): exports Class as this shared object's plugin. Once per plugin, at
/// file scope, after the class.
#define FREERIDE_PLUGIN(...)                                                                                        \
  static const void* freeride_find_extension_(const char* name) {                                                   \
    using Task = FREERIDE_FIRST_(__VA_ARGS__, );                                                                    \
    static const freeride_state state = ::freeride::PluginGlue::make_state<Task>();                                 \
    static const freeride_imperative imperative = {                                                                 \
        sizeof(freeride_imperative), 0, &::freeride::PluginGlue::workload,                                          \
        &::freeride::PluginGlue::transition<&::freeride::SideTask::PrepareGpuWorkload>};                            \
    return ::freeride::PluginGlue::find_extension<Task>(name, &state, &imperative);                                 \
  }                                                                                                                 \
  extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {                                      \
    static const freeride_plugin* const table = ::freeride::PluginGlue::make_table<FREERIDE_FIRST_(__VA_ARGS__, )>( \
        FREERIDE_CLASS_TEXT_(FREERIDE_FIRST_(__VA_ARGS__, )), {FREERIDE_REST_(__VA_ARGS__, )},                      \
        &freeride_find_extension_);                                                                                 \
    return table;                                                                                                   \
  }

#endif  // FREERIDE_PLUGIN_HPP
