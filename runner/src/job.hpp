// Job: what a plugin's process is to run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "confine.hpp"
#include "plugin.hpp"

namespace freeride::runner {

/// A plain value, made from the command line. Descriptors are the caller's.
struct Job {
  std::string plugin;                ///< path; empty: `program`
  std::vector<std::string> program;  ///< its name and arguments; empty: a plugin
  std::string task;                  ///< name
  std::string device;                ///< "cpu-N" or a GPU's UUID
  std::string scratch;               ///< folder
  Params params;                     ///< as given by the user
  uint64_t steps = 0;  ///< stop after so many; 0: until it finishes or is stopped; profile: as many as it takes
  int64_t predicted_step_ns = 0;             ///< from its profile; 0: not known
  std::vector<int64_t> predicted_pieces_ns;  ///< of a step with yield points, by place; empty: there are none
  bool profile = false;                      ///< ends once enough is known, and writes what it was into state_out_fd
  int state_in_fd = -1;  ///< file to go on from (saved_state.hpp), read when it is initialised; in the plugin's process
                         ///< a socket to it; -1: none
  int shim_fd = -1;      ///< of a program that has the shim of libcuda: its shim page; -1: none
  int state_out_fd = -1;  ///< pipe for what a save lease asks for, or for a profile's record; -1: for neither
  Confinement confinement;

  bool gated = false;  ///< on a GPU, by the shim of libcuda: what it submits is done when its lease ends, wherever it
                       ///< is stopped. Its lease page is a file, which the shim opens by its name

  bool by_cpu_clock() const { return device.rfind("cpu-", 0) == 0; }
};

}  // namespace freeride::runner
