#include "freeride/bus/codec.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <msgpack.hpp>

#include "freeride/bus/json.hpp"
#include "freeride/bus/types.hpp"
#include "samples.hpp"

namespace freeride::bus {
namespace {

template <class T>
void round_trip(const char* name) {
  INFO(name);
  const T value = test::sample<T>();
  auto decoded = decode<T>(encode(value));
  REQUIRE(decoded.ok());
  CHECK(to_json(*decoded) == to_json(value));
  CHECK((to_json(value).empty() || to_json(T()) != to_json(value)));  // or the comparison above would prove nothing
}

// A map of one key, as another program might write it.
template <class T>
std::string one(const char* key, const T& value) {
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> packer(buffer);
  packer.pack_map(1);
  packer.pack(std::string(key));
  packer.pack(value);
  return {buffer.data(), buffer.size()};
}

TEST_CASE("every type comes back as it went") {
#define ROUND_TRIP(T) round_trip<T>(#T);
  FREERIDE_BUS_EVENTS(ROUND_TRIP)
  FREERIDE_BUS_COMMANDS(ROUND_TRIP)
  FREERIDE_BUS_PARTS(ROUND_TRIP)
#undef ROUND_TRIP
}

TEST_CASE("extreme numbers come back") {
  BubbleEnd event;
  event.iteration = std::numeric_limits<uint64_t>::max();
  event.begin_ns = std::numeric_limits<int64_t>::min();
  event.end_ns = std::numeric_limits<int64_t>::max();
  event.rank = std::numeric_limits<uint32_t>::max();
  auto decoded = decode<BubbleEnd>(encode(event));
  REQUIRE(decoded.ok());
  CHECK(to_json(*decoded) == to_json(event));
}

TEST_CASE("an event and its envelope share one map") {
  Envelope envelope;
  envelope.source = "worker host:cpu-0";
  envelope.seq = 7;
  envelope.t_ns = 12;
  BubbleEnd event;
  event.job = "gpt";
  const std::string bytes = encode(envelope, event);
  auto head = decode<Envelope>(bytes);
  auto body = decode<BubbleEnd>(bytes);
  REQUIRE(head.ok());
  REQUIRE(body.ok());
  CHECK(head->source == "worker host:cpu-0");
  CHECK(head->seq == 7);
  CHECK(head->t_ns == 12);
  CHECK_FALSE(head->kept);
  CHECK(body->job == "gpt");
}

TEST_CASE("unknown keys are skipped and missing ones keep their default") {
  auto decoded = decode<HoldoutPlan>(one("of_a_later_version", std::map<std::string, std::vector<int>>{{"x", {1, 2}}}));
  REQUIRE(decoded.ok());
  CHECK(decoded->duty_pct == 100);
  decoded = decode<HoldoutPlan>(one("share_pct", 5));  // an integer where a double is expected
  REQUIRE(decoded.ok());
  CHECK(decoded->share_pct == 5.0);
  CHECK(decode<HoldoutPlan>(one("job", msgpack::type::nil_t())).ok());  // nil counts as missing
}

TEST_CASE("fields may come in any order") {
  const HoldoutPlan plan = test::sample<HoldoutPlan>();
  const std::string forward = encode(plan);
  auto handle = msgpack::unpack(forward.data(), forward.size());
  const auto& map = handle.get().via.map;
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> packer(buffer);
  packer.pack_map(map.size);
  for (uint32_t i = map.size; i-- > 0;) packer.pack(map.ptr[i].key), packer.pack(map.ptr[i].val);
  auto decoded = decode<HoldoutPlan>({buffer.data(), buffer.size()});
  REQUIRE(decoded.ok());
  CHECK(to_json(*decoded) == to_json(plan));
}

TEST_CASE("another version is refused and says both") {
  auto decoded = decode<BubbleEnd>(one("v", 2));
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().code == Code::kVersion);
  CHECK(decoded.error().message.find("version 2") != std::string::npos);
  CHECK(decoded.error().message.find("version 1") != std::string::npos);
  CHECK(decode<BubbleEnd>(one("v", std::string("1"))).error().code == Code::kInvalidArgument);
}

TEST_CASE("wrong types and ranges are refused by field name") {
  const auto refused = [](const Result<BubbleEnd>& result, const std::string& field) {
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == Code::kInvalidArgument);
    CHECK(result.error().message.find("'" + field + "'") != std::string::npos);
  };
  refused(decode<BubbleEnd>(one("rank", -1)), "rank");
  refused(decode<BubbleEnd>(one("rank", uint64_t{1} << 32)), "rank");
  refused(decode<BubbleEnd>(one("rank", 1.5)), "rank");
  refused(decode<BubbleEnd>(one("rank", true)), "rank");
  refused(decode<BubbleEnd>(one("begin_ns", std::numeric_limits<uint64_t>::max())), "begin_ns");
  refused(decode<BubbleEnd>(one("job", 1)), "job");
  refused(decode<BubbleEnd>(one("leased", 1)), "leased");
  CHECK_FALSE(decode<Verdict>(one("signal", int64_t{-1} << 40)).ok());
  CHECK_FALSE(decode<Load>(one("params", 3)).ok());
  CHECK_FALSE(decode<Load>(one("params", std::map<int, std::string>{{1, "x"}})).ok());
  CHECK_FALSE(decode<TasksReply>(one("tasks", std::string("none"))).ok());
  CHECK_FALSE(decode<TasksReply>(one("tasks", std::vector<int>{1})).ok());
}

TEST_CASE("what is no message is refused") {
  for (const std::string bytes : {"", "\x01", "\x90", "\xc0", "\xc1", "hello", "\x81", "\x81\xa1v",
                                  "\xdf\xff\xff\xff\xff", "\xdb\xff\xff\xff\xff"}) {
    CHECK_FALSE(decode<BubbleEnd>(bytes).ok());
  }
  std::string whole = encode(test::sample<TaskState>());
  for (size_t size = 0; size < whole.size(); ++size) {
    auto decoded = decode<TaskState>(std::string_view(whole).substr(0, size));
    REQUIRE_FALSE(decoded.ok());
    CHECK(decoded.error().code == Code::kInvalidArgument);
  }
  CHECK_FALSE(decode<TaskState>(whole + "\xc0").ok());
}

TEST_CASE("depth and size are bounded") {
  const std::string deep = std::string("\x81\xa1x", 3) + std::string(100'000, '\x91') + '\xc0';
  CHECK_FALSE(decode<BubbleEnd>(deep).ok());
  CHECK_FALSE(decode<BubbleEnd>(std::string((16u << 20) + 1, '\x80')).ok());
  // 16 bits of length, one byte an element: many times the limit on structs, in nested arrays that are each within
  // theirs.
  std::string bomb = encode(WorkersReply());
  bomb = std::string("\x81\xa7workers\xdc\x00\x08", 12);
  for (int i = 0; i < 8; ++i) bomb += std::string("\x81\xa5ranks\xdc\xff\xff", 10) + std::string(0xffff, '\x80');
  auto decoded = decode<WorkersReply>(bomb);
  REQUIRE_FALSE(decoded.ok());
  CHECK(decoded.error().message.find("too many") != std::string::npos);
}

TEST_CASE("text that is not UTF-8 is cleaned on its way out") {
  Verdict verdict;
  verdict.log_tail = std::string("ok \xff\xfe caf\xc3\xa9 \xc3", 13);
  verdict.reason = "caf\xc3\xa9";
  auto decoded = decode<Verdict>(encode(verdict));
  REQUIRE(decoded.ok());
  CHECK(decoded->log_tail == "ok \xEF\xBF\xBD\xEF\xBF\xBD caf\xc3\xa9 \xEF\xBF\xBD");
  CHECK(decoded->reason == "caf\xc3\xa9");
  CHECK(is_utf8(decoded->log_tail));
  CHECK_NOTHROW(to_json(verdict).dump());
  CHECK_FALSE(is_utf8("\xed\xa0\x80"));              // a surrogate
  CHECK_FALSE(is_utf8("\xc0\xaf"));                  // overlong
  CHECK_FALSE(is_utf8("12345678\xf4\x90\x80\x80"));  // past the last code point
  CHECK(is_utf8("\xf0\x9f\x9a\xb2 \xe2\x82\xac"));
}

}  // namespace
}  // namespace freeride::bus
