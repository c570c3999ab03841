#include "top.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/clock.hpp"
#include "interrupt.hpp"
#include "jobs.hpp"
#include "json.hpp"
#include "pressed_keys.hpp"
#include "render.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kMaxEntries = 1000;      // of each kind: who publishes decides how many there are
constexpr size_t kRecentIterations = 20;  // what "now" means for shares
constexpr size_t kWideScreen = 160, kNarrowScreen = 110;

template <class Map>
auto* entry(Map& map, const std::string& key) {
  auto found = map.find(key);
  if (found == map.end() && map.size() < kMaxEntries) found = map.try_emplace(key).first;
  return found == map.end() ? nullptr : &found->second;
}

double share(int64_t part, int64_t whole) {
  return whole <= 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// As wide as the screen allows; in 80 columns the figure alone.
std::string gauge(double value, size_t width, bool ascii) {
  const size_t bar_width = width == 0 || width >= kWideScreen ? 20 : width >= kNarrowScreen ? 8 : 0;
  return (bar_width == 0 ? "" : bar(value, bar_width, ascii) + " ") + human_pct(100 * value);
}

struct Screen {
  bool in_place = false;
  bool ascii = false;
  size_t width = 0, height = 0;
};

Screen look_at_screen(bool json) {
  Screen screen;
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string(terminal).empty() || std::string(terminal) == "dumb";
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (const char* value = std::getenv(name); value != nullptr && locale.empty()) locale = value;
  }
  std::transform(locale.begin(), locale.end(), locale.begin(), [](unsigned char c) { return std::toupper(c); });
  screen.ascii = dumb || locale.find("UTF") == std::string::npos;
  screen.in_place = !json && !dumb && isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
    screen.width = size.ws_col;
    screen.height = size.ws_row;
  }
  return screen;
}

// The first `height` - 1 lines: a longer picture would scroll, and the next could not be drawn in its place.
std::string fit(const std::string& picture, size_t height) {
  if (height < 2) return picture;
  size_t at = 0;
  for (size_t lines = 0; lines + 1 < height; ++lines) {
    at = picture.find('\n', at);
    if (at == std::string::npos) return picture;
    ++at;
  }
  return picture.substr(0, at);
}

// The next event, or nothing when `patience` is over or, where `with_keys`, a key was pressed.
std::optional<bus::Event> next_event(bus::Subscriber& events, bool with_keys, std::chrono::milliseconds patience) {
  if (!with_keys) return events.receive(patience);
  if (auto event = events.receive(std::chrono::milliseconds(0))) return event;
  std::array<pollfd, 2> fds{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{events.fd(), POLLIN, 0}};
  poll(fds.data(), fds.size(), static_cast<int>(patience.count()));
  return events.receive(std::chrono::milliseconds(0));
}

constexpr const char* kHelp = R"(Keys of freeride-ctl top
  n t g        sort side tasks by name, state, stage
  s r h m      by steps, steps a second, harvested time, memory
  ?            this help; any key leaves it
  q, Ctrl-C    end

BUBBLES      share of an iteration in which the stage waits
HARVESTED    share of that time inside steps of side tasks, baseline iterations left out
HARVEST      time of a side task inside its steps, in bubbles
A wider terminal shows more columns.
)";

constexpr const char* kKeysOfSorts = "ntgsrhm";  // in the order of TopSort

}  // namespace

const std::map<std::string, TopSort>& top_sorts() {
  static const std::map<std::string, TopSort> sorts{{"name", TopSort::kName},    {"state", TopSort::kState},
                                                    {"stage", TopSort::kStage},  {"steps", TopSort::kSteps},
                                                    {"rate", TopSort::kRate},    {"harvested", TopSort::kHarvested},
                                                    {"memory", TopSort::kMemory}};
  return sorts;
}

bool TopModel::key(char key) {
  if (key == 'q') return false;
  if (std::exchange(help_, false)) return true;
  if (key == '?') help_ = true;
  const std::string_view keys = kKeysOfSorts;
  if (const size_t at = keys.find(key); at != keys.npos) sort_ = static_cast<TopSort>(at);
  return true;
}

std::vector<const TopModel::Task*> TopModel::sorted_tasks() const {
  std::vector<const Task*> tasks;
  for (const auto& [name, task] : tasks_) tasks.push_back(&task);
  const auto less = [this](const Task* a, const Task* b) {
    const bool ended_a = !a->state.verdict.kind.empty(), ended_b = !b->state.verdict.kind.empty();
    if (ended_a != ended_b) return ended_b;
    switch (sort_) {
      case TopSort::kName:
        return false;  // as they are
      case TopSort::kState:
        return a->state.state < b->state.state;
      case TopSort::kStage:
        return a->state.stage < b->state.stage;
      case TopSort::kSteps:
        return a->state.counters.steps > b->state.counters.steps;
      case TopSort::kRate:
        return a->steps_per_s > b->steps_per_s;
      case TopSort::kHarvested:
        return a->state.counters.harvested_ns > b->state.counters.harvested_ns;
      case TopSort::kMemory:
        return a->state.counters.memory_bytes > b->state.counters.memory_bytes;
    }
    return false;
  };
  std::stable_sort(tasks.begin(), tasks.end(), less);
  return tasks;
}

void TopModel::apply(const bus::Event& event) {
  last_event_ns_ = std::max(last_event_ns_, event.envelope.t_ns);
  if (event.is(bus::TrainingIteration::kTopic)) {
    const auto iteration = event.as<bus::TrainingIteration>();
    if (!iteration) return;
    if (Rank* rank = entry(ranks_, iteration->key())) {
      rank->state.job = iteration->job;
      rank->state.rank = iteration->rank;
      rank->state.stage = iteration->stage;
      rank->state.device = iteration->device;
      rank->state.iteration = iteration->iteration;
      rank->recent.push_back(*iteration);
      if (rank->recent.size() > kRecentIterations) rank->recent.pop_front();
    }
  } else if (event.is(bus::TrainingState::kTopic)) {
    const auto state = event.as<bus::TrainingState>();
    if (!state) return;
    if (Rank* rank = entry(ranks_, state->key())) {
      const uint64_t iteration = rank->state.iteration;
      rank->state = *state;
      rank->state.iteration = std::max(iteration, state->iteration);
    }
  } else if (event.is(bus::TaskState::kTopic)) {
    const auto state = event.as<bus::TaskState>();
    if (!state) return;
    if (Task* task = entry(tasks_, state->task)) {
      // The worker's progress is fresher than the counters the manager last heard of.
      const auto counters =
          state->counters.steps >= task->state.counters.steps ? state->counters : task->state.counters;
      task->state = *state;
      task->state.counters = counters;
    }
  } else if (event.is(bus::TaskProgress::kTopic)) {
    if (const auto progress = event.as<bus::TaskProgress>()) apply_progress(*progress, event.envelope.t_ns);
  } else if (event.is(bus::WorkerState::kTopic)) {
    const auto state = event.as<bus::WorkerState>();
    if (!state) return;
    if (auto* worker = entry(workers_, state->worker)) *worker = *state;
  } else if (event.is(bus::JobMeasures::kTopic)) {
    const auto measures = event.as<bus::JobMeasures>();
    if (!measures) return;
    if (auto* job = entry(jobs_, measures->job)) *job = *measures;
  } else if (event.is(bus::BatchState::kTopic)) {
    const auto state = event.as<bus::BatchState>();
    if (!state) return;
    if (state->state == bus::BatchState::kRemoved) {
      batches_.erase(state->batch);
    } else if (auto* batch = entry(batches_, state->batch)) {
      *batch = *state;
    }
  }
}

void TopModel::apply_progress(const bus::TaskProgress& progress, int64_t t_ns) {
  // A worker also publishes progress of profile runs, which are no tasks of the user's.
  const auto found = tasks_.find(progress.task);
  if (found == tasks_.end()) return;
  Task& task = found->second;
  const uint64_t steps = progress.counters.steps;
  if (task.rate_ns != 0 && t_ns > task.rate_ns && steps >= task.rate_steps) {
    task.steps_per_s = static_cast<double>(steps - task.rate_steps) / (static_cast<double>(t_ns - task.rate_ns) / 1e9);
  }
  task.rate_ns = t_ns;
  task.rate_steps = steps;
  task.state.counters = progress.counters;
  if (task.state.verdict.kind.empty() && !progress.state.empty()) task.state.state = progress.state;
}

std::string TopModel::tasks_on(const std::string& worker) const {
  std::string names;
  for (const auto& [name, task] : tasks_) {
    if (!worker.empty() && task.state.worker == worker && task.state.verdict.kind.empty())
      names += (names.empty() ? "" : ", ") + name;
  }
  return or_dash(names);
}

std::string TopModel::stages_text(size_t width, bool ascii) const {
  if (ranks_.empty()) return "no trainer is attached\n";
  Table table({"JOB",
               ">RANK",
               ">STAGE",
               {"DEVICE", "", 3},
               {"HOOK", "", 2},
               {">ITERATION", "", 1},
               ">TIME",
               "BUBBLES",
               "HARVESTED",
               "SIDE TASKS"});
  for (const auto& [key, rank] : ranks_) {
    int64_t time_ns = 0, bubble_ns = 0, offered_ns = 0, harvested_ns = 0;
    for (const auto& iteration : rank.recent) {
      time_ns += std::max<int64_t>(0, iteration.end_ns) - std::max<int64_t>(0, iteration.begin_ns);
      bubble_ns += iteration.bubble_ns;
      if (!iteration.holdout) offered_ns += iteration.bubble_ns;
      if (!iteration.holdout) harvested_ns += iteration.harvested_ns;
    }
    std::string worker = rank.state.worker;
    for (const auto& [name, state] : workers_) {
      if (worker.empty() && state.device == rank.state.device && state.job == rank.state.job) worker = name;
    }
    const bool held_out = !rank.recent.empty() && rank.recent.back().holdout;
    table.add({shown_job(rank.state.job), std::to_string(rank.state.rank), std::to_string(rank.state.stage),
               or_dash(rank.state.device),
               or_dash(rank.state.state + (rank.state.phase.empty() ? "" : ", " + rank.state.phase)),
               // The worker's last state is of when the rank attached.
               rank.recent.empty() ? "-" : human_count(rank.state.iteration),
               rank.recent.empty() ? "-" : human_ns(time_ns / static_cast<int64_t>(rank.recent.size())),
               rank.recent.empty() ? "-" : gauge(share(bubble_ns, time_ns), width, ascii),
               (offered_ns == 0 ? "-" : gauge(share(harvested_ns, offered_ns), width, ascii)) +
                   (held_out ? " (baseline)" : ""),
               tasks_on(worker)});
  }
  return table.text(width, colour_);
}

std::string TopModel::tasks_text(size_t width) const {
  if (tasks_.empty()) return "no side tasks\n";
  Table table({"TASK",
               "STATE",
               {">STAGE", "", 3},
               {"WORKER", "", 6},
               ">STEPS",
               {">STEPS/S", "", 1},
               {">STEP", "", 5},
               {">HARVEST", "", 2},
               {">MEMORY", "", 4},
               "WHY"});
  for (const Task* each : sorted_tasks()) {
    const Task& task = *each;
    const auto& counters = task.state.counters;
    const bool ended = !task.state.verdict.kind.empty();
    table.add({task.state.task,
               {task.state.state, task.state.state, tone_of(task.state)},
               stage_text(task.state.stage),
               or_dash(task.state.worker),
               human_count(counters.steps),
               ended ? "-" : human_count(static_cast<uint64_t>(std::max(0.0, task.steps_per_s))),
               counters.steps == 0 ? "-" : human_ns(counters.step_ns / static_cast<int64_t>(counters.steps)),
               human_ns(counters.harvested_ns),
               human_bytes(counters.memory_bytes),
               outcome(task.state)});
  }
  return table.text(width, colour_);
}

// Those that go on; what has become of the others, freeride-ctl batch ls says.
std::string TopModel::batches_text(size_t width, bool ascii) const {
  Table table(
      {"BATCH", {"STATE", "", 3}, "ITEMS", {">FAILED", "", 1}, {">MEMBERS", "", 4}, {">ITEMS/S", "", 2}, ">LEFT"});
  for (const auto& [name, batch] : batches_) {
    if (batch.ended_unix_ms != 0) continue;
    const uint64_t handled = std::min(batch.done + batch.failed, batch.items);
    table.add({name, batch.state,
               gauge(share(static_cast<int64_t>(handled), static_cast<int64_t>(batch.items)), width, ascii) + " of " +
                   human_count(batch.items),
               human_count(batch.failed), std::to_string(batch.members),
               human_count(static_cast<uint64_t>(std::max(0.0, batch.items_per_s))),
               or_dash(human_left(batch.items - handled, batch.items_per_s))});
  }
  return table.empty() ? "" : "\n" + table.text(width, colour_);
}

std::string TopModel::picture(int64_t now_ns, size_t width, bool ascii) const {
  if (help_) return kHelp;
  size_t up = 0;
  for (const auto& [name, worker] : workers_) up += worker.state == "up" ? 1 : 0;
  std::string head = "FreeRide  " + std::to_string(up) + " of " + std::to_string(workers_.size()) + " workers up, " +
                     std::to_string(tasks_.size()) + " side tasks, last event ";
  head += last_event_ns_ == 0 ? "never" : human_ns(std::max<int64_t>(0, now_ns - last_event_ns_)) + " ago";
  std::string out = cut(head, width) + "\n";
  for (const auto& [name, job] : jobs_) {
    out += cut(printable("job " + name + ": iteration " + human_count(job.iterations) + ", slowdown " +
                         time_increase(job) + ", bubbles " + human_pct(job.bubble_share_pct) + ", harvested " +
                         human_pct(job.harvested_share_pct) + ", overrun p99 " +
                         human_ns(static_cast<int64_t>(job.overrun_p99_us * 1e3)) + throttled(job)),
               width) +
           "\n";
  }
  return out + "\n" + stages_text(width, ascii) + batches_text(width, ascii) + "\n" + tasks_text(width);
}

nlohmann::json TopModel::json() const {
  auto out = nlohmann::json::object();
  for (const char* list : {"batches", "jobs", "ranks", "tasks", "workers"}) out[list] = nlohmann::json::array();
  for (const auto& [name, batch] : batches_) out["batches"].push_back(to_json(batch));
  for (const auto& [name, job] : jobs_) out["jobs"].push_back(to_json(job));
  for (const auto& [name, rank] : ranks_) out["ranks"].push_back(to_json(rank.state));
  for (const auto& [name, task] : tasks_) {
    auto json = to_json(task.state);
    json["steps_per_s"] = task.steps_per_s;
    out["tasks"].push_back(std::move(json));
  }
  for (const auto& [name, worker] : workers_) out["workers"].push_back(to_json(worker));
  return out;
}

namespace {

/// A broker that says nothing is not to look like a host without workers. What it keeps comes at once; where nothing
/// has, the manager is asked whether there is anything.
class Silence {
 public:
  void heard() { workers_ = 0; }
  /// Whether to wait on for what must come; false: show what there is. Errors: kUnavailable, after the usual patience.
  Result<bool> waits(Session& session) {
    if (!workers_) {
      const auto known = session.ask<bus::WorkersReply>(bus::ListWorkers{});
      workers_ = known ? known->workers.size() : 0;
      until_ns_ = SteadyClock::now() + session.options().timeout.count() * kNsPerMs;
    }
    if (*workers_ == 0 || SteadyClock::now() < until_ns_) return *workers_ != 0;
    return Error{Code::kUnavailable,
                 "no events come from " + session.options().events_endpoint + ", and the manager knows of " +
                     std::to_string(*workers_) + " workers",
                 "restart what has the broker of events: freeride-manager or freeride-node"};
  }

 private:
  std::optional<size_t> workers_;  // that the manager knows of; nothing: not asked yet
  int64_t until_ns_ = 0;
};

}  // namespace

Result<int> run_top(Session& session, const TopArguments& arguments) {
  auto subscriber = session.subscribe({"task.", "worker.", "training.", "batch."});
  if (!subscriber) return subscriber.error();
  catch_interrupts();
  TopModel model;
  model.sort_by(top_sorts().at(arguments.sort));
  model.colour(session.colour());
  const auto interval_ns = static_cast<int64_t>(std::clamp(arguments.interval_s, 0.1, 3600.0) * 1e9);
  int64_t next_ns = SteadyClock::now() + interval_ns;
  // The other screen of the terminal, so that the user's lines are there again afterwards.
  const Screen first = look_at_screen(session.json());
  if (first.in_place) session.out() << "\x1b[?1049h\x1b[?25l" << std::flush;
  std::optional<PressedKeys> keys;
  if (first.in_place) keys.emplace();
  Status refused;
  Silence silence;
  int64_t behind_ns = 0;  // another host's clock begins elsewhere
  for (uint64_t drawn = 0; (arguments.count == 0 || drawn < arguments.count) && !interrupted();) {
    const int64_t now = SteadyClock::now();
    if (now < next_ns) {
      const auto event =
          next_event(**subscriber, keys && keys->on(), std::chrono::milliseconds((next_ns - now) / kNsPerMs + 1));
      const char key = keys ? keys->next() : '\0';
      if (key != '\0') {
        if (!model.key(key)) break;
        next_ns = now;  // it is seen at once
      }
      if (!event) continue;
      silence.heard();
      model.apply(*event);
      if (session.remote() && !event->envelope.kept) behind_ns = SteadyClock::now() - event->envelope.t_ns;
      continue;
    }
    next_ns = now + interval_ns;
    if (refused = (*subscriber)->reachable(); !refused) break;
    bool waits = false;
    if (refused = take(waits, silence.waits(session)); !refused) break;
    if (waits) continue;
    const Screen screen = look_at_screen(session.json());
    const std::string picture =
        session.json() ? dump(model.json()) + "\n" : model.picture(now - behind_ns, screen.width, screen.ascii);
    if (first.in_place) {
      session.out() << "\x1b[H\x1b[J" << fit(picture, screen.height) << std::flush;
    } else {
      session.out() << (drawn == 0 || session.json() ? "" : "\n") << picture << std::flush;
    }
    ++drawn;
    if (!session.out()) break;
  }
  keys.reset();
  if (first.in_place) session.out() << "\x1b[?25h\x1b[?1049l" << std::flush;
  if (!refused) return refused.error();
  return kExitOk;
}

}  // namespace freeride::ctl
