#include "render.hpp"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

#include "format.hpp"
#include "jobs.hpp"

namespace freeride::ctl {
namespace {

std::string line(const std::string& label, const std::string& value) {
  constexpr size_t kColumn = 20;
  return label + std::string(label.size() < kColumn ? kColumn - label.size() : 1, ' ') + printable(value) + "\n";
}

std::string step_time(const bus::TaskCounters& counters) {
  return counters.steps == 0 ? "-" : human_ns(counters.step_ns / static_cast<int64_t>(counters.steps));
}

std::string date_of(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1000;
  tm parts{};
  char text[32];
  if (localtime_r(&seconds, &parts) == nullptr || strftime(text, sizeof text, "%Y-%m-%d %H:%M", &parts) == 0)
    return "-";
  return text;
}

std::string short_hash(const std::string& sha256) {
  return or_dash(sha256.substr(0, 12));
}

std::string where(const bus::TaskState& task) {
  std::string text = "stage " + stage_text(task.stage);
  if (task.replica >= 0) text += ", replica " + std::to_string(task.replica);
  if (!task.job.empty()) text += ", job " + shown_job(task.job);
  return text;
}

std::string trainer_of(const bus::WorkerState& worker) {
  return worker.job.empty() ? "none" : shown_job(worker.job) + ", stage " + stage_text(worker.stage);
}

// Whether iterations without side tasks were free of side work, which the time increase is measured against.
std::string probed(const bus::JobMeasures& job) {
  if (job.probes + job.probes_unknown == 0) return "";
  const auto of = [](uint64_t findings, uint64_t probes) {
    return std::to_string(findings) + " of " + std::to_string(probes) + " probes";
  };
  std::string text =
      printable(shown_job(job.job)) + ": side work without a lease found by " + of(job.probe_findings, job.probes);
  text += job.holdout_probes == 0 ? "; held-out iterations were not probed"
                                  : ", in held-out iterations by " + of(job.holdout_findings, job.holdout_probes);
  return text + (job.probes_unknown == 0 ? "" : "; " + std::to_string(job.probes_unknown) + " could not tell") + "\n";
}

std::string job_tables(const std::vector<bus::JobMeasures>& jobs) {
  if (jobs.empty()) return "no training job has been seen\n";
  std::string out;
  Table table({"JOB", ">STAGES", ">ITERATIONS", ">HELD OUT", ">ITERATION", ">BUBBLES", ">HARVESTED", ">DUTY",
               ">OVERRUN P50", ">P99", "TIME INCREASE"});
  for (const auto& job : jobs) {
    table.add({shown_job(job.job), std::to_string(job.stages), human_count(job.iterations),
               human_count(job.holdout_iterations), human_ns(static_cast<int64_t>(job.iteration_ms * 1e6)),
               human_pct(job.bubble_share_pct), human_pct(job.harvested_share_pct), human_pct(job.duty_pct),
               human_ns(static_cast<int64_t>(job.overrun_p50_us * 1e3)),
               human_ns(static_cast<int64_t>(job.overrun_p99_us * 1e3)), time_increase(job)});
  }
  out += table.text();
  for (const auto& job : jobs) out += probed(job);
  return out;
}

}  // namespace

std::string outcome(const bus::TaskState& task) {
  const bus::Verdict& verdict = task.verdict;
  if (verdict.kind.empty()) {
    return task.reason.empty() && task.paused_by_user ? "paused by user" : task.reason;
  }
  std::string text = verdict.kind;
  std::string place = verdict.signal != 0 ? "signal " + std::to_string(verdict.signal) : "";
  if (!verdict.transition.empty()) place += (place.empty() ? "in " : " in ") + verdict.transition;
  if (!place.empty()) text += " (" + place + ")";
  if (!verdict.reason.empty()) text += ": " + verdict.reason;
  return text;
}

std::string time_increase(const bus::JobMeasures& job) {
  if (!job.measured) return "not measured yet";
  return human_signed_pct(job.time_increase_pct) + " (95 %: " + human_signed_pct(job.time_increase_ci95_low_pct) +
         " to " + human_signed_pct(job.time_increase_ci95_high_pct) + ")";
}

std::string throttled(const bus::JobMeasures& job) {
  if (job.duty_pct >= 100) return "";
  std::string text = " (throttled to " + human_pct(job.duty_pct) +
                     " of the iterations: at all of them side tasks are expected to cost " +
                     human_signed_pct(job.expected_cost_pct) + ", ";
  text += job.budget_pct < 0 ? "more than they are worth" : "the budget is " + human_signed_pct(job.budget_pct);
  return text + ")";
}

std::string render_status(const bus::StatusReply& status) {
  std::string tasks;
  for (const auto& [state, count] : status.tasks_by_state) {
    if (count > 0) tasks += (tasks.empty() ? "" : ", ") + human_count(static_cast<uint64_t>(count)) + " " + state;
  }
  size_t up = 0;
  for (const auto& worker : status.workers) up += worker.state.state == "up" ? 1 : 0;
  std::string out = line("manager", status.version + ", pid " + std::to_string(status.pid) + ", up " +
                                        human_ns(status.uptime_ms * 1'000'000));
  out += line("run directory", status.run_dir);
  out += line("state directory", status.state_dir);
  if (!status.network.empty()) out += line("network", printable(status.network));
  out += line("workers", std::to_string(up) + " up of " + std::to_string(status.workers.size()));
  out += line("side tasks", tasks.empty() ? "none" : tasks);
  for (const auto& job : status.jobs) {
    out += line("job " + printable(shown_job(job.job)), human_count(job.iterations) + " iterations, bubbles " +
                                                            human_pct(job.bubble_share_pct) + ", harvested " +
                                                            human_pct(job.harvested_share_pct) + " of them" +
                                                            throttled(job) + ", time increase " + time_increase(job));
  }
  return out;
}

std::string render_plugins(const bus::PluginsReply& plugins) {
  if (plugins.plugins.empty())
    return "no plugins; drop .so files into the drop folder (plugins/ in the state directory)\n";
  // The same file in the drop folders of many workers is one plugin to the user.
  std::map<std::tuple<std::string, std::string, std::string, std::string, uint64_t>, std::set<std::string>> rows;
  for (const auto& plugin : plugins.plugins) {
    rows[{plugin.name, plugin.state, plugin.sha256, plugin.reason, plugin.size_bytes}].insert(plugin.worker);
  }
  Table table({"PLUGIN", "STATE", "SHA-256", ">SIZE", ">WORKERS", "REASON"});
  for (const auto& [key, workers] : rows) {
    const auto& [name, state, sha256, reason, size] = key;
    table.add({name, state, short_hash(sha256), human_bytes(static_cast<int64_t>(size)), std::to_string(workers.size()),
               reason});
  }
  return table.text();
}

std::string render_tasks(const std::vector<bus::TaskInfo>& tasks) {
  if (tasks.empty()) return "no side tasks; start one with freeride-ctl load PLUGIN --stage N\n";
  Table table({"TASK", "STATE", ">STAGE", "WORKER", "PLUGIN", ">STEPS", ">STEP", ">HARVESTED", ">MEMORY", "WHY"});
  for (const auto& info : tasks) {
    const auto& task = info.state;
    table.add({task.task, task.state, stage_text(task.stage), or_dash(task.worker), task.plugin,
               human_count(task.counters.steps), step_time(task.counters), human_ns(task.counters.harvested_ns),
               human_bytes(task.counters.memory_bytes), outcome(task)});
  }
  return table.text();
}

std::string render_task(const bus::TaskInfo& info) {
  const auto& task = info.state;
  const auto& counters = task.counters;
  std::string out = line("task", task.task);
  out += line("state", task.state + (task.paused_by_user ? ", paused by user" : ""));
  if (!task.reason.empty()) out += line("why", task.reason);
  if (!task.verdict.kind.empty()) {
    out += line("verdict", outcome(task));
    if (!task.verdict.cause.empty()) out += line("cause", task.verdict.cause);
    if (!task.verdict.limit.empty()) out += line("limit", task.verdict.limit);
    if (task.verdict.exit_code >= 0) out += line("exit code", std::to_string(task.verdict.exit_code));
    for (const std::string& seen : task.verdict.evidence) out += line("then", seen);
  }
  out += line("plugin", task.plugin + "  " + task.sha256);
  if (info.replacement.state == "pending") out += line("being replaced by", info.replacement.load.plugin);
  if (info.replacement.state == "failed") out += line("not replaced", info.replacement.reason);
  for (auto old = info.incarnations.rbegin(); old != info.incarnations.rend(); ++old) {
    out += line("  before", old->plugin + "  " + short_hash(old->sha256) + ", until step " + human_count(old->steps) +
                                ": " + old->verdict.kind + " " + old->verdict.reason);
  }
  for (const auto& [key, value] : info.load.params) out += line("  " + printable(key), value);
  out += line("where", where(task) + (task.worker.empty() ? "" : ", on " + task.worker));
  if (!info.sandbox.empty()) out += line("sandbox", info.sandbox);
  out += line("priority", std::to_string(info.load.priority));
  if (info.load.memory_bytes != 0) out += line("memory declared", human_bytes(info.load.memory_bytes));
  out += line("memory", human_bytes(counters.memory_bytes) + ", peak " + human_bytes(counters.peak_memory_bytes));
  out +=
      line("steps", human_count(counters.steps) + (info.load.steps != 0 ? " of " + human_count(info.load.steps) : ""));
  out += line("step", step_time(counters) + ", predicted " + human_ns(counters.predicted_ns));
  out += line("harvested", human_ns(counters.harvested_ns) + " in " + human_count(counters.leases) + " leases, " +
                               human_count(counters.skipped) + " unused");
  out += line("overrun", human_ns(counters.overrun_ns) + " in all");
  if (info.restarts != 0) out += line("restarts", std::to_string(info.restarts));
  for (const auto& [name, value] : counters.metrics) out += line("  " + printable(name), std::to_string(value));
  std::string log = info.log_tail.empty() ? task.verdict.log_tail : info.log_tail;
  if (!log.empty()) {
    if (log.back() != '\n') log += '\n';
    out += "log\n" + printable(log, true);
  }
  return out;
}

std::string render_replacement(const bus::TaskInfo& info) {
  return printable("replaced by " + info.state.plugin + " (" + short_hash(info.state.sha256) +
                   "): " + info.replacement.reason) +
         "\n";
}

std::string render_task_line(const bus::TaskState& task) {
  const std::string why = outcome(task);
  return printable(task.task + ": " + task.state + (why.empty() ? "" : " (" + why + ")")) + "\n";
}

std::string render_workers(const bus::WorkersReply& workers) {
  if (workers.workers.empty())
    return "no workers; start one per device with freeride-worker --device cpu-0 --cores 0\n";
  Table table({"WORKER", "STATE", "MODEL", "TRAINER", "RANKS", "SANDBOX", ">TASKS", ">FREE", ">MEMORY", ">LAST HEARD"});
  for (const auto& worker : workers.workers) {
    std::string ranks;
    for (const auto& rank : worker.ranks)
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank.rank) + " " + rank.state;
    table.add({worker.state.worker, worker.state.state, or_dash(worker.device_model), trainer_of(worker.state),
               or_dash(ranks), worker.sandbox == "none" ? "NONE" : or_dash(worker.sandbox),
               std::to_string(worker.state.tasks), human_bytes(worker.state.usable_bytes),
               human_bytes(worker.state.memory_bytes), human_ns(worker.silent_ms * 1'000'000) + " ago"});
  }
  return table.text();
}

std::string render_faults(const bus::FaultsReply& faults) {
  if (faults.counts.empty()) return "no GPU faults within the last hour, and nobody is blocked\n";
  Table table({"OF", "NAME", ">FAULTS IN 1 h", ">LIMIT", "BLOCKED", "LAST TASK"});
  for (const auto& one : faults.counts) {
    table.add({one.scope,
               one.scope == "plugin" ? short_hash(one.name)
               : one.scope == "job"  ? shown_job(one.name)
                                     : one.name,
               std::to_string(one.faults), one.limit == 0 ? "-" : std::to_string(one.limit),
               one.blocked_unix_ms == 0 ? "no" : "YES", or_dash(one.last_task)});
  }
  return table.text();
}

std::string render_report(const bus::ReportReply& report) {
  std::string out = job_tables(report.jobs);
  for (const auto& job : report.jobs) {
    if (job.stage_bubble_share_pct.empty()) continue;
    Table table({"JOB", "STAGE", ">BUBBLES", ">HARVESTED"});
    for (const auto& [stage, bubbles] : job.stage_bubble_share_pct) {
      const auto harvested = job.stage_harvested_share_pct.find(stage);
      table.add({shown_job(job.job), stage, human_pct(bubbles),
                 harvested == job.stage_harvested_share_pct.end() ? "-" : human_pct(harvested->second)});
    }
    out += "\n" + table.text();
  }
  return out + "\n" + render_tasks(report.tasks);
}

std::string render_profile(const bus::Profile& profile, bool kept) {
  std::string out = line("profile of", profile.plugin + "  " + short_hash(profile.sha256));
  for (const auto& [key, value] : profile.params) out += line("  " + printable(key), value);
  out += line("device", profile.device_model + (profile.worker.empty() ? "" : ", on " + profile.worker) +
                            (profile.conditions == "bubbles" ? ", in bubbles of a training" : ", idle"));
  if (kept) out += line("taken", date_of(profile.taken_unix_ms) + "; --again takes it anew");
  for (const auto& [where, bytes] : profile.peak_bytes)
    out += line(where == "gpu" ? "GPU memory" : where + " memory", human_bytes(bytes) + " at most");
  if (!profile.ended.empty()) out += line("ended", profile.ended);
  Table table({"DURATION OF", ">COUNT", ">P50", ">P90", ">P99", ">MAX"});
  const auto add = [&table](const std::string& what, const bus::Durations& d) {
    if (d.count == 0) return;
    table.add(
        {what, human_count(d.count), human_ns(d.p50_ns), human_ns(d.p90_ns), human_ns(d.p99_ns), human_ns(d.max_ns)});
  };
  const auto once = [&table](const std::string& what, int64_t ns) {
    if (ns > 0) table.add({what, "1", human_ns(ns), "", "", ""});
  };
  once("CreateSideTask", profile.create_ns);
  once("InitSideTask", profile.init_ns);
  add("StartSideTask", profile.starts);
  add("a step", profile.steps);
  for (size_t i = 0; i < profile.pieces.size(); ++i) add("  piece " + std::to_string(i + 1), profile.pieces[i]);
  add("PauseSideTask", profile.pauses);
  once("StopSideTask", profile.stop_ns);
  return out + (table.empty() ? "" : table.text());
}

std::string render_profiles(const bus::ProfilesReply& profiles) {
  if (profiles.profiles.empty()) return "no profiles; take one with freeride-ctl profile PLUGIN\n";
  // No column of what no device here has.
  const bool gpu = std::any_of(profiles.profiles.begin(), profiles.profiles.end(),
                               [](const auto& profile) { return profile.peak_bytes.count("gpu") != 0; });
  std::vector<std::string> headings{"PLUGIN", "SHA-256", "DEVICE", ">STEPS", ">STEP P50", ">P90", ">HOST MEMORY"};
  if (gpu) headings.emplace_back(">GPU MEMORY");
  headings.insert(headings.end(), {"TAKEN", "PARAMETERS"});
  Table table(headings);
  const auto bytes = [](const bus::Profile& profile, const char* where) {
    const auto found = profile.peak_bytes.find(where);
    return found == profile.peak_bytes.end() ? std::string("-") : human_bytes(found->second);
  };
  for (const auto& profile : profiles.profiles) {
    std::string params;
    for (const auto& [key, value] : profile.params) params += (params.empty() ? "" : " ") + key + "=" + value;
    const bool steps = profile.steps.count != 0;
    std::vector<std::string> cells{profile.plugin,
                                   short_hash(profile.sha256),
                                   profile.device_model,
                                   human_count(profile.steps.count),
                                   steps ? human_ns(profile.steps.p50_ns) : "-",
                                   steps ? human_ns(profile.steps.p90_ns) : "-",
                                   bytes(profile, "host")};
    if (gpu) cells.push_back(bytes(profile, "gpu"));
    cells.insert(cells.end(), {date_of(profile.taken_unix_ms), params});
    table.add(std::move(cells));
  }
  std::string out = table.text();
  if (profiles.left_out != 0) out += human_count(profiles.left_out) + " more\n";
  return out;
}

}  // namespace freeride::ctl
