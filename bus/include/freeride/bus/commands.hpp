// Command types: requests and replies over ROUTER/DEALER. Idempotent by request id; bus/WIRE.md is the specification.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "freeride/bus/events.hpp"

namespace freeride::bus {

// ---- freeride-ctl (or any client) → manager
// --------------------------------------------------------------------------------

/// A file or folder of the host that a task sees.
struct FileGrant {
  std::string source;  ///< absolute path on the worker's host, below one of its --data folders
  std::string target;  ///< path inside the sandbox; empty: the same
  bool write = false;
  FREERIDE_FIELDS { visit("source", self.source), visit("target", self.target), visit("write", self.write); }
};

/// Runs a plugin as a side task. The plugin is, in this order, the message's attachment, the content `sha256` that the
/// manager or a worker has, or the file `plugin` in the drop folders.
struct Load {
  static constexpr const char* kCommand = "load";
  std::string plugin;  ///< file name, e.g. resnet18.so
  std::string sha256;
  std::string name;    ///< the task's; empty: made from the plugin's name
  std::string job;     ///< empty: the only one
  int32_t stage = -1;  ///< -1: any
  int32_t replica = -1;
  std::map<std::string, std::string> params;
  int64_t memory_bytes = 0;  ///< declared; 0: profiled under the default cap
  uint64_t steps = 0;        ///< stop after so many; 0: until it finishes or is stopped
  int32_t priority = 0;      ///< higher first
  bool when_idle = false;    ///< may also run while no trainer is on the device
  bool start_paused = false;
  std::string user;
  bool network = false;     ///< may use the host's network
  bool no_profile = false;  ///< neither waits for a profile nor goes by one
  std::vector<FileGrant> files;
  std::string working_dir;                    ///< inside the sandbox; empty: the scratch folder
  std::map<std::string, std::string> env;     ///< set in the task's environment
  std::map<std::string, std::string> labels;  ///< the user's own marks, to list and order by
  std::vector<std::string> after;             ///< "afterok:TASK": waits until that one has finished
  std::string restart;                        ///< "", "no" or "on-failure"
  uint32_t restarts_most = 0;                 ///< on-failure: at most so often
  int64_t time_limit_s = 0;                   ///< stopped so long after its first placement; 0: never
  std::string group;                          ///< tasks of one user's group share `parallel`; empty: none
  uint32_t parallel = 0;                      ///< of its group at most so many on workers at once; 0: all
  int64_t uid = -1;      ///< whose rights its files are used under; set by the manager from the kernel's word
  std::string uid_host;  ///< host id where the kernel said so
  std::string account;   ///< to which its use is charged; empty: the user
  std::vector<std::string> program;  ///< a program's name and arguments, which is run instead of a plugin
  bool any_job = false;              ///< of several jobs any, now and whenever it is placed again; `job` is empty
  FREERIDE_FIELDS {
    visit("plugin", self.plugin), visit("sha256", self.sha256), visit("name", self.name), visit("job", self.job);
    visit("stage", self.stage), visit("replica", self.replica), visit("params", self.params);
    visit("memory_bytes", self.memory_bytes), visit("steps", self.steps), visit("priority", self.priority);
    visit("when_idle", self.when_idle), visit("start_paused", self.start_paused), visit("user", self.user);
    visit("network", self.network), visit("no_profile", self.no_profile), visit("files", self.files);
    visit("working_dir", self.working_dir);
    visit("env", self.env), visit("labels", self.labels), visit("after", self.after), visit("restart", self.restart);
    visit("restarts_most", self.restarts_most), visit("time_limit_s", self.time_limit_s), visit("group", self.group);
    visit("parallel", self.parallel), visit("uid", self.uid), visit("uid_host", self.uid_host);
    visit("account", self.account), visit("program", self.program), visit("any_job", self.any_job);
  }
};

/// What would become of a Load now, without loading. A plugin's file is named by `load.sha256`; nothing is attached.
/// Reply: LoadPlan. Errors: as Load's.
struct PlanLoad {
  static constexpr const char* kCommand = "load.plan";
  Load load;
  FREERIDE_FIELDS { visit("load", self.load); }
};
/// One pipeline stage that it asks for.
struct PlannedStage {
  std::string job, worker;
  uint32_t stage = 0, replica = 0;
  bool fits = false;
  std::string reason;           ///< one sentence for people: why not, or why the rate is not known
  double bubble_share_pct = 0;  ///< bubble time ÷ iteration time, measured; less than 0: not yet
  double steps_per_hour = 0;    ///< at most, by that, the slowdown budget and the profile; 0: none, or not known
  FREERIDE_FIELDS {
    visit("job", self.job), visit("worker", self.worker), visit("stage", self.stage), visit("replica", self.replica);
    visit("fits", self.fits), visit("reason", self.reason), visit("bubble_share_pct", self.bubble_share_pct);
    visit("steps_per_hour", self.steps_per_hour);
  }
};
struct LoadPlan {
  std::string name;            ///< that the task would have
  bool fits = false;           ///< it would be placed at once
  std::string worker;          ///< where; empty: nowhere
  std::string why, reason;     ///< as in TaskState: why not. `why` is empty where it would be rejected
  int64_t memory_bytes = 0;    ///< that it would be given
  int64_t step_ns = 0;         ///< the middle of its profile; 0: there is none
  uint64_t profile_steps = 0;  ///< that the profile knows
  std::vector<PlannedStage> stages;
  FREERIDE_FIELDS {
    visit("name", self.name), visit("fits", self.fits), visit("worker", self.worker), visit("why", self.why);
    visit("reason", self.reason), visit("memory_bytes", self.memory_bytes), visit("step_ns", self.step_ns);
    visit("profile_steps", self.profile_steps), visit("stages", self.stages);
  }
};

/// Moves a live task to another plugin, named or attached as with Load. Of `load`, these count if they are not their
/// defaults: params (all of them together), memory_bytes, steps and priority. Everything else stays the task's. Reply,
/// once the new one has taken over: TaskReply. If it cannot, the error says why, and the old one continues.
struct ReplacePlugin {
  static constexpr const char* kCommand = "replace";
  std::string task;
  Load load;
  FREERIDE_FIELDS { visit("task", self.task), visit("load", self.load); }
};

/// The latest replacement of a task's plugin.
struct Replacement {
  uint64_t revision = 0;   ///< that it leads to; 0: there was none
  std::string state;       ///< "pending", "done" or "failed"
  std::string request_id;  ///< of the ReplacePlugin that asked for it
  Load load;               ///< what the task is to run; empty once done
  std::string reason;      ///< done: what became of the progress; failed: why
  std::string code;        ///< failed: as in a reply
  FREERIDE_FIELDS {
    visit("revision", self.revision), visit("state", self.state), visit("request_id", self.request_id);
    visit("load", self.load), visit("reason", self.reason), visit("code", self.code);
  }
};

/// A content that a task has run before the present one.
struct Incarnation {
  uint64_t revision = 0;
  std::string plugin, sha256;
  uint64_t steps = 0;  ///< of the task until then
  int64_t ended_unix_ms = 0;
  Verdict verdict;  ///< kind "replaced"
  FREERIDE_FIELDS {
    visit("revision", self.revision), visit("plugin", self.plugin), visit("sha256", self.sha256);
    visit("steps", self.steps), visit("ended_unix_ms", self.ended_unix_ms), visit("verdict", self.verdict);
  }
};

/// What a program on a GPU says of its work there, by way of the shim of libcuda: its own word, for people only.
struct ShimCounters {
  static constexpr size_t kMostNames = 8;
  uint32_t processes = 0;                          ///< that have loaded the shim; 0: none has
  uint64_t submissions = 0;                        ///< of work that passed
  uint64_t waits = 0;                              ///< of them, that had waited for a lease
  int64_t waited_ns = 0;                           ///< in sum
  uint64_t refused = 0;                            ///< submissions that got an error, for want of a lease page
  uint64_t too_long = 0;                           ///< submissions that an open lease was too short for
  int64_t too_long_ns = 0, lease_longest_ns = 0;   ///< how long the latest of them is; the longest of the last leases
  std::string too_long_name;                       ///< its kernel
  uint64_t late = 0;                               ///< leases after whose end there was work on the GPU
  int64_t late_most_ns = 0;                        ///< the longest of that
  uint64_t host_functions = 0, export_tables = 0;  ///< pass without a lease: functions in streams; tables asked for
  std::map<std::string, uint64_t> unknown;         ///< functions that the shim does not know, which passed: their calls
  FREERIDE_FIELDS {
    visit("processes", self.processes), visit("submissions", self.submissions), visit("waits", self.waits);
    visit("waited_ns", self.waited_ns), visit("refused", self.refused), visit("too_long", self.too_long);
    visit("too_long_ns", self.too_long_ns), visit("lease_longest_ns", self.lease_longest_ns);
    visit("too_long_name", self.too_long_name), visit("late", self.late), visit("late_most_ns", self.late_most_ns);
    visit("host_functions", self.host_functions), visit("export_tables", self.export_tables);
    visit("unknown", self.unknown);
  }
};

/// Everything known of a task: its state as on the bus, and how it was asked for.
struct TaskInfo {
  TaskState state;
  Load load;
  int64_t submitted_unix_ms = 0, ended_unix_ms = 0;
  uint32_t restarts = 0;  ///< times it was started anew because its worker was lost
  std::string sandbox;    ///< the sandbox it runs in and the limits that hold there
  std::string log_tail;   ///< only in the answer to ShowTask
  uint64_t revision = 0;  ///< times its plugin was replaced
  Replacement replacement;
  std::vector<Incarnation> incarnations;  ///< the latest, oldest first
  uint64_t epoch = 0;                     ///< of its latest placement; 0: it was never placed
  std::string instance;  ///< of a task that another manager had taken; empty: made from its number and submission
  std::vector<std::string> waits_for;  ///< instances of the tasks that have to finish first
  int64_t placed_unix_ms = 0;          ///< of its first placement; 0: there was none
  uint32_t failures = 0;               ///< times it was started anew because it had failed
  std::vector<ShimCounters> shim;      ///< of its latest report
  std::string last_worker;  ///< that had it before it was queued again, and has its saved state, if there is one
  FREERIDE_FIELDS {
    visit("state", self.state), visit("load", self.load), visit("submitted_unix_ms", self.submitted_unix_ms);
    visit("ended_unix_ms", self.ended_unix_ms), visit("restarts", self.restarts), visit("sandbox", self.sandbox);
    visit("log_tail", self.log_tail), visit("revision", self.revision), visit("replacement", self.replacement);
    visit("incarnations", self.incarnations), visit("epoch", self.epoch), visit("instance", self.instance);
    visit("waits_for", self.waits_for), visit("placed_unix_ms", self.placed_unix_ms);
    visit("failures", self.failures), visit("shim", self.shim), visit("last_worker", self.last_worker);
  }
};
struct TaskReply {
  TaskInfo task;
  FREERIDE_FIELDS { visit("task", self.task); }
};

/// Stops a task for good / keeps it from running / lets it run again. Reply: TaskReply.
struct StopTask {
  static constexpr const char* kCommand = "stop";
  std::string task;
  FREERIDE_FIELDS { visit("task", self.task); }
};
struct PauseTask {
  static constexpr const char* kCommand = "pause";
  std::string task;
  FREERIDE_FIELDS { visit("task", self.task); }
};
struct ResumeTask {
  static constexpr const char* kCommand = "resume";
  std::string task;
  FREERIDE_FIELDS { visit("task", self.task); }
};
/// Forgets a task that has ended: its record, with verdict and end of its log. Refused while its worker may still have
/// something of it. Reply: TaskReply, as it was.
struct RemoveTask {
  static constexpr const char* kCommand = "remove";
  std::string task;
  FREERIDE_FIELDS { visit("task", self.task); }
};
/// One task with its log's tail. Reply: TaskReply.
struct ShowTask {
  static constexpr const char* kCommand = "task";
  std::string task;
  FREERIDE_FIELDS { visit("task", self.task); }
};

/// A piece of a task's log, from the worker that has it. Reply: LogReply.
struct ReadLog {
  static constexpr const char* kCommand = "task.log";
  std::string task;
  bool previous = false;  ///< of the start before the present one
  int64_t offset = -1;    ///< in bytes of the log; -1: its last lines
  FREERIDE_FIELDS { visit("task", self.task), visit("previous", self.previous), visit("offset", self.offset); }
};
/// A piece of a file of a task's scratch folder, or what a folder there holds. Only for whose task it is, and for
/// operators. Reply: FileReply, with the piece attached.
struct ReadFile {
  static constexpr const char* kCommand = "task.file";
  std::string task;
  std::string path;     ///< in the scratch folder; empty: that folder
  uint64_t offset = 0;  ///< FileReply::next of the piece before; 0: the first
  FREERIDE_FIELDS { visit("task", self.task), visit("path", self.path), visit("offset", self.offset); }
};
struct FileEntry {
  std::string name;
  std::string kind;  ///< "file", "folder" or "other", which is not copied
  uint64_t bytes = 0;
  FREERIDE_FIELDS { visit("name", self.name), visit("kind", self.kind), visit("bytes", self.bytes); }
};
struct FileReply {
  std::string kind;                ///< "file" or "folder"
  uint64_t bytes = 0;              ///< of the file, now
  bool executable = false;         ///< of the file
  bool more = false;               ///< there is more behind this piece
  uint64_t next = 0;               ///< where that begins
  std::vector<FileEntry> entries;  ///< of the folder
  FREERIDE_FIELDS {
    visit("kind", self.kind), visit("bytes", self.bytes), visit("executable", self.executable);
    visit("more", self.more), visit("next", self.next), visit("entries", self.entries);
  }
};

/// A piece of a plugin's content that the drop folder of some worker of a host has. So somebody loads on every host
/// what is on one: by saying which host is believed, since a name may be another content there. Reply: FileReply, with
/// the piece attached.
struct ReadPlugin {
  static constexpr const char* kCommand = "plugin.read";
  std::string host;  ///< host id: a worker's name up to its ':'
  std::string sha256;
  uint64_t offset = 0;  ///< FileReply::next of the piece before; 0: the first
  FREERIDE_FIELDS { visit("host", self.host), visit("sha256", self.sha256), visit("offset", self.offset); }
};

/// A piece of a plugin's content for the manager, before a command that names it by its `sha256`. Without a piece it
/// only asks how much is there. Repeating it is safe: a piece that does not begin where the manager's end is ignored.
/// Reply: FileReply, with `next` as the bytes that are there; the content is kept for a minute after it is whole, or
/// longer where something uses it. A manager that does not know the command takes the content with the other one.
struct WritePlugin {
  static constexpr const char* kCommand = "plugin.write";
  /// So long is a piece: on a slow link, too, it is there before patience ends.
  static constexpr size_t kPieceBytes = 256u << 10;
  std::string sha256;
  uint64_t bytes = 0;   ///< of the whole content
  uint64_t offset = 0;  ///< where the attached piece begins
  FREERIDE_FIELDS { visit("sha256", self.sha256), visit("bytes", self.bytes), visit("offset", self.offset); }
};

/// Keeps side tasks off devices until they are given back: those of a job's ranks, a device, or a host. What runs there
/// saves its state and goes elsewhere. Remembered over restarts. Repeating it asks how far it is. Reply: DrainReply.
struct Drain {
  static constexpr const char* kCommand = "drain";
  std::string subject;  ///< a job, a device (as in its worker's name, or the whole name), or a host
  bool follow = false;  ///< only asks how far it is
  FREERIDE_FIELDS { visit("subject", self.subject), visit("follow", self.follow); }
};
struct Uncordon {
  static constexpr const char* kCommand = "uncordon";
  std::string subject;
  FREERIDE_FIELDS { visit("subject", self.subject); }
};
struct DrainedWorker {
  std::string worker;
  std::string state;   ///< "draining", "empty", "unknown", or "open" where it is not drained
  std::string reason;  ///< draining, unknown: what is still there, or why nobody knows
  FREERIDE_FIELDS { visit("worker", self.worker), visit("state", self.state), visit("reason", self.reason); }
};
struct DrainReply {
  std::string scope, name;  ///< "job", "device", "host" or "all", and which
  std::vector<DrainedWorker> workers;
  FREERIDE_FIELDS { visit("scope", self.scope), visit("name", self.name), visit("workers", self.workers); }
};

/// Runs a plugin over a list of items. What the items are, only the submitter's files say (docs/batches.md); the
/// manager keeps which of them are done. The plugin is named or attached as with Load, and `load.name` is the batch's.
/// Reply: BatchReply. Repeated with the same `id` it makes no second batch.
struct SubmitBatch {
  static constexpr const char* kCommand = "batch.submit";
  Load load;  ///< of each of its members, which are ordinary tasks
  std::string id;
  uint64_t items = 0;
  uint32_t tries = 0;         ///< of an item that ends its process, before it counts as failed
  std::string input, output;  ///< as the submitter has named them
  FREERIDE_FIELDS {
    visit("load", self.load), visit("id", self.id), visit("items", self.items), visit("tries", self.tries);
    visit("input", self.input), visit("output", self.output);
  }
};
struct ShowBatch {
  static constexpr const char* kCommand = "batch";
  std::string batch;
  FREERIDE_FIELDS { visit("batch", self.batch); }
};
struct ListBatches {
  static constexpr const char* kCommand = "batches";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
/// Forgets a batch; of one that goes on, its members are stopped. Files stay as they are. Reply: BatchReply.
struct RemoveBatch {
  static constexpr const char* kCommand = "batch.remove";
  std::string batch;
  FREERIDE_FIELDS { visit("batch", self.batch); }
};
struct BatchInfo {
  std::string name;
  std::string state;   ///< "running", "assembling", "clearing", "finished" or "failed"
  std::string reason;  ///< failed: why
  SubmitBatch asked;
  uint64_t done = 0;                  ///< items that have a result, on disk
  uint64_t failed = 0;                ///< items that have none, and will not
  uint32_t members = 0, crashes = 0;  ///< tasks that live; ends of members by the plugin's fault
  int64_t submitted_unix_ms = 0, ended_unix_ms = 0;
  double items_per_s = 0;  ///< done or failed, over the last half minute; 0: not known, or none
  FREERIDE_FIELDS {
    visit("name", self.name), visit("state", self.state), visit("reason", self.reason), visit("asked", self.asked);
    visit("done", self.done), visit("failed", self.failed), visit("members", self.members);
    visit("crashes", self.crashes), visit("submitted_unix_ms", self.submitted_unix_ms);
    visit("ended_unix_ms", self.ended_unix_ms), visit("items_per_s", self.items_per_s);
  }
};
struct BatchReply {
  BatchInfo batch;
  FREERIDE_FIELDS { visit("batch", self.batch); }
};
struct BatchesReply {
  std::vector<BatchInfo> batches;
  FREERIDE_FIELDS { visit("batches", self.batches); }
};

struct ListTasks {
  static constexpr const char* kCommand = "tasks";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
struct TasksReply {
  std::vector<TaskInfo> tasks;
  FREERIDE_FIELDS { visit("tasks", self.tasks); }
};

struct ListWorkers {
  static constexpr const char* kCommand = "workers";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
struct WorkerInfo {
  WorkerState state;
  std::string device_model;
  uint32_t pid = 0;
  std::vector<TrainingState> ranks;
  int64_t silent_ms = 0;  ///< since its last report
  std::string sandbox;    ///< what its tasks run in: bubblewrap, or none
  bool drained = false;   ///< it gets no side tasks until it is given back: its device, its host or its job is drained
  FREERIDE_FIELDS {
    visit("state", self.state), visit("device_model", self.device_model), visit("pid", self.pid);
    visit("ranks", self.ranks), visit("silent_ms", self.silent_ms), visit("sandbox", self.sandbox);
    visit("drained", self.drained);
  }
};
struct WorkersReply {
  std::vector<WorkerInfo> workers;
  FREERIDE_FIELDS { visit("workers", self.workers); }
};

/// The ranks of trainings, those that have ended or were lost as long as they are remembered. Reply: RanksReply.
struct ListRanks {
  static constexpr const char* kCommand = "ranks";
  std::string job;  ///< empty: all
  FREERIDE_FIELDS { visit("job", self.job); }
};
struct RankInfo {
  TrainingState state;  ///< as its worker has last said, but for the reason of one whose worker is lost
  std::string host;
  int64_t silent_ms = 0;  ///< since it was last said
  FREERIDE_FIELDS { visit("state", self.state), visit("host", self.host), visit("silent_ms", self.silent_ms); }
};
struct RanksReply {
  std::vector<RankInfo> ranks;
  FREERIDE_FIELDS { visit("ranks", self.ranks); }
};

struct ListPlugins {
  static constexpr const char* kCommand = "plugins";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
struct PluginsReply {
  std::vector<PluginState> plugins;
  FREERIDE_FIELDS { visit("plugins", self.plugins); }
};

/// Reply: StatusReply.
struct GetStatus {
  static constexpr const char* kCommand = "status";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
struct StatusReply {
  std::string version, state_dir, run_dir;
  int64_t uptime_ms = 0;
  uint32_t pid = 0;
  std::map<std::string, double> tasks_by_state;
  std::vector<WorkerInfo> workers;
  std::vector<JobMeasures> jobs;
  std::string network;  ///< where it listens on the network, and whether by key, for people; empty: nowhere
  FREERIDE_FIELDS {
    visit("version", self.version), visit("state_dir", self.state_dir), visit("run_dir", self.run_dir);
    visit("uptime_ms", self.uptime_ms), visit("pid", self.pid), visit("tasks_by_state", self.tasks_by_state);
    visit("workers", self.workers), visit("jobs", self.jobs), visit("network", self.network);
  }
};

/// The whole picture for a report: measures of every job and every task. Reply: ReportReply.
struct GetReport {
  static constexpr const char* kCommand = "report";
  std::string job;  ///< empty: all
  FREERIDE_FIELDS { visit("job", self.job); }
};
struct ReportReply {
  std::vector<JobMeasures> jobs;
  std::vector<TaskInfo> tasks;
  FREERIDE_FIELDS { visit("jobs", self.jobs), visit("tasks", self.tasks); }
};

/// What side tasks have had of GPUs, and what it has cost their trainings. Reply: UsageReply.
struct GetUsage {
  static constexpr const char* kCommand = "usage";
  int64_t since_unix_ms = 0;  ///< from the beginning of that hour on; what is older than three days: of that day
  std::string by;             ///< "user", "account", "job" or "task"
  FREERIDE_FIELDS { visit("since_unix_ms", self.since_unix_ms), visit("by", self.by); }
};
/// Costs are estimates from the live I of each hour, shared among tasks by what they harvested. The ends of the 95 %
/// interval are added up as if all hours erred the same way.
struct UsageRow {
  std::string name;  ///< of the user, account, job or task; empty: none is known
  uint64_t tasks = 0, steps = 0;
  int64_t step_ns = 0, harvested_ns = 0, overrun_ns = 0;
  int64_t cost_ns = 0, cost_low_ns = 0, cost_high_ns = 0;  ///< GPU time that training took longer
  int64_t unmeasured_ns = 0;          ///< by job: training's GPU time with side tasks while I was not known yet
  int64_t gpu_ns = 0, bubble_ns = 0;  ///< by job: training's GPU time, and its bubbles
  FREERIDE_FIELDS {
    visit("name", self.name), visit("tasks", self.tasks), visit("steps", self.steps), visit("step_ns", self.step_ns);
    visit("harvested_ns", self.harvested_ns), visit("overrun_ns", self.overrun_ns), visit("cost_ns", self.cost_ns);
    visit("cost_low_ns", self.cost_low_ns), visit("cost_high_ns", self.cost_high_ns);
    visit("unmeasured_ns", self.unmeasured_ns), visit("gpu_ns", self.gpu_ns), visit("bubble_ns", self.bubble_ns);
  }
};
struct UsageReply {
  std::string by;
  int64_t from_unix_ms = 0;    ///< of the earliest hour in it; 0: there is nothing
  std::vector<UsageRow> rows;  ///< most harvested first, at most 1000; the rest is one of the name "..."
  FREERIDE_FIELDS { visit("by", self.by), visit("from_unix_ms", self.from_unix_ms), visit("rows", self.rows); }
};

/// How long something took, over all the times it was done.
struct Durations {
  uint64_t count = 0;
  int64_t p50_ns = 0, p90_ns = 0, p99_ns = 0, max_ns = 0;
  FREERIDE_FIELDS {
    visit("count", self.count), visit("p50_ns", self.p50_ns), visit("p90_ns", self.p90_ns);
    visit("p99_ns", self.p99_ns), visit("max_ns", self.max_ns);
  }
};

/// What a plugin content with these parameters takes on a device model. It is measured once, and used for placement and
/// as the starting value of what is learned.
struct Profile {
  std::string plugin, sha256;
  std::map<std::string, std::string> params;
  std::string device_model;
  std::string worker;                         ///< that took it
  int64_t taken_unix_ms = 0;                  ///< wall clock of its manager
  std::string conditions;                     ///< "idle": no trainer on the device; "bubbles": beside a training
  std::map<std::string, int64_t> peak_bytes;  ///< "host": resident; "gpu": by the driver, only where there is one
  int64_t create_ns = 0, init_ns = 0, stop_ns = 0;
  Durations starts, steps, pauses;
  std::vector<Durations> pieces;  ///< by place in the step; empty: steps without yield points
  std::vector<int64_t> step_ns;   ///< the steps' durations in order of time, the first of them
  /// Memory over time: one entry of each (of gpu_bytes only on a GPU) for every look at it.
  std::vector<int64_t> memory_t_ns, host_bytes, gpu_bytes;
  uint64_t wanted_steps = 0;   ///< 0: as many as it takes
  std::string ended;           ///< why it made no more steps
  uint64_t warm_up_steps = 0;  ///< the first of step_ns, which `steps` and `pieces` leave out
  FREERIDE_FIELDS {
    visit("plugin", self.plugin), visit("sha256", self.sha256), visit("params", self.params);
    visit("device_model", self.device_model), visit("worker", self.worker), visit("taken_unix_ms", self.taken_unix_ms);
    visit("conditions", self.conditions), visit("peak_bytes", self.peak_bytes), visit("create_ns", self.create_ns);
    visit("init_ns", self.init_ns), visit("stop_ns", self.stop_ns), visit("starts", self.starts);
    visit("steps", self.steps), visit("pauses", self.pauses), visit("pieces", self.pieces);
    visit("step_ns", self.step_ns), visit("memory_t_ns", self.memory_t_ns), visit("host_bytes", self.host_bytes);
    visit("gpu_bytes", self.gpu_bytes), visit("wanted_steps", self.wanted_steps), visit("ended", self.ended);
    visit("warm_up_steps", self.warm_up_steps);
  }
};

/// Profiles a plugin, given as with Load, on a worker that matches; `load.steps`: how many steps. Where there is a
/// profile already it is the answer, unless `again`. Reply: ProfileReply, at once.
struct TakeProfile {
  static constexpr const char* kCommand = "profile.take";
  Load load;
  std::string worker, device;  ///< of the worker; empty: any
  bool again = false;
  FREERIDE_FIELDS {
    visit("load", self.load), visit("worker", self.worker), visit("device", self.device), visit("again", self.again);
  }
};
/// How far a profile run is. Reply: ProfileReply, as soon as there is something that the client has not seen, or after
/// a second or two. A run that a client has asked for and nobody follows any more is stopped.
struct FollowProfile {
  static constexpr const char* kCommand = "profile.follow";
  std::string run, state;  ///< state: as last seen
  uint64_t steps = 0;      ///< as last seen
  FREERIDE_FIELDS { visit("run", self.run), visit("state", self.state), visit("steps", self.steps); }
};
/// Gives a profile run up; one that a task waits for goes on. Reply: ProfileReply.
struct StopProfile {
  static constexpr const char* kCommand = "profile.stop";
  std::string run;
  FREERIDE_FIELDS { visit("run", self.run); }
};
struct ProfileReply {
  std::string run;                ///< name of the run; empty: there is none, the profile was there
  std::string state;              ///< "starting", "running", "done" or "failed"
  std::string worker, reason;     ///< reason: what it waits for
  uint64_t steps = 0;             ///< made so far
  Verdict verdict;                ///< failed: how it ended
  std::vector<Profile> profiles;  ///< done: one
  FREERIDE_FIELDS {
    visit("run", self.run), visit("state", self.state), visit("worker", self.worker), visit("reason", self.reason);
    visit("steps", self.steps), visit("verdict", self.verdict), visit("profiles", self.profiles);
  }
};

/// The profiles that are kept, newest first, without their steps and memory one by one. Reply: ProfilesReply.
struct ListProfiles {
  static constexpr const char* kCommand = "profile.list";
  std::string plugin;  ///< only of this file name; empty: all
  FREERIDE_FIELDS { visit("plugin", self.plugin); }
};
struct ProfilesReply {
  std::vector<Profile> profiles;
  uint64_t left_out = 0;  ///< would have made the answer too large
  FREERIDE_FIELDS { visit("profiles", self.profiles), visit("left_out", self.left_out); }
};

/// Who has faulted GPUs within the last hour, and who is blocked for it. Reply: FaultsReply.
struct ListFaults {
  static constexpr const char* kCommand = "faults";
  FREERIDE_FIELDS { (void)self, (void)visit; }
};
/// Lets one that is blocked go on devices again. Only from root and the manager's own user. Reply: FaultsReply.
struct LiftFaults {
  static constexpr const char* kCommand = "faults.lift";
  std::string scope, name;  ///< as in FaultCount; of a plugin's hash the beginning is enough
  FREERIDE_FIELDS { visit("scope", self.scope), visit("name", self.name); }
};
struct FaultCount {
  std::string scope;            ///< "plugin", "user" or "job"
  std::string name;             ///< the content's SHA-256, the user, or the job
  uint32_t faults = 0;          ///< within the last hour
  uint32_t limit = 0;           ///< at which it is blocked; 0: never
  int64_t blocked_unix_ms = 0;  ///< since when; 0: it is not
  int64_t last_unix_ms = 0;     ///< of these faults
  std::string last_task;
  FREERIDE_FIELDS {
    visit("scope", self.scope), visit("name", self.name), visit("faults", self.faults), visit("limit", self.limit);
    visit("blocked_unix_ms", self.blocked_unix_ms), visit("last_unix_ms", self.last_unix_ms);
    visit("last_task", self.last_task);
  }
};
struct FaultsReply {
  std::vector<FaultCount> counts;
  FREERIDE_FIELDS { visit("counts", self.counts); }
};

// ---- worker → manager
// ------------------------------------------------------------------------------------------------------

/// How far a worker is with a ReplaceTask.
struct ReplacementReport {
  uint64_t revision = 0;  ///< the one asked for; 0: none
  std::string state;   ///< "creating", "saving", "stopping" (all: the old one is there), "starting", "done" or "failed"
  std::string reason;  ///< done: what became of the progress; failed: why
  uint64_t steps = 0;  ///< of the old one, once it has stopped
  FREERIDE_FIELDS {
    visit("revision", self.revision), visit("state", self.state), visit("reason", self.reason);
    visit("steps", self.steps);
  }
};

/// A task as its worker has it.
struct TaskReport {
  std::string task;
  std::string purpose;  ///< "run" or "profile"
  std::string state;    ///< CREATED, PAUSED, RUNNING, STOPPED
  std::string sandbox;
  TaskCounters counters;
  Verdict verdict;  ///< kind not empty once STOPPED
  int64_t create_ns = 0, init_ns = 0;
  uint64_t revision = 0;  ///< that it runs; the old one until a replacement is done
  ReplacementReport replacement;
  std::vector<Profile> profile;    ///< purpose "profile", once STOPPED: what was measured; else empty
  std::string why;                 ///< why it has no lease or makes no step: a name of policy::Why; empty: nothing
  int64_t bubble_ns = 0;           ///< the longest lease of the last minute
  uint64_t epoch = 0;              ///< of the order to create it
  std::string instance, sha256;    ///< as in that order
  std::vector<ShimCounters> shim;  ///< of a program on a GPU: one; else empty
  FREERIDE_FIELDS {
    visit("task", self.task), visit("purpose", self.purpose), visit("state", self.state),
        visit("sandbox", self.sandbox);
    visit("counters", self.counters), visit("verdict", self.verdict), visit("create_ns", self.create_ns);
    visit("init_ns", self.init_ns), visit("revision", self.revision), visit("replacement", self.replacement);
    visit("profile", self.profile), visit("why", self.why), visit("bubble_ns", self.bubble_ns);
    visit("epoch", self.epoch), visit("instance", self.instance), visit("sha256", self.sha256);
    visit("shim", self.shim);
  }
};

/// The idle phases of one name of a rank since the last report.
struct PhaseTotals {
  std::string phase;
  uint64_t count = 0;                     ///< that have ended
  int64_t idle_ns = 0, harvested_ns = 0;  ///< holdout excluded
  int64_t holdout_idle_ns = 0;
  std::vector<int64_t> overruns_ns;  ///< one per leased phase
  FREERIDE_FIELDS {
    visit("phase", self.phase), visit("count", self.count), visit("idle_ns", self.idle_ns);
    visit("harvested_ns", self.harvested_ns), visit("holdout_idle_ns", self.holdout_idle_ns);
    visit("overruns_ns", self.overruns_ns);
  }
};

/// Bubble measures of one rank since the last report, from the worker.
struct BubbleTotals {
  std::string job;
  uint32_t rank = 0, stage = 0, replica = 0;
  uint64_t bubbles = 0;
  int64_t bubble_ns = 0, harvested_ns = 0;  ///< holdout excluded
  int64_t holdout_bubble_ns = 0;
  std::vector<int64_t> overruns_ns;  ///< one per leased bubble
  // On a GPU, of all its ranks' bubbles together: the first rank's totals have them.
  uint64_t probes = 0, probe_findings = 0, probes_unknown = 0;
  uint64_t holdout_probes = 0, holdout_findings = 0;
  std::vector<PhaseTotals> phases;  ///< parts of the sums above, by name; at most 16
  FREERIDE_FIELDS {
    visit("job", self.job), visit("rank", self.rank), visit("stage", self.stage), visit("replica", self.replica);
    visit("bubbles", self.bubbles), visit("bubble_ns", self.bubble_ns), visit("harvested_ns", self.harvested_ns);
    visit("holdout_bubble_ns", self.holdout_bubble_ns), visit("overruns_ns", self.overruns_ns);
    visit("probes", self.probes), visit("probe_findings", self.probe_findings);
    visit("probes_unknown", self.probes_unknown), visit("holdout_probes", self.holdout_probes);
    visit("holdout_findings", self.holdout_findings), visit("phases", self.phases);
  }
};

/// First message of a worker, and again whenever the manager has been away. Reply: WorkerPlan.
struct RegisterWorker {
  static constexpr const char* kCommand = "worker.register";
  std::string worker;       ///< "<host id>:<device>", stable over restarts; no other host's
  std::string incarnation;  ///< random per process
  std::string host, device, device_model, sandbox;
  uint32_t pid = 0;
  int64_t memory_bytes = 0, usable_bytes = 0;
  std::vector<TaskReport> tasks;
  std::vector<TrainingState> ranks;
  std::vector<PluginState> plugins;
  int64_t context_bytes = 0;  ///< of a task's memory there, given beside what it asks for, and seen in its profile
  uint64_t number = 0;        ///< as in WorkerReport
  std::string file_users;     ///< whose files its tasks may be given: "own" host's, or "all" hosts'; empty: nobody's
  bool programs = false;      ///< it runs programs, not only plugins
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("incarnation", self.incarnation), visit("host", self.host);
    visit("device", self.device), visit("device_model", self.device_model), visit("sandbox", self.sandbox);
    visit("pid", self.pid), visit("memory_bytes", self.memory_bytes), visit("usable_bytes", self.usable_bytes);
    visit("tasks", self.tasks), visit("ranks", self.ranks), visit("plugins", self.plugins);
    visit("context_bytes", self.context_bytes), visit("number", self.number);
    visit("file_users", self.file_users), visit("programs", self.programs);
  }
};

/// Once a second as the heartbeat, and at once when a task or rank changes state. Reply: WorkerPlan, without holdout
/// plans; kNotFound asks to register again.
struct WorkerReport {
  static constexpr const char* kCommand = "worker.report";
  std::string worker, incarnation;
  int64_t usable_bytes = 0;
  std::vector<TaskReport> tasks;  ///< all of them
  std::vector<TrainingState> ranks;
  std::vector<PluginState> plugins;  ///< changed since the last report
  std::vector<TrainingIteration> iterations;
  std::vector<BubbleTotals> bubbles;
  bool leaving = false;   ///< the worker is going down in good order: this is its last report
  uint64_t number = 0;    ///< counts this process's registrations and reports, from 1; 0: an earlier version
  uint64_t drained = 0;   ///< WorkerPlan::drain that it has carried out: it has looked, and nothing is there; 0: none
  std::string not_empty;  ///< while it drains: what is still there
  bool ending = false;    ///< it has begun to go down in good order: it saves and stops its tasks
  bool other_process = false;  ///< on its GPU is a process that is no attached rank: maybe a training without the hook
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("incarnation", self.incarnation), visit("usable_bytes", self.usable_bytes);
    visit("tasks", self.tasks), visit("ranks", self.ranks), visit("plugins", self.plugins);
    visit("iterations", self.iterations), visit("bubbles", self.bubbles), visit("leaving", self.leaving);
    visit("number", self.number), visit("drained", self.drained), visit("not_empty", self.not_empty);
    visit("ending", self.ending), visit("other_process", self.other_process);
  }
};

struct Ack {
  FREERIDE_FIELDS { (void)self, (void)visit; }
};

/// A plugin's bytes by content, or a piece of them. Reply: Ack with the bytes attached; a piece that is not as long as
/// asked for is the last one.
struct FetchPlugin {
  static constexpr const char* kCommand = "plugin.fetch";
  std::string sha256;
  uint64_t offset = 0;  ///< where the piece begins
  uint64_t most = 0;    ///< its length in bytes; 0: all that is left
  FREERIDE_FIELDS { visit("sha256", self.sha256), visit("offset", self.offset), visit("most", self.most); }
};

/// A piece of the saved state that a task is to go on from, of a worker that was just told to create it
/// (CreateTask::state_worker). The manager passes it on. Reply: FileReply, with the piece attached.
struct FetchState {
  static constexpr const char* kCommand = "state.fetch";
  std::string worker;  ///< who asks
  std::string task;
  uint64_t epoch = 0;   ///< of the placement there
  uint64_t offset = 0;  ///< FileReply::next of the piece before; 0: the first
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("task", self.task), visit("epoch", self.epoch), visit("offset", self.offset);
  }
};

// ---- manager → worker
// ------------------------------------------------------------------------------------------------------

/// Which iterations are held out, so that every rank of a job agrees: blocks of `block_iterations`, a share of them
/// chosen by hash.
struct HoldoutPlan {
  std::string job;
  uint64_t seed = 0;
  uint64_t block_iterations = 0;  ///< 0: nothing is held out
  uint64_t from_iteration = 0;    ///< the plan counts from here on; before it, the previous plan
  double share_pct = 0;
  double duty_pct = 100;  ///< share of the other iterations whose bubbles may get leases (slowdown budget)
  FREERIDE_FIELDS {
    visit("job", self.job), visit("seed", self.seed), visit("block_iterations", self.block_iterations);
    visit("from_iteration", self.from_iteration), visit("share_pct", self.share_pct), visit("duty_pct", self.duty_pct);
  }
};

/// Standing orders of a worker for one task. `order` is run, pause or stop.
struct TaskOrder {
  static constexpr const char* kCommand = "worker.order";
  std::string task, order;
  uint64_t epoch = 0;  ///< of the task's latest placement: a worker that has an older one ends it; 0: earlier version
  FREERIDE_FIELDS { visit("task", self.task), visit("order", self.order), visit("epoch", self.epoch); }
};

/// What a task is to do next, for the plugin: its worker puts `text` into the file .freeride-work of the task's scratch
/// folder.
struct TaskWork {
  std::string task, text;
  uint64_t epoch = 0;  ///< of the placement that it is for
  FREERIDE_FIELDS { visit("task", self.task), visit("text", self.text), visit("epoch", self.epoch); }
};

/// Reply to RegisterWorker and WorkerReport, and sent as a command of its own when it changes. A task that it names
/// under the worker's own epoch is renewed. Its time counts from when the worker sent the registration or report
/// `heard`. For `pause_ms` the task may execute, and after `stop_ms` it is ended.
struct WorkerPlan {
  static constexpr const char* kCommand = "worker.plan";
  std::vector<HoldoutPlan> holdout;
  std::vector<TaskOrder> orders;  ///< for every task that the worker should have; those not named it pauses, and keeps
  uint64_t heard = 0;             ///< number of the worker's latest registration or report; 0: orders do not expire
  int64_t pause_ms = 0, stop_ms = 0;
  /// What has become of ended tasks of that report. `order` ended: the verdict is on disk, and what the task has left
  /// may be deleted. `order` again: the task continues elsewhere, or nobody wants it; what it has left stays. Other
  /// tasks are to be reported again.
  std::vector<TaskOrder> settled;
  uint64_t drain = 0;          ///< not 0: it ends all side tasks and takes none; another number asks for another look
  std::vector<TaskWork> work;  ///< a task that is not named goes on with what it has
  FREERIDE_FIELDS {
    visit("holdout", self.holdout), visit("orders", self.orders), visit("heard", self.heard);
    visit("pause_ms", self.pause_ms), visit("stop_ms", self.stop_ms), visit("settled", self.settled);
    visit("drain", self.drain), visit("work", self.work);
  }
};

/// Creates a task on the worker. The worker fetches the plugin if it is not in the store, and starts supervisor and
/// runner. Then come CreateSideTask and, under the init lease, InitSideTask. Reply: Ack at once; progress comes in
/// reports.
struct CreateTask {
  static constexpr const char* kCommand = "worker.create";
  std::string task, purpose;  ///< purpose "run" or "profile"
  std::string plugin, sha256;
  std::map<std::string, std::string> params;
  int64_t memory_limit_bytes = 0;  ///< ceiling; 0: none
  uint64_t steps = 0;              ///< 0: no end; purpose "profile": as many as it takes
  int32_t priority = 0;
  bool when_idle = false;
  bool start_paused = false;
  int64_t predicted_step_ns = 0;  ///< from the profile; 0: not known
  std::string instance;           ///< of the task: another task of its name has another; a saved state belongs to one
  uint64_t revision = 0;          ///< times its plugin was replaced
  bool network = false;           ///< may use the host's network
  std::vector<int64_t> predicted_pieces_ns;  ///< of a step with yield points, from the profile, by place
  uint64_t epoch = 0;  ///< greater with each placement; a worker takes each one of a task once. 0: earlier version
  uint64_t heard = 0;  ///< as in WorkerPlan: from then on the order counts
  std::vector<FileGrant> files;  ///< as in Load, as are the next four
  std::string working_dir;
  std::map<std::string, std::string> env;
  int64_t uid = -1;
  std::string uid_host;
  std::vector<std::string> program;  ///< as in Load; `plugin` is its name and `sha256` is of all of it then
  /// Of another host, which may have a saved state of it: to be asked for with FetchState. Empty: there is none.
  std::string state_worker;
  FREERIDE_FIELDS {
    visit("task", self.task), visit("purpose", self.purpose), visit("plugin", self.plugin),
        visit("sha256", self.sha256);
    visit("params", self.params), visit("memory_limit_bytes", self.memory_limit_bytes), visit("steps", self.steps);
    visit("priority", self.priority), visit("when_idle", self.when_idle), visit("start_paused", self.start_paused);
    visit("predicted_step_ns", self.predicted_step_ns), visit("instance", self.instance);
    visit("revision", self.revision), visit("network", self.network);
    visit("predicted_pieces_ns", self.predicted_pieces_ns), visit("epoch", self.epoch), visit("heard", self.heard);
    visit("files", self.files), visit("working_dir", self.working_dir), visit("env", self.env);
    visit("uid", self.uid), visit("uid_host", self.uid_host), visit("program", self.program);
    visit("state_worker", self.state_worker);
  }
};

/// Moves a task that the worker has to another content. The worker creates the new one beside the old one. Then the old
/// one saves its state and stops, and the new one continues from there. If the new one fails, the old one continues.
/// Reply: Ack at once; progress is in the reports. One that is under way or done already is acknowledged again.
struct ReplaceTask {
  static constexpr const char* kCommand = "worker.replace";
  CreateTask create;  ///< of the new one; `task`, `instance` as the old one's, `revision` greater
  FREERIDE_FIELDS { visit("create", self.create); }
};

/// A piece of a task's log. Reply: LogReply.
struct GetLog {
  static constexpr const char* kCommand = "worker.log";
  std::string task;
  std::string instance{};  ///< of the task; empty: an earlier version, which wants the last lines
  bool previous = false;
  int64_t offset = -1;  ///< as in ReadLog, as is `previous`
  FREERIDE_FIELDS {
    visit("task", self.task), visit("instance", self.instance), visit("previous", self.previous);
    visit("offset", self.offset);
  }
};
struct LogReply {
  std::string text;
  int64_t next = 0;    ///< offset of what comes behind `text`
  bool ended = false;  ///< nothing will come behind it: that start of the task has ended
  FREERIDE_FIELDS { visit("text", self.text), visit("next", self.next), visit("ended", self.ended); }
};

/// The same of a file of its scratch folder. Reply: FileReply, with the piece attached.
struct GetFile {
  static constexpr const char* kCommand = "worker.file";
  std::string task, instance, path;
  uint64_t offset = 0;
  FREERIDE_FIELDS {
    visit("task", self.task), visit("instance", self.instance), visit("path", self.path);
    visit("offset", self.offset);
  }
};

/// A piece of a task's latest saved state, as it is on disk (pages.h: freeride_saved_state and its bytes). Reply:
/// FileReply, with the piece attached.
struct GetState {
  static constexpr const char* kCommand = "worker.state";
  std::string task, instance;
  uint64_t offset = 0;
  FREERIDE_FIELDS { visit("task", self.task), visit("instance", self.instance), visit("offset", self.offset); }
};

/// A piece of a content that the worker's drop folder has. Reply: FileReply, with the piece attached.
struct GetPlugin {
  static constexpr const char* kCommand = "worker.plugin";
  std::string sha256;
  uint64_t offset = 0;
  FREERIDE_FIELDS { visit("sha256", self.sha256), visit("offset", self.offset); }
};

}  // namespace freeride::bus
