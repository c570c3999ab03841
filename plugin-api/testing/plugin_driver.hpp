// For tests: opens a plugin and drives one task through its ABI with a host that remembers what it was told.
// Not installed; one thread; FREERIDE_* statuses come back as they are. The module stays open for the life of the
// process: a closed plugin may stay mapped anyway.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "freeride/plugin.h"

namespace freeride::testing {

/// A folder of the test's own, removed with its content at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "freeride-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder " + name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// The plugin's table, or an exception with dlopen's message.
inline const freeride_plugin* open_plugin(const std::string& file) {
  void* module = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw std::runtime_error(::dlerror());
  auto entry = reinterpret_cast<freeride_plugin_v1_fn>(::dlsym(module, FREERIDE_PLUGIN_ENTRY));
  if (entry == nullptr) throw std::runtime_error(file + " has no " FREERIDE_PLUGIN_ENTRY);
  return entry();
}

/// One task. Give parameters, then call the transitions in order; destroyed at the end, after a stop() if nobody called
/// it.
class Driver {
 public:
  Driver(const freeride_plugin* plugin, std::string scratch, std::map<std::string, std::string> params = {})
      : plugin_(plugin), scratch_(std::move(scratch)), params_(std::move(params)) {
    host_ = {sizeof(freeride_host), FREERIDE_ABI_VERSION, this, &on_log, &on_metric, &on_fail, &on_now, &on_extension};
  }
  ~Driver() {
    if (task_ == nullptr) return;
    if (!stopped_) plugin_->stop(task_);
    plugin_->destroy(task_);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// As the runner does it: declared parameters with their defaults, then the given ones.
  freeride_status create() {
    auto all = params_;
    for (uint32_t i = 0; i < plugin_->param_count; ++i)
      all.emplace(plugin_->params[i].key, plugin_->params[i].default_value);
    std::vector<freeride_param> list;
    list.reserve(all.size());
    for (const auto& [key, value] : all) list.push_back({key.c_str(), value.c_str()});
    const freeride_task_info info{sizeof(freeride_task_info),
                                  static_cast<uint32_t>(list.size()),
                                  list.data(),
                                  "task",
                                  device.c_str(),
                                  scratch_.c_str()};
    void* task = nullptr;
    const auto status = plugin_->create(&host_, &info, &task);
    if (status == FREERIDE_OK) task_ = task;
    return status;
  }
  freeride_status init() { return plugin_->init(task_); }
  freeride_status start() { return plugin_->start(task_); }
  freeride_status step() {
    ++steps;
    return plugin_->run_next_step(task_);
  }
  freeride_status pause() { return plugin_->pause(task_); }
  freeride_status stop() {
    stopped_ = true;
    return plugin_->stop(task_);
  }

  /// create, init, then bubbles of `steps_per_bubble` steps until the task finishes or fails, or `max_steps` are done;
  /// no stop.
  freeride_status run(uint64_t max_steps, uint64_t steps_per_bubble = 7) {
    auto status = create();
    if (status == FREERIDE_OK) status = init();
    while (status == FREERIDE_OK && steps < max_steps) {
      status = start();
      for (uint64_t i = 0; i < steps_per_bubble && status == FREERIDE_OK && steps < max_steps; ++i) status = step();
      if (status < 0) return status;
      const auto paused = pause();
      if (paused != FREERIDE_OK) status = paused;
    }
    return status;
  }

  /// freeride.state/1, which the plugin must have.
  const freeride_state* state() const {
    const auto* found = static_cast<const freeride_state*>(plugin_->extension(FREERIDE_EXTENSION_STATE));
    if (found == nullptr) throw std::runtime_error("the plugin keeps no state");
    return found;
  }
  freeride_status save(std::string& bytes) {
    bytes.clear();
    const freeride_state_sink sink{sizeof(freeride_state_sink), 0, &bytes,
                                   [](void* context, const void* data, uint64_t size) -> freeride_status {
                                     static_cast<std::string*>(context)->append(static_cast<const char*>(data), size);
                                     return FREERIDE_OK;
                                   }};
    return state()->save(task_, &sink);
  }
  freeride_status restore(const std::string& bytes, uint32_t version = 1) {
    return state()->restore(task_, version, bytes.data(), bytes.size());
  }

  bool logged(const std::string& text) const {
    for (const auto& line : log) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  std::string device = "cpu-0";  ///< set before create(), as is the next
  const freeride_yield* yield = nullptr;
  std::vector<std::string> log;
  std::map<std::string, double> metrics;
  std::string failure;
  uint64_t steps = 0;

 private:
  static Driver& self(void* context) { return *static_cast<Driver*>(context); }
  static void on_log(void* context, int32_t /*level*/, const char* text) { self(context).log.emplace_back(text); }
  static void on_metric(void* context, const char* name, double value) { self(context).metrics[name] = value; }
  static void on_fail(void* context, const char* text) { self(context).failure = text; }
  static int64_t on_now(void* /*context*/) { return 0; }
  static const void* on_extension(void* context, const char* name) {
    return std::string(name) == FREERIDE_EXTENSION_YIELD ? self(context).yield : nullptr;
  }

  const freeride_plugin* plugin_;
  std::string scratch_;
  std::map<std::string, std::string> params_;
  freeride_host host_{};
  void* task_ = nullptr;
  bool stopped_ = false;
};

}  // namespace freeride::testing
