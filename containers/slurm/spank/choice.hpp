// Choice: what a job says of FreeRide, and what its ranks are told. Nothing of Slurm's here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace freeride::slurm {

/// In a job's environment: "on" or "off", as `--freeride` says; set before, it is that option's default.
constexpr const char* kVariable = "SLURM_FREERIDE";

/// "on" or "off", as an option or the variable has it; empty is "on", and so is "(null)", as which Slurm 22.05 hands
/// an option without a value from a batch script to its steps. nullopt: neither.
std::optional<bool> parse_choice(std::string_view text);

/// Set before, it is the default of `--freeride-budget`.
constexpr const char* kBudgetVariable = "SLURM_FREERIDE_BUDGET";

/// "0.3": a slowdown budget in percent, from 0 to 100, as a plain decimal. nullopt: it is none. What is handed on is
/// the text.
std::optional<std::string> parse_budget(std::string_view text);

/// What FreeRide calls a job: "slurm-7"; of an array its task, "slurm-7_2". The components of a heterogeneous job are
/// one training, called after their leader: pass the leader's number. Outside of arrays `array` is 0, or `array_task`
/// is Slurm's NO_VAL.
std::string job_name(uint32_t job, uint32_t array, uint32_t array_task);

/// `folder` in front of what `path` has, once. Empty parts of a path mean the working folder, so none is made.
std::string in_front(const std::string& folder, const std::string& path);

/// The plugin's settings: the words behind its name in plugstack.conf.
struct Settings {
  std::string python = "/usr/share/freeride/python";  ///< folder of the package freeride
  std::string start = "/usr/share/freeride/start";    ///< folder of the sitecustomize that arms the hook
  std::string library;                                ///< libfreeride_hook.so; empty: the package finds it
  std::string run_dir;                                ///< where the workers' sockets are; empty: the hook's default
};

/// Takes one word, such as "run_dir=/run/freeride". False: it is none of ours.
bool take(Settings& settings, std::string_view word);

}  // namespace freeride::slurm
