// What a recording tells of one task or rank around one moment. No manager is asked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "freeride/bus/events.hpp"
#include "freeride/policy/why.hpp"
#include "freeride/recorder/reader.hpp"

namespace freeride::ctl {

/// Whose story it is: a task, or a rank of a job.
struct Subject {
  std::string name;  ///< as it was given
  std::string job;   ///< of a rank; empty: it is a task
  uint32_t rank = 0;
  bool is_task() const { return job.empty(); }
};
/// "gpt/3" is a rank, "1000/gpt/3" one of a job of uid 1000, everything else a task.
Subject subject_of(const std::string& text);

struct Story {
  struct Line {
    int64_t time_ns = 0;  ///< since 1970
    std::string text;
  };
  struct Bubble {
    bus::BubbleEnd end;
    int64_t begin_ns = 0, end_ns = 0;  ///< since 1970; end_ns 0: it had not ended when the recording did
  };

  Subject subject;
  int64_t at_ns = 0, from_ns = 0, to_ns = 0;  ///< since 1970
  std::optional<bus::TaskState> task;         ///< as it was at the moment
  int64_t task_since_ns = 0;
  std::optional<bus::TrainingState> rank;  ///< as it was at the moment
  std::optional<Bubble> bubble;            ///< in which the moment lies
  bus::Verdict verdict;                    ///< of the task's end: before the moment, or after it in the range
  // From from_ns to to_ns:
  uint64_t bubbles = 0, leased = 0, held_out = 0, steps = 0;
  int64_t bubble_ns = 0, harvested_ns = 0, overrun_ns = 0, longest_overrun_ns = 0;
  std::vector<Line> changes;  ///< states and commands; the last few
  uint64_t gaps = 0, lost = 0;
  uint64_t events = 0;        ///< of any kind, of anybody: 0 where nothing was recorded
  int64_t last_event_ns = 0;  ///< the last of anybody's before to_ns
  bool recorded = false;      ///< something is recorded after the moment, and no gap is there
  int64_t before_ns = 0;      ///< the last event of anybody's up to the moment

  bool known = false;      ///< the recording tells of the subject, by to_ns
  bool took_part() const;  ///< whether the task, or any, made a step in the bubble
  /// Why there was no lease or no step at the moment; kNone: nothing was in its way, or nobody knows.
  policy::Why why() const;
};

/// Reads the story. `reader` must have been opened with range_for(at, around). Blocks on the disk.
Story read_story(recorder::Reader& reader, const Subject& subject, int64_t at_ns, int64_t from_ns, int64_t to_ns);
/// What read_story() has to be given: the states before, and some time after in which bubbles end.
recorder::Range range_for(int64_t from_ns, int64_t to_ns);

/// In about ten lines. `moment`: tell of at_ns too, and not of the range alone.
std::string render_story(const Story& story, bool moment);
nlohmann::json story_json(const Story& story, bool moment);

}  // namespace freeride::ctl
