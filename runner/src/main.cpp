// freeride-runner: runs, checks and describes plugins, each in a process of its own.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>

#include "check.hpp"
#include "confine.hpp"
#include "describe.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
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

// What this process and the plugin's, which is forked from it, were started with is the plugin's to read
// (/proc/*/cmdline). Whether this is a profile is none of its business, nor what is expected of the task: a profile
// then looks like a run.
void hide_purpose(int argc, char** argv) {
  constexpr std::array<std::string_view, 4> kHidden{"--purpose", "--steps", "--predicted-step-ns",
                                                    "--predicted-pieces-ns"};
  std::string kept;
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view key = word.substr(0, word.find('='));
    if (std::find(kHidden.begin(), kHidden.end(), key) == kHidden.end()) {
      kept.append(word).push_back('\0');
    } else if (key == word) {
      ++i;  // its value
    }
  }
  char* const end = argv[argc - 1] + std::strlen(argv[argc - 1]);  // the kernel has put them in a row
  std::memset(argv[2], 0, static_cast<size_t>(end - argv[2]));
  std::memcpy(argv[2], kept.data(), std::min(kept.size(), static_cast<size_t>(end - argv[2])));
}

// Texts that each end with a NUL, appended to `texts`; closes `fd`.
Status read_texts(int fd, const char* what, std::vector<std::string>& texts) {
  const Fd file(fd);
  auto bytes = read_file(file.get(), what, size_t{1} << 20);
  if (!bytes.ok()) return bytes.error();
  for (size_t begin = 0, end = 0; (end = bytes->find('\0', begin)) != std::string::npos; begin = end + 1)
    texts.push_back(bytes->substr(begin, end - begin));
  return {};
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
  supervise_command->add_option("--plugin", job.plugin, "the plugin's file");
  int program_fd = -1;
  supervise_command->add_option("--program-fd", program_fd,
                                "instead of a plugin: file with a program and its arguments, each ended by a NUL");
  supervise_command->add_option("--shim-fd", job.shim_fd,
                                "shim page of a program: its init lease ends where that waits");
  supervise_command->add_option("--name", job.task, "the task's name")->required();
  supervise_command->add_option("--device", job.device, "cpu-N or a GPU's UUID")->required();
  supervise_command->add_option("--scratch", job.scratch, "the task's folder")->required();
  supervise_command->add_option("--param", param_texts, "key=value, repeatable")->take_all()->allow_extra_args(false);
  int params_fd = -1;
  supervise_command->add_option("--params-fd", params_fd, "file of further key=value, each ended by a NUL");
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

  supervise_command->add_flag("--gated", job.gated, "the shim of libcuda holds the plugin's work between leases");
  supervise_command->add_flag("--confined", job.confinement.on, "in a sandbox: give up what the plugin must not have");
  supervise_command->add_option("--pids", job.confinement.pids, "processes and threads by rlimit, in a sandbox")
      ->check(CLI::PositiveNumber);
  supervise_command->add_option("--saved", job.confinement.saved,
                                "folder to fill the scratch folder from, in a sandbox");
  supervise_command->add_option("--working-dir", job.confinement.working_dir,
                                "working folder of the plugin's process, in a sandbox");
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
  if (params_fd >= 0) {
    if (const Status read = read_texts(params_fd, "the file of parameters", param_texts); !read.ok())
      return complain(read.error());
  }
  if (program_fd >= 0) {
    if (const Status read = read_texts(program_fd, "the file of the program", job.program); !read.ok())
      return complain(read.error());
    if (job.program.empty()) return complain({Code::kInvalidArgument, "no program is named", "--program-fd"});
    job.confinement.program = true;
  }
  if (*supervise_command && job.program.empty() == job.plugin.empty())
    return complain({Code::kInvalidArgument, "supervise runs one plugin, or one program", "--plugin or --program-fd"});
  auto params = parse_params(param_texts);
  if (!params.ok()) return complain(params.error());

  if (!python.empty()) params->emplace_back(kPythonParam, python);

  if (*supervise_command) {
    hide_purpose(argc, argv);
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
