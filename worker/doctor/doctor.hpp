// What this host has of what a worker needs, tried out rather than looked up: `freeride-worker --check`, and so
// `freeride-ctl doctor`.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/options.hpp"

namespace freeride::worker {

/// How well a facility serves.
enum class Health {
  kOk,
  kWarn,     ///< works, but something is weaker or slower than it could be
  kMissing,  ///< a worker with these options does not start, or cannot run side tasks
};

struct Finding {
  std::string area, name;
  Health health = Health::kOk;
  std::string found;   ///< what there is
  std::string advice;  ///< what to do about it; empty when all is well

  void is(Health now, std::string what, std::string todo) {
    health = now;
    found = std::move(what);
    advice = std::move(todo);
  }
};

using Findings = std::vector<Finding>;

/// Each adds a part. They start short-lived processes and undo what they do. No other threads may run.
void look_at_kernel(Findings& findings);
void look_at_scheduling(const Options& options, Findings& findings);
void look_at_folders(const Options& options, Findings& findings);
void look_at_sandbox(const Options& options, Findings& findings);
void look_at_gpus(const Options& options, Findings& findings);

/// All of them, in the order in which a person would mend things.
Findings diagnose(const Options& options);

/// Prints them as lines for people, or as one JSON object. Returns the exit code: 0, or 1 when something needed is
/// missing.
int report(const Findings& findings, bool json, std::ostream& out);

}  // namespace freeride::worker
