// The SPANK plugin: srun, sbatch and salloc learn --freeride, and the ranks of such a job are hooked. It says in one
// line what goes wrong on a node, and never fails a job there: training goes on without FreeRide.
extern "C" {
#include <slurm/spank.h>
}

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "choice.hpp"

using namespace freeride::slurm;

// What Slurm looks up; a constant of C++ is seen from outside only where it is declared so before.
#pragma GCC visibility push(default)
extern "C" {
extern const char plugin_name[], plugin_type[];
extern const unsigned int plugin_version, spank_plugin_version;
SPANK_PLUGIN(freeride, 1)
}
#pragma GCC visibility pop

namespace {

Settings settings;
std::optional<bool> chosen;         // by the option
std::optional<std::string> budget;  // likewise

// Here, since what is refused later is not: the plugin is optional.
int take_both() {
  if (!budget || chosen.value_or(true)) return ESPANK_SUCCESS;
  slurm_error("--freeride-budget=%s is for a job with side tasks, and --freeride=off has none", budget->c_str());
  return ESPANK_ERROR;
}

int take_option(int, const char* text, int remote) {
  chosen = parse_choice(text == nullptr ? "" : text);
  if (remote != 0) return ESPANK_SUCCESS;
  if (chosen) return take_both();
  slurm_error("--freeride takes on or off, not '%s'", text);
  return ESPANK_ERROR;
}

int take_budget(int, const char* text, int remote) {
  budget = parse_budget(text == nullptr ? "" : text);
  if (remote != 0) return ESPANK_SUCCESS;
  if (budget) return take_both();
  slurm_error("--freeride-budget takes a percentage from 0 to 100, such as 0.3, and not '%s'",
              text == nullptr ? "" : text);
  return ESPANK_ERROR;
}

spank_option option = {const_cast<char*>("freeride"),
                       const_cast<char*>("on|off"),
                       const_cast<char*>("side tasks of FreeRide run in the bubbles of this training"),
                       2,
                       0,
                       take_option};

spank_option budget_option = {const_cast<char*>("freeride-budget"),
                              const_cast<char*>("percent"),
                              const_cast<char*>("side tasks may slow this training down by so much (with --freeride)"),
                              1,
                              0,
                              take_budget};

std::optional<uint32_t> number(spank_t spank, spank_item_t item) {
  uint32_t value = 0;
  if (spank_get_item(spank, item, &value) != ESPANK_SUCCESS) return std::nullopt;
  return value;
}

std::string variable(spank_t spank, const char* name) {
  char value[16384];
  return spank_getenv(spank, name, value, sizeof(value)) == ESPANK_SUCCESS ? value : "";
}

bool set(spank_t spank, const char* name, const std::string& value) {
  return spank_setenv(spank, name, value.c_str(), 1) == ESPANK_SUCCESS;
}

// Of all components of a heterogeneous job the leader's.
std::string name_of_job(spank_t spank) {
  const std::string leader = variable(spank, "SLURM_HET_JOB_ID");
  if (!leader.empty() && leader.find_first_not_of("0123456789") == std::string::npos) return "slurm-" + leader;
  return job_name(number(spank, S_JOB_ID).value_or(0), number(spank, S_JOB_ARRAY_ID).value_or(0),
                  number(spank, S_JOB_ARRAY_TASK_ID).value_or(0));
}

void unhooked(const char* why, const std::string& what) {
  char host[256] = "?";
  gethostname(host, sizeof(host) - 1);
  slurm_spank_log("freeride: on %s %s %s; the training goes on without side tasks", host, what.c_str(), why);
}

void hook(spank_t spank) {
  for (const std::string& folder : {settings.python + "/freeride", settings.start}) {
    if (access(folder.c_str(), R_OK | X_OK) != 0) return unhooked("cannot be read", folder);
  }
  char path[16384];
  const spank_err_t had = spank_getenv(spank, "PYTHONPATH", path, sizeof(path));
  if (had != ESPANK_SUCCESS && had != ESPANK_ENV_NOEXIST) return unhooked("is too long", "PYTHONPATH");
  const std::string before = had == ESPANK_SUCCESS ? path : "";
  bool done = set(spank, "PYTHONPATH", in_front(settings.start, in_front(settings.python, before)));
  // What the job says itself counts.
  if (variable(spank, "FREERIDE_JOB").empty()) done = done && set(spank, "FREERIDE_JOB", name_of_job(spank));
  if (!settings.library.empty() && variable(spank, "FREERIDE_HOOK_LIBRARY").empty())
    done = done && set(spank, "FREERIDE_HOOK_LIBRARY", settings.library);
  if (!settings.run_dir.empty() && variable(spank, "FREERIDE_RUN_DIR").empty())
    done = done && set(spank, "FREERIDE_RUN_DIR", settings.run_dir);
  if (budget) done = done && set(spank, "FREERIDE_JOB_BUDGET_PCT", *budget);
  if (!done) unhooked("cannot be set", "the environment of the ranks");
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int slurm_spank_init(spank_t spank, int count, char** words) {
  for (int at = 0; at < count; ++at) {
    if (!take(settings, words[at])) slurm_error("freeride: plugstack.conf: unknown setting '%s'", words[at]);
  }
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE) return ESPANK_SUCCESS;
  for (spank_option* one : {&option, &budget_option}) {
    if (spank_option_register(spank, one) != ESPANK_SUCCESS)
      slurm_error("freeride: there is no --%s: Slurm did not take the option", one->name);
  }
  return ESPANK_SUCCESS;
}

// In srun, sbatch, salloc: the choice is passed on to the job's steps, by the environment, and to Prolog and Epilog.
int slurm_spank_init_post_opt(spank_t spank, int, char**) {
  const spank_context_t context = spank_context();
  if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return ESPANK_SUCCESS;
  if (budget) {
    chosen = true;
    setenv(kBudgetVariable, budget->c_str(), 1);
  } else if (const char* before = getenv(kBudgetVariable); before != nullptr && !parse_budget(before)) {
    slurm_error("freeride: %s is a percentage from 0 to 100, not '%s'; the job runs without side tasks",
                kBudgetVariable, before);
    chosen = false;
  }
  if (!chosen) {
    const char* before = getenv(kVariable);
    if (before == nullptr) return ESPANK_SUCCESS;
    chosen = parse_choice(before);
    if (!chosen) {
      slurm_error("freeride: %s is on or off, not '%s'; the job runs without side tasks", kVariable, before);
      chosen = false;
    }
  }
  const char* word = *chosen ? "on" : "off";
  setenv(kVariable, word, 1);
  if (spank_job_control_setenv(spank, "FREERIDE", word, 1) != ESPANK_SUCCESS)
    slurm_error("freeride: the nodes are not told of --freeride=%s; the job runs without side tasks", word);
  return ESPANK_SUCCESS;
}

// On each node, before the ranks of a step start.
int slurm_spank_user_init(spank_t spank, int, char**) {
  if (spank_remote(spank) != 1) return ESPANK_SUCCESS;
  if (!chosen) {
    const std::string said = variable(spank, kVariable);
    if (said.empty()) return ESPANK_SUCCESS;
    chosen = parse_choice(said);
  }
  if (const std::string said = variable(spank, kBudgetVariable); !budget && !said.empty()) {
    budget = parse_budget(said);
    if (!budget) chosen = false;  // srun has said why
  }
  if (chosen.value_or(false)) {
    hook(spank);
  } else {
    set(spank, "FREERIDE_HOOK", "0");
  }
  return ESPANK_SUCCESS;
}
}
#pragma GCC visibility pop
