#include "render.hpp"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

#include "format.hpp"
#include "freeride/policy/permission.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "jobs.hpp"

namespace freeride::ctl {
namespace {

// At most three of them.
std::string hosts_of(const std::set<std::string>& hosts) {
  constexpr size_t kMostShown = 3;
  std::string text;
  size_t shown = 0;
  for (const std::string& host : hosts) {
    if (shown++ == kMostShown) return text + " and " + std::to_string(hosts.size() - kMostShown) + " more";
    text += (text.empty() ? "" : ", ") + host;
  }
  return text;
}

std::string line(const std::string& label, const std::string& value) {
  constexpr size_t kColumn = 20;
  return label + std::string(label.size() < kColumn ? kColumn - label.size() : 1, ' ') + printable(value) + "\n";
}

Cell step_time(const bus::TaskCounters& counters) {
  if (counters.steps == 0) return {"-", ""};
  return ns_cell(counters.step_ns / static_cast<int64_t>(counters.steps));
}

Cell plain(const std::string& text) {
  return {or_dash(text), text};
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
  text += job.holdout_probes == 0 ? "; baseline iterations were not probed"
                                  : ", in baseline iterations by " + of(job.holdout_findings, job.holdout_probes);
  return text + (job.probes_unknown == 0 ? "" : "; " + std::to_string(job.probes_unknown) + " could not tell") + "\n";
}

constexpr double kWidePct = 5.0;  // an interval of the time increase that is wider gets a word of caution

Table jobs_table(const std::vector<bus::JobMeasures>& jobs) {
  Table table({"JOB",
               ">STAGES",
               ">ITERATIONS",
               ">BASELINE",
               {">ITERATION", "iteration_ns"},
               {">BUBBLES", "bubbles_pct"},
               {">HARVESTED", "harvested_pct"},
               {">DUTY", "duty_pct"},
               {">OVERRUN P50", "overrun_p50_ns"},
               {">P99", "overrun_p99_ns"},
               {"SLOWDOWN", "time_increase_pct"}});
  for (const auto& job : jobs) {
    table.add({shown_job(job.job),
               std::to_string(job.stages),
               count_cell(job.iterations),
               count_cell(job.holdout_iterations),
               ns_cell(static_cast<int64_t>(job.iteration_ms * 1e6)),
               pct_cell(job.bubble_share_pct),
               pct_cell(job.harvested_share_pct),
               pct_cell(job.duty_pct),
               ns_cell(static_cast<int64_t>(job.overrun_p50_us * 1e3)),
               ns_cell(static_cast<int64_t>(job.overrun_p99_us * 1e3)),
               {time_increase(job), job.measured ? pct_cell(job.time_increase_pct).raw : ""}});
  }
  return table;
}

// "" where no job has idle phases.
std::string phases_text(const std::vector<bus::JobMeasures>& jobs) {
  Table table({"JOB", "PHASE", ">COUNT", ">IDLE", ">HARVEST", ">HARVESTED", ">GIVE-BACK P50", ">P99"});
  for (const auto& job : jobs) {
    for (const auto& phase : job.phases) {
      const double share = phase.offered_ns <= 0
                               ? 0
                               : 100 * static_cast<double>(phase.harvested_ns) / static_cast<double>(phase.offered_ns);
      table.add({shown_job(job.job), phase.phase, human_count(phase.count), human_ns(phase.idle_ns),
                 human_ns(phase.harvested_ns), phase.offered_ns <= 0 ? "-" : human_pct(share),
                 human_ns(static_cast<int64_t>(phase.give_back_p50_us * 1e3)),
                 human_ns(static_cast<int64_t>(phase.give_back_p99_us * 1e3))});
    }
  }
  return table.empty() ? "" : "\n" + table.text();
}

std::string job_tables(const std::vector<bus::JobMeasures>& jobs) {
  if (jobs.empty()) return "no training job has been seen\n";
  std::string out = jobs_table(jobs).text();
  for (const auto& job : jobs) {
    if (const std::string budget = own_budget(job); !budget.empty())
      out += "job " + printable(shown_job(job.job)) + ": " + budget + "\n";
    if (const std::string holds = cost_of_holds(job); !holds.empty())
      out += "job " + printable(shown_job(job.job)) + ": " + holds + "\n";
    if (job.measured && job.time_increase_ci95_high_pct - job.time_increase_ci95_low_pct > kWidePct)
      out += "job " + printable(shown_job(job.job)) +
             ": slowdown: so wide an interval says little; it narrows with time\n";
    out += probed(job);
  }
  return out;
}

}  // namespace

Tone tone_of(const bus::TaskState& task) {
  if (task.verdict.kind.empty()) return task.state == "RUNNING" ? Tone::kGood : Tone::kPlain;
  const bool wanted = task.verdict.kind == "finished" || task.verdict.kind == "stopped";
  return wanted ? Tone::kFaint : Tone::kBad;
}

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

std::string cost_of_holds(const bus::JobMeasures& job) {
  const auto of = [](const bus::HoldCost& cost) {
    return human_signed_pct(cost.increase_pct) + " (95 %: " + human_signed_pct(cost.ci95_low_pct) + " to " +
           human_signed_pct(cost.ci95_high_pct) + ")";
  };
  if (job.held.periods == 0) return "";
  std::string text = "waits for other hosts are held: iterations " + of(job.held);
  if (job.held_with_leases.periods > 0) text += ", with leases " + of(job.held_with_leases);
  return text + ", against plain ones";
}

std::string time_increase(const bus::JobMeasures& job) {
  if (!job.measured) {
    // The first takes three held-out blocks, of which there are few.
    return job.measured_in_ms <= 0
               ? "not measured yet"
               : "not measured yet, about " + human_ns(job.measured_in_ms * 1'000'000) + " until the first measurement";
  }
  return human_signed_pct(job.time_increase_pct) + " (95 %: " + human_signed_pct(job.time_increase_ci95_low_pct) +
         " to " + human_signed_pct(job.time_increase_ci95_high_pct) + ")";
}

std::string own_budget(const bus::JobMeasures& job) {
  if (job.asked_budget_pct < 0) return "";
  if (job.asked_budget_pct > job.budget_pct)
    return "budget " + human_set_pct(job.budget_pct) + " (the job asks for " + human_set_pct(job.asked_budget_pct) +
           ", which is more than the manager's)";
  return "budget " + human_set_pct(job.budget_pct) + ", as the job asks";
}

std::string throttled(const bus::JobMeasures& job) {
  if (job.duty_pct >= 100) return "";
  std::string text = " (throttled to " + human_pct(job.duty_pct) +
                     " of the iterations: in all of them side tasks would slow training by about " +
                     human_pct(job.expected_cost_pct) + ", ";
  text +=
      job.budget_pct < 0 ? "which is more than they are worth" : "and the budget is " + human_set_pct(job.budget_pct);
  return text + ")";
}

std::string render_status(const bus::StatusReply& status) {
  std::string tasks;
  for (const auto& [state, count] : status.tasks_by_state) {
    if (count > 0) tasks += (tasks.empty() ? "" : ", ") + human_count(static_cast<uint64_t>(count)) + " " + state;
  }
  size_t up = 0, drained = 0;
  for (const auto& worker : status.workers) {
    up += worker.state.state == "up" ? 1 : 0;
    drained += worker.drained ? 1 : 0;
  }
  std::string out = line("manager", status.version + ", pid " + std::to_string(status.pid) + ", up " +
                                        human_ns(status.uptime_ms * 1'000'000));
  out += line("run folder", status.run_dir);
  out += line("state folder", status.state_dir);
  if (!status.network.empty()) out += line("network", printable(status.network));
  out += line("workers", std::to_string(up) + " up of " + std::to_string(status.workers.size()) +
                             (drained > 0 ? ", " + std::to_string(drained) + " drained" : ""));
  out += line("side tasks", tasks.empty() ? "none" : tasks);
  for (const auto& job : status.jobs) {
    out += line("job " + printable(shown_job(job.job)),
                human_count(job.iterations) + " iterations, bubbles " + human_pct(job.bubble_share_pct) +
                    ", harvested " + human_pct(job.harvested_share_pct) + " of them" + throttled(job) + ", slowdown " +
                    time_increase(job) + (own_budget(job).empty() ? "" : ", " + own_budget(job)));
  }
  return out;
}

Listing list_plugins(const bus::PluginsReply& plugins, const std::vector<std::string>& shipped) {
  // The same file in the drop folders of many workers is one plugin to the user.
  struct Where {
    size_t workers = 0;
    std::set<std::string> hosts;
  };
  std::map<std::tuple<std::string, std::string, std::string, std::string, uint64_t>, Where> rows;
  std::set<std::string> dropped;
  for (const auto& plugin : plugins.plugins) {
    Where& where = rows[{plugin.name, plugin.state, plugin.sha256, plugin.reason, plugin.size_bytes}];
    ++where.workers;
    where.hosts.emplace(policy::host_of_worker(plugin.worker));
    dropped.insert(plugin.name);
  }
  Table table({"PLUGIN", "FROM", "STATE", "SHA-256", {">SIZE", "size_bytes"}, ">WORKERS", "HOSTS", "REASON"});
  for (const auto& [key, where] : rows) {
    const auto& [name, state, sha256, reason, size] = key;
    table.add({name,
               "drop folder",
               {state, state, state == "rejected" ? Tone::kBad : Tone::kPlain},
               {short_hash(sha256), sha256},
               bytes_cell(static_cast<int64_t>(size)),
               std::to_string(where.workers),
               hosts_of(where.hosts),
               reason});
  }
  for (const std::string& name : shipped) {
    if (dropped.count(name) == 0)
      table.add({name, "FreeRide", "available", {"-", ""}, {"-", ""}, {"-", ""}, {"-", ""}, ""});
  }
  return {std::move(table), "no plugins; drop .so files into the drop folder (plugins/ in the state folder)\n", ""};
}

bool is_wanted(const bus::TaskInfo& task, const TasksWanted& wanted) {
  if (task.state.verdict.kind.empty()) return true;
  return wanted.ended && task.ended_unix_ms >= wanted.ended_after_unix_ms;
}

Listing list_tasks(const std::vector<bus::TaskInfo>& tasks, const TasksWanted& wanted) {
  std::vector<Column> columns{"TASK",
                              "STATE",
                              ">STAGE",
                              "WORKER",
                              "PLUGIN",
                              ">STEPS",
                              {">STEP", "step_ns"},
                              {">HARVEST", "harvested_ns"},
                              {">MEMORY", "memory_bytes"}};
  if (wanted.ended) columns.emplace_back(">ENDED", "ended_unix_ms");
  columns.emplace_back("WHY");
  Table table(std::move(columns));
  size_t hidden = 0;
  const auto add = [&](const bus::TaskInfo& info) {
    const auto& task = info.state;
    std::vector<Cell> cells{task.task,
                            {task.state, task.state, tone_of(task)},
                            {stage_text(task.stage), task.stage < 0 ? "" : std::to_string(task.stage)},
                            plain(task.worker),
                            task.plugin,
                            count_cell(task.counters.steps),
                            step_time(task.counters),
                            ns_cell(task.counters.harvested_ns),
                            bytes_cell(task.counters.memory_bytes)};
    if (wanted.ended && info.ended_unix_ms == 0) cells.emplace_back("-", "");
    if (wanted.ended && info.ended_unix_ms != 0) {
      const int64_t ago_ms = std::max<int64_t>(0, wanted.now_unix_ms - info.ended_unix_ms);
      cells.emplace_back(wanted.now_unix_ms == 0 ? date_of(info.ended_unix_ms) : human_ns(ago_ms * 1'000'000) + " ago",
                         std::to_string(info.ended_unix_ms));
    }
    cells.emplace_back(outcome(task));
    table.add(std::move(cells));
  };
  for (const bool live : {true, false}) {
    for (const auto& info : tasks) {
      if (info.state.verdict.kind.empty() != live) continue;
      if (is_wanted(info, wanted)) {
        add(info);
      } else {
        ++hidden;
      }
    }
  }
  Listing listing{std::move(table), "no side tasks; start one with freeride-ctl load PLUGIN --stage N\n", ""};
  if (hidden == 0) return listing;
  if (listing.table.empty()) listing.none = "no side task lives\n";
  listing.note = human_count(hidden) + (wanted.ended ? " ended earlier" : " ended") + ": freeride-ctl tasks --all\n";
  return listing;
}

namespace {
// With quotes around words that a shell would take apart.
std::string as_typed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`|&;<>()*?[]{}~#!") == word.npos;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += (text.empty() ? "" : " ") + (plain ? word : quoted + "'");
  }
  return text;
}
}  // namespace

std::string render_shim(const bus::ShimCounters& shim) {
  std::string out = line("GPU work", human_count(shim.submissions) + " submissions, " + human_count(shim.waits) +
                                         " waited for a lease, " + human_ns(shim.waited_ns) + " in sum");
  if (shim.late > 0) {
    out += line("  late", "after " + human_count(shim.late) + " leases, " + human_ns(shim.late_most_ns) + " at most");
  }
  if (shim.refused > 0) out += line("  refused", human_count(shim.refused) + ": its lease page could not be read");
  std::string loose;
  const auto add = [&](const std::string& what) { loose += (loose.empty() ? "" : ", ") + what; };
  for (const auto& [name, calls] : shim.unknown) add(name + " (" + human_count(calls) + ")");
  if (shim.export_tables > 0) add("tables of functions (" + human_count(shim.export_tables) + ")");
  if (shim.host_functions > 0) add("host functions (" + human_count(shim.host_functions) + ")");
  return loose.empty() ? out : out + line("  not held", loose);
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
  out += info.load.program.empty() ? line("plugin", task.plugin + "  " + task.sha256)
                                   : line("program", as_typed(info.load.program));
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
  out += line("step", step_time(counters).shown + ", predicted " + human_ns(counters.predicted_ns));
  out += line("harvested", human_ns(counters.harvested_ns) + " in " + human_count(counters.leases) + " leases, " +
                               human_count(counters.skipped) + " unused");
  out += line("overrun", human_ns(counters.overrun_ns) + " in all");
  for (const bus::ShimCounters& shim : info.shim) out += render_shim(shim);
  if (info.restarts != 0) out += line("restarts", std::to_string(info.restarts));
  for (const auto& [name, value] : counters.metrics) {
    if (name.rfind("batch.", 0) == 0) continue;  // between a batch's member and the manager: freeride-ctl batch ls
    out += line("  " + printable(name), std::to_string(value));
  }
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

Listing list_workers(const bus::WorkersReply& workers) {
  Table table({"WORKER",
               "STATE",
               "MODEL",
               "TRAINER",
               "RANKS",
               "SANDBOX",
               ">TASKS",
               {">FREE", "free_bytes"},
               {">MEMORY", "memory_bytes"},
               {">LAST HEARD", "silent_ms"}});
  for (const auto& worker : workers.workers) {
    std::string ranks;
    for (const auto& rank : worker.ranks)
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank.rank) + " " + rank.state;
    const bool open = worker.sandbox == "none";
    const std::string& state = worker.state.state;
    table.add({worker.state.worker,
               {state + (worker.drained ? ", drained" : ""), state, state == "up" ? Tone::kGood : Tone::kBad},
               plain(worker.device_model),
               {trainer_of(worker.state), worker.state.job.empty() ? "" : trainer_of(worker.state)},
               plain(ranks),
               {open ? "NONE" : or_dash(worker.sandbox), worker.sandbox, open ? Tone::kBad : Tone::kPlain},
               std::to_string(worker.state.tasks),
               bytes_cell(worker.state.usable_bytes),
               bytes_cell(worker.state.memory_bytes),
               {human_ns(worker.silent_ms * 1'000'000) + " ago", std::to_string(worker.silent_ms)}});
  }
  return {std::move(table), "no workers; start one per device with freeride-worker --device cpu-0 --cores 0\n", ""};
}

namespace {

// GPU time over weeks: one unit, so that rows compare.
Cell gpu_hours(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f h", static_cast<double>(ns) / 3.6e12);
  return {text, std::to_string(ns)};
}

Cell cost_cell(const bus::UsageRow& row) {
  if (row.cost_ns == 0 && row.cost_low_ns == 0 && row.cost_high_ns == 0) return {"-", "0"};
  return {gpu_hours(row.cost_ns).shown + " (" + gpu_hours(row.cost_low_ns).shown + " to " +
              gpu_hours(row.cost_high_ns).shown + ")",
          std::to_string(row.cost_ns)};
}

}  // namespace

Listing list_usage(const bus::UsageReply& usage) {
  const bool jobs = usage.by == "job";
  std::vector<Column> columns{usage.by == "user" ? "USER" : usage.by == "account" ? "ACCOUNT" : jobs ? "JOB" : "TASK"};
  if (usage.by != "task") columns.emplace_back(">TASKS");
  columns.insert(columns.end(), {">STEPS", {">HARVEST", "harvested_ns"}, {">OVERRUN", "overrun_ns"}});
  if (jobs) columns.insert(columns.end(), {{">BUBBLES", "bubble_ns"}, {">GPU TIME", "gpu_ns"}});
  columns.emplace_back("COST TO TRAINING (95 %)", "cost_ns");
  Table table(std::move(columns));
  for (const auto& row : usage.rows) {
    std::vector<Cell> cells{{row.name.empty() ? "-" : jobs ? shown_job(row.name) : row.name, row.name}};
    if (usage.by != "task") cells.push_back(count_cell(row.tasks));
    cells.insert(cells.end(), {count_cell(row.steps), gpu_hours(row.harvested_ns), ns_cell(row.overrun_ns)});
    if (jobs) cells.insert(cells.end(), {gpu_hours(row.bubble_ns), gpu_hours(row.gpu_ns)});
    cells.push_back(cost_cell(row));
    table.add(std::move(cells));
  }
  std::string note;
  if (usage.from_unix_ms != 0) note = "since " + date_of(usage.from_unix_ms) + ", in GPU hours\n";
  return {std::move(table), "no side task has run since then\n", note};
}

Listing list_faults(const bus::FaultsReply& faults) {
  Table table({"OF", "NAME", ">FAULTS IN 1 h", ">LIMIT", "BLOCKED", "LAST TASK"});
  for (const auto& one : faults.counts) {
    const std::string shown = one.scope == "plugin" ? short_hash(one.name)
                              : one.scope == "job"  ? shown_job(one.name)
                                                    : one.name;
    const bool blocked = one.blocked_unix_ms != 0;
    table.add({one.scope,
               {shown, one.name},
               std::to_string(one.faults),
               {one.limit == 0 ? "-" : std::to_string(one.limit), std::to_string(one.limit)},
               {blocked ? "YES" : "no", blocked ? "yes" : "no", blocked ? Tone::kBad : Tone::kPlain},
               plain(one.last_task)});
  }
  return {std::move(table), "no GPU faults within the last hour, and nobody is blocked\n", ""};
}

Listing list_jobs(const bus::ReportReply& report) {
  return {jobs_table(report.jobs), "no training job has been seen\n", ""};
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
  out += phases_text(report.jobs);
  return out + "\n" + list_tasks(report.tasks, {true, 0, 0}).text();
}

namespace {

// How much what a profile says of steps is worth: by how many they are, and how far they lie apart.
std::string how_sure(const bus::Profile& profile) {
  const bus::Durations& steps = profile.steps;
  std::string text = human_count(steps.count) + (steps.count == 1 ? " step" : " steps");
  if (profile.warm_up_steps > 0) text += " after " + human_count(profile.warm_up_steps) + " to warm up";
  if (steps.p50_ns > 0) {
    const double spread_pct =
        100.0 * static_cast<double>(steps.p90_ns - steps.p50_ns) / static_cast<double>(steps.p50_ns);
    text += ", nine of ten at most " + human_pct(spread_pct) + " above the middle";
  }
  return text + (steps.count < policy::kLeastProfileSteps ? ": few; it learns the rest in bubbles" : "");
}

}  // namespace

std::string render_profile(const bus::Profile& profile, bool kept) {
  std::string out = line("profile of", profile.plugin + "  " + short_hash(profile.sha256));
  for (const auto& [key, value] : profile.params) out += line("  " + printable(key), value);
  out += line("device", profile.device_model + (profile.worker.empty() ? "" : ", on " + profile.worker) +
                            (profile.conditions == "bubbles" ? ", in bubbles of a training" : ", idle"));
  if (kept) out += line("taken", date_of(profile.taken_unix_ms) + "; --again takes it again");
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
  if (profile.steps.count > 0) out += line("how sure", how_sure(profile));
  return out + (table.empty() ? "" : table.text());
}

std::string render_load_plan(const bus::LoadPlan& plan) {
  std::string out = line("task", plan.name + "; nothing was loaded");
  out += line("fits", plan.fits ? "yes, on " + plan.worker : "no: " + plan.reason);
  out += line("memory", human_bytes(plan.memory_bytes));
  out += line("a step", plan.step_ns == 0 ? "not known: it has no profile"
                                          : human_ns(plan.step_ns) + ", by a profile of " +
                                                human_count(plan.profile_steps) + " steps");
  if (plan.stages.empty()) return out;
  Table table({"JOB", ">STAGE", ">REPLICA", "WORKER", "FITS", ">BUBBLES", ">STEPS AN HOUR", "WHY"});
  for (const auto& stage : plan.stages) {
    table.add({stage.job, std::to_string(stage.stage), std::to_string(stage.replica), stage.worker,
               stage.fits ? "yes" : "no", stage.bubble_share_pct < 0 ? "-" : human_pct(stage.bubble_share_pct),
               stage.steps_per_hour > 0 ? "up to " + human_count(static_cast<uint64_t>(stage.steps_per_hour)) : "-",
               or_dash(stage.reason)});
  }
  return out + table.text();
}

Listing list_profiles(const bus::ProfilesReply& profiles) {
  // No column of what no device here has.
  const bool gpu = std::any_of(profiles.profiles.begin(), profiles.profiles.end(),
                               [](const auto& profile) { return profile.peak_bytes.count("gpu") != 0; });
  std::vector<Column> columns{"PLUGIN",
                              "SHA-256",
                              "DEVICE",
                              ">STEPS",
                              {">STEP P50", "step_p50_ns"},
                              {">P90", "step_p90_ns"},
                              {">HOST MEMORY", "host_memory_bytes"}};
  if (gpu) columns.emplace_back(">GPU MEMORY", "gpu_memory_bytes");
  columns.emplace_back("TAKEN", "taken_unix_ms");
  columns.emplace_back("PARAMETERS");
  Table table(std::move(columns));
  const auto bytes = [](const bus::Profile& profile, const char* where) -> Cell {
    const auto found = profile.peak_bytes.find(where);
    return found == profile.peak_bytes.end() ? Cell("-", "") : bytes_cell(found->second);
  };
  for (const auto& profile : profiles.profiles) {
    std::string params;
    for (const auto& [key, value] : profile.params) params += (params.empty() ? "" : " ") + key + "=" + value;
    const bool steps = profile.steps.count != 0;
    std::vector<Cell> cells{profile.plugin,
                            {short_hash(profile.sha256), profile.sha256},
                            profile.device_model,
                            count_cell(profile.steps.count),
                            steps ? ns_cell(profile.steps.p50_ns) : Cell("-", ""),
                            steps ? ns_cell(profile.steps.p90_ns) : Cell("-", ""),
                            bytes(profile, "host")};
    if (gpu) cells.push_back(bytes(profile, "gpu"));
    cells.emplace_back(date_of(profile.taken_unix_ms), std::to_string(profile.taken_unix_ms));
    cells.emplace_back(params);
    table.add(std::move(cells));
  }
  Listing listing{std::move(table), "no profiles; take one with freeride-ctl profile PLUGIN\n", ""};
  if (profiles.left_out != 0) listing.note = human_count(profiles.left_out) + " more\n";
  return listing;
}

}  // namespace freeride::ctl
