// What supervisor and plugin's process give up for good inside a sandbox. The sandbox itself (namespaces, mounts,
// limits) is the worker's.
#pragma once

#include <cstdint>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::runner {

/// Options of `supervise` that only a sandbox gives.
struct Confinement {
  bool on = false;
  bool program = false;     ///< the process may fork and execute others
  int64_t pids = 0;         ///< processes and threads of the sandbox's user, by rlimit; 0: something else limits them
  std::string saved;        ///< folder whose content is copied into the scratch folder first; empty: none
  std::string working_dir;  ///< of the plugin's process; empty: the scratch folder
};

/// Supervisor, while it has one thread: no new privileges, memory and descriptors out of the plugin's reach. Errors:
/// the process has capabilities (it is in no sandbox).
Status shield_supervisor();

/// Supervisor, after it has forked: its own system call filter.
Status confine_supervisor();

/// The plugin's process, before it opens the plugin: rlimits and system call filter.
Status confine_plugin(const Confinement& confinement);

/// Whether this process is in a sandbox that works: no capabilities, a root that cannot be written, a scratch folder
/// that can (the working folder), filters that can be installed. For the worker's look at its host. Errors: the first
/// thing that is not so.
Status try_sandbox();

}  // namespace freeride::runner
