#include "command_line.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>

#include "batch.hpp"
#include "drain.hpp"
#include "error_line.hpp"
#include "events.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/paths.hpp"
#include "host.hpp"
#include "json.hpp"
#include "keys.hpp"
#include "parse.hpp"
#include "profile.hpp"
#include "ranks.hpp"
#include "recording.hpp"
#include "runner.hpp"
#include "session.hpp"
#include "submit.hpp"
#include "suggest.hpp"
#include "task_data.hpp"
#include "top.hpp"
#include "up.hpp"
#include "verbs.hpp"
#include "why.hpp"

namespace freeride::ctl {
namespace {

constexpr std::string_view kExamples =
    R"(  freeride-ctl up                                       manager, workers and page on this host, until q
  freeride-ctl doctor                                   can side tasks run on this host?
  freeride-ctl plugin check ./build/pagerank.so         does the plugin keep the contract?
  freeride-ctl profile ./build/pagerank.so              how much memory, how long a step?
  freeride-ctl load ./build/pagerank.so --stage 3       run it in the bubbles of stage 3
  freeride-ctl load image.so --stage 0 --name thumbs --param input=/data/photos --memory 2GiB
  freeride-ctl load ./my_task.py --stage 3 --python ~/venv/bin/python   a side task in Python
  freeride-ctl load ./new.so --replace thumbs           go on with another content of the plugin
  freeride-ctl submit --stage 3 --write /data/logs -- gzip -r /data/logs   a program as it is, followed to its end
  freeride-ctl submit --stage 3 --read . --working-dir $PWD -- python3 finetune.py   a script and its folder
  freeride-ctl submit --no-wait --name tidy --write ~/out -- sh -c 'sort big | uniq -c > ~/out/counts'
  freeride-ctl task thumbs                              state, steps, log; verdict, cause, evidence
  freeride-ctl top                                      live view
  freeride-ctl why thumbs                               what is in its way now, and its last minute
  freeride-ctl why gpt/1 --at 03:14                     what was at that moment, from the recording
  freeride-ctl recording export night.json --from 03:00 --to 03:20   for Perfetto
  freeride-ctl events --topic bubble.end --format json  every bubble, one JSON object a line
  freeride-ctl load ./train.py --read ~/data:/data --write ~/out:/out --env MODE=fast
  freeride-ctl load ./train.py --sweep rate=0.1,0.01 --parallel 4   a task for each value
  freeride-ctl batch ./score.py --input prompts.jsonl --output scores.jsonl   a list of items
  freeride-ctl batch attach score                       watch it again
  freeride-ctl cp thumbs:results .                      what it has written, live or ended
  freeride-ctl logs -f thumbs                           what it prints
  freeride-ctl drain gpt                                no side task beside this training, for sure
  freeride-ctl ranks gpt                                does each rank of this training give side tasks anything?
  freeride-ctl report --format json                     the figures so far
  freeride-ctl host add gpu7                            on the manager's host: a key for gpu7, and what to type there
  freeride-ctl host join head gpu7-node.key             on gpu7: its devices get workers under the manager on head
  freeride-ctl keys make alice --role user              a key for another host; --manager and --key use it there
  freeride-ctl --manager tcp://head:7420 --key alice.key status
  PYTHONPATH=$(freeride-ctl python-path) python …       for a Python that does not find FreeRide's package
)";

constexpr const char* kFooter = R"(Exit codes:
  0 ok                    3 no manager or broker answers
  1 the operation failed  4 no such task, plugin, file
  2 wrong usage           5 rejected by policy or by the plugin check

Every global option can also come from the environment (FREERIDE_TIMEOUT, …) or from [ctl] in the file named by FREERIDE_CONFIG.
)";

/// The examples of one verb, or of all.
std::string examples(const std::string& verb = {}) {
  std::string lines;
  for (std::string_view rest = kExamples; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    if (line.find("freeride-ctl " + verb) != line.npos) lines += line;
  }
  return lines.empty() ? lines : "\nExamples:\n" + lines;
}

using Action = std::function<Result<int>(Session&)>;

// Everything the command line can say. Lives as long as the CLI::App that points into it.
struct Arguments {
  std::string run_dir, manager, key, commands_endpoint, events_endpoint, format = "table", errors = "text";
  KeysArguments keys;
  HostArguments host;
  double timeout_s = 5;
  std::string request_id;
  LoadArguments load;
  SubmitArguments submit;
  EventsArguments events;
  TopArguments top;
  UpArguments up;
  ProfileArguments profile;
  RecordingArguments recording;
  WhyArguments why;
  std::vector<std::string> tasks, labels;
  BatchArguments batch;
  LogsArguments logs;
  CopyArguments copy;
  std::string subject;
  double drain_s = 60;
  std::string task, job, plugin, device, state_dir, lift, since, by;
  std::string python;
  std::vector<std::string> params;
  uint64_t steps = 0;
  TasksArguments listed;
  double wait_s = 0;
  std::string columns;
  bool is_list = false;  // the verb's: it knows --format csv and --columns
  Action action;
};

// What the subcommand does, once everything is parsed.
void does(CLI::App* sub, Arguments& arguments, Action action) {
  sub->callback([&arguments, action = std::move(action)] { arguments.action = action; });
}

// The same with the tasks that it names or that have its labels; `live`: of those that have ended none, else only
// these.
void does_with_tasks(CLI::App* sub, Arguments& arguments, bool live,
                     std::function<Result<int>(Session&, const std::vector<std::string>&)> action) {
  sub->callback([&arguments, live, action = std::move(action)] {
    if (arguments.tasks.empty() && arguments.labels.empty()) throw CLI::RequiredError("task");
    arguments.action = [&arguments, live, action](Session& session) -> Result<int> {
      const auto tasks = meant_tasks(session, arguments.tasks, arguments.labels, live);
      if (!tasks) return tasks.error();
      return action(session, *tasks);
    };
  });
}

// A verb that prints a list: it has --columns, and may be given --format csv.
void lists(CLI::App* sub, Arguments& arguments, Action action) {
  sub->add_option("--columns", arguments.columns,
                  "only these, in this order: names with ',' between them, as csv has them");
  sub->callback([&arguments, action = std::move(action)] {
    arguments.action = action;
    arguments.is_list = true;
  });
}

void add_globals(CLI::App& app, Arguments& arguments) {
  app.add_option("--run-dir", arguments.run_dir, "the manager's run folder, where its sockets are");
  app.add_option("--manager", arguments.manager, "a manager on another host: tcp://HOST:PORT, as in its --listen");
  app.add_option("--key", arguments.key, "the key file for that manager (freeride-ctl keys make)");
  app.add_option("--commands-endpoint", arguments.commands_endpoint,
                 "ZeroMQ endpoint of the manager's commands; default: in the run folder");
  app.add_option("--events-endpoint", arguments.events_endpoint,
                 "ZeroMQ endpoint of the manager's events; default: in the run folder");
  app.add_option("--format", arguments.format, "table or json; csv for lists")
      ->check(CLI::IsMember({"table", "json", "csv"}))
      ->capture_default_str();
  app.add_option("--errors", arguments.errors, "text, or for programs json: code, message and hint, an error a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--timeout", arguments.timeout_s, "seconds to wait for the manager")
      ->check(within(0.01, 86400.0))
      ->capture_default_str();
}

// What several verbs ask for is declared here once, with the same words for each of them.

/// Where: in the bubbles of which training.
void add_place(CLI::App* sub, LoadArguments& load) {
  sub->add_option("--stage", load.stage, "pipeline stage whose bubbles it uses; default: any")
      ->check(whole(0, INT32_MAX));
  sub->add_option("--job", load.job, "training job, when there are several");
  sub->add_option("--replica", load.replica, "data-parallel replica; default: any")->check(whole(0, INT32_MAX));
}

/// A plugin's own.
void add_plugin_options(CLI::App* sub, LoadArguments& load) {
  sub->add_option("--param", load.params, "key=value for the plugin; may be repeated")->allow_extra_args(false);
  sub->add_option(
      "--python", load.python,
      "the interpreter whose packages it uses: of a .py plugin (default /usr/bin/python3), or one that needs LibTorch");
  sub->add_option("--interface", load.interface,
                  "iterative (steps) or imperative (one long workload); default: iterative")
      ->check(CLI::IsMember({"iterative", "imperative"}));
}

/// What it may use.
void add_rights(CLI::App* sub, LoadArguments& load, const char* memory) {
  sub->add_option("--memory", load.memory, memory);
  sub->add_flag("--network", load.network, "may use the host's network; without it, it has none");
  sub->add_option(
         "--read", load.options.read,
         "SRC[:DST]: a file or folder that it may read, with your rights, below a --data of its worker; may be "
         "repeated")
      ->allow_extra_args(false);
  sub->add_option("--write", load.options.write, "SRC[:DST]: the same that it may also write; what is written stays")
      ->allow_extra_args(false);
  sub->add_option("--working-dir", load.options.working_dir, "folder in which it starts; default: its scratch folder");
  sub->add_option("--env", load.options.env, "K=V in its environment; may be repeated")->allow_extra_args(false);
}

/// When it is placed, before others or after them, and who is charged.
void add_queueing(CLI::App* sub, LoadArguments& load) {
  sub->add_option("--name", load.name, "its name; default: made from the plugin's or the program's");
  sub->add_option("--priority", load.priority, "higher runs first; default 0")->check(whole(INT32_MIN, INT32_MAX));
  sub->add_flag("--when-idle", load.when_idle, "may also run while no trainer is on the device");
  sub->add_option("--account", load.account,
                  "to which its use is charged; default: $SLURM_JOB_ACCOUNT, else your user name");
}

/// One task's: its beginning and its end.
void add_course(CLI::App* sub, Arguments& arguments, LoadArguments& load) {
  sub->add_flag("--any-job", load.any_job, "any training job, whichever there are when it is placed")
      ->excludes(sub->get_option("--job"));
  sub->add_flag("--paused", load.paused, "start paused; freeride-ctl resume lets it run");
  sub->add_option("--label", load.options.labels, "k=v, to find the task by (-l); may be repeated")
      ->allow_extra_args(false);
  sub->add_option("--dependency", load.options.after,
                  "afterok:TASK: begins when that one has finished; may be repeated")
      ->allow_extra_args(false);
  sub->add_option("--restart", load.options.restart,
                  "no: never started twice; on-failure[:N]: started again when it has failed, 3 or N times; default: "
                  "when its worker is lost");
  sub->add_option("--time", load.options.time, "stop it so long after its first start, e.g. 90s, 30m, 2h");
  // Only as it was printed: a name that two users choose would give one the other's task.
  sub->add_option("--request-id", arguments.request_id,
                  "the same request as an earlier one that was not answered, which has said this: it is done once")
      ->check([](const std::string& text) {
        const bool hex = text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
        return hex ? std::string() : "a request has 16 hexadecimal digits, as freeride-ctl has printed them";
      });
}

void add_load(CLI::App& app, Arguments& arguments) {
  LoadArguments& load = arguments.load;
  auto* sub = app.add_subcommand("load", "run a plugin as a side task");
  sub->add_option(
         "plugin", load.plugin,
         "a file (a path with '/', e.g. ./my.so), the folder of a Python package, a name from the drop folder, or "
         "HOST:NAME from another host's")
      ->required();
  add_place(sub, load);
  add_plugin_options(sub, load);
  add_rights(sub, load, "memory it needs at most, e.g. 2GiB; default: found by profiling");
  add_queueing(sub, load);
  add_course(sub, arguments, load);
  sub->add_option("--steps", load.steps, "stop after so many steps; default: when it finishes")
      ->check(whole(1, INT64_MAX));
  sub->add_flag("--no-profile", load.no_profile,
                "start it without a profile; it may then need its default of memory, and learns its steps in bubbles");
  auto* sweep =
      sub->add_option("--sweep", load.sweep, "key=value,value: a task for each; of several a task for each combination")
          ->allow_extra_args(false);
  sub->add_option("--parallel", load.parallel, "of a sweep's tasks at most so many at once; default: all")
      ->check(whole(1, 10'000))
      ->needs(sweep);
  sub->add_flag("--yes", load.yes, "with --replace: also where the plugin is called otherwise");
  auto* replace = sub->add_option("--replace", load.replace,
                                  "move this task to the plugin, between two bubbles, instead of starting another: it "
                                  "keeps its name, stage, steps and, where the plugin saves it, its state");
  for (const char* kept : {"--stage", "--job", "--any-job", "--replica", "--name", "--when-idle", "--paused", "--sweep",
                           "--label", "--dependency", "--restart", "--time", "--account", "--request-id"})
    replace->excludes(kept);
  sub->add_flag("--dry-run", load.dry_run,
                "load nothing: say whether it fits, where, and how many steps an hour to expect, else why not")
      ->excludes(replace);
  does(sub, arguments, [&arguments](Session& session) { return run_load(session, arguments.load); });
}

void add_submit(CLI::App& app, Arguments& arguments) {
  SubmitArguments& submit = arguments.submit;
  LoadArguments& load = submit.load;
  auto* sub = app.add_subcommand("submit", "run a program, as it is, as a side task, and follow it to its end");
  sub->add_option("program", submit.program, "after --: the program, found on its worker's host, and its arguments")
      ->required();
  add_place(sub, load);
  add_rights(sub, load, "memory it needs at most, e.g. 2GiB; default: the manager's --default-memory-mib");
  add_queueing(sub, load);
  add_course(sub, arguments, load);
  sub->add_flag("--dry-run", load.dry_run, "submit nothing: say whether it fits, and where, else why not");
  sub->add_flag("--no-wait", submit.no_wait, "return at once; freeride-ctl logs -f follows it");
  does(sub, arguments, [&arguments](Session& session) { return run_submit(session, arguments.submit); });
}

// Names, labels or both.
void add_tasks(CLI::App* sub, Arguments& arguments) {
  sub->add_option("task", arguments.tasks, "names of tasks");
  sub->add_option("-l,--label", arguments.labels, "those with the label k=v, or k; may be repeated: with all of them")
      ->allow_extra_args(false);
}

using ChangeVerb = Result<int> (*)(Session&, const std::vector<std::string>&);
void add_change(CLI::App& app, Arguments& arguments, const char* name, const char* help, ChangeVerb verb,
                bool live = true) {
  auto* sub = app.add_subcommand(name, help);
  add_tasks(sub, arguments);
  does_with_tasks(sub, arguments, live,
                  [verb](Session& session, const std::vector<std::string>& tasks) { return verb(session, tasks); });
}

void add_data(CLI::App& app, Arguments& arguments) {
  auto* logs = app.add_subcommand("logs", "what a side task prints");
  logs->add_option("task", arguments.logs.task, "the task")->required();
  logs->add_flag("-f,--follow", arguments.logs.follow, "continue until it has ended");
  logs->add_flag("--previous", arguments.logs.previous, "print what the start before this one printed");
  does(logs, arguments, [&arguments](Session& session) { return run_logs(session, arguments.logs); });
  auto* copy = app.add_subcommand("cp", "copy what a side task has written, while it runs or after its end");
  copy->add_option("from", arguments.copy.from,
                   "TASK:PATH: in its scratch folder, all of it where PATH is empty; or where --write put something")
      ->required();
  copy->add_option("to", arguments.copy.to, "a folder")->required();
  does(copy, arguments, [&arguments](Session& session) { return run_copy(session, arguments.copy); });
}

void add_drain(CLI::App& app, Arguments& arguments) {
  constexpr const char* kSubject =
      "a job, a device (cpu-0, GPU-...; or a worker's whole name) or a host; all: everything";
  auto* drain =
      app.add_subcommand("drain", "take side tasks off, wait until nothing of them is left, and keep them off");
  drain->add_option("subject", arguments.subject, kSubject)->required();
  drain->add_option("--for", arguments.drain_s, "wait at most so many seconds")
      ->check(within(0.0, 1e9))
      ->capture_default_str();
  does(drain, arguments,
       [&arguments](Session& session) { return run_drain(session, arguments.subject, arguments.drain_s); });
  auto* back = app.add_subcommand("uncordon", "let side tasks return to what was drained");
  back->add_option("subject", arguments.subject, kSubject)->required();
  does(back, arguments, [&arguments](Session& session) { return run_uncordon(session, arguments.subject); });
}

void add_batch(CLI::App& app, Arguments& arguments) {
  BatchArguments& batch = arguments.batch;
  LoadArguments& load = batch.load;
  auto* sub = app.add_subcommand("batch", "a plugin's process(items) over a list, until each item has its result");
  sub->add_option("plugin", load.plugin, "a file, e.g. score.py, or the folder of a Python package");
  sub->add_option("--input", batch.input, "lines of JSON (*.jsonl), lines of text, or a folder of files");
  sub->add_option("--output", batch.output, "the file of the results: a line of JSON for each");
  sub->add_option("--items", batch.items, "what the input is; default: by its name")
      ->check(CLI::IsMember({"jsonl", "text", "files"}));
  sub->add_flag("--in-order", batch.in_order, "write the results in the order of the input; default: as they come");
  sub->add_option("--retries", batch.retries, "how often a failing item is tried")
      ->check(whole(1, 100))
      ->capture_default_str();
  sub->add_flag("--force", batch.force, "replace an output that exists");
  sub->add_flag("--detach", batch.detach, "return as soon as it is submitted");
  add_place(sub, load);
  add_plugin_options(sub, load);
  add_rights(sub, load, "memory that each member needs at most, e.g. 2GiB");
  add_queueing(sub, load);
  sub->require_subcommand(0, 1);
  auto* attach = sub->add_subcommand("attach", "watch a batch until its end; Ctrl-C detaches");
  attach->add_option("name", arguments.subject, "the batch")->required();
  does(attach, arguments, [&arguments](Session& session) { return run_batch_attach(session, arguments.subject); });
  lists(sub->add_subcommand("ls", "all batches"), arguments, run_batch_ls);
  auto* remove = sub->add_subcommand("rm", "stop batches that run, and forget them");
  remove->add_option("name", batch.names, "the batches")->required();
  does(remove, arguments, [&arguments](Session& session) { return run_batch_rm(session, arguments.batch.names); });
  sub->callback([&arguments] {
    if (arguments.action) return;  // attach, ls or rm
    arguments.action = [&arguments](Session& session) { return run_batch(session, arguments.batch); };
  });
}

void add_plugin(CLI::App& app, Arguments& arguments) {
  auto* plugin = app.add_subcommand("plugin", "check or describe a plugin file; needs no manager");
  plugin->require_subcommand(1);
  for (const std::string verb : {"check", "describe"}) {
    auto* sub = plugin->add_subcommand(verb, verb == "check" ? "run the whole contract on it and say what is wrong"
                                                             : "its name, version and parameters");
    sub->add_option("plugin", arguments.plugin, "the .so or .py file")->required();
    sub->add_option("--python", arguments.python, "the interpreter whose packages it uses");
    if (verb == "check") {
      sub->add_option("--param", arguments.params, "key=value for the plugin; may be repeated")
          ->allow_extra_args(false);
      sub->add_option("--steps", arguments.steps, "steps to run")->check(whole(1, INT64_MAX));
    }
    does(sub, arguments, [&arguments, verb](Session& session) -> Result<int> {
      std::vector<std::string> argv{verb, arguments.plugin, "--format", session.json() ? "json" : "text"};
      for (const std::string& param : arguments.params) argv.insert(argv.end(), {"--param", param});
      if (!arguments.python.empty()) {
        auto python = parse_python(arguments.python);
        if (!python) return python.error();
        argv.insert(argv.end(), {"--python", *python});
      }
      if (arguments.steps != 0) argv.insert(argv.end(), {"--steps", std::to_string(arguments.steps)});
      return exec_program(kRunner, argv);
    });
  }
}

void add_profile(CLI::App& app, Arguments& arguments) {
  ProfileArguments& profile = arguments.profile;
  auto* sub = app.add_subcommand("profile", "measure a plugin's memory and step lengths, and keep the profile");
  sub->add_option(
      "plugin", profile.load.plugin,
      "a file (a path with '/', e.g. ./my.so), a name from the drop folder, or HOST:NAME from another host's");
  sub->add_option("--steps", profile.load.steps, "steps to make; default: as many as it takes")->check(whole(1, 2000));
  sub->add_option("--worker", profile.worker, "the worker to profile on, see freeride-ctl workers; default: any");
  sub->add_option("--device", profile.device, "the device to profile on: cpu-N or a GPU's UUID");
  add_place(sub, profile.load);
  add_plugin_options(sub, profile.load);
  add_rights(sub, profile.load, "memory it may use at most, e.g. 2GiB; default: the manager's");
  sub->add_flag("--again", profile.again, "take it even if there is a profile already");
  sub->require_subcommand(0, 1);
  auto* list = sub->add_subcommand("list", "the profiles that the manager keeps");
  lists(list, arguments, [&arguments](Session& session) { return run_profile_list(session, arguments.profile); });
  list->add_option("--plugin", profile.load.plugin, "only profiles of this file name");
  sub->callback([&arguments] {
    if (arguments.action) return;  // list
    arguments.action = [&arguments](Session& session) -> Result<int> {
      if (arguments.profile.load.plugin.empty()) {
        return Error{Code::kInvalidArgument, "no plugin is named", "freeride-ctl profile PLUGIN, or profile list"};
      }
      return run_profile(session, arguments.profile);
    };
  });
}

void add_python_path(CLI::App& app, Arguments& arguments) {
  auto* sub = app.add_subcommand("python-path", "the folder of the Python package, for PYTHONPATH; needs no manager");
  does(sub, arguments, [](Session& session) -> Result<int> {
    const auto folder = python_path();
    if (!folder) return folder.error();
    session.out() << (session.json() ? dump({{"path", folder->string()}}) : folder->string()) << "\n";
    return kExitOk;
  });
}

void add_doctor(CLI::App& app, Arguments& arguments) {
  auto* sub =
      app.add_subcommand("doctor", "what this host lacks for a worker, and what to do about it; needs no manager");
  sub->add_option("--device", arguments.device, "the worker's: cpu-N or a GPU's UUID; default: cpu-0");
  sub->add_option("--state-dir", arguments.state_dir, "the worker's state folder");
  does(sub, arguments, [&arguments](Session& session) -> Result<int> {
    std::vector<std::string> argv{"--check", "--format", session.json() ? "json" : "table"};
    if (!arguments.device.empty()) argv.insert(argv.end(), {"--device", arguments.device});
    if (!arguments.state_dir.empty()) argv.insert(argv.end(), {"--state-dir", arguments.state_dir});
    if (!arguments.run_dir.empty()) argv.insert(argv.end(), {"--run-dir", arguments.run_dir});
    return exec_program(kWorker, argv);
  });
}

void add_keys(CLI::App& app, Arguments& arguments) {
  KeysArguments& keys = arguments.keys;
  auto* sub = app.add_subcommand(
      "keys", "keys of those who may reach this host's manager over the network; run as the manager's user");
  sub->require_subcommand(1);
  const auto verb = [&](const char* name, const char* help, Result<int> (*run)(Session&, const KeysArguments&)) {
    auto* inner = sub->add_subcommand(name, help);
    inner->add_option("--keys-dir", keys.folder, "the manager's --keys-dir; default: keys in its state folder");
    does(inner, arguments, [&arguments, run](Session& session) { return run(session, arguments.keys); });
    return inner;
  };
  auto* make = verb("make", "make a key and authorise it", run_keys_make);
  make->add_option("name", keys.name, "of the key, e.g. alice-laptop")->required();
  make->add_option("--role", keys.role,
                   "monitor: hears events; user: also loads tasks and steers its own; operator: everything; node: a "
                   "host's daemon, for that host's users")
      ->required()
      ->check(CLI::IsMember({"monitor", "user", "operator", "node"}));
  make->add_option("--account", keys.account,
                   "whose tasks are this key's own, as users see it; default: the key's name");
  make->add_option("--host", keys.host, "of a node: the host that it speaks for");
  make->add_option("--out", keys.out, "the file that is taken to the other host; default: NAME.key here");
  auto* list = verb("list", "the keys that are authorised", run_keys_list);
  lists(list, arguments, [&arguments](Session& session) { return run_keys_list(session, arguments.keys); });
  auto* revoke = verb("revoke", "take all rights from these keys, also on existing connections", run_keys_revoke);
  revoke->add_option("name", keys.names, "names of keys")->required();
}

void add_host(CLI::App& app, Arguments& arguments) {
  HostArguments& host = arguments.host;
  auto* sub = app.add_subcommand("host", "join another host to a manager: a command on each of the two, as root");
  sub->require_subcommand(1);
  const auto verb = [&](const char* name, const char* help, Result<int> (*run)(Session&, const HostArguments&)) {
    auto* inner = sub->add_subcommand(name, help);
    does(inner, arguments, [&arguments, run](Session& session) {
      arguments.host.run_dir = arguments.run_dir;
      return run(session, arguments.host);
    });
    return inner;
  };
  const auto common = [&](CLI::App* inner) {
    inner->add_option("--etc", host.etc, "folder of the settings, where the units have another one than /etc/freeride");
    inner->add_flag("--no-start", host.no_start, "write the files, and leave systemd's units as they are");
  };
  auto* add = verb("add", "on the manager's host: make the other host's key, and let the manager listen on the network",
                   run_host_add);
  add->add_option("host", host.keys.host, "what the other host is called, e.g. gpu7")->required();
  add->add_option("--out", host.keys.out, "the file that is taken to the other host; default: HOST-node.key here");
  add->add_option("--keys-dir", host.keys.folder, "the manager's --keys-dir; default: as its settings say");
  common(add);
  auto* join =
      verb("join", "on the other host: check key and ports, install the key, and start freeride-node", run_host_join);
  join->add_option("head", host.head, "the manager's host: its name or address, or tcp://HOST:PORT; port 7420")
      ->required();
  join->add_option("key", host.key_file, "the key file that freeride-ctl host add has made")->required();
  auto* device =
      join->add_option("--device", host.device, "on a host without GPUs: the device that gets a worker, e.g. cpu-0");
  join->add_option("--cores", host.cores, "cores of that device, e.g. 0,2-3")->needs(device);
  common(join);
}

void add_recording(CLI::App& app, Arguments& arguments) {
  RecordingArguments& recording = arguments.recording;
  auto* sub = app.add_subcommand("recording", "what freeride-recorder has written; needs no manager");
  sub->require_subcommand(1);
  const auto verb = [&](const char* name, const char* help, Result<int> (*run)(Session&, const RecordingArguments&)) {
    auto* inner = sub->add_subcommand(name, help);
    inner->add_option("--recording", recording.path, "a file or a folder; default: where freeride-recorder writes");
    does(inner, arguments, [&arguments, run](Session& session) { return run(session, arguments.recording); });
    return inner;
  };
  verb("ls", "the files, and which time they are of", run_recording_ls);
  auto* view = verb("view", "print events", run_recording_view);
  view->add_option("--count", recording.count, "end after so many")->check(CLI::PositiveNumber);
  auto* take = verb("export", "take a range out, as MCAP or as a trace for Perfetto", run_recording_export);
  take->add_option("out", recording.out, "the file to make: *.mcap, or *.json for a trace")->required();
  take->add_option("--as", recording.as, "mcap or trace; default: by the file's name")
      ->check(CLI::IsMember({"mcap", "trace"}));
  for (auto* inner : {view, take}) {
    inner->add_option("--from", recording.from, "03:14, 2026-11-23T03:14:05 or '10m ago'");
    inner->add_option("--to", recording.to, "as --from");
    inner->add_option("--topic", recording.topic, "only topics that begin so");
  }
}

void add_why(CLI::App& app, Arguments& arguments) {
  WhyArguments& why = arguments.why;
  auto* sub = app.add_subcommand("why", "why a side task runs or does not; of JOB/RANK, why those beside that rank do");
  sub->add_option("subject", why.subject, "a task, or JOB/RANK")->required();
  auto* at =
      sub->add_option("--at", why.at, "at this moment, from the recording: 03:14, 2026-11-23T03:14:05, '10m ago'");
  sub->add_option("--since", why.since, "in so much time up to now, from the recording: 90s, 10m")->excludes(at);
  sub->add_option("--recording", why.recording, "a file or a folder; default: where freeride-recorder writes");
  does(sub, arguments, [&arguments](Session& session) { return run_why(session, arguments.why); });
}

void add_up(CLI::App& app, Arguments& arguments) {
  UpArguments& up = arguments.up;
  auto* sub = app.add_subcommand(
      "up", "start a manager, a worker for each device and the page on this host, in the foreground; q ends them");
  auto* device = sub->add_option("--device", up.devices.devices,
                                 "a device that gets a worker, repeatable: a GPU's UUID or cpu-N; default: this host's "
                                 "GPUs")
                     ->delimiter(':')
                     ->allow_extra_args(false);
  sub->add_option("--cpus", up.devices.cpus,
                  "so many CPU devices cpu-0, cpu-1, ..., and no GPU; default where there is no GPU: 2")
      ->check(whole(1, 1024))
      ->excludes(device);
  sub->add_option(
         "--cores", up.devices.cores,
         "cores of a CPU device, e.g. 0,2-3; repeatable, in the order of the CPU devices; default: one for each")
      ->delimiter(':')
      ->allow_extra_args(false);
  sub->add_option("--state-dir", up.state_dir, "state folder: tasks, plugins, logs");
  auto* listen = sub->add_option("--listen", up.listen, "where the page is, ADDRESS:PORT; default: 127.0.0.1:7473");
  sub->add_flag("--no-page", up.no_page, "without the page")->excludes(listen);
  sub->add_option("worker-flags", up.worker_flags, "after --: further flags of every worker");
  does(sub, arguments, [&arguments](Session& session) {
    arguments.up.run_dir = arguments.run_dir;
    return run_up(session, arguments.up);
  });
}

void add_verbs(CLI::App& app, Arguments& arguments) {
  const auto simple = [&app, &arguments](const char* name, const char* help, Result<int> (*verb)(Session&)) {
    does(app.add_subcommand(name, help), arguments, verb);
  };
  add_up(app, arguments);
  simple("status", "the manager, its workers, tasks and jobs at a glance", run_status);
  add_load(app, arguments);
  add_submit(app, arguments);
  auto* tasks = app.add_subcommand("tasks", "the side tasks that live");
  tasks->add_flag("-a,--all", arguments.listed.all, "those that have ended, too");
  tasks->add_option("-l,--label", arguments.listed.labels, "those with the label k=v, or k")->allow_extra_args(false);
  tasks->add_option("--since", arguments.listed.since, "those that ended since then, too: 90s, 30m, 1h or 2d");
  lists(tasks, arguments, [&arguments](Session& session) { return run_tasks(session, arguments.listed); });
  auto* task = app.add_subcommand("task", "one side task: state, steps, verdict, end of its log");
  task->add_option("name", arguments.task, "the task")->required();
  does(task, arguments, [&arguments](Session& session) { return run_task(session, arguments.task); });
  add_change(app, arguments, "stop", "stop side tasks for good", run_stop);
  add_change(app, arguments, "pause", "keep side tasks from running", run_pause);
  add_change(app, arguments, "resume", "let paused side tasks run again", run_resume);
  auto* wait = app.add_subcommand("wait", "wait until side tasks have ended; 0: each has finished or was stopped");
  add_tasks(wait, arguments);
  wait->add_option("--for", arguments.wait_s, "at most so many seconds; default: as long as it takes")
      ->check(within(0.001, 1e9));
  does_with_tasks(wait, arguments, true, [&arguments](Session& session, const std::vector<std::string>& names) {
    return run_wait(session, names, arguments.wait_s);
  });
  add_change(app, arguments, "rm", "forget side tasks that have ended: their verdicts and logs", run_remove, false);
  add_data(app, arguments);
  add_batch(app, arguments);
  add_drain(app, arguments);
  lists(app.add_subcommand("workers", "all workers and the trainers attached to them"), arguments, run_workers);
  auto* ranks = app.add_subcommand("ranks", "each rank of a training: its state, and why its bubbles are used or not");
  ranks->add_option("job", arguments.job, "only this job");
  lists(ranks, arguments, [&arguments](Session& session) { return run_ranks(session, arguments.job); });
  lists(app.add_subcommand("plugins", "plugins that can be loaded by name: the drop folders', and FreeRide's own"),
        arguments, run_plugins);
  add_plugin(app, arguments);
  add_profile(app, arguments);
  add_doctor(app, arguments);
  add_keys(app, arguments);
  add_host(app, arguments);
  add_python_path(app, arguments);
  add_why(app, arguments);
  add_recording(app, arguments);
  auto* events = app.add_subcommand("events", "print events as they come");
  events->add_option("--topic", arguments.events.topic,
                     "only topics that begin so, e.g. bubble.end or task.state/pagerank");
  events->add_option("--count", arguments.events.count, "end after so many")->check(whole(1, INT64_MAX));
  does(events, arguments, [&arguments](Session& session) { return run_events(session, arguments.events); });
  auto* top = app.add_subcommand("top", "live view of bubbles and side tasks");
  top->add_option("--count", arguments.top.count, "end after so many pictures")->check(whole(1, INT64_MAX));
  top->add_option("--interval", arguments.top.interval_s, "seconds between pictures")
      ->check(within(0.1, 3600.0))
      ->capture_default_str();
  std::vector<std::string> sorts;
  for (const auto& [word, sort] : top_sorts()) sorts.push_back(word);
  top->add_option("--sort", arguments.top.sort, "side tasks by name, state, stage, steps, rate, harvested or memory")
      ->check(CLI::IsMember(sorts))
      ->capture_default_str();
  does(top, arguments, [&arguments](Session& session) { return run_top(session, arguments.top); });
  auto* faults = app.add_subcommand("faults", "GPU faults of the last hour, and who is blocked for them");
  faults->add_option("--lift", arguments.lift, "unblock plugin=HASH, user=NAME or job=NAME");
  lists(faults, arguments, [&arguments](Session& session) { return run_faults(session, arguments.lift); });
  auto* report = app.add_subcommand("report", "measures of every job and task: slowdown, bubbles, harvest, overrun");
  report->add_option("--job", arguments.job, "only this job");
  auto* since = report->add_option("--since", arguments.since,
                                   "30d, 12h: what side tasks have had since then, and what it has cost training");
  report->add_option("--by", arguments.by, "with --since: user (the default), account, job or task")
      ->needs(since)
      ->check(CLI::IsMember({"user", "account", "job", "task"}));
  since->excludes(report->get_option("--job"));
  lists(report, arguments, [&arguments](Session& session) {
    if (arguments.since.empty()) return run_report(session, arguments.job);
    return run_usage(session, arguments.since, arguments.by.empty() ? "user" : arguments.by);
  });
}

// How errors are said is known before the command line is: what is wrong with that is one, too.
bool wants_json_errors(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--errors=json" || (word == "--errors" && i + 1 < argc && std::string_view(argv[i + 1]) == "json"))
      return true;
  }
  return false;
}

// Where the manager is: on another host, or in the run folder.
Status find_manager(const Arguments& arguments, const Paths& paths, Options& options) {
  options.commands_endpoint = paths.commands_endpoint();
  options.events_endpoint = paths.events_endpoint();
  if (!arguments.manager.empty()) {
    options.commands_endpoint = arguments.manager;
    if (auto next = take(options.events_endpoint, bus::events_port_of(arguments.manager)); !next) return next;
  }
  if (!arguments.commands_endpoint.empty()) options.commands_endpoint = arguments.commands_endpoint;
  if (!arguments.events_endpoint.empty()) options.events_endpoint = arguments.events_endpoint;
  if (arguments.key.empty()) return {};
  auto key = read_secret_key(arguments.key);
  if (!key) return key.error();
  if (key->manager_key.empty()) {
    return Error{Code::kInvalidArgument, "the key file " + arguments.key + " does not say which manager it is for",
                 "take the one that freeride-ctl keys make has written"};
  }
  options.key = bus::ClientKey{key->public_key, key->secret_key, key->manager_key, arguments.key};
  return {};
}

// The first word that should be a verb and is none, with what might be meant; CLI11 speaks of arguments there.
std::optional<Error> unknown_verb(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  std::string said = "freeride-ctl";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto verbs = at->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty()) return std::nullopt;
    if (word.rfind('-', 0) == 0) {
      const CLI::Option* option = nullptr;
      for (const CLI::App* has : {at, &app}) {
        for (const CLI::Option* one : has->get_options()) {
          if (one->check_name(word)) option = one;
        }
      }
      if (option != nullptr && option->get_items_expected_max() > 0) ++i;  // its value
      continue;
    }
    const auto found =
        std::find_if(verbs.begin(), verbs.end(), [&word](const CLI::App* verb) { return verb->check_name(word); });
    if (found != verbs.end()) {
      at = *found;
      said += " " + word;
      continue;
    }
    if (at->get_require_subcommand_min() == 0) return std::nullopt;
    std::vector<std::string> names;
    for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
    return Error{Code::kInvalidArgument, said + " has no verb '" + word + "'",
                 did_you_mean(word, names) + "see " + said + " --help"};
  }
  return std::nullopt;
}

// Colours help on a terminal, and are in the way everywhere else. https://no-color.org
bool wants_colour() {
  const char* none = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (none == nullptr || *none == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb" && *terminal != '\0';
}

// Whether what is printed can be printed so.
Status check_output(const Arguments& arguments) {
  if (arguments.format == "csv" && !arguments.is_list) {
    return Error{
        Code::kInvalidArgument, "--format csv is for lists",
        "tasks, workers, ranks, plugins, faults, report, batch ls, profile list and keys list are lists; json works "
        "everywhere"};
  }
  if (arguments.format == "json" && !arguments.columns.empty()) {
    return Error{Code::kInvalidArgument, "--columns is for tables and csv", "json has all fields"};
  }
  return {};
}

int parse_and_act(int argc, char** argv, std::ostream& out, std::ostream& err) {
  CLI::App app("Loads, watches and steers side tasks that run in the bubbles of pipeline-parallel training.",
               "freeride-ctl");
  const bool json_errors = wants_json_errors(argc, argv);
  const auto fail = [&err, json_errors](const Error& error) {
    err << error_line(error, json_errors) << "\n";
    return exit_code(error);
  };
  app.set_version_flag("--version", FREERIDE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();  // global options may follow the verb, and sub-subcommands inherit this
  Arguments arguments;
  add_globals(app, arguments);
  add_verbs(app, arguments);
  for (CLI::App* verb : app.get_subcommands({})) verb->footer(examples(verb->get_name() + " "));
  app.footer(examples() + "\n" + kFooter);
  const Status bound = bind_config(app, "ctl");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, out, err);  // --help, --version
    if (const auto unknown = unknown_verb(app, argc, argv)) return fail(*unknown);
    return fail(Error{Code::kInvalidArgument, error.what(), "see freeride-ctl --help"});
  }
  if (!bound) return fail(bound.error());
  if (auto possible = check_output(arguments); !possible) return fail(possible.error());
  Paths paths = Paths::defaults();
  paths.run_dir = Paths::run_dir_with("commands.sock", arguments.run_dir);
  Options options;
  options.usable = find_manager(arguments, paths, options);
  options.format = arguments.format == "json"  ? Format::kJson
                   : arguments.format == "csv" ? Format::kCsv
                                               : Format::kTable;
  options.columns = arguments.columns;
  options.colour = wants_colour();
  options.json_errors = json_errors;
  options.request_id = arguments.request_id;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(arguments.timeout_s * 1000));
  Session session(options, out);
  const auto code = arguments.action(session);
  out.flush();
  if (!code) return fail(code.error());
  if (!out) return fail(Error{Code::kInternal, "cannot write to the standard output", ""});
  return *code;
}

}  // namespace

int run(int argc, char** argv, std::ostream& out, std::ostream& err) {
  try {
    return parse_and_act(argc, argv, out, err);
  } catch (const std::exception& error) {  // out of memory, or a library's own
    const Error said{Code::kInternal, error.what(), ""};
    err << error_line(said, wants_json_errors(argc, argv)) << "\n";
    return exit_code(said);
  }
}

}  // namespace freeride::ctl
