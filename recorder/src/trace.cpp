#include "freeride/recorder/trace.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "freeride/base/utf8.hpp"
#include "freeride/bus/codec.hpp"

namespace freeride::recorder {
namespace {

using nlohmann::json;

enum Track { kTraining = 1, kBubbles = 2, kSideTasks = 3 };
constexpr const char* kTracks[] = {"", "training", "bubbles", "side tasks"};
constexpr size_t kMaxRows = 100'000;  // ranks, and tasks whose state is known

// Puts the trace's events together one by one.
class Trace {
 public:
  explicit Trace(std::ostream& out) : out_(out) { out_ << R"({"displayTimeUnit":"ms","traceEvents":[)"; }
  ~Trace() { out_ << "\n]}\n"; }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void take(const Recorded& event) {
    if (start_ns_ == 0) start_ns_ = event.time_ns;
    offset_ns_ = event.wall_minus_monotonic_ns;
    if (event.is(bus::TrainingIteration::kTopic)) {
      if (const auto iteration = bus::decode<bus::TrainingIteration>(event.payload)) take(*iteration);
    } else if (event.is(bus::BubbleEnd::kTopic)) {
      if (const auto bubble = bus::decode<bus::BubbleEnd>(event.payload)) take(*bubble);
    } else if (event.is(bus::TaskState::kTopic)) {
      if (const auto task = bus::decode<bus::TaskState>(event.payload)) take(*task, event.time_ns);
    } else if (event.is(bus::CommandDone::kTopic)) {
      if (const auto command = bus::decode<bus::CommandDone>(event.payload)) {
        instant(command->command + " " + command->target + " by " + command->by + ": " + command->outcome,
                event.time_ns);
      }
    }
  }
  uint64_t spans() const { return spans_; }

 private:
  void take(const bus::TrainingIteration& event) {
    span(row(event.job, event.rank, event.stage, event.device), kTraining,
         "iteration " + std::to_string(event.iteration) + (event.holdout ? " (baseline)" : ""), event.begin_ns,
         event.end_ns,
         {{"iteration", event.iteration},
          {"holdout", event.holdout},
          {"bubble_ns", event.bubble_ns},
          {"harvested_ns", event.harvested_ns}});
  }
  void take(const bus::BubbleEnd& event) {
    const int pid = row(event.job, event.rank, event.stage, event.device);
    json args = {{"iteration", event.iteration},
                 {"learned_ns", event.learned_ns},
                 {"harvested_ns", event.harvested_ns},
                 {"overrun_ns", event.overrun_ns},
                 {"leased", event.leased}};
    std::string name = event.phase;
    if (event.phase.empty()) {
      name = "bubble" + (event.type.empty() ? "" : " " + event.type);
      args["wait"] = event.wait;
    }
    span(pid, kBubbles, name + (event.holdout ? " (baseline)" : ""), event.begin_ns, event.end_ns, std::move(args));
    if (event.side_begin_ns == 0) return;
    span(pid, kSideTasks, event.task, event.side_begin_ns, event.side_end_ns,
         {{"harvested_ns", event.harvested_ns}, {"overrun_ns", event.overrun_ns}});
  }
  void take(const bus::TaskState& event, int64_t time_ns) {
    if (states_.size() >= kMaxRows) states_.clear();
    std::string& last = states_[event.task];
    if (last == event.state) return;
    last = event.state;
    instant(event.task + " " + event.state + (event.verdict.kind.empty() ? "" : ": " + event.verdict.kind), time_ns);
  }

  // A rank's number among the trace's processes.
  int row(const std::string& job, uint32_t rank, uint32_t stage, const std::string& device) {
    if (rows_.size() >= kMaxRows) rows_.clear();
    const auto [found, is_new] = rows_.try_emplace({job, rank}, next_row_);
    if (!is_new) return found->second;
    ++next_row_;
    const std::string name = job + "/" + std::to_string(rank) + ", stage " + std::to_string(stage) + " on " + device;
    name_it("process_name", found->second, 0, {{"name", clean_utf8(name)}});
    name_it("process_sort_index", found->second, 0, {{"sort_index", rank}});
    for (const Track track : {kTraining, kBubbles, kSideTasks}) {
      name_it("thread_name", found->second, track, {{"name", kTracks[track]}});
      name_it("thread_sort_index", found->second, track, {{"sort_index", static_cast<int>(track)}});
    }
    return found->second;
  }
  void name_it(const char* what, int pid, int tid, json args) {
    put({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", std::move(args)}});
  }
  void span(int pid, Track track, const std::string& name, int64_t begin_ns, int64_t end_ns, json args) {
    if (begin_ns <= 0 || end_ns <= begin_ns) return;
    ++spans_;
    put({{"ph", "X"},
         {"name", clean_utf8(name)},
         {"cat", kTracks[track]},
         {"pid", pid},
         {"tid", static_cast<int>(track)},
         {"ts", us(begin_ns, offset_ns_)},
         {"dur", static_cast<double>(static_cast<uint64_t>(end_ns) - static_cast<uint64_t>(begin_ns)) / 1e3},
         {"args", std::move(args)}});
  }
  void instant(const std::string& name, int64_t time_ns) {
    put({{"ph", "i"}, {"s", "g"}, {"name", clean_utf8(name)}, {"pid", 1}, {"tid", 0}, {"ts", us(time_ns, 0)}});
  }
  // Since the first event; without a sign, since a damaged file may hold any number.
  double us(int64_t ns, int64_t offset_ns) const {
    const uint64_t since =
        static_cast<uint64_t>(ns) + static_cast<uint64_t>(offset_ns) - static_cast<uint64_t>(start_ns_);
    return static_cast<double>(static_cast<int64_t>(since)) / 1e3;
  }
  void put(const json& event) {
    out_ << (first_ ? "\n" : ",\n") << event.dump();
    first_ = false;
  }

  std::ostream& out_;
  std::map<std::pair<std::string, uint32_t>, int> rows_;
  std::map<std::string, std::string> states_;
  int next_row_ = 1;
  int64_t start_ns_ = 0, offset_ns_ = 0;
  uint64_t spans_ = 0;
  bool first_ = true;
};

}  // namespace

uint64_t write_trace(Reader& reader, std::ostream& out, const std::function<void(int64_t time_ns)>& at) {
  Trace trace(out);
  while (const auto event = reader.next()) {
    trace.take(*event);
    if (at) at(event->time_ns);
  }
  return trace.spans();
}

}  // namespace freeride::recorder
