// The trace is JSON with a span for each iteration, bubble and side task.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "freeride/base/clock.hpp"
#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/recorder/trace.hpp"

namespace freeride::recorder {

TEST_CASE("a trace has rows by rank, spans at their wall times, and each change of a task's state once") {
  testing::TempFolder dir;
  constexpr int64_t kWall = 1'700'000'000 * kNsPerSec;
  auto writer = FileWriter::create(dir.path() / "a.mcap", Clocks{kWall, 1'000'000, "boot", "host"});
  REQUIRE(writer.ok());
  bus::Envelope envelope;
  envelope.source = "test";
  const auto add = [&](const auto& event, int64_t at) {
    ++envelope.seq;
    REQUIRE((*writer)->add(std::string(event.kTopic) + "/" + event.key(), kWall + at, kWall + at,
                           bus::encode(envelope, event)));
  };
  bus::TaskState task;
  task.task = "thumbs", task.state = "RUNNING";
  add(task, 0);
  add(task, 1000);
  bus::BubbleEnd bubble;
  bubble.job = "gpt", bubble.rank = 1, bubble.stage = 1, bubble.device = "cpu-1", bubble.type = "B";
  bubble.begin_ns = 1'002'000, bubble.end_ns = 1'005'000;
  bubble.task = "thumbs", bubble.side_begin_ns = 1'003'000, bubble.side_end_ns = 1'004'000;
  add(bubble, 5000);
  bubble.phase = "rollout", bubble.wait = 0xff00, bubble.side_begin_ns = 0;
  bubble.begin_ns = 1'006'000, bubble.end_ns = 1'008'000;
  add(bubble, 8000);
  bus::TrainingIteration iteration;
  iteration.job = "gpt", iteration.rank = 0, iteration.iteration = 7, iteration.holdout = true;
  iteration.begin_ns = 1'001'000, iteration.end_ns = 1'009'000;
  add(iteration, 9000);
  REQUIRE((*writer)->finish().ok());

  auto reader = Reader::open(dir.path());
  REQUIRE(reader.ok());
  std::ostringstream out;
  CHECK(write_trace(**reader, out) == 4);
  const auto trace = nlohmann::json::parse(out.str());
  std::map<std::string, nlohmann::json> named;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "M") CHECK(named.emplace(event["name"], event).second);
  }
  CHECK(named.at("bubble B")["ts"] == 2.0);
  CHECK(named.at("bubble B")["dur"] == 3.0);
  CHECK(named.at("bubble B")["args"].count("wait") == 1);
  CHECK(named.at("rollout")["dur"] == 2.0);
  CHECK(named.at("rollout")["args"].count("wait") == 0);  // its number is no place in the schedule
  CHECK(named.at("thumbs")["ts"] == 3.0);
  CHECK(named.at("thumbs")["pid"] == named.at("bubble B")["pid"]);
  CHECK(named.at("iteration 7 (baseline)")["ts"] == 1.0);
  CHECK(named.at("iteration 7 (baseline)")["pid"] != named.at("bubble B")["pid"]);
  CHECK(named.at("thumbs RUNNING")["ph"] == "i");
}

}  // namespace freeride::recorder
