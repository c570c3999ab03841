// What `up` starts, and what its programs' logs say. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// A device that gets a worker.
struct PlannedWorker {
  std::string device;
  std::string cores;  ///< of a CPU device, as the worker's --cores; empty: all
};

/// What the user has said about devices.
struct WantedDevices {
  std::vector<std::string> devices;  ///< by name; empty: this host's
  std::vector<std::string> cores;    ///< of the CPU devices, in their order
  int cpus = 0;                      ///< so many CPU devices; 0: nothing said
};

/// Of a host without GPUs, where nothing is said.
constexpr int kUsualCpus = 2;

/// The workers to start. `gpus`: UUIDs of this host's; `usable`: numbers of the cores that this process may use. CPU
/// devices without --cores get one of these each, in turn. Errors: kInvalidArgument (a device twice; more --cores than
/// CPU devices).
Result<std::vector<PlannedWorker>> plan_workers(const WantedDevices& wanted, const std::vector<std::string>& gpus,
                                                const std::vector<int>& usable);

/// The UUIDs in what `freeride-worker --list-devices` prints; what else it says is left out.
std::vector<std::string> listed_gpus(std::string_view printed);

/// The last `most` lines of a log, without time and program: "error: what happened". Of those with an error, if any,
/// only these. Of a log in text (init_log).
std::vector<std::string> last_words(std::string_view log, size_t most);

/// The address that freeride-web's log says it listens at; empty: it does not yet.
std::string address_in(std::string_view log);

}  // namespace freeride::ctl
