// What a recording tells of a moment, from recordings that the test writes.
#include "story.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"
#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/bus/codec.hpp"

namespace freeride::ctl {
namespace {

constexpr int64_t kWall = 1'700'000'000 * kNsPerSec;
constexpr int64_t kStart = 100 * kNsPerSec;  // of the monotonic clock, at kWall

struct Recording {
  testing::TempFolder dir;
  std::unique_ptr<recorder::FileWriter> writer;
  bus::Envelope envelope;

  Recording() {
    auto made = recorder::FileWriter::create(dir.path() / "a.mcap", recorder::Clocks{kWall, kStart, "boot", "host"});
    REQUIRE(made.ok());
    writer = std::move(*made);
    envelope.source = "test";
  }
  template <class E>
  void add(const E& event, int64_t at_ms) {
    ++envelope.seq;
    const int64_t wall = kWall + at_ms * kNsPerMs;
    REQUIRE(writer->add(std::string(E::kTopic) + "/" + event.key(), wall, wall, bus::encode(envelope, event)));
  }
  void task(const std::string& state, const std::string& why, int64_t at_ms, uint64_t steps = 0) {
    bus::TaskState task;
    task.task = "thumbs", task.worker = "host-1:cpu-1", task.state = state, task.why = why;
    task.reason = why.empty() ? "" : "the manager's sentence of " + why;
    task.counters.steps = steps;
    add(task, at_ms);
  }
  bus::BubbleEnd bubble(int64_t begin_ms, int64_t end_ms) const {
    bus::BubbleEnd end;
    end.job = "gpt", end.rank = 1, end.device = "cpu-1", end.iteration = 7, end.learned_ns = kNsPerMs;
    end.begin_ns = kStart + begin_ms * kNsPerMs, end.end_ns = kStart + end_ms * kNsPerMs;
    return end;
  }
  Story at(const std::string& subject, int64_t at_ms) {
    REQUIRE(writer->flush().ok());
    const int64_t at = kWall + at_ms * kNsPerMs, from = at - 5 * kNsPerSec, to = at + 5 * kNsPerSec;
    auto reader = recorder::Reader::open(dir.path(), range_for(from, to));
    REQUIRE(reader.ok());
    return read_story(**reader, subject_of(subject), at, from, to);
  }
};

}  // namespace

TEST_CASE("a rank is JOB/RANK, also with a user's number; everything else is a task") {
  CHECK(subject_of("thumbs").is_task());
  CHECK(subject_of("gpt/x").is_task());
  CHECK(subject_of("gpt/").is_task());
  CHECK(subject_of("/3").is_task());
  CHECK(subject_of("gpt/731").rank == 731);
  CHECK(subject_of("1000/gpt/3").job == "1000/gpt");
}

TEST_CASE("a task that made steps in the bubble: its lease, its harvest, what it cost") {
  Recording recording;
  recording.task("RUNNING", "", 0, 10);
  auto bubble = recording.bubble(20'000, 20'010);
  bubble.leased = true, bubble.task = "thumbs", bubble.harvested_ns = 8 * kNsPerMs, bubble.overrun_ns = kNsPerMs;
  bubble.side_begin_ns = bubble.begin_ns + 1, bubble.side_end_ns = bubble.end_ns;
  recording.add(bubble, 20'010);
  bus::TaskProgress progress;
  progress.task = "thumbs", progress.counters.steps = 17;
  recording.add(progress, 20'500);

  const Story story = recording.at("thumbs", 20'005);
  REQUIRE(story.bubble);
  CHECK(story.took_part());
  CHECK(story.why() == policy::Why::kNone);
  CHECK(story.steps == 7);
  CHECK(story.leased == 1);
  CHECK(story.overrun_ns == kNsPerMs);
  const std::string text = render_story(story, true);
  CHECK(text.find("yes, of thumbs") != std::string::npos);
  CHECK(text.find("1.00 ms past its end") != std::string::npos);
  CHECK(story_json(story, true)["in_bubble"] == true);

  const Story rank = recording.at("gpt/1", 20'005);
  CHECK(rank.took_part());
  const Story between = recording.at("thumbs", 20'050);
  CHECK_FALSE(between.bubble);
  CHECK(between.why() == policy::Why::kTraining);
}

TEST_CASE("why there was no lease or no step, in the manager's words where it has said them") {
  Recording recording;
  recording.task("PAUSED", "", 0);
  auto held_out = recording.bubble(1000, 1010);
  held_out.holdout = true;
  recording.add(held_out, 1010);
  auto unknown = recording.bubble(2000, 2010);
  unknown.learned_ns = 0;
  recording.add(unknown, 2010);
  auto others = recording.bubble(3000, 3010);
  others.leased = true, others.task = "other", others.side_begin_ns = others.begin_ns + 1;
  recording.add(others, 3010);
  auto unused = recording.bubble(4000, 4010);
  unused.leased = true, unused.task = "thumbs";
  recording.add(unused, 4010);
  recording.task("PAUSED", "paused_by_user", 5000);
  recording.add(recording.bubble(5100, 5110), 5110);
  recording.task("STOPPED", "", 6000);

  CHECK(recording.at("thumbs", 1005).why() == policy::Why::kHoldout);
  CHECK(recording.at("thumbs", 2005).why() == policy::Why::kUnknown);
  CHECK(recording.at("thumbs", 3005).why() == policy::Why::kOtherLease);
  CHECK(recording.at("gpt/1", 3005).took_part());
  CHECK(recording.at("thumbs", 4005).why() == policy::Why::kStepTooLong);
  const Story paused = recording.at("thumbs", 5105);
  CHECK(paused.why() == policy::Why::kPausedByUser);
  CHECK(render_story(paused, true).find("the manager's sentence of paused_by_user") != std::string::npos);
}

TEST_CASE("a task that is loaded under an old name has nothing of the verdict and the steps of the one before") {
  Recording recording;
  recording.task("RUNNING", "", 0, 100);
  bus::TaskState ended;
  ended.task = "thumbs", ended.state = "STOPPED", ended.verdict.kind = "overran", ended.counters.steps = 120;
  recording.add(ended, 1000);
  recording.task("SUBMITTED", "", 2000);
  recording.task("RUNNING", "", 3000, 5);
  recording.task("RUNNING", "training", 4000, 9);

  const Story alive = recording.at("thumbs", 3500);
  CHECK(alive.task->state == "RUNNING");
  CHECK(alive.verdict.kind.empty());
  CHECK(render_story(alive, true).find("verdict") == std::string::npos);
  CHECK(alive.steps == 20 + 9);
  CHECK(recording.at("thumbs", 1500).verdict.kind == "overran");  // then it had just ended
}

TEST_CASE("of a moment behind the last event, or in a gap, nobody says that training used the device") {
  Recording recording;
  recording.task("PAUSED", "", 0);
  recording.add(recording.bubble(1000, 1010), 1010);
  for (const std::string subject : {"thumbs", "gpt/1"}) {
    const Story story = recording.at(subject, 1500);
    CHECK(story.why() == policy::Why::kNone);
    const std::string text = render_story(story, true);
    CHECK(text.find("training") == std::string::npos);
    CHECK(text.find("is not recorded") != std::string::npos);
  }
  bus::RecordingGap gap;  // the recorder was stopped, and started again
  gap.reason = "stopped", gap.begin_ns = kStart + 1010 * kNsPerMs, gap.end_ns = kStart + 2000 * kNsPerMs;
  recording.add(gap, 2000);
  recording.add(recording.bubble(2200, 2210), 2210);
  recording.add(recording.bubble(2300, 2310), 2310);
  CHECK(recording.at("gpt/1", 1500).why() == policy::Why::kNone);
  CHECK(render_story(recording.at("gpt/1", 1500), true).find("is not recorded") != std::string::npos);
  CHECK(recording.at("gpt/1", 2250).why() == policy::Why::kTraining);
}

TEST_CASE("an idle phase has its name, also where only the rank's state tells of it") {
  Recording recording;
  recording.task("PAUSED", "", 0);
  auto phase = recording.bubble(10'000, 12'000);
  phase.wait = 0xff00, phase.phase = "save";
  recording.add(phase, 12'000);
  CHECK(
      render_story(recording.at("gpt/1", 11'000), true).find("bubble   the phase save of gpt/1, iteration 7, 2.00 s") !=
      std::string::npos);

  bus::BubbleBegin begin;
  begin.job = "gpt", begin.rank = 1, begin.device = "cpu-1", begin.begin_ns = kStart + 100'000 * kNsPerMs;
  begin.wait = 0xff01, begin.phase = "rollout";
  recording.add(begin, 100'000);
  bus::TrainingState rank;
  rank.job = "gpt", rank.rank = 1, rank.device = "cpu-1", rank.state = "active", rank.iteration = 8;
  rank.phase = "rollout", rank.phase_ms = 1000;
  recording.add(rank, 101'000);
  rank.phase.clear(), rank.phase_ms = 0;
  recording.add(rank, 400'900);
  phase = recording.bubble(100'000, 400'000);
  phase.wait = 0xff01, phase.phase = "rollout";
  recording.add(phase, 400'901);
  recording.add(recording.bubble(401'000, 401'010), 401'010);
  recording.task("PAUSED", "training", 402'000);

  // Its begin is read, and then not even that.
  for (const int64_t at_ms : {104'000, 200'000}) {
    const Story story = recording.at("gpt/1", at_ms);
    REQUIRE(story.bubble);
    CHECK(story.bubble->end.phase == "rollout");
    CHECK(story.bubble->begin_ns == kWall + 100'000 * kNsPerMs);
    CHECK(story.changes.size() == (at_ms == 104'000 ? 1 : 0));  // the rank is active: once
  }
  const std::string text = render_story(recording.at("gpt/1", 200'000), true);
  CHECK(text.find("bubble   the phase rollout of gpt/1, iteration 8, 1 min 40 s old") != std::string::npos);
  CHECK(recording.at("gpt/1", 380'000).bubble->end_ns == kWall + 400'000 * kNsPerMs);
  CHECK_FALSE(recording.at("gpt/1", 400'500).bubble);  // over, though the rank's state came later
  CHECK_FALSE(recording.at("gpt/1", 401'500).bubble);
}

TEST_CASE("a task's end, commands and gaps are told; a subject that was never recorded is not known") {
  Recording recording;
  bus::TaskState ended;
  ended.task = "thumbs", ended.state = "STOPPED", ended.verdict.kind = "overran", ended.verdict.reason = "too long";
  recording.task("RUNNING", "", 0);
  bus::CommandDone stop;
  stop.command = "stop", stop.target = "thumbs", stop.by = "alice", stop.outcome = "ok";
  recording.add(stop, 9000);
  recording.add(ended, 10'000);
  bus::RecordingGap gap;
  gap.reason = "overload", gap.lost = 3;
  recording.add(gap, 11'000);

  const Story story = recording.at("thumbs", 9500);
  CHECK(story.task->state == "RUNNING");
  CHECK(story.verdict.kind == "overran");
  CHECK(story.lost == 3);
  REQUIRE(story.changes.size() == 2);
  CHECK(story.changes[0].text == "command stop thumbs by alice: ok");
  CHECK(render_story(story, true).find("verdict  overran: too long") != std::string::npos);
  CHECK_FALSE(recording.at("nobody", 9500).known);
  CHECK_FALSE(recording.at("gpt/1", 9500).known);
}

}  // namespace freeride::ctl
