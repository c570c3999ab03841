// Events in columns are the same events, but for times below a microsecond; whatever the bytes, reading ends.
#include <catch2/catch.hpp>
#include <random>

#include "columns.hpp"
#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/recorder/file.hpp"
#include "freeride/recorder/reader.hpp"

namespace freeride::recorder {
namespace {

constexpr int64_t kDistance = 1'700'000'000'123'456'789;

struct Event {
  int64_t log_ns;
  std::string payload;
};

std::vector<Event> expanded(std::string_view message) {
  std::vector<Event> events;
  REQUIRE(expand(message, kDistance, [&](int64_t log_ns, std::string_view payload) {
    events.push_back({log_ns, std::string(payload)});
    return true;
  }));
  CHECK(rows_of(message) == events.size());
  return events;
}

bus::BubbleEnd bubble(int64_t at_ns) {
  bus::BubbleEnd end;
  end.job = "gpt", end.device = "cpu-1", end.task = "thumbs", end.type = "B", end.leased = true;
  end.begin_ns = at_ns, end.end_ns = at_ns + 4'000'400, end.harvested_ns = 3'000'600, end.overrun_ns = 499;
  end.iteration = uint64_t{1} << 40, end.learned_ns = -1;
  return end;
}

bus::Envelope envelope(uint64_t seq, int64_t t_ns) {
  bus::Envelope made;
  made.source = "worker", made.seq = seq, made.t_ns = t_ns;
  return made;
}

bool near(int64_t one, int64_t other) {
  return std::abs(one - other) <= 500;
}

}  // namespace

TEST_CASE("events in columns keep everything, and times to the microsecond") {
  Columns columns(kDistance);
  std::vector<bus::BubbleEnd> bubbles;
  std::vector<int64_t> read_at;
  for (int i = 0; i < 100; ++i) {
    bubbles.push_back(bubble(5'000'000'123 + 10'000'077LL * i));
    bubbles.back().wait = static_cast<uint32_t>(i % 10);
    if (i > 50) bubbles.back().task = "other" + std::to_string(i);
    if (i % 3 == 0) bubbles.back().phase = "rollout";
    const int64_t t_ns = bubbles.back().end_ns + 30'011 * (i % 3);
    const auto read =
        columns.add(bus::encode(envelope(static_cast<uint64_t>(i) + 1, t_ns), bubbles.back()), t_ns + kDistance, 0);
    REQUIRE(read);
    CHECK(std::abs(*read - (t_ns + kDistance)) <= 1500);
    read_at.push_back(*read);
  }
  CHECK(columns.first_ns() == read_at.front());
  const std::string message = columns.take();
  CHECK(message.size() < 100 * 40);
  CHECK(columns.rows() == 0);
  const auto events = expanded(message);
  REQUIRE(events.size() == bubbles.size());
  for (size_t i = 0; i < events.size(); ++i) {
    CHECK(events[i].log_ns == read_at[i]);
    const auto head = bus::decode<bus::Envelope>(events[i].payload);
    const auto read = bus::decode<bus::BubbleEnd>(events[i].payload);
    REQUIRE(head);
    REQUIRE(read);
    CHECK(head->seq == i + 1);
    CHECK(head->source == "worker");
    CHECK(near(read->begin_ns, bubbles[i].begin_ns));
    CHECK(near(read->end_ns, bubbles[i].end_ns));
    CHECK(near(read->harvested_ns, bubbles[i].harvested_ns));
    CHECK(read->overrun_ns == 0);
    CHECK(read->learned_ns == 0);
    CHECK(read->iteration == bubbles[i].iteration);
    CHECK(read->wait == bubbles[i].wait);
    CHECK(read->task == bubbles[i].task);
    CHECK(read->phase == bubbles[i].phase);
    CHECK(read->leased);
  }
  // Once more: what is at full microseconds comes back byte for byte.
  Columns again(kDistance);
  for (const Event& event : events) REQUIRE(again.add(event.payload, event.log_ns, 0));
  const auto same = expanded(again.take());
  for (size_t i = 0; i < events.size(); ++i) CHECK(same[i].payload == events[i].payload);
}

TEST_CASE("no event is read before the end of the last chunk, and one by another clock is where it came") {
  Columns columns(kDistance);
  const int64_t floor = kDistance + 9'000'000'001;
  for (const int64_t t_ns : {int64_t{9'000'000'000}, int64_t{5}, int64_t{1} << 60}) {
    const auto read = columns.add(bus::encode(envelope(1, t_ns), bubble(t_ns)), floor - 7, floor);
    REQUIRE(read);
    CHECK(*read >= floor);
    CHECK(*read < floor + 2000);
  }
  CHECK(expanded(columns.take()).size() == 3);
}

TEST_CASE("what is of another shape is refused, and nothing is changed by it") {
  Columns columns(kDistance);
  const auto one = bus::encode(envelope(1, 1000), bubble(1000));
  CHECK_FALSE(columns.add("", 0, 0));
  CHECK_FALSE(columns.add("text", 0, 0));
  CHECK_FALSE(columns.add(one + "x", 0, 0));
  CHECK_FALSE(columns.add(one.substr(0, one.size() - 1), 0, 0));
  REQUIRE(columns.add(one, 0, 0));
  CHECK_FALSE(columns.add(bus::encode(envelope(1, 1000), bus::TaskState{}), 0, 0));
  CHECK(columns.rows() == 1);
  while (columns.rows() < Columns::kMaxRows) REQUIRE(columns.add(one, 0, 0));
  CHECK_FALSE(columns.add(one, 0, 0));
  CHECK(expanded(columns.take()).size() == Columns::kMaxRows);
}

TEST_CASE("a message that is damaged anywhere, or made up, is read to its end or refused") {
  Columns columns(kDistance);
  for (int i = 0; i < 20; ++i)
    REQUIRE(columns.add(bus::encode(envelope(static_cast<uint64_t>(i), 1000 * i * i), bubble(777 * i)), i, 0));
  const std::string message = columns.take();
  const auto none = [](int64_t, std::string_view payload) { return is_shallow(payload) || !payload.empty(); };
  for (size_t at = 0; at < message.size(); ++at) {
    CHECK_FALSE(expand(message.substr(0, at), kDistance, none));
    for (const char change : {'\x01', '\x55', '\xff'}) {
      std::string damaged = message;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      expand(damaged, kDistance, none);
    }
  }
  std::mt19937 dice(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(dice() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(dice());
    expand(bytes, kDistance, none);
  }
  CHECK_FALSE(is_shallow(std::string(100'000, '\x91')));
}

TEST_CASE("a file of columns, one of events and one of JSON tell the same") {
  testing::TempFolder dir;
  const Clocks clocks{kDistance + 1000, 1000, "boot", "host"};
  std::map<Layout, std::vector<bus::BubbleEnd>> told;
  for (const Layout layout : {Layout::kColumns, Layout::kEvents, Layout::kJson}) {
    const auto file = dir.path() / (std::to_string(static_cast<int>(layout)) + ".mcap");
    auto writer = FileWriter::create(file, clocks, std::nullopt, layout);
    REQUIRE(writer.ok());
    for (int i = 0; i < 10'000; ++i) {
      const int64_t at = 1'000'000LL * (i + 1);
      auto each = bubble(at);
      each.rank = static_cast<uint32_t>(i % 2), each.learned_ns = 0, each.overrun_ns = 1000;
      each.end_ns = each.begin_ns + 4'000'000, each.harvested_ns = 3'000'000;
      const auto payload = bus::encode(envelope(static_cast<uint64_t>(i) + 1, at), each);
      REQUIRE((*writer)->add("bubble.end/" + each.key(), at + kDistance, at + kDistance, payload));
      if (i % 1000 == 999) REQUIRE((*writer)->flush().ok());
    }
    CHECK((*writer)->add("bubble.end/x", kDistance, kDistance, "no map"));
    REQUIRE((*writer)->finish().ok());
    auto reader = Reader::open(file);
    REQUIRE(reader.ok());
    int64_t last_ns = 0;
    while (const auto event = (*reader)->next()) {
      CHECK(event->time_ns >= last_ns);
      last_ns = event->time_ns;
      if (event->topic == "bubble.end/x") continue;
      const auto read = bus::decode<bus::BubbleEnd>(event->payload);
      REQUIRE(read);
      CHECK(std::abs(event->time_ns - read->begin_ns - kDistance) <= 1000);
      told[layout].push_back(*read);
    }
    CHECK((*reader)->damaged() == 0);
    REQUIRE(told[layout].size() == 10'000);
    CHECK((*reader)->files()[0].begin_ns >= kDistance + 1'000'000);
    Range range;
    range.topics = {"bubble.end/gpt/1"}, range.from_ns = kDistance + 5'000'500'000,
    range.to_ns = range.from_ns + 1'000'000'000;
    auto part = Reader::open(file, range);
    REQUIRE(part.ok());
    size_t found = 0;
    for (; const auto event = (*part)->next(); ++found) CHECK(event->topic == "bubble.end/gpt/1");
    CHECK(found == 500);
  }
  for (size_t i = 0; i < 10'000; ++i) {
    for (const Layout other : {Layout::kColumns, Layout::kJson}) {
      const auto &one = told[Layout::kEvents][i], &two = told[other][i];
      REQUIRE(one.begin_ns == two.begin_ns);
      REQUIRE(one.rank == two.rank);
      REQUIRE(one.task == two.task);
      REQUIRE(one.iteration == two.iteration);
    }
  }
  CHECK(std::filesystem::file_size(dir.path() / "0.mcap") * 2 < std::filesystem::file_size(dir.path() / "1.mcap"));
}

}  // namespace freeride::recorder
