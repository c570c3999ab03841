// The folder of recordings on clocks of the test's own.
#include <catch2/catch.hpp>
#include <fstream>
#include <system_error>

#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/base/time.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/recorder/journal.hpp"
#include "freeride/recorder/reader.hpp"

using freeride::testing::TempFolder;

namespace freeride::recorder {
namespace {

constexpr int64_t kWall = 1'700'000'000 * kNsPerSec;

struct Rig {
  TempFolder dir;
  FakeClock clock{1000 * kNsPerSec};
  int64_t wall_minus_monotonic = kWall - 1000 * kNsPerSec;
  std::string boot = "boot";
  JournalOptions options;
  std::unique_ptr<Journal> journal;
  uint64_t seq = 0;

  Rig() {
    options.folder = dir.path() / "recordings";
    options.keep_free_bytes = 0;
    open();
  }
  void open() {
    journal.reset();
    auto opened = Journal::open(options, clock, [this] {
      return Clocks{clock.now_ns() + wall_minus_monotonic, clock.now_ns(), boot, "host"};
    });
    REQUIRE(opened.ok());
    journal = std::move(*opened);
  }
  template <class E>
  void take(const E& event, bool kept = false, int64_t age_ns = 0) {
    bus::Event wire;
    wire.topic = std::string(E::kTopic) + "/" + event.key();
    wire.envelope.source = "test", wire.envelope.seq = ++seq;
    wire.envelope.t_ns = clock.now_ns() - age_ns, wire.envelope.kept = kept;
    wire.payload = bus::encode(wire.envelope, event);
    journal->take(wire);
  }
  void tick(int64_t ns) {
    clock.tick(ns);
    journal->tick();
  }
  std::vector<std::string> topics(const Range& range = {}) const {
    auto reader = Reader::open(options.folder, range);
    REQUIRE(reader.ok());
    std::vector<std::string> all;
    int64_t last = 0;
    while (const auto event = (*reader)->next()) {
      if (wall_minus_monotonic == kWall - 1000 * kNsPerSec) CHECK(event->time_ns >= last);
      last = event->time_ns;
      all.emplace_back(event->topic);
    }
    return all;
  }
  size_t files() const {
    auto reader = Reader::open(options.folder);
    return reader ? (*reader)->files().size() : 0;
  }
};

bus::BubbleEnd bubble_of(uint32_t rank) {
  bus::BubbleEnd end;
  end.job = "gpt", end.rank = rank;
  return end;
}
bus::BubbleBegin begin_of(uint32_t rank) {
  bus::BubbleBegin begin;
  begin.job = "gpt", begin.rank = rank;
  return begin;
}

}  // namespace

TEST_CASE("an event is on the disk two seconds later, whatever becomes of the recorder then") {
  Rig rig;
  CHECK_FALSE(rig.journal->due_ns());
  rig.take(bubble_of(1));
  REQUIRE(rig.journal->due_ns());
  CHECK(*rig.journal->due_ns() == rig.clock.now_ns() + Journal::kFlushAfterNs);
  rig.tick(Journal::kFlushAfterNs - 1);
  CHECK(rig.topics().empty());
  rig.tick(1);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1"});
  CHECK_FALSE(rig.journal->due_ns());
}

TEST_CASE("a bubble's begin is left out where its end is in the same chunk") {
  Rig rig;
  rig.take(begin_of(1));
  rig.take(begin_of(2));
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1", "bubble.begin/gpt/2"});
  rig.take(bubble_of(2));
  rig.take(begin_of(2));
  rig.take(begin_of(2));  // the end between them was lost
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics().size() == 5);
}

TEST_CASE("each file begins with the states that hold, as they were published") {
  Rig rig;
  bus::TaskState task;
  task.task = "thumbs", task.state = "RUNNING";
  rig.take(task);
  const int64_t published = rig.clock.now_ns() + rig.wall_minus_monotonic;
  rig.tick(Journal::kFlushAfterNs);
  rig.tick(Journal::kFileNs);
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.files() == 2);
  Range range;
  range.from_ns = rig.clock.now_ns() + rig.wall_minus_monotonic - kNsPerSec, range.states_before = true;
  auto reader = Reader::open(rig.options.folder, range);
  REQUIRE(reader.ok());
  const auto state = (*reader)->next();
  REQUIRE(state);
  CHECK(state->topic == "task.state/thumbs");
  CHECK(state->published_ns == published);
  CHECK(state->is_repeated());
  CHECK(bus::decode<bus::TaskState>(state->payload)->state == "RUNNING");
}

TEST_CASE("an event from another host's clock, and one that is repeated, count as of now") {
  Rig rig;
  rig.take(bubble_of(1), false, -1);
  rig.take(bubble_of(2), false, 3600 * kNsPerSec);
  bus::TaskState task;
  task.task = "thumbs";
  rig.take(task, true, 3600 * kNsPerSec);
  rig.take(bubble_of(3), false, kNsPerMs);
  rig.tick(Journal::kFlushAfterNs);
  const int64_t now = rig.clock.now_ns() - Journal::kFlushAfterNs + rig.wall_minus_monotonic;
  auto reader = Reader::open(rig.options.folder);
  REQUIRE(reader.ok());
  CHECK((*reader)->next()->time_ns == now - kNsPerMs);
  for (int i = 0; i < 3; ++i) CHECK((*reader)->next()->time_ns == now);
}

TEST_CASE("files end by size, and the oldest are deleted when all are too many bytes") {
  Rig rig;
  rig.options.keep_bytes = 4 << 20;
  rig.open();
  uint64_t random = 1;
  for (int i = 0; i < 200; ++i) {
    bus::TaskProgress progress;
    progress.task = "noise";
    for (int n = 0; n < 64 * 1024; ++n) {  // noise does not compress
      random = random * 6364136223846793005U + 1442695040888963407U;
      progress.state.push_back(static_cast<char>(random >> 56));
    }
    rig.take(progress);
    rig.tick(Journal::kFlushAfterNs);
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(rig.options.folder)) bytes += entry.file_size();
    REQUIRE(bytes <= rig.options.keep_bytes);
  }
  CHECK(rig.files() >= 3);
  CHECK(rig.topics().size() > 20);
  CHECK(rig.topics().size() < 100);
  CHECK_FALSE(rig.journal->paused());
}

TEST_CASE("files are deleted when they ended longer ago than they are to be kept, also before this start") {
  Rig rig;
  rig.options.keep_ns = Journal::kFileNs / 2;
  rig.open();
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  rig.clock.tick(rig.options.keep_ns - Journal::kFlushAfterNs);  // since the event
  rig.open();
  CHECK(rig.topics({.topics = {"bubble."}}).size() == 1);
  rig.clock.tick(1);
  rig.open();
  CHECK(rig.topics({.topics = {"bubble."}}).empty());
}

TEST_CASE("a wall clock that is stepped deletes no recording") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  // The files' dates are the real clock's; this one is years before and then after it.
  for (const int64_t wall : {kWall, clock_ns(CLOCK_REALTIME) + 400 * 86400 * kNsPerSec, kWall}) {
    rig.wall_minus_monotonic = wall - rig.clock.now_ns();
    rig.tick(600 * kNsPerSec);
    rig.open();
  }
  rig.wall_minus_monotonic = 0;
  CHECK(rig.topics({.topics = {"bubble."}}).size() == 1);
}

TEST_CASE("the time in which the host was off makes no recording older") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);  // in the first boot
  for (const std::string boot : {"second", "third"}) {
    rig.journal.reset();
    rig.boot = boot, rig.clock.set(kNsPerSec);
    rig.wall_minus_monotonic += 400 * 86400 * kNsPerSec;
    rig.open();
    rig.clock.tick(rig.options.keep_ns / 2 - 10 * kNsPerSec);
    rig.take(bubble_of(2));
    rig.tick(Journal::kFlushAfterNs);
  }
  CHECK(rig.topics({.topics = {"bubble."}}).size() == 3);
  rig.tick(20 * kNsPerSec);
  rig.open();
  CHECK(rig.topics({.topics = {"bubble."}}).size() == 2);
}

TEST_CASE("a file that cannot be deleted keeps none of the others") {
  Rig rig;
  const auto first = [&] { return (*Reader::open(rig.options.folder))->files().front().file; };
  for (uint32_t rank : {1, 2, 3}) {
    rig.take(bubble_of(rank));
    rig.tick(Journal::kFlushAfterNs);
    rig.open();
  }
  const auto stuck = first();
  rig.options.remove = [stuck](const auto& file, auto& problem) {
    if (file != stuck) return std::filesystem::remove(file, problem);
    problem = std::make_error_code(std::errc::operation_not_permitted);
    return false;
  };
  rig.options.keep_bytes = 1;
  rig.open();
  CHECK(rig.topics({.topics = {"bubble."}}) == std::vector<std::string>{"bubble.end/gpt/1"});
}

TEST_CASE("a file that cannot begin with all states says so") {
  Rig rig;
  bus::WorkerState worker;
  worker.worker = "host-1:cpu-0";
  for (size_t i = 0; i < Journal::kMaxStates + 3; ++i) {
    bus::TaskState task;
    task.task = "task-" + std::to_string(i), task.state = "STOPPED";
    rig.take(task);
    rig.take(worker);  // it lives, and is not the one that is left out
  }
  rig.tick(Journal::kFlushAfterNs);
  rig.tick(Journal::kFileNs);
  rig.tick(Journal::kFlushAfterNs);
  const auto last = (*Reader::open(rig.options.folder))->files().back().file;
  auto reader = Reader::open(last);
  REQUIRE(reader.ok());
  size_t states = 0;
  bool has_worker = false, says_so = false;
  while (const auto event = (*reader)->next()) {
    has_worker = has_worker || event->is("worker.state");
    says_so = says_so || event->topic == "recording.gap/states";
    states += event->is("recording.gap") ? 0 : 1;
  }
  CHECK(states == Journal::kMaxStates);
  CHECK(says_so);
  CHECK(has_worker);
}

TEST_CASE("states that change while the disk is full are recorded behind the gap") {
  Rig rig;
  bus::TaskState task;
  task.task = "thumbs", task.state = "RUNNING";
  rig.take(task);
  rig.tick(Journal::kFlushAfterNs);
  const auto away = rig.dir.path() / "away";
  std::filesystem::rename(rig.options.folder, away);
  task.state = "STOPPED";
  rig.take(task);
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.journal->paused());
  std::filesystem::rename(away, rig.options.folder);
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics() ==
        std::vector<std::string>{"task.state/thumbs", "bubble.end/gpt/1", "recording.gap/disk", "task.state/thumbs"});
}

TEST_CASE("a full disk is a pause: what found no room is a gap, and it goes on") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  rig.journal.reset();
  rig.options.keep_free_bytes = UINT64_MAX;  // no disk has as much
  rig.open();
  CHECK(rig.journal->paused());
  rig.take(bubble_of(2));
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.journal->paused());
  CHECK(rig.journal->lost() == 1);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1"});
}

TEST_CASE("after a pause the recording has a gap with the number of events") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  // The folder's disk is gone for a while: nothing can be made or looked at there.
  const auto away = rig.dir.path() / "away";
  std::filesystem::rename(rig.options.folder, away);
  rig.take(bubble_of(2));
  rig.take(bubble_of(3));
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.journal->paused());
  rig.take(bubble_of(4));
  rig.tick(Journal::kFlushAfterNs);
  std::filesystem::rename(away, rig.options.folder);
  rig.take(bubble_of(5));
  rig.tick(Journal::kFlushAfterNs);
  CHECK_FALSE(rig.journal->paused());
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1", "bubble.end/gpt/5", "recording.gap/disk"});
  Range range;
  range.topics = {"recording.gap/"};
  auto reader = Reader::open(rig.options.folder, range);
  REQUIRE(reader.ok());
  CHECK(bus::decode<bus::RecordingGap>((*reader)->next()->payload)->lost == 3);
}

TEST_CASE("a start after a crash ends the last file and says since when nothing was recorded") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  const int64_t last = rig.clock.now_ns() - Journal::kFlushAfterNs;
  const auto copy = rig.dir.path() / "copy";
  std::filesystem::copy(rig.options.folder, copy);  // as kill -9 would leave it
  std::ofstream(copy / "00000001_half.mcap") << "half a header";
  rig.journal.reset();
  rig.options.folder = copy;
  rig.clock.tick(60 * kNsPerSec);
  rig.open();
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1", "recording.gap/stopped"});
  auto reader = Reader::open(copy);
  REQUIRE(reader.ok());
  REQUIRE((*reader)->files().size() == 2);
  CHECK((*reader)->files()[0].finished);
  (void)(*reader)->next();
  const auto gap = bus::decode<bus::RecordingGap>((*reader)->next()->payload);
  REQUIRE(gap.ok());
  CHECK(gap->begin_ns == last);
  CHECK(gap->end_ns == last + 62 * kNsPerSec);
}

TEST_CASE("one folder has one recorder") {
  Rig rig;
  auto second = Journal::open(rig.options, rig.clock);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == Code::kAlreadyExists);
}

TEST_CASE("a wall clock that is set back changes no order: files are in the order in which they were written") {
  Rig rig;
  rig.take(bubble_of(1));
  rig.tick(Journal::kFlushAfterNs);
  rig.wall_minus_monotonic -= 3600 * kNsPerSec;
  rig.take(bubble_of(2));  // by the file's own mapping
  rig.tick(Journal::kFileNs);
  rig.take(bubble_of(3));
  rig.tick(Journal::kFlushAfterNs);
  CHECK(rig.topics() == std::vector<std::string>{"bubble.end/gpt/1", "bubble.end/gpt/2", "bubble.end/gpt/3"});
}

}  // namespace freeride::recorder
