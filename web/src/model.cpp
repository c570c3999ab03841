#include "model.hpp"

#include <algorithm>
#include <cmath>

#include "freeride/base/utf8.hpp"
#include "freeride/bus/codec.hpp"

namespace freeride::web {
namespace {

constexpr size_t kRecentIterations = 20;  // what "now" means for shares, as in freeride-ctl top
constexpr size_t kTextBytes = 300;
constexpr size_t kPhasesOfJob = 16;
constexpr int64_t kUs = 1000, kMs = 1'000'000;
constexpr int64_t kDayMs = 86'400'000;
constexpr size_t kBubbleNumbers = 9, kIterationNumbers = 4;  // of each, in a frame

// Figures that a page shows: more digits would only cost bytes.
double rounded(double value) {
  return std::isfinite(value) ? std::round(value * 1000) / 1000 : 0;
}

double share_pct(int64_t part, int64_t whole) {
  return whole <= 0 ? 0 : rounded(100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string text_of(const std::string& text) {
  return clean_utf8(text.substr(0, kTextBytes));
}

int64_t difference(int64_t end, int64_t begin) {
  int64_t result = 0;
  return __builtin_sub_overflow(end, begin, &result) || result < 0 ? 0 : result;
}

// Sums of what others say: they stop at the greatest number instead of overflowing.
void add(int64_t& sum, int64_t more) {
  if (more > 0 && __builtin_add_overflow(sum, more, &sum)) sum = INT64_MAX;
}

int64_t moved(int64_t t_ns, int64_t shift_ns) {
  int64_t result = 0;
  return __builtin_add_overflow(t_ns, shift_ns, &result) ? 0 : result;
}

int64_t milliseconds(int64_t ms) {
  return std::clamp<int64_t>(ms, 0, kDayMs) * kMs;
}

// Of what had lasted so long when it was said.
int64_t began_us(int64_t said_ns, int64_t lasted_ms) {
  return moved(said_ns, -milliseconds(lasted_ms)) / kUs;
}

void set_phase(Rank& rank, const std::string& phase, int64_t since_us) {
  rank.state.phase = phase;
  rank.phase_since = phase.empty() ? 0 : since_us;
}

bool is_topic(const std::string& topic, const char* name) {
  const size_t length = std::char_traits<char>::length(name);
  return topic.compare(0, length, name) == 0 && topic.size() > length && topic[length] == '/';
}

nlohmann::json rank_json(const Rank& rank, const std::string& why) {
  int64_t time_ns = 0, bubble_ns = 0, offered_ns = 0, harvested_ns = 0;
  for (const auto& iteration : rank.recent) {
    add(time_ns, difference(iteration.end_ns, iteration.begin_ns));
    add(bubble_ns, iteration.bubble_ns);
    if (!iteration.holdout) add(offered_ns, iteration.bubble_ns);
    if (!iteration.holdout) add(harvested_ns, iteration.harvested_ns);
  }
  const auto& state = rank.state;
  return {{"id", rank.id},
          {"job", text_of(state.job)},
          {"rank", state.rank},
          {"stage", state.stage},
          {"replica", state.replica},
          {"device", text_of(state.device)},
          {"worker", text_of(state.worker)},
          {"framework", text_of(state.framework)},
          {"state", text_of(state.state)},
          {"why", text_of(why)},
          {"guessed", state.guessed},
          {"phase", text_of(state.phase)},
          {"phase_since", rank.phase_since},
          {"iteration", state.iteration},
          {"holdout", !rank.recent.empty() && rank.recent.back().holdout},
          {"bubble_pct", share_pct(bubble_ns, time_ns)},
          {"harvested_pct", offered_ns == 0 ? nlohmann::json() : nlohmann::json(share_pct(harvested_ns, offered_ns))}};
}

nlohmann::json task_json(const Task& task) {
  const auto& state = task.state;
  auto metrics = nlohmann::json::object();
  for (const auto& [name, value] : state.counters.metrics) {
    if (name.starts_with("batch.")) continue;  // between a batch's member and the manager
    if (metrics.size() < 8) metrics[text_of(name)] = rounded(value);
  }
  return {{"id", task.id},
          {"plugin", text_of(state.plugin)},
          {"job", text_of(state.job)},
          {"worker", text_of(state.worker)},
          {"user", text_of(task.user)},
          {"state", text_of(state.state)},
          {"stage", state.stage},
          {"replica", state.replica},
          {"why", text_of(state.why)},
          {"reason", text_of(state.reason)},
          {"verdict", text_of(state.verdict.kind)},
          {"verdict_reason", text_of(state.verdict.reason)},
          {"steps", state.counters.steps},
          {"steps_per_s", rounded(task.steps_per_s)},
          {"harvested_s", rounded(static_cast<double>(state.counters.harvested_ns) / 1e9)},
          {"memory_bytes", state.counters.memory_bytes},
          {"metrics", std::move(metrics)}};
}

nlohmann::json worker_json(const bus::WorkerInfo& worker) {
  return {{"host", text_of(worker.state.host)},        {"device", text_of(worker.state.device)},
          {"model", text_of(worker.device_model)},     {"state", text_of(worker.state.state)},
          {"job", text_of(worker.state.job)},          {"stage", worker.state.stage},
          {"replica", worker.state.replica},           {"memory_bytes", worker.state.memory_bytes},
          {"usable_bytes", worker.state.usable_bytes}, {"tasks", worker.state.tasks},
          {"sandbox", text_of(worker.sandbox)}};
}

nlohmann::json phase_json(const bus::PhaseMeasures& phase) {
  return {{"name", text_of(phase.phase)},
          {"count", phase.count},
          {"idle_s", rounded(static_cast<double>(phase.idle_ns) / 1e9)},
          {"harvested_s", rounded(static_cast<double>(phase.harvested_ns) / 1e9)},
          {"harvested_pct", share_pct(phase.harvested_ns, phase.offered_ns)},
          {"give_back_p99_us", rounded(phase.give_back_p99_us)}};
}

nlohmann::json job_json(const bus::JobMeasures& job) {
  auto phases = nlohmann::json::array();
  for (const auto& phase : job.phases) {
    if (phases.size() < kPhasesOfJob) phases.push_back(phase_json(phase));
  }
  return {{"stages", job.stages},
          {"phases", std::move(phases)},
          {"iterations", job.iterations},
          {"holdout_iterations", job.holdout_iterations},
          {"measured", job.measured},
          {"i_pct", rounded(job.time_increase_pct)},
          {"i_low_pct", rounded(job.time_increase_ci95_low_pct)},
          {"i_high_pct", rounded(job.time_increase_ci95_high_pct)},
          {"iteration_ms", rounded(job.iteration_ms)},
          {"bubble_pct", rounded(job.bubble_share_pct)},
          {"harvested_pct", rounded(job.harvested_share_pct)},
          {"overrun_p50_us", rounded(job.overrun_p50_us)},
          {"overrun_p99_us", rounded(job.overrun_p99_us)},
          {"duty_pct", rounded(job.duty_pct)},
          {"budget_pct", rounded(job.budget_pct)}};
}

nlohmann::json batch_json(const bus::BatchState& batch) {
  const uint64_t handled = std::min(batch.items, batch.done + batch.failed);
  const double left_s = batch.items_per_s <= 0 ? 0 : static_cast<double>(batch.items - handled) / batch.items_per_s;
  return {{"state", text_of(batch.state)},
          {"reason", text_of(batch.reason)},
          {"user", text_of(batch.user)},
          {"items", batch.items},
          {"done", batch.done},
          {"failed", batch.failed},
          {"members", batch.members},
          {"ended", batch.ended_unix_ms},
          {"per_s", rounded(batch.items_per_s)},
          {"left_s", rounded(left_s)}};
}

nlohmann::json fault_json(const bus::FaultCount& fault) {
  return {{"scope", text_of(fault.scope)},
          {"name", text_of(fault.name)},
          {"faults", fault.faults},
          {"limit", fault.limit},
          {"blocked", fault.blocked_unix_ms != 0},
          {"last_task", text_of(fault.last_task)}};
}

nlohmann::json notice_json(const Notice& notice) {
  return {{"id", notice.id},
          {"t", notice.unix_ms},
          {"level", notice.level},
          {"subject", notice.subject},
          {"text", notice.text}};
}

// The fields of `now` that differ from `before`; those that are gone are null.
nlohmann::json changed_fields(const nlohmann::json& before, const nlohmann::json& now) {
  auto changed = nlohmann::json::object();
  for (const auto& [name, value] : now.items()) {
    const auto old = before.find(name);
    if (old == before.end() || *old != value) changed[name] = value;
  }
  return changed;
}

}  // namespace

template <class Map>
auto* Model::entry(Map& map, const std::string& key, size_t most) {
  auto found = map.find(key);
  if (found == map.end()) {
    if (map.size() >= most) {
      ++left_out_;
      return static_cast<typename Map::mapped_type*>(nullptr);
    }
    found = map.try_emplace(key).first;
    if constexpr (requires { found->second.id; }) found->second.id = static_cast<uint32_t>(++next_id_);
  }
  return &found->second;
}

void Model::on_event(const std::string& topic, std::string_view payload, int64_t received_ns) {
  const auto envelope = bus::decode<bus::Envelope>(payload);
  if (!envelope) {
    ++unreadable_;
    return;
  }
  // A kept event was published long ago: it says nothing of the distance between clocks.
  const int64_t shift_ns = envelope->kept ? 0 : clocks_.shift(envelope->source, envelope->t_ns, received_ns);
  const auto take = [&]<class E>(E*, auto&& use) {
    if (!is_topic(topic, E::kTopic)) return false;
    if (const auto event = bus::decode<E>(payload)) {
      use(*event);
    } else {
      ++unreadable_;
    }
    return true;
  };
  using namespace bus;
  (void)(take((BubbleEnd*)nullptr, [&](const BubbleEnd& e) { on_bubble(e, shift_ns); }) ||
         take((TrainingIteration*)nullptr, [&](const TrainingIteration& e) { on_iteration(e, shift_ns); }) ||
         take((TaskProgress*)nullptr, [&](const TaskProgress& e) { on_progress(e, envelope->t_ns); }) ||
         take((TaskState*)nullptr, [&](const TaskState& e) { on_task(e, envelope->kept, received_ns); }) ||
         take((TrainingState*)nullptr,
              [&](const TrainingState& e) {
                on_training(e, envelope->kept, moved(envelope->t_ns, shift_ns), received_ns);
              }) ||
         take((WorkerState*)nullptr, [&](const WorkerState& e) { on_worker(e, envelope->kept, received_ns); }) ||
         take((PluginState*)nullptr, [&](const PluginState& e) { on_plugin(e, envelope->kept, received_ns); }) ||
         take((BatchState*)nullptr, [&](const BatchState& e) { on_batch(e, envelope->kept, received_ns); }) ||
         take((DeviceAlarm*)nullptr, [&](const DeviceAlarm& e) { on_alarm(e, received_ns); }) ||
         take((JobMeasures*)nullptr, [&](const JobMeasures& e) {
           if (auto* job = entry(jobs_, e.job, limits_.jobs)) *job = e;
         }));
}

void Model::on_bubble(const bus::BubbleEnd& bubble, int64_t shift_ns) {
  const auto rank = ranks_.find(bubble.key());
  if (rank == ranks_.end() || !wants_bubbles()) return;
  if (bubble.phase == rank->second.state.phase) set_phase(rank->second, "", 0);
  if (bubbles_.size() / kBubbleNumbers >= limits_.frame_bubbles) {
    ++left_out_;
    return;
  }
  const auto task = tasks_.find(bubble.task);
  const Phase* phase = bubble.phase.empty() ? nullptr : entry(phases_, bubble.phase, limits_.phases);
  const bool stepped = bubble.side_begin_ns != 0 && bubble.side_end_ns > bubble.side_begin_ns;
  bubbles_.insert(
      bubbles_.end(),
      {rank->second.id, moved(bubble.begin_ns, shift_ns) / kUs, difference(bubble.end_ns, bubble.begin_ns) / kUs,
       stepped ? difference(bubble.side_begin_ns, bubble.begin_ns) / kUs : 0,
       stepped ? difference(bubble.side_end_ns, bubble.side_begin_ns) / kUs : 0,
       std::max<int64_t>(0, bubble.overrun_ns) / kUs, (bubble.leased ? 1 : 0) + (bubble.holdout ? 2 : 0),
       task == tasks_.end() ? 0 : task->second.id, phase == nullptr ? 0 : phase->id});
}

// A manager's answer says since when phases go on of which only a kept event was heard, whose time says nothing here.
void Model::on_phases(const bus::WorkerInfo& worker, int64_t received_ns) {
  for (const auto& state : worker.ranks) {
    const auto rank = ranks_.find(state.key());
    if (rank == ranks_.end() || rank->second.phase_since != 0 || rank->second.state.phase != state.phase) continue;
    set_phase(rank->second, state.phase, began_us(received_ns - milliseconds(worker.silent_ms), state.phase_ms));
  }
}

void Model::on_iteration(const bus::TrainingIteration& iteration, int64_t shift_ns) {
  Rank* rank = entry(ranks_, iteration.key(), limits_.ranks);
  if (rank == nullptr) return;
  auto& state = rank->state;
  state.job = iteration.job;
  state.device = iteration.device;
  state.rank = iteration.rank;
  state.stage = iteration.stage;
  state.replica = iteration.replica;
  state.iteration = iteration.iteration;
  const int64_t length_ns = difference(iteration.end_ns, iteration.begin_ns);
  rank->iterations++;
  add(rank->iteration_ns, length_ns);
  add(rank->bubble_ns, iteration.bubble_ns);
  if (!iteration.holdout) add(rank->offered_ns, iteration.bubble_ns);
  add(rank->harvested_ns, iteration.harvested_ns);
  rank->recent.push_back(iteration);
  if (rank->recent.size() > kRecentIterations) rank->recent.pop_front();
  if (iterations_.size() / kIterationNumbers >= limits_.frame_bubbles || !wants_bubbles()) return;
  iterations_.insert(iterations_.end(),
                     {rank->id, moved(iteration.begin_ns, shift_ns) / kUs, length_ns / kUs, iteration.holdout ? 1 : 0});
}

void Model::on_training(const bus::TrainingState& state, bool kept, int64_t said_ns, int64_t received_ns) {
  Rank* rank = entry(ranks_, state.key(), limits_.ranks);
  if (rank == nullptr) return;
  const bool ended = state.state == "gone" || state.state == "lost";
  if (!kept && rank->state.state != state.state) {
    notice(received_ns, state.state == "lost" || state.state == "disabled" ? "bad" : "info",
           state.job + " rank " + std::to_string(state.rank),
           "training is " + state.state + " on " + state.device + ", stage " + std::to_string(state.stage));
  }
  const uint64_t iteration = ended || rank->ended_ns == 0 ? rank->state.iteration : 0;
  rank->state = state;
  rank->state.iteration = std::max(iteration, state.iteration);
  rank->ended_ns = ended ? received_ns : 0;
  set_phase(*rank, state.phase, kept ? 0 : began_us(said_ns, state.phase_ms));
}

std::string Model::why_of(const Rank& rank) const {
  const auto worker = workers_.find(rank.state.worker);
  const bool lost = worker != workers_.end() && worker->second.info.state.state != "up";
  if (lost && rank.ended_ns == 0) return "worker_lost";
  return rank.state.why.empty() && !rank.state.state.empty() ? "unknown" : rank.state.why;
}

void Model::count_overrun(const std::string& job, const bus::TaskCounters& before, const bus::TaskCounters& after) {
  if (after.leases < before.leases || after.overrun_ns < before.overrun_ns) return;  // it was started anew
  if (auto* overrun = entry(overruns_, job, limits_.jobs)) {
    overrun->leases += after.leases - before.leases;
    add(overrun->sum_ns, after.overrun_ns - before.overrun_ns);
  }
}

void Model::on_task(const bus::TaskState& state, bool kept, int64_t received_ns) {
  if (state.state == bus::TaskState::kRemoved) {
    tasks_.erase(state.task);
    return;
  }
  Task* task = entry(tasks_, state.task, limits_.tasks);
  if (task == nullptr) return;
  const bool ended = !state.verdict.kind.empty(), had_ended = !task->state.verdict.kind.empty();
  if (ended && !had_ended && !kept) {
    if (auto* count = entry(ends_, state.verdict.kind, limits_.ends)) ++*count;
    if (state.verdict.gpu_fault) ++gpu_faults_;
    const bool good = state.verdict.kind == "finished" || state.verdict.kind == "stopped";
    notice(received_ns, good ? "good" : "bad", state.task, state.verdict.kind + ": " + state.verdict.reason);
  } else if (!kept && (task->state.state != state.state || task->state.why != state.why)) {
    // PAUSED and RUNNING follow the bubbles: that is no news.
    const auto in_turns = [](const std::string& name) { return name == "PAUSED" || name == "RUNNING"; };
    if (!in_turns(state.state) || !in_turns(task->state.state)) {
      notice(received_ns, "info", state.task, state.state + (state.reason.empty() ? "" : ": " + state.reason));
    }
  }
  // The worker's progress is fresher than the counters that the manager last heard of.
  const auto counters = state.counters.steps >= task->state.counters.steps ? state.counters : task->state.counters;
  task->state = state;
  task->state.counters = counters;
  task->heard_ns = received_ns;
  if (ended) task->steps_per_s = 0;
}

void Model::on_progress(const bus::TaskProgress& progress, int64_t t_ns) {
  // A worker also publishes progress of profile runs, which are no tasks of the user's.
  const auto found = tasks_.find(progress.task);
  if (found == tasks_.end()) return;
  Task& task = found->second;
  const uint64_t steps = progress.counters.steps;
  if (task.rate_ns != 0 && t_ns > task.rate_ns && steps >= task.rate_steps) {
    const auto seconds = static_cast<double>(difference(t_ns, task.rate_ns)) / 1e9;
    task.steps_per_s = static_cast<double>(steps - task.rate_steps) / seconds;
  }
  task.rate_ns = t_ns;
  task.rate_steps = steps;
  std::string job = task.state.job;
  if (const auto worker = workers_.find(progress.worker); job.empty() && worker != workers_.end())
    job = worker->second.info.state.job;
  if (!job.empty()) count_overrun(job, task.state.counters, progress.counters);
  task.state.counters = progress.counters;
  if (task.state.verdict.kind.empty() && !progress.state.empty()) task.state.state = progress.state;
}

void Model::on_worker(const bus::WorkerState& state, bool kept, int64_t received_ns) {
  auto* worker = entry(workers_, state.worker, limits_.workers);
  if (worker == nullptr) return;
  if (!kept && worker->info.state.state != state.state) {
    notice(received_ns, state.state == "lost" ? "bad" : "info", state.worker, "worker is " + state.state);
  }
  worker->info.state = state;
  worker->heard_ns = received_ns;
}

void Model::on_alarm(const bus::DeviceAlarm& alarm, int64_t received_ns) {
  notice(received_ns, "bad", alarm.device,
         "side task " + alarm.task + " says '" + alarm.alarm + "' of it, " + std::to_string(alarm.count) +
             " times so far" + (alarm.serial.empty() ? "" : "; serial number " + alarm.serial));
  DeviceAlarms* known = entry(alarms_, alarm.worker + "/" + alarm.alarm, limits_.alarms);
  if (known == nullptr) return;
  const auto worker = workers_.find(alarm.worker);
  known->host = worker == workers_.end() ? "" : worker->second.info.state.host;
  known->device = alarm.device;
  known->serial = alarm.serial;
  known->alarm = alarm.alarm;
  known->count += alarm.rise;
}

void Model::on_plugin(const bus::PluginState& state, bool kept, int64_t received_ns) {
  if (kept) return;
  notice(received_ns, state.state == "rejected" ? "warn" : "info", state.name,
         "plugin " + state.state + (state.reason.empty() ? "" : ": " + state.reason) + " (" + state.worker + ")");
}

void Model::on_batch(const bus::BatchState& state, bool kept, int64_t received_ns) {
  if (state.state == bus::BatchState::kRemoved) {
    batches_.erase(state.batch);
    return;
  }
  auto* batch = entry(batches_, state.batch, limits_.batches);
  if (batch == nullptr) return;
  if (!kept && batch->state != state.state) {
    notice(received_ns,
           state.state == "failed"     ? "bad"
           : state.state == "finished" ? "good"
                                       : "info",
           "batch " + state.batch, state.state + (state.reason.empty() ? "" : ": " + state.reason));
  }
  *batch = state;
}

void Model::notice(int64_t received_ns, std::string level, std::string subject, std::string text) {
  notices_.push_back({++next_notice_, received_ns / kMs, std::move(level), text_of(subject), text_of(text)});
  if (notices_.size() > limits_.notices) notices_.pop_front();
}

void Model::on_status(const bus::StatusReply& answer, int64_t received_ns) {
  manager_up_ = true;
  manager_version_ = answer.version;
  manager_why_.clear();
  for (const auto& info : answer.workers) {
    if (auto* worker = entry(workers_, info.state.worker, limits_.workers)) *worker = {info, received_ns};
    on_phases(info, received_ns);
  }
  std::erase_if(workers_, [&](const auto& known) {
    return received_ns - known.second.heard_ns > limits_.fresh_ns &&
           std::none_of(answer.workers.begin(), answer.workers.end(),
                        [&](const auto& info) { return info.state.worker == known.first; });
  });
  for (const auto& measures : answer.jobs) {
    if (auto* job = entry(jobs_, measures.job, limits_.jobs)) *job = measures;
  }
}

void Model::on_report(const bus::ReportReply& answer, int64_t received_ns) {
  std::map<std::string, const bus::TaskInfo*> told;
  for (const auto& info : answer.tasks) told[info.state.task] = &info;
  std::erase_if(tasks_, [&](const auto& known) {
    return received_ns - known.second.heard_ns > limits_.fresh_ns && told.count(known.first) == 0;
  });
  for (const auto& [name, info] : told) {
    Task* task = entry(tasks_, name, limits_.tasks);
    if (task == nullptr) continue;
    const auto counters =
        info->state.counters.steps >= task->state.counters.steps ? info->state.counters : task->state.counters;
    task->state = info->state;
    task->state.counters = counters;
    task->user = info->load.user;
    task->heard_ns = received_ns;
  }
}

void Model::on_faults(const bus::FaultsReply& answer) {
  faults_.assign(answer.counts.begin(),
                 answer.counts.begin() + static_cast<ptrdiff_t>(std::min(answer.counts.size(), limits_.faults)));
}

void Model::on_silence(const std::string& why) {
  manager_up_ = false;
  manager_why_ = why;
}

void Model::on_replay(double speed) {
  replay_ = true;
  speed_ = speed;
}

void Model::forget_ended(int64_t now_ns) {
  std::erase_if(ranks_, [&](const auto& each) {
    return each.second.ended_ns != 0 && now_ns - each.second.ended_ns > limits_.gone_ns;
  });
}

std::map<std::string, Model::Entities> Model::entities() const {
  std::map<std::string, Entities> all{{"ranks", {}},   {"tasks", {}},  {"workers", {}}, {"jobs", {}},
                                      {"batches", {}}, {"faults", {}}, {"phases", {}}};
  for (const auto& [key, rank] : ranks_) all["ranks"].emplace(text_of(key), rank_json(rank, why_of(rank)));
  for (const auto& [key, task] : tasks_) all["tasks"].emplace(text_of(key), task_json(task));
  for (const auto& [key, worker] : workers_) all["workers"].emplace(text_of(key), worker_json(worker.info));
  for (const auto& [key, job] : jobs_) all["jobs"].emplace(text_of(key), job_json(job));
  for (const auto& [key, batch] : batches_) all["batches"].emplace(text_of(key), batch_json(batch));
  for (const auto& [key, phase] : phases_) all["phases"].emplace(text_of(key), nlohmann::json{{"id", phase.id}});
  for (const auto& fault : faults_) all["faults"].emplace(text_of(fault.scope + " " + fault.name), fault_json(fault));
  all["manager"].emplace("manager", nlohmann::json{{"up", manager_up_},
                                                   {"version", text_of(manager_version_)},
                                                   {"why", text_of(manager_why_)},
                                                   {"replay", replay_},
                                                   {"speed", speed_},
                                                   {"lanes", wants_bubbles()}});
  return all;
}

nlohmann::json Model::changes(int64_t now_ns, bool with_entities) {
  auto frame = nlohmann::json::object();
  if (with_entities) {
    forget_ended(now_ns);
    auto now = entities();
    for (auto& [section, list] : now) {
      Entities& before = sent_[section];
      auto changed = nlohmann::json::object();
      for (auto& [key, value] : list) {
        const auto old = before.find(key);
        auto fields = old == before.end() ? value : changed_fields(old->second, value);
        if (!fields.empty()) changed[key] = std::move(fields);
      }
      for (const auto& [key, value] : before) {
        if (list.count(key) == 0) changed[key] = nullptr;
      }
      if (!changed.empty()) frame[section] = std::move(changed);
    }
    sent_ = std::move(now);
    auto fresh = nlohmann::json::array();
    for (const auto& each : notices_) {
      if (each.id > sent_notice_) fresh.push_back(notice_json(each));
    }
    sent_notice_ = next_notice_;
    if (!fresh.empty()) frame["notices"] = std::move(fresh);
  }
  // Times count from the frame's: short numbers.
  const int64_t base_us = now_ns / kUs;
  if (!bubbles_.empty()) {
    for (size_t i = 1; i < bubbles_.size(); i += kBubbleNumbers) bubbles_[i] -= base_us;
    frame["bubbles"] = std::move(bubbles_);
  }
  if (!iterations_.empty()) {
    for (size_t i = 1; i < iterations_.size(); i += kIterationNumbers) iterations_[i] -= base_us;
    frame["iterations"] = std::move(iterations_);
  }
  bubbles_.clear();
  iterations_.clear();
  if (frame.empty()) return nullptr;
  frame["now"] = base_us;
  return frame;
}

nlohmann::json Model::snapshot(int64_t now_ns) const {
  auto frame = nlohmann::json::object();
  frame["now"] = now_ns / kUs;
  frame["whole"] = true;
  for (const auto& [section, list] : sent_) frame[section] = list;
  auto old = nlohmann::json::array();
  for (const auto& each : notices_) {
    if (each.id <= sent_notice_) old.push_back(notice_json(each));
  }
  frame["notices"] = std::move(old);
  return frame;
}

}  // namespace freeride::web
