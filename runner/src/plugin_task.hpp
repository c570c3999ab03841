// PluginTask: the plugin's table, and the task that it has made.
#pragma once

#include <cstdint>

#include "answer.hpp"
#include "freeride/plugin.h"
#include "host.hpp"
#include "job.hpp"

namespace freeride::runner {

/// Calls what the plugin has. A transition is entered on the answer page before it is called; the plugin may throw out
/// of every one of them, and blocks for as long as it likes. Main thread, but for a workload's functions. Answer and
/// job are the caller's; the task is the plugin's, until destroy().
class PluginTask {
 public:
  PluginTask(Answer& answer, int log_fd) : answer_(answer), host_(answer.page(), log_fd) {}

  /// From now on the plugin is this one. `imperative`: by that interface.
  void use(const freeride_plugin& table, bool imperative) {
    table_ = table;
    imperative_ = imperative;
  }
  /// CreateSideTask, with the parameters as resolve_params() made them.
  freeride_status create(const Job& job, const Params& params);
  /// Frees the task, where there is one.
  void destroy();

  freeride_status init(int64_t now_ns) { return call(FREERIDE_IN_INIT, table_.init, now_ns); }
  freeride_status start(int64_t now_ns) { return call(FREERIDE_IN_START, table_.start, now_ns); }
  freeride_status step(int64_t now_ns) { return call(FREERIDE_IN_STEP, table_.run_next_step, now_ns); }
  freeride_status pause(int64_t now_ns) { return call(FREERIDE_IN_PAUSE, table_.pause, now_ns); }
  freeride_status stop(int64_t now_ns) { return call(FREERIDE_IN_STOP, table_.stop, now_ns); }

  Host& host() { return host_; }
  const freeride_plugin& table() const { return table_; }
  bool imperative() const { return imperative_; }
  void* task() const { return task_; }

 private:
  // Exceptions are not caught here but around whole phases, once (Endings::guarded): entering a try block is free, and
  // every phase ends the task.
  freeride_status call(uint32_t transition, freeride_status (*function)(void*), int64_t now_ns) {
    answer_.enter(transition, now_ns);
    return function(task_);
  }

  Answer& answer_;
  Host host_;
  freeride_plugin table_{};
  void* task_ = nullptr;
  bool imperative_ = false;
};

}  // namespace freeride::runner
