#include "metrics.hpp"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "freeride/base/utf8.hpp"

namespace freeride::web {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kNs = 1e9, kPct = 100;
constexpr size_t kLabelBytes = 128;
constexpr size_t kMostPhases = 64;  // of a job

class Families {
 public:
  void counter(const char* name, const char* help, Labels labels, double value) {
    add(name, help, MetricType::Counter, std::move(labels)).counter.value = value;
  }
  void gauge(const char* name, const char* help, Labels labels, double value) {
    add(name, help, MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  ClientMetric::Summary& summary(const char* name, const char* help, Labels labels) {
    return add(name, help, MetricType::Summary, std::move(labels)).summary;
  }
  std::string text() const {
    std::vector<MetricFamily> all;
    for (const auto& [name, family] : families_) all.push_back(family);
    return prometheus::TextSerializer().Serialize(all);
  }

  // As the text format, which prometheus-cpp writes, but that a counter's family is named without _total, and that the
  // end is said.
  std::string open_metrics() const {
    constexpr std::string_view kTotal = "_total";
    std::string all;
    for (const auto& [name, family] : families_) {
      std::string text = prometheus::TextSerializer().Serialize({family});
      if (family.type == MetricType::Counter && family.name.ends_with(kTotal)) {
        const std::string plain = family.name.substr(0, family.name.size() - kTotal.size());
        for (const std::string head : {"# HELP ", "# TYPE "}) {
          if (const auto at = text.find(head + family.name + ' '); at != std::string::npos)
            text.replace(at + head.size(), family.name.size(), plain);
        }
      }
      all += text;
    }
    return all + "# EOF\n";
  }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type, Labels labels) {
    auto [family, fresh] = families_.try_emplace(name);
    if (fresh) family->second = {name, help, type, {}};
    for (auto& label : labels) label.value = clean_utf8(label.value.substr(0, kLabelBytes));
    auto& metric = family->second.metric.emplace_back();
    metric.label = std::move(labels);
    return metric;
  }
  std::map<std::string, MetricFamily> families_;
};

double seconds(int64_t ns) {
  return static_cast<double>(ns) / kNs;
}

void add_ranks(Families& out, const Model& model) {
  std::map<std::pair<std::string, std::string>, int> reasons;
  for (const auto& [key, rank] : model.ranks()) {
    const auto& state = rank.state;
    const Labels labels{{"job", state.job},
                        {"stage", std::to_string(state.stage)},
                        {"replica", std::to_string(state.replica)},
                        {"rank", std::to_string(state.rank)},
                        {"device", state.device}};
    out.counter("freeride_iterations_total", "Training iterations that have ended.", labels,
                static_cast<double>(rank.iterations));
    out.counter("freeride_iteration_seconds_total", "Time of training iterations.", labels, seconds(rank.iteration_ns));
    out.counter("freeride_bubble_seconds_total", "Time in bubbles, those of baseline iterations included.", labels,
                seconds(rank.bubble_ns));
    out.counter("freeride_offered_bubble_seconds_total",
                "Time in bubbles of open iterations: those that are no baseline iterations.", labels,
                seconds(rank.offered_ns));
    out.counter("freeride_harvested_seconds_total", "Side-task step time within bubbles.", labels,
                seconds(rank.harvested_ns));
    out.gauge("freeride_training_active", "1 while the rank's hook vouches for its marks.", labels,
              state.state == "active" ? 1 : 0);
    ++reasons[{state.job, model.why_of(rank)}];
  }
  for (const auto& [key, count] : reasons) {
    out.gauge("freeride_ranks", "Training ranks, by why their bubbles are used or not.",
              {{"job", key.first}, {"why", key.second}}, count);
  }
}

void add_phases(Families& out, const std::string& job, const std::vector<bus::PhaseMeasures>& phases) {
  for (size_t i = 0; i < std::min(phases.size(), kMostPhases); ++i) {
    const bus::PhaseMeasures& phase = phases[i];
    const Labels labels{{"job", job}, {"phase", phase.phase}};
    out.counter("freeride_idle_phases_total", "Idle phases of training that have ended.", labels,
                static_cast<double>(phase.count));
    out.counter("freeride_idle_phase_seconds_total", "Time in idle phases.", labels, seconds(phase.idle_ns));
    out.counter("freeride_idle_phase_harvested_seconds_total", "Side-task step time within idle phases.", labels,
                seconds(phase.harvested_ns));
    out.gauge("freeride_idle_phase_give_back_p99_seconds",
              "Side-task execution past an idle phase's end, 99th percentile.", labels, phase.give_back_p99_us / 1e6);
  }
}

void add_jobs(Families& out, const Model& model) {
  for (const auto& [name, job] : model.jobs()) {
    const Labels labels{{"job", name}};
    if (job.measured) {
      out.gauge("freeride_time_increase_ratio", "Slowdown of training by side tasks, 0.01 is 1 %.", labels,
                job.time_increase_pct / kPct);
      out.gauge("freeride_time_increase_low_ratio", "Lower end of the 95 % interval of I.", labels,
                job.time_increase_ci95_low_pct / kPct);
      out.gauge("freeride_time_increase_high_ratio", "Upper end of the 95 % interval of I.", labels,
                job.time_increase_ci95_high_pct / kPct);
    }
    if (job.budget_pct >= 0) {
      out.gauge("freeride_time_increase_budget_ratio", "The slowdown budget.", labels, job.budget_pct / kPct);
    }
    out.gauge("freeride_duty_ratio", "Share of iterations whose bubbles may get leases.", labels, job.duty_pct / kPct);
    out.gauge("freeride_bubble_ratio", "Bubble time of iteration time, mean over stages.", labels,
              job.bubble_share_pct / kPct);
    out.gauge("freeride_harvested_ratio", "Harvested time of bubble time, baseline iterations excluded.", labels,
              job.harvested_share_pct / kPct);
    out.gauge("freeride_baseline_iteration_seconds", "Mean length of baseline iterations.", labels,
              job.iteration_ms / 1e3);
    auto& overrun =
        out.summary("freeride_overrun_seconds", "Side-task execution past a bubble's end, of a lease.", labels);
    const auto counted = model.overruns().find(name);
    if (counted != model.overruns().end()) {
      overrun.sample_count = counted->second.leases;
      overrun.sample_sum = seconds(counted->second.sum_ns);
    }
    overrun.quantile = {{0.5, job.overrun_p50_us / 1e6}, {0.99, job.overrun_p99_us / 1e6}};
    add_phases(out, name, job.phases);
  }
}

struct TaskSums {
  double steps = 0, harvested_s = 0, overrun_s = 0, memory_bytes = 0, free_to_run = 0;
  void add(const bus::TaskState& state) {
    steps += static_cast<double>(state.counters.steps);
    harvested_s += seconds(state.counters.harvested_ns);
    overrun_s += seconds(state.counters.overrun_ns);
    memory_bytes += static_cast<double>(state.counters.memory_bytes);
    free_to_run += state.paused_by_user ? 0 : 1;
  }
  void write(Families& out, const std::string& task, const std::string& job) const {
    const Labels labels{{"job", job}, {"task", task}};
    out.counter("freeride_task_steps_total", "Steps of a side task.", labels, steps);
    out.counter("freeride_task_harvested_seconds_total", "Step time of a side task within bubbles.", labels,
                harvested_s);
    out.counter("freeride_task_overrun_seconds_total", "Execution of a side task past bubbles' ends.", labels,
                overrun_s);
    out.gauge("freeride_task_memory_bytes", "Resident memory of a side task.", labels, memory_bytes);
    out.gauge("freeride_task_free_to_run", "1 unless a user has paused it.", labels, free_to_run);
  }
};

void add_tasks(Families& out, const Model& model, size_t most) {
  std::map<std::string, double> by_state{{"SUBMITTED", 0}, {"CREATED", 0}, {"PAUSED", 0}, {"RUNNING", 0}};
  std::map<std::string, double> by_why;
  TaskSums other;
  size_t named = 0;
  bool more = false;
  for (const auto& [name, task] : model.tasks()) {
    if (!task.state.verdict.kind.empty()) continue;
    if (const auto state = by_state.find(task.state.state); state != by_state.end()) state->second++;
    if (!task.state.why.empty() && (by_why.size() < 64 || by_why.count(task.state.why) != 0)) by_why[task.state.why]++;
    if (named >= most) {
      other.add(task.state);
      more = true;
      continue;
    }
    ++named;
    TaskSums own;
    own.add(task.state);
    own.write(out, name, task.state.job);
  }
  if (more) other.write(out, "other", "");
  for (const auto& [state, count] : by_state)
    out.gauge("freeride_tasks", "Side tasks that have not ended, by state.", {{"state", state}}, count);
  for (const auto& [why, count] : by_why)
    out.gauge("freeride_tasks_waiting", "Side tasks without a lease or a step, by reason.", {{"why", why}}, count);
  for (const char* kind :
       {"finished", "stopped", "evicted", "overran", "out_of_memory", "crashed", "failed", "rejected", "lost"}) {
    const auto found = model.ends().find(kind);
    out.counter("freeride_task_ends_total", "Side tasks that have ended, by verdict.", {{"verdict", kind}},
                found == model.ends().end() ? 0 : static_cast<double>(found->second));
  }
  out.counter("freeride_gpu_faults_total", "Side tasks that have faulted their GPU.", {},
              static_cast<double>(model.gpu_faults()));
  for (const auto& fault : model.faults()) {
    const Labels labels{{"scope", fault.scope}, {"name", fault.name}};
    out.gauge("freeride_gpu_faults_last_hour", "GPU faults of a plugin, user or job within the last hour.", labels,
              fault.faults);
    out.gauge("freeride_blocked", "1 while it is kept off devices for its faults.", labels,
              fault.blocked_unix_ms != 0 ? 1 : 0);
  }
}

// Of those that go on; the manager bounds how many there are.
void add_batches(Families& out, const Model& model) {
  double running = 0;
  for (const auto& [name, batch] : model.batches()) {
    if (batch.ended_unix_ms != 0) continue;
    ++running;
    const Labels labels{{"batch", name}};
    out.gauge("freeride_batch_items", "Items of a batch.", labels, static_cast<double>(batch.items));
    out.gauge("freeride_batch_done_items", "Items of a batch that have a result.", labels,
              static_cast<double>(batch.done));
    out.gauge("freeride_batch_failed_items", "Items of a batch that have none, and will not.", labels,
              static_cast<double>(batch.failed));
  }
  out.gauge("freeride_batches", "Batches that have not ended.", {}, running);
}

void add_devices(Families& out, const Model& model) {
  for (const auto& [name, known] : model.workers()) {
    const bus::WorkerInfo& worker = known.info;
    const Labels labels{{"host", worker.state.host}, {"device", worker.state.device}};
    out.gauge("freeride_worker_up", "1 while the device's worker reports.", labels, worker.state.state == "up" ? 1 : 0);
    out.gauge("freeride_device_memory_bytes", "Memory of the device, or of the host.", labels,
              static_cast<double>(worker.state.memory_bytes));
    out.gauge("freeride_device_usable_bytes", "Memory that is free for side tasks.", labels,
              static_cast<double>(worker.state.usable_bytes));
  }
  for (const auto& [key, alarms] : model.alarms()) {
    out.counter("freeride_device_alarms_total", "What side tasks have said of a device: wrong results, slowness.",
                {{"host", alarms.host}, {"device", alarms.device}, {"serial", alarms.serial}, {"alarm", alarms.alarm}},
                static_cast<double>(alarms.count));
  }
}

}  // namespace

std::string metrics_text(const Model& model, const OwnFigures& own, size_t task_series, bool open_metrics) {
  Families out;
  out.gauge("freeride_build_info", "Versions; the value is 1.",
            {{"version", own.version}, {"manager_version", model.manager_version()}}, 1);
  out.gauge("freeride_manager_up", "1 while the manager answers.", {}, model.manager_up() ? 1 : 0);
  add_ranks(out, model);
  add_jobs(out, model);
  add_tasks(out, model, task_series);
  add_batches(out, model);
  add_devices(out, model);
  out.gauge("freeride_web_viewers", "Open pages.", {}, static_cast<double>(own.viewers));
  out.counter("freeride_web_viewers_dropped_total", "Pages that were dropped because they were too slow.", {},
              static_cast<double>(own.viewers_dropped));
  out.counter("freeride_web_unreadable_events_total", "Events that this version cannot read.", {},
              static_cast<double>(model.unreadable()));
  out.counter("freeride_web_left_out_total", "Things that the limits of freeride-web had no room for.", {},
              static_cast<double>(model.left_out()));
  return open_metrics ? out.open_metrics() : out.text();
}

bool wants_open_metrics(std::string_view accept) {
  double open = 0, text = 0;
  while (!accept.empty()) {
    std::string_view one = accept.substr(0, accept.find(','));
    accept.remove_prefix(std::min(accept.size(), one.size() + 1));
    std::string type, version;
    double weight = 1;
    for (bool first = true; !one.empty(); first = false) {
      std::string part(one.substr(0, one.find(';')));
      one.remove_prefix(std::min(one.size(), part.size() + 1));
      std::erase(part, ' ');
      if (first) {
        type = part;
      } else if (part.starts_with("version=")) {
        version = part.substr(8);
      } else if (part.starts_with("q=")) {
        weight = std::strtod(part.c_str() + 2, nullptr);
      }
    }
    if (type == "application/openmetrics-text" && (version.empty() || version == "1.0.0"))
      open = std::max(open, weight);
    if (type == "text/plain") text = std::max(text, weight);
  }
  return open > 0 && open >= text;
}

}  // namespace freeride::web
