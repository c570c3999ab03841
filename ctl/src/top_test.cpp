#include "top.hpp"

#include <catch2/catch.hpp>

#include "events.hpp"

using namespace freeride;  // NOLINT(google-build-using-namespace)
using Catch::Contains;

namespace {
constexpr int64_t kSecond = 1'000'000'000;

template <class E>
bus::Event event(const E& body, int64_t t_ns = 10 * kSecond) {
  bus::Event out;
  out.topic = std::string(E::kTopic) + "/" + body.key();
  out.envelope.source = "test";
  out.envelope.t_ns = t_ns;
  out.payload = bus::encode(out.envelope, body);
  return out;
}

bus::TrainingIteration iteration(bool holdout, int64_t harvested_ns) {
  bus::TrainingIteration out;
  out.job = "gpt";
  out.device = "cpu-0";
  out.iteration = 7;
  out.end_ns = 100;
  out.bubble_ns = 25;
  out.harvested_ns = harvested_ns;
  out.holdout = holdout;
  return out;
}
}  // namespace

TEST_CASE("top before anything has come") {
  const auto text = ctl::TopModel().picture(0, 0, true);
  CHECK_THAT(text, Contains("no trainer") && Contains("no side tasks") && Contains("last event never"));
}

TEST_CASE("top shows shares of the bubbles that were offered") {
  ctl::TopModel model;
  model.apply(event(iteration(false, 20)));
  model.apply(event(iteration(true, 0)));
  const auto text = model.picture(11 * kSecond, 0, true);
  CHECK_THAT(text, Contains("#####............... 25.0 %"));
  CHECK_THAT(text, Contains("################.... 80.0 % (baseline)"));
  CHECK_THAT(text, Contains("last event 1.00 s ago"));
}

TEST_CASE("top shows a rank's iteration once one was heard, not that of its attaching") {
  ctl::TopModel model;
  bus::TrainingState state;
  state.job = "gpt";
  state.device = "cpu-0";
  state.state = "active";
  state.iteration = 3;
  model.apply(event(state));
  const auto row = [&model] {
    const auto text = model.picture(11 * kSecond, 0, true);
    return text.substr(text.find("cpu-0"), text.find('\n', text.find("cpu-0")) - text.find("cpu-0"));
  };
  CHECK_THAT(row(), !Contains("3"));
  model.apply(event(iteration(false, 20)));
  CHECK_THAT(row(), Contains(" 7 "));
}

TEST_CASE("top takes steps a second from progress, and leaves profile runs out") {
  ctl::TopModel model;
  bus::TaskState task;
  task.task = "pagerank";
  task.state = "PAUSED";
  model.apply(event(task));
  bus::TaskProgress progress;
  progress.task = "pagerank";
  progress.state = "RUNNING";
  progress.counters.steps = 100;
  model.apply(event(progress, 10 * kSecond));
  progress.counters.steps = 500;
  model.apply(event(progress, 12 * kSecond));
  progress.task = "unknown";
  model.apply(event(progress, 12 * kSecond));
  const auto json = model.json();
  REQUIRE(json["tasks"].size() == 1);
  CHECK(json["tasks"][0]["steps_per_s"] == 200.0);
  CHECK_THAT(model.picture(13 * kSecond, 0, true), Contains("RUNNING") && Contains("200"));
  // An older count from the manager does not turn the steps back.
  model.apply(event(task));
  CHECK(model.json()["tasks"][0]["counters"]["steps"] == 500);
}

TEST_CASE("top fits 80 columns, and says why where it can") {
  ctl::TopModel model;
  auto shown = iteration(false, 20);
  shown.job = "gpt-with-a-name";
  model.apply(event(shown));
  bus::TaskState task;
  task.task = "pagerank";
  task.state = "RUNNING";
  task.worker = "some-host-0123456789ab:GPU-01234567-89ab-cdef-0123-456789abcdef";
  task.reason = "paused by user";
  model.apply(event(task));
  const auto picture = model.picture(11 * kSecond, 80, true);
  std::istringstream lines(picture);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  CHECK_THAT(picture, Contains("80.0 %") && Contains("paused by user") && !Contains("…"));
  CHECK_THAT(model.picture(11 * kSecond, 250, true), Contains(task.worker));
}

TEST_CASE("top sorts as it is asked to, those that have ended last, and its keys are told") {
  ctl::TopModel model;
  uint64_t steps = 0;
  for (const char* name : {"a", "b", "c"}) {
    bus::TaskState task;
    task.task = name;
    task.state = "RUNNING";
    task.counters.steps = ++steps;
    if (steps == 3) task.verdict.kind = "finished";
    model.apply(event(task));
  }
  const auto order = [&model] {
    std::string names;
    std::istringstream lines(model.picture(0, 0, true));
    for (std::string line; std::getline(lines, line);) {
      if (line.size() > 1 && line[1] == ' ' && line[0] >= 'a') names += line[0];
    }
    return names;
  };
  CHECK(order() == "abc");
  CHECK(model.key('s'));
  CHECK(model.sorted_by() == ctl::TopSort::kSteps);
  CHECK(order() == "bac");
  CHECK(model.key('?'));
  CHECK_THAT(model.picture(0, 80, true), Contains("sort side tasks"));
  CHECK(model.key('n'));  // leaves the help, and no more
  CHECK(model.sorted_by() == ctl::TopSort::kSteps);
  CHECK(order() == "bac");
  CHECK_FALSE(model.key('q'));
  for (const auto& [word, sort] : ctl::top_sorts()) CHECK((sort == ctl::TopSort::kName) == (word == "name"));
}

TEST_CASE("top shows how far batches are, and forgets those that are removed") {
  ctl::TopModel model;
  bus::BatchState batch;
  batch.batch = "score";
  batch.state = "running";
  batch.items = 1000;
  batch.done = 240;
  batch.failed = 10;
  batch.members = 4;
  batch.items_per_s = 25;
  model.apply(event(batch));
  const auto text = model.picture(11 * kSecond, 0, true);
  CHECK_THAT(text, Contains("#####............... 25.0 % of 1 000") && Contains("30.0 s"));
  CHECK(model.json()["batches"][0]["done"] == 240);
  std::istringstream lines(model.picture(11 * kSecond, 80, true));
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  batch.state = "finished";
  batch.ended_unix_ms = 1;
  model.apply(event(batch));
  CHECK_THAT(model.picture(11 * kSecond, 0, true), !Contains("BATCH"));
  batch.state = bus::BatchState::kRemoved;
  model.apply(event(batch));
  CHECK(model.json()["batches"].empty());
}

TEST_CASE("top shows the manager's reason") {
  ctl::TopModel model;
  bus::TaskState task;
  task.task = "pagerank";
  task.why = "no_trainer";
  task.reason = "waiting for a training with stage 3";
  model.apply(event(task));
  CHECK_THAT(model.picture(10 * kSecond, 0, true), Contains(task.reason));
  CHECK(model.json()["tasks"][0]["why"] == "no_trainer");
}

TEST_CASE("top's memory and lines are bounded, whatever is published") {
  ctl::TopModel model;
  for (int i = 0; i < 3000; ++i) {
    bus::TaskState task;
    task.task = "task-" + std::to_string(i) + std::string(300, 'x');
    model.apply(event(task));
  }
  CHECK(model.json()["tasks"].size() == 1000);
  bus::Event broken;
  broken.topic = "task.state/x";
  broken.payload = "garbage";
  model.apply(broken);
  CHECK(model.json()["tasks"].size() == 1000);
  std::istringstream lines(model.picture(0, 80, true));
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80 + 2);  // "…" has three bytes
}

TEST_CASE("an event as a line and as JSON, unknown fields included") {
  bus::BubbleEnd bubble;
  bubble.job = "gpt";
  bubble.begin_ns = 5;
  bubble.harvested_ns = 1'500'000;
  const auto sample = event(bubble);
  CHECK(ctl::event_line(sample) == "10.000000 bubble.end/gpt/0 begin_ns=5 harvested=1.50 ms job=gpt\n");
  const auto json = ctl::event_json(sample);
  CHECK(json["topic"] == "bubble.end/gpt/0");
  CHECK(json["source"] == "test");
  CHECK(json["harvested_ns"] == 1'500'000);
  bus::Event newer;
  newer.topic = "weather.state/x";
  const auto packed = nlohmann::json::to_msgpack({{"v", 1}, {"rain", "much \x1b[2J"}});
  newer.payload.assign(packed.begin(), packed.end());
  CHECK(ctl::event_line(newer) == "0.000000 weather.state/x rain=\"much \\u001b[2J\"\n");
}
