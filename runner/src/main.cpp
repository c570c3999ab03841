// freeride-runner: runs, checks and describes plugins, each in a process of its own.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "check.hpp"
#include "confine.hpp"
#include "describe.hpp"
#include "freeride/base/python_env.hpp"
#include "supervisor.hpp"

namespace {

using namespace freeride;
using namespace freeride::runner;

// Exit codes of all programs.
constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kRejected = 5;

int complain(const Error& error) {
  std::cerr << "freeride-runner: " << error.text() << "\n";
  return error.code == Code::kInvalidArgument || error.code == Code::kNotFound ? kUsage : kFailed;
}

// "k=v" texts into pairs.
Result<Params> parse_params(const std::vector<std::string>& texts) {
  Params params;
  for (const std::string& text : texts) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error{Code::kInvalidArgument, "--param '" + text + "' is not of the form key=value",
                   "write --param key=value"};
    }
    params.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return params;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs one side task's plugin in a process of its own. Started by freeride-worker; people want `check`.",
               "freeride-runner");
  app.require_subcommand(1);

  Job job;
  Channels channels;
  Limits limits;
  std::vector<std::string> param_texts;
  std::string purpose = "run";
  CLI::App* supervise_command = app.add_subcommand("supervise", "Runs a task under a worker's lease page");
  supervise_command->add_option("--lease-fd", channels.lease_fd, "descriptor of the lease page")->required();
  supervise_command->add_option("--answer-fd", channels.answer_fd, "descriptor of the answer page")->required();
  supervise_command->add_option("--lifeline-fd", channels.lifeline_fd, "pipe whose end means that the worker is gone")
      ->required();
  supervise_command->add_option("--report-fd", channels.report_fd, "socket for started and verdict")->required();
  supervise_command->add_option("--state-in-fd", job.state_in_fd, "file with the state to go on from");
  supervise_command->add_option("--state-out-fd", job.state_out_fd,
                                "pipe for the state that a save lease asks for, or for a profile's record");
  supervise_command->add_option("--plugin", job.plugin, "the plugin's file")->required();
  supervise_command->add_option("--name", job.task, "the task's name")->required();
  supervise_command->add_option("--device", job.device, "cpu-N or a GPU's UUID")->required();
  supervise_command->add_option("--scratch", job.scratch, "the task's folder")->required();
  supervise_command->add_option("--param", param_texts, "key=value, repeatable")->take_all()->allow_extra_args(false);
  supervise_command->add_option("--steps", job.steps,
                                "finish after so many steps; 0: never, a profile as many as it takes");
  supervise_command->add_option("--predicted-step-ns", job.predicted_step_ns, "length of a step, from its profile");
  supervise_command
      ->add_option("--predicted-pieces-ns", job.predicted_pieces_ns,
                   "lengths of the pieces of a step with yield points, from its profile")
      ->delimiter(',');
  supervise_command->add_option("--purpose", purpose, "run, or profile: end once enough is known")
      ->check(CLI::IsMember({"run", "profile"}));
  supervise_command->add_option("--create-ms", limits.create_ms, "limit of loading and CreateSideTask")
      ->check(CLI::PositiveNumber);
  supervise_command->add_option("--stop-ms", limits.stop_ms, "limit of StopSideTask")->check(CLI::PositiveNumber);

  supervise_command->add_flag("--confined", job.confinement.on, "in a sandbox: give up what the plugin must not have");
  supervise_command->add_option("--pids", job.confinement.pids, "processes and threads by rlimit, in a sandbox")
      ->check(CLI::PositiveNumber);
  supervise_command->add_option("--saved", job.confinement.saved,
                                "folder to fill the scratch folder from, in a sandbox");
  // Asked by a worker at its start: can a sandbox be made here?
  CLI::App* trial_command = app.add_subcommand("trial", "Says whether the sandbox it runs in is one")->group("");

  CheckOptions check;
  CLI::App* check_command = app.add_subcommand("check", "Runs a plugin through the whole contract");
  check_command->add_option("plugin", check.plugin, "the plugin's file")->required();
  check_command->add_option("--param", param_texts, "key=value, repeatable")->take_all()->allow_extra_args(false);
  check_command->add_option("--device", check.device, "cpu-N or a GPU's UUID, as the task is told it");
  check_command->add_option("--steps", check.steps, "steps to run")->check(CLI::Range(1, 1'000'000));
  check_command->add_option("--timeout-s", check.timeout_s, "give up after so many seconds")
      ->check(CLI::Range(1, 86'400));
  check_command->add_option("--format", check.format, "text or json")->check(CLI::IsMember({"text", "json"}));

  std::string describe_plugin;
  std::string describe_format = "text";
  CLI::App* describe_command = app.add_subcommand("describe", "Prints a plugin's name, version and parameters");
  describe_command->add_option("plugin", describe_plugin, "the plugin's file")->required();
  describe_command->add_option("--format", describe_format, "text or json")->check(CLI::IsMember({"text", "json"}));

  std::string python;
  for (CLI::App* command : {check_command, describe_command})
    command->add_option("--python", python, "of a plugin in Python: the interpreter, as a path");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  auto params = parse_params(param_texts);
  if (!params.ok()) return complain(params.error());

  if (!python.empty()) params->emplace_back(kPythonParam, python);

  if (*supervise_command) {
    job.params = std::move(*params);
    job.profile = purpose == "profile";
    const Status status = supervise(job, channels, limits);
    // The enforcing thread is still there: no destructors may run under it.
    const int code = status.ok() ? kOk : complain(status.error());
    fflush(nullptr);
    _exit(code);
  }
  if (*trial_command) {
    const Status status = try_sandbox();
    return status.ok() ? kOk : complain(status.error());
  }
  if (*check_command) {
    check.params = std::move(*params);
    return check_plugin(check) ? kOk : kRejected;
  }
  return describe(describe_plugin, *params, describe_format) ? kOk : kRejected;
}
