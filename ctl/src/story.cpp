#include "story.hpp"

#include <algorithm>
#include <charconv>

#include "format.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/codec.hpp"
#include "json.hpp"
#include "moment.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kMaxChanges = 5;
constexpr int64_t kLongestBubble = 60 * kNsPerSec;  // so long after the range a bubble's end is looked for

constexpr int64_t kDay = 86'400 * kNsPerSec;  // no bubble is as long

bool has_ended(const bus::TaskState& state) {
  return state.state == "STOPPED" || state.state == bus::TaskState::kRemoved || !state.verdict.kind.empty();
}

// A device's name is what follows the host's in a worker's.
bool is_on(const std::string& worker, const std::string& device) {
  return !device.empty() && worker.ends_with(":" + device);
}

class Teller {
 public:
  Teller(Story& story) : story_(story) {}

  void take(const recorder::Recorded& event) {
    offset_ns_ = event.wall_minus_monotonic_ns, time_ns_ = event.time_ns, published_ns_ = event.published_ns;
    in_range_ = time_ns_ >= story_.from_ns && time_ns_ <= story_.to_ns;
    if (in_range_) ++story_.events;
    if (time_ns_ <= story_.to_ns) story_.last_event_ns = time_ns_;
    if (time_ns_ <= story_.at_ns) story_.before_ns = time_ns_;
    if (time_ns_ > story_.at_ns) story_.recorded = true;
    on<bus::TaskState>(event);
    on<bus::TaskProgress>(event);
    on<bus::TrainingState>(event);
    on<bus::BubbleBegin>(event);
    on<bus::BubbleEnd>(event);
    on<bus::CommandDone>(event);
    on<bus::RecordingGap>(event);
    previous_ns_ = time_ns_;
  }
  void finish() {
    story_.steps += steps_made();
    if (is_in_gap_) story_.recorded = false;
    if (!story_.bubble && open_ && open_->begin_ns <= story_.at_ns) story_.bubble = open_;
    if (!story_.bubble) story_.bubble = phase_told();
  }

 private:
  template <class E>
  void on(const recorder::Recorded& event) {
    if (!event.is(E::kTopic)) return;
    repeated_ = event.is_repeated();
    if (const auto decoded = bus::decode<E>(event.payload)) take(*decoded);
  }

  void take(const bus::TaskState& state) {
    if (!story_.subject.is_task() || state.task != story_.subject.name) return;
    if (has_ended_ && !has_ended(state)) begin_life();
    has_ended_ = has_ended(state);
    count_steps(state.counters.steps);
    if (time_ns_ > story_.to_ns) return;
    story_.known = true;
    const bool is_news = !story_.task || story_.task->state != state.state || story_.task->why != state.why;
    if (time_ns_ <= story_.at_ns) {
      if (!story_.task || story_.task->state != state.state) story_.task_since_ns = time_ns_;
      story_.task = state;
    }
    if (in_range_ && !repeated_ && is_news) {
      note(state.task + " " + state.state + (state.reason.empty() ? "" : ": " + state.reason));
    }
    // One that is loaded later under this name has nothing to do with an end that came before it.
    if (time_ns_ <= story_.at_ns && !has_ended(state)) story_.verdict = {};
    if (!state.verdict.kind.empty() && (time_ns_ <= story_.at_ns || story_.verdict.kind.empty()))
      story_.verdict = state.verdict;
    worker_ = state.worker;
  }
  void take(const bus::TaskProgress& progress) {
    if (story_.subject.is_task() && progress.task == story_.subject.name) count_steps(progress.counters.steps);
  }
  void take(const bus::TrainingState& rank) {
    if (!is_ours(rank.job, rank.rank, rank.device) || time_ns_ > story_.to_ns) return;
    story_.known = story_.known || !story_.subject.is_task();
    const bool is_news = !told_ || told_->state != rank.state;
    told_ = rank;
    if (time_ns_ <= story_.at_ns) {
      story_.rank = rank;
      phase_begin_ns_ = published_ns_ - std::clamp<int64_t>(rank.phase_ms, 0, kDay / kNsPerMs) * kNsPerMs;
    }
    if (in_range_ && !repeated_ && is_news) note(rank.job + "/" + std::to_string(rank.rank) + " " + rank.state);
  }
  void take(const bus::BubbleBegin& begin) {
    if (!is_ours(begin.job, begin.rank, begin.device)) return;
    Story::Bubble bubble;
    bubble.begin_ns = wall_of(begin.begin_ns);
    bubble.end.job = begin.job, bubble.end.rank = begin.rank, bubble.end.iteration = begin.iteration;
    bubble.end.learned_ns = begin.learned_ns, bubble.end.begin_ns = begin.begin_ns, bubble.end.phase = begin.phase;
    if (bubble.begin_ns <= story_.at_ns && is_near(bubble.begin_ns)) open_ = bubble;
  }
  void take(const bus::BubbleEnd& end) {
    if (!is_ours(end.job, end.rank, end.device) && !(story_.subject.is_task() && end.task == story_.subject.name))
      return;
    const Story::Bubble bubble{end, wall_of(end.begin_ns), wall_of(end.end_ns)};
    if (!is_believed(end.begin_ns, end.end_ns) || !is_near(bubble.begin_ns)) return;
    if (open_ && open_->end.job == end.job && open_->end.rank == end.rank && open_->begin_ns <= bubble.begin_ns)
      open_.reset();
    if (bubble.begin_ns <= story_.at_ns && bubble.end_ns >= story_.at_ns) story_.bubble = bubble;
    if (bubble.end_ns <= story_.at_ns && is_rank(end.job, end.rank) && bubble.end_ns > phase_begin_ns_)
      story_.rank->phase.clear();
    if (bubble.end_ns < story_.from_ns || bubble.begin_ns > story_.to_ns) return;
    ++story_.bubbles;
    story_.known = story_.known || !story_.subject.is_task() || end.task == story_.subject.name;
    story_.bubble_ns += end.end_ns - end.begin_ns;
    story_.held_out += end.holdout ? 1 : 0;
    if (story_.subject.is_task() && end.task != story_.subject.name) return;
    story_.leased += end.leased ? 1 : 0;
    story_.harvested_ns += std::clamp<int64_t>(end.harvested_ns, 0, kDay);
    const int64_t overrun_ns = std::clamp<int64_t>(end.overrun_ns, 0, kDay);
    story_.overrun_ns += overrun_ns;
    story_.longest_overrun_ns = std::max(story_.longest_overrun_ns, overrun_ns);
  }
  void take(const bus::CommandDone& command) {
    if (!in_range_ || (story_.subject.is_task() && command.target != story_.subject.name)) return;
    note("command " + command.command + " " + command.target + " by " + command.by + ": " + command.outcome);
  }
  void take(const bus::RecordingGap& gap) {
    // Another host's clock may tell its times: then it is what is between two events here.
    const int64_t begin_ns = wall_of(gap.begin_ns), end_ns = wall_of(gap.end_ns);
    const bool is_told = is_believed(gap.begin_ns, gap.end_ns) && is_near(begin_ns) && is_near(end_ns);
    const int64_t since_ns = is_told ? begin_ns : previous_ns_;
    if (gap.end_ns != 0 && since_ns <= story_.at_ns && story_.at_ns <= (is_told ? end_ns : time_ns_)) is_in_gap_ = true;
    if (!in_range_) return;
    ++story_.gaps, story_.lost += gap.lost;
  }

  bool is_rank(const std::string& job, uint32_t rank) const {
    return story_.rank && story_.rank->job == job && story_.rank->rank == rank;
  }
  // A phase that began before, and ended long after what is read.
  std::optional<Story::Bubble> phase_told() const {
    if (!story_.rank || story_.rank->phase.empty()) return std::nullopt;
    Story::Bubble bubble;
    bubble.begin_ns = phase_begin_ns_;
    bubble.end.job = story_.rank->job, bubble.end.rank = story_.rank->rank;
    bubble.end.iteration = story_.rank->iteration, bubble.end.phase = story_.rank->phase;
    return bubble;
  }
  bool is_ours(const std::string& job, uint32_t rank, const std::string& device) const {
    return story_.subject.is_task() ? is_on(worker_, device) : job == story_.subject.job && rank == story_.subject.rank;
  }
  // The last count before the range, and the last in it; where there is none before, the first in it.
  void count_steps(uint64_t steps) {
    if (repeated_ && steps_after_) return;  // older than what is known
    if (time_ns_ <= story_.to_ns) steps_after_ = steps;
    if (time_ns_ < story_.from_ns || !steps_before_) steps_before_ = steps;
  }
  uint64_t steps_made() const {
    return steps_before_ && steps_after_ && *steps_after_ > *steps_before_ ? *steps_after_ - *steps_before_ : 0;
  }
  void begin_life() {
    story_.steps += steps_made();
    steps_before_ = 0, steps_after_.reset();
  }
  void note(std::string text) {
    story_.changes.push_back({time_ns_, std::move(text)});
    if (story_.changes.size() > kMaxChanges) story_.changes.erase(story_.changes.begin());
  }
  // A damaged file may hold any number.
  static bool is_believed(int64_t begin_ns, int64_t end_ns) {
    return begin_ns > 0 && end_ns >= begin_ns && end_ns - begin_ns < kDay;
  }
  bool is_near(int64_t wall_ns) const { return wall_ns > 0 && wall_ns > time_ns_ - kDay && wall_ns <= time_ns_; }
  int64_t wall_of(int64_t monotonic_ns) const {
    return static_cast<int64_t>(static_cast<uint64_t>(monotonic_ns) + static_cast<uint64_t>(offset_ns_));
  }

  Story& story_;
  int64_t offset_ns_ = 0, time_ns_ = 0, published_ns_ = 0, previous_ns_ = 0;
  bool in_range_ = false, repeated_ = false, has_ended_ = false, is_in_gap_ = false;
  std::string worker_;
  std::optional<Story::Bubble> open_;
  std::optional<bus::TrainingState> told_;  // of the rank, last
  int64_t phase_begin_ns_ = 0;              // of that in story_.rank
  std::optional<uint64_t> steps_before_, steps_after_;
};

std::string sentence(const Story& story) {
  const policy::Why why = story.why();
  // What the manager has said at the time has the figures.
  if (story.task && why == policy::why_of(story.task->why).value_or(policy::Why::kNone) &&
      !story.task->reason.empty()) {
    return story.task->reason;
  }
  return policy::render_why(why, {});
}

std::string rank_name(const bus::BubbleEnd& bubble) {
  return bubble.job + "/" + std::to_string(bubble.rank);
}

std::string bubble_text(const Story& story) {
  if (!story.bubble) return story.bubbles > 0 && story.recorded ? "none: training used the device" : "none is recorded";
  const auto& bubble = *story.bubble;
  std::string text = bubble.end.phase.empty() ? "" : "the phase " + bubble.end.phase + " ";
  text += "of " + rank_name(bubble.end) + ", iteration " + std::to_string(bubble.end.iteration);
  if (bubble.end_ns == 0) return text + ", " + human_ns(story.at_ns - bubble.begin_ns) + " old; it has no recorded end";
  return text + ", " + human_ns(bubble.end_ns - bubble.begin_ns) + " long, " + human_ns(story.at_ns - bubble.begin_ns) +
         " after its begin";
}

std::string lease_text(const Story& story) {
  if (!story.bubble && story.recorded) return "no";
  if (!story.bubble || story.bubble->end_ns == 0) return "not known";
  const auto& end = story.bubble->end;
  if (!end.leased) return end.holdout ? "no: it was a baseline iteration" : "no";
  return end.task.empty() ? "yes" : "yes, of " + end.task;
}

void add(std::string& out, const std::string& name, const std::string& text) {
  constexpr size_t kName = 9;
  out += "  " + name + std::string(kName - std::min(kName - 1, name.size()), ' ') + printable(text) + "\n";
}

}  // namespace

Subject subject_of(const std::string& text) {
  Subject subject{text, {}, 0};
  const size_t slash = text.rfind('/');
  if (slash == std::string::npos || slash == 0) return subject;
  uint32_t rank = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data() + slash + 1, end, rank);
  if (problem != std::errc() || stop != end) return subject;
  subject.job = text.substr(0, slash), subject.rank = rank;
  return subject;
}

bool Story::took_part() const {
  return bubble && bubble->end.side_begin_ns != 0 && (!subject.is_task() || bubble->end.task == subject.name);
}

policy::Why Story::why() const {
  using policy::Why;
  const Why told = task ? policy::why_of(task->why).value_or(Why::kNone) : Why::kNone;
  if (task && task->state != "RUNNING" && task->state != "PAUSED") return told;
  if (rank && (rank->state == "gone" || rank->state == "lost")) return Why::kDeviceIdle;
  if (rank && rank->state == "disabled") return Why::kInactive;
  if (!bubble && !recorded) return Why::kNone;
  if (!bubble) return bubbles > 0 ? Why::kTraining : told;
  const auto& end = bubble->end;
  if (took_part()) return Why::kNone;
  if (bubble->end_ns == 0) return told;
  if (end.holdout) return Why::kHoldout;
  if (end.leased)
    return subject.is_task() && end.task != subject.name && !end.task.empty() ? Why::kOtherLease : Why::kStepTooLong;
  if (told != Why::kNone && told != Why::kTraining) return told;
  return end.learned_ns == 0 ? Why::kUnknown : told;
}

recorder::Range range_for(int64_t from_ns, int64_t to_ns) {
  recorder::Range range;
  range.from_ns = from_ns, range.to_ns = to_ns + kLongestBubble;
  range.states_before = true;
  return range;
}

Story read_story(recorder::Reader& reader, const Subject& subject, int64_t at_ns, int64_t from_ns, int64_t to_ns) {
  Story story;
  story.subject = subject;
  story.at_ns = at_ns, story.from_ns = from_ns, story.to_ns = to_ns;
  Teller teller(story);
  while (const auto event = reader.next()) teller.take(*event);
  teller.finish();
  return story;
}

std::string render_story(const Story& story, bool moment) {
  std::string out;
  const std::string length = human_ns(story.to_ns - story.from_ns);
  if (moment) {
    out += printable(story.subject.name) + " at " + moment_text(story.at_ns) + "\n";
    if (story.task) {
      add(out, "state",
          story.task->state + " since " + moment_text(story.task_since_ns) +
              (story.task->worker.empty() ? "" : " on " + story.task->worker));
    } else if (story.rank) {
      add(out, "state", story.rank->state + ", stage " + std::to_string(story.rank->stage));
    }
    add(out, "bubble", bubble_text(story));
    add(out, "lease", lease_text(story));
    if (story.took_part()) {
      add(out, "steps", human_ns(story.bubble->end.harvested_ns) + " of steps in the bubble");
      add(out, "overrun", human_ns(story.bubble->end.overrun_ns) + " past its end");
    }
    const std::string why = sentence(story);
    add(out, "why", story.took_part() ? "it made steps" : why.empty() ? "the recording does not say" : why);
  } else {
    out += printable(story.subject.name) + ", the " + length + " up to " + moment_text(story.to_ns) + "\n";
  }
  if (!story.verdict.kind.empty()) add(out, "verdict", story.verdict.kind + ": " + story.verdict.reason);
  add(out, moment ? "around" : "bubbles",
      human_count(story.bubbles) + " bubbles, " + human_ns(story.bubble_ns) + ", in " + length + "; " +
          human_count(story.leased) + " with a lease, " + human_count(story.held_out) + " in baseline iterations");
  add(out, "harvest",
      human_ns(story.harvested_ns) + (story.subject.is_task() ? ", " + human_count(story.steps) + " steps" : "") +
          "; overrun " + human_ns(story.overrun_ns) + ", at most " + human_ns(story.longest_overrun_ns));
  for (const auto& change : story.changes) add(out, "change", moment_text(change.time_ns) + " " + change.text);
  if (story.events == 0) {
    add(out, "gap", "nothing was recorded in this time; the last before was at " + moment_text(story.last_event_ns));
  }
  if (moment && story.events > 0 && !story.recorded)
    add(out, "gap", "what came after " + moment_text(story.before_ns) + " is not recorded");
  if (story.gaps > 0) {
    add(out, "gap",
        "events are missing in the recording: " +
            (story.lost > 0 ? human_count(story.lost) : std::string("not known how many")));
  }
  return out;
}

nlohmann::json story_json(const Story& story, bool moment) {
  auto changes = nlohmann::json::array();
  for (const auto& change : story.changes) changes.push_back({{"time_ns", change.time_ns}, {"text", change.text}});
  nlohmann::json json = {{"subject", story.subject.name},
                         {"from_ns", story.from_ns},
                         {"to_ns", story.to_ns},
                         {"bubbles", story.bubbles},
                         {"bubble_ns", story.bubble_ns},
                         {"leased", story.leased},
                         {"held_out", story.held_out},
                         {"steps", story.steps},
                         {"harvested_ns", story.harvested_ns},
                         {"overrun_ns", story.overrun_ns},
                         {"longest_overrun_ns", story.longest_overrun_ns},
                         {"verdict", to_json(story.verdict)},
                         {"changes", std::move(changes)},
                         {"gaps", story.gaps},
                         {"lost", story.lost}};
  if (!moment) return json;
  json["at_ns"] = story.at_ns, json["recorded"] = story.recorded;
  json["why"] = policy::why_name(story.why()), json["reason"] = sentence(story);
  json["in_bubble"] = story.bubble.has_value();
  if (story.bubble) json["bubble"] = to_json(story.bubble->end);
  if (story.task) json["task"] = to_json(*story.task);
  if (story.rank) json["rank"] = to_json(*story.rank);
  return json;
}

}  // namespace freeride::ctl
