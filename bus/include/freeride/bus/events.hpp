// Event types: what is published on the bus. One struct per topic; bus/WIRE.md is the specification for other
// languages.
//
// Every struct lists its fields once, in fields(); codec, JSON output and the specification's test all read that list.
// Fields are appended, never renamed or removed; a reader ignores fields it does not know and keeps the default of
// those that are missing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace freeride::bus {

constexpr uint32_t kWireVersion = 1;

// One line per field: visit("wire_name", self.member).
#define FREERIDE_FIELDS          \
  template <class Self, class V> \
  static void fields(Self& self, V&& visit)

/// A bubble has begun and the worker has seen it. Published by the worker.
struct BubbleBegin {
  static constexpr const char* kTopic = "bubble.begin";
  std::string job, device;
  uint32_t replica = 0, stage = 0, rank = 0, wait = 0;
  uint64_t iteration = 0;
  int64_t begin_ns = 0;    ///< CLOCK_MONOTONIC of the worker's host
  int64_t learned_ns = 0;  ///< expected length; 0 = not known yet
  std::string phase;       ///< name of the idle phase that it is; empty: a pipeline's wait
  FREERIDE_FIELDS {
    visit("job", self.job), visit("device", self.device), visit("replica", self.replica), visit("stage", self.stage);
    visit("rank", self.rank), visit("wait", self.wait), visit("iteration", self.iteration),
        visit("begin_ns", self.begin_ns);
    visit("learned_ns", self.learned_ns), visit("phase", self.phase);
  }
  std::string key() const { return job + "/" + std::to_string(rank); }
};

/// A bubble has ended. Published by the worker.
struct BubbleEnd {
  static constexpr const char* kTopic = "bubble.end";
  std::string job, device;
  uint32_t replica = 0, stage = 0, rank = 0, wait = 0;
  uint64_t iteration = 0;
  std::string type;  ///< the paper's "A", "B", "C", or ""
  int64_t begin_ns = 0, end_ns = 0, learned_ns = 0;
  int64_t harvested_ns = 0;  ///< time inside side-task steps within the bubble
  int64_t overrun_ns = 0;    ///< side-task execution past end_ns
  bool leased = false;       ///< a lease was opened in it
  bool holdout = false;      ///< no lease, because the iteration is held out
  std::string task;          ///< the side task that had a lease in it; when several had, the last that made a step
  int64_t side_begin_ns = 0, side_end_ns = 0;  ///< the first step began, the last one's task had paused; 0: no step
  std::string phase;                           ///< as of its begin
  FREERIDE_FIELDS {
    visit("job", self.job), visit("device", self.device), visit("replica", self.replica), visit("stage", self.stage);
    visit("rank", self.rank), visit("wait", self.wait), visit("iteration", self.iteration), visit("type", self.type);
    visit("begin_ns", self.begin_ns), visit("end_ns", self.end_ns), visit("learned_ns", self.learned_ns);
    visit("harvested_ns", self.harvested_ns), visit("overrun_ns", self.overrun_ns), visit("leased", self.leased);
    visit("holdout", self.holdout), visit("task", self.task), visit("side_begin_ns", self.side_begin_ns);
    visit("side_end_ns", self.side_end_ns), visit("phase", self.phase);
  }
  std::string key() const { return job + "/" + std::to_string(rank); }
};

/// How a task ended. `kind` and `cause` are names of policy::VerdictKind and policy::Cause.
struct Verdict {
  std::string kind;                   ///< empty: the task has not ended
  std::string reason;                 ///< one sentence for people
  std::string transition;             ///< where it failed, crashed or hung: CreateSideTask, InitSideTask, …
  int32_t signal = 0;                 ///< of a crash
  std::string limit;                  ///< the limit that was hit, with its value and unit
  std::string log_tail;               ///< the last lines of the task's log
  std::string cause;                  ///< what brought the end about; empty: an older version does not say
  int32_t exit_code = -1;             ///< of the task's process; -1: it did not exit by itself
  std::vector<std::string> evidence;  ///< what was seen after the cause, in order of time
  bool gpu_fault = false;             ///< the task has faulted its GPU, which stalled training there
  FREERIDE_FIELDS {
    visit("kind", self.kind), visit("reason", self.reason), visit("transition", self.transition),
        visit("signal", self.signal);
    visit("limit", self.limit), visit("log_tail", self.log_tail), visit("cause", self.cause);
    visit("exit_code", self.exit_code), visit("evidence", self.evidence);
    visit("gpu_fault", self.gpu_fault);
  }
};

/// Counters of a task, from its answer page as checked by the worker.
struct TaskCounters {
  uint64_t steps = 0;
  int64_t step_ns = 0;       ///< wall time inside steps
  int64_t harvested_ns = 0;  ///< the part of it within bubbles
  int64_t overrun_ns = 0;    ///< execution past bubbles' ends, summed
  int64_t predicted_ns = 0;  ///< learned duration of the next step
  uint64_t leases = 0;       ///< leases it was given
  uint64_t skipped = 0;      ///< leases in which no step fitted
  int64_t memory_bytes = 0;  ///< resident now
  int64_t peak_memory_bytes = 0;
  std::map<std::string, double> metrics;
  FREERIDE_FIELDS {
    visit("steps", self.steps), visit("step_ns", self.step_ns), visit("harvested_ns", self.harvested_ns);
    visit("overrun_ns", self.overrun_ns), visit("predicted_ns", self.predicted_ns), visit("leases", self.leases);
    visit("skipped", self.skipped), visit("memory_bytes", self.memory_bytes);
    visit("peak_memory_bytes", self.peak_memory_bytes), visit("metrics", self.metrics);
  }
};

/// A task has changed state (also: still waiting, for another reason). Published by the manager; kept for late joiners.
/// `state` is SUBMITTED, CREATED, PAUSED, RUNNING, STOPPED, or kRemoved: forgotten, and no longer kept.
struct TaskState {
  static constexpr const char* kTopic = "task.state";
  static constexpr const char* kRemoved = "REMOVED";
  std::string task, plugin, sha256, job, worker, state;
  std::string reason;  ///< why it makes no step, for people: "waiting for a trainer with stage 3"
  int32_t stage = -1, replica = -1;
  bool paused_by_user = false;
  TaskCounters counters;
  Verdict verdict;
  std::string why;  ///< the reason as a name of policy::Why; empty: nothing is in its way, or an older version
  FREERIDE_FIELDS {
    visit("task", self.task), visit("plugin", self.plugin), visit("sha256", self.sha256), visit("job", self.job);
    visit("worker", self.worker), visit("state", self.state), visit("reason", self.reason), visit("stage", self.stage);
    visit("replica", self.replica), visit("paused_by_user", self.paused_by_user), visit("counters", self.counters);
    visit("verdict", self.verdict), visit("why", self.why);
  }
  std::string key() const { return task; }
};

/// A task's counters, once a second while they change. Published by its worker.
struct TaskProgress {
  static constexpr const char* kTopic = "task.progress";
  std::string task, worker, state;
  TaskCounters counters;
  FREERIDE_FIELDS {
    visit("task", self.task), visit("worker", self.worker), visit("state", self.state),
        visit("counters", self.counters);
  }
  std::string key() const { return task; }
};

/// A worker has appeared ("up"), gone in good order ("down") or fallen silent ("lost"). Published by the manager; kept.
struct WorkerState {
  static constexpr const char* kTopic = "worker.state";
  std::string worker, host, device, state, job;
  int32_t stage = -1, replica = -1;  ///< of the trainer attached to it; -1 none
  int64_t memory_bytes = 0;          ///< of the device (on CPU: of the host)
  int64_t usable_bytes = 0;          ///< free for side tasks
  uint32_t tasks = 0;
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("host", self.host), visit("device", self.device), visit("state", self.state);
    visit("job", self.job), visit("stage", self.stage), visit("replica", self.replica),
        visit("memory_bytes", self.memory_bytes);
    visit("usable_bytes", self.usable_bytes), visit("tasks", self.tasks);
  }
  std::string key() const { return worker; }
};

/// A plugin file in a drop folder was taken in ("added"), replaced by another content ("replaced"), refused
/// ("rejected") or deleted ("removed"). Published by the worker; kept.
struct PluginState {
  static constexpr const char* kTopic = "plugin.state";
  std::string name;  ///< file name, e.g. resnet18.so
  std::string worker, sha256, state, reason;
  uint64_t size_bytes = 0;
  FREERIDE_FIELDS {
    visit("name", self.name), visit("worker", self.worker), visit("sha256", self.sha256), visit("state", self.state);
    visit("reason", self.reason), visit("size_bytes", self.size_bytes);
  }
  std::string key() const { return worker + "/" + name; }
};

/// By how much iterations in which a rank's host holds waits for other hosts are longer than plain ones.
struct HoldCost {
  uint32_t periods = 0;  ///< that were compared; 0: not measured
  double increase_pct = 0, ci95_low_pct = 0, ci95_high_pct = 0;
  FREERIDE_FIELDS {
    visit("periods", self.periods), visit("increase_pct", self.increase_pct);
    visit("ci95_low_pct", self.ci95_low_pct), visit("ci95_high_pct", self.ci95_high_pct);
  }
};

/// A training rank has attached, become active (marks valid), switched its hook off ("disabled"), ended ("gone") or
/// died ("lost"), what is said of why its bubbles are used or not is another thing, or an idle phase has lasted a
/// second or is over. Published by the worker; kept.
struct TrainingState {
  static constexpr const char* kTopic = "training.state";
  std::string job, device, worker, framework, state;
  uint32_t rank = 0, stage = 0, stages = 1, replica = 0, replicas = 1, waits = 0;
  uint64_t iteration = 0;
  double budget_pct = -1;  ///< slowdown budget that the rank asks for: it can only lower the job's; negative: none
  HoldCost held, held_with_leases;
  std::string why;       ///< a name of policy::RankWhy; empty: of a version that does not tell
  bool guessed = false;  ///< nobody has told its stage and replica: they follow from its number
  std::string phase;     ///< name of the idle phase that is under way, once it has lasted a second; empty: none
  int64_t phase_ms = 0;  ///< how long it has lasted so far
  FREERIDE_FIELDS {
    visit("job", self.job), visit("device", self.device), visit("worker", self.worker),
        visit("framework", self.framework);
    visit("state", self.state), visit("rank", self.rank), visit("stage", self.stage), visit("stages", self.stages);
    visit("replica", self.replica), visit("replicas", self.replicas), visit("waits", self.waits);
    visit("iteration", self.iteration), visit("budget_pct", self.budget_pct);
    visit("held", self.held), visit("held_with_leases", self.held_with_leases);
    visit("why", self.why), visit("guessed", self.guessed), visit("phase", self.phase);
    visit("phase_ms", self.phase_ms);
  }
  std::string key() const { return job + "/" + std::to_string(rank); }
};

/// One training iteration of one rank has ended. Published by the worker.
struct TrainingIteration {
  static constexpr const char* kTopic = "training.iteration";
  std::string job, device;
  uint32_t rank = 0, stage = 0, replica = 0;
  uint64_t iteration = 0;
  int64_t begin_ns = 0, end_ns = 0, bubble_ns = 0, harvested_ns = 0;
  bool holdout = false;
  bool harvested = false;    ///< any lease was opened on this worker in it
  bool transitions = false;  ///< a side task was created, initialised, profiled, saved or stopped on this worker in it
  FREERIDE_FIELDS {
    visit("job", self.job), visit("device", self.device), visit("rank", self.rank), visit("stage", self.stage);
    visit("replica", self.replica), visit("iteration", self.iteration), visit("begin_ns", self.begin_ns);
    visit("end_ns", self.end_ns), visit("bubble_ns", self.bubble_ns), visit("harvested_ns", self.harvested_ns);
    visit("holdout", self.holdout), visit("harvested", self.harvested), visit("transitions", self.transitions);
  }
  std::string key() const { return job + "/" + std::to_string(rank); }
};

/// The idle phases of one name in a job, since its run began. All of them are bubbles, and in the job's figures
/// of those.
struct PhaseMeasures {
  std::string phase;
  uint64_t count = 0;                                 ///< that have ended, of all ranks
  int64_t idle_ns = 0;                                ///< their time
  int64_t offered_ns = 0;                             ///< of it, while there were side tasks; holdout excluded
  int64_t harvested_ns = 0;                           ///< of that, inside steps
  double give_back_p50_us = 0, give_back_p99_us = 0;  ///< their overrun
  FREERIDE_FIELDS {
    visit("phase", self.phase), visit("count", self.count), visit("idle_ns", self.idle_ns);
    visit("offered_ns", self.offered_ns), visit("harvested_ns", self.harvested_ns);
    visit("give_back_p50_us", self.give_back_p50_us), visit("give_back_p99_us", self.give_back_p99_us);
  }
};

/// The measures of a job so far: the live I and what is harvested. Published by the manager; kept.
struct JobMeasures {
  static constexpr const char* kTopic = "training.measures";
  std::string job;
  uint32_t stages = 0;
  uint64_t iterations = 0, holdout_iterations = 0;
  bool measured = false;  ///< false: too few blocks for an interval; the next three are 0 then
  double time_increase_pct = 0, time_increase_ci95_low_pct = 0, time_increase_ci95_high_pct = 0;
  double iteration_ms = 0;         ///< mean, held-out iterations
  double bubble_share_pct = 0;     ///< bubble time ÷ iteration time, mean over stages
  double harvested_share_pct = 0;  ///< holdout excluded
  double overrun_p50_us = 0, overrun_p99_us = 0;
  double duty_pct = 100;  ///< share of iterations whose bubbles may get leases under the slowdown budget
  std::map<std::string, double> stage_bubble_share_pct, stage_harvested_share_pct;  ///< by stage number
  double expected_cost_pct = 0;  ///< I to be expected at a duty of 100 %
  double budget_pct = -1;        ///< the slowdown budget; negative: as much as side tasks are worth
  // On GPUs: probes for side work that goes on without a lease. Since the manager's start.
  uint64_t probes = 0, probe_findings = 0, probes_unknown = 0;
  uint64_t holdout_probes = 0, holdout_findings = 0;  ///< of them, in held-out iterations, which I is measured against
  int64_t measured_in_ms = 0;         ///< not measured yet: about how long until it is, with side tasks; 0: not known
  double asked_budget_pct = -1;       ///< that the training has asked for; negative: none
  HoldCost held, held_with_leases;    ///< of the rank whose held iterations are longest
  std::vector<PhaseMeasures> phases;  ///< by name
  FREERIDE_FIELDS {
    visit("job", self.job), visit("stages", self.stages), visit("iterations", self.iterations);
    visit("holdout_iterations", self.holdout_iterations), visit("measured", self.measured);
    visit("time_increase_pct", self.time_increase_pct),
        visit("time_increase_ci95_low_pct", self.time_increase_ci95_low_pct);
    visit("time_increase_ci95_high_pct", self.time_increase_ci95_high_pct), visit("iteration_ms", self.iteration_ms);
    visit("bubble_share_pct", self.bubble_share_pct), visit("harvested_share_pct", self.harvested_share_pct);
    visit("overrun_p50_us", self.overrun_p50_us), visit("overrun_p99_us", self.overrun_p99_us);
    visit("duty_pct", self.duty_pct), visit("stage_bubble_share_pct", self.stage_bubble_share_pct);
    visit("stage_harvested_share_pct", self.stage_harvested_share_pct);
    visit("expected_cost_pct", self.expected_cost_pct), visit("budget_pct", self.budget_pct);
    visit("probes", self.probes), visit("probe_findings", self.probe_findings);
    visit("probes_unknown", self.probes_unknown), visit("holdout_probes", self.holdout_probes);
    visit("holdout_findings", self.holdout_findings), visit("measured_in_ms", self.measured_in_ms);
    visit("asked_budget_pct", self.asked_budget_pct), visit("held", self.held);
    visit("held_with_leases", self.held_with_leases), visit("phases", self.phases);
  }
  std::string key() const { return job; }
};

/// Somebody has changed something, or was refused. Published by the manager, from what its audit log notes.
struct CommandDone {
  static constexpr const char* kTopic = "command.done";
  std::string command;  ///< as on the wire: "load", "stop", …
  std::string target;   ///< the task, the plugin, the profile run or the worker that it names; empty: none
  std::string by;       ///< the account
  std::string outcome;  ///< "ok", "pending" (another event has the outcome), or the code of the error
  std::string message;  ///< of the error
  FREERIDE_FIELDS {
    visit("command", self.command), visit("target", self.target), visit("by", self.by);
    visit("outcome", self.outcome), visit("message", self.message);
  }
  std::string key() const { return command; }
};

/// Which iterations of a job get leases from now on. Published by the manager when it has decided anew.
struct TrainingPlan {
  static constexpr const char* kTopic = "training.plan";
  std::string job;
  uint64_t block_iterations = 0, from_iteration = 0;
  double share_pct = 0;   ///< of the blocks, held out
  double duty_pct = 100;  ///< of the other iterations, may get leases (slowdown budget)
  FREERIDE_FIELDS {
    visit("job", self.job), visit("block_iterations", self.block_iterations);
    visit("from_iteration", self.from_iteration), visit("share_pct", self.share_pct), visit("duty_pct", self.duty_pct);
  }
  std::string key() const { return job; }
};

/// A GPU has faulted: the driver says so, or the MPS server of a side task. Published by the worker.
struct GpuFault {
  static constexpr const char* kTopic = "gpu.fault";
  std::string worker, device;
  std::string task;     ///< whose MPS server saw it; empty: training, or whoever else is on the GPU
  std::string job;      ///< attached there; empty: none
  uint32_t xid = 0;     ///< the driver's number; 0: it has not said one
  int64_t time_ns = 0;  ///< when the worker heard of it; CLOCK_MONOTONIC of its host
  FREERIDE_FIELDS {
    visit("worker", self.worker), visit("device", self.device), visit("task", self.task), visit("job", self.job);
    visit("xid", self.xid), visit("time_ns", self.time_ns);
  }
  std::string key() const { return worker; }
};

/// How far a batch is: when its state changes, and once a second while items are done. Published by the manager; kept.
/// `state` is that of BatchInfo, or kRemoved: forgotten, and no longer kept.
struct BatchState {
  static constexpr const char* kTopic = "batch.state";
  static constexpr const char* kRemoved = "removed";
  std::string batch, state;
  std::string reason;  ///< failed: why
  std::string user;    ///< whose it is
  uint64_t items = 0;
  uint64_t done = 0;    ///< items that have a result, on disk
  uint64_t failed = 0;  ///< items that have none, and will not
  uint32_t members = 0, crashes = 0;
  int64_t submitted_unix_ms = 0, ended_unix_ms = 0;
  double items_per_s = 0;  ///< done or failed, over the last half minute; 0: not known, or none
  FREERIDE_FIELDS {
    visit("batch", self.batch), visit("state", self.state), visit("reason", self.reason), visit("user", self.user);
    visit("items", self.items), visit("done", self.done), visit("failed", self.failed);
    visit("members", self.members), visit("crashes", self.crashes);
    visit("submitted_unix_ms", self.submitted_unix_ms), visit("ended_unix_ms", self.ended_unix_ms);
    visit("items_per_s", self.items_per_s);
  }
  std::string key() const { return batch; }
};

/// Events are missing here. Written by freeride-recorder into recordings; never published.
struct RecordingGap {
  static constexpr const char* kTopic = "recording.gap";
  std::string publisher;             ///< whose events are missing; empty: everybody's
  std::string reason;                ///< "overload" (the recorder was too slow), "disk" or "stopped"
  uint64_t lost = 0;                 ///< so many events; 0: not known
  int64_t begin_ns = 0, end_ns = 0;  ///< between these; CLOCK_MONOTONIC of the recorder's host; 0: not known
  FREERIDE_FIELDS {
    visit("publisher", self.publisher), visit("reason", self.reason), visit("lost", self.lost);
    visit("begin_ns", self.begin_ns), visit("end_ns", self.end_ns);
  }
  std::string key() const { return reason; }
};

}  // namespace freeride::bus
