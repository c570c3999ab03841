#include "parse.hpp"

#include <catch2/catch.hpp>

using freeride::Code;
using freeride::ctl::parse_params;
using freeride::ctl::parse_size;

TEST_CASE("spans of time") {
  CHECK(*freeride::ctl::parse_span_ms("90") == 90'000);
  CHECK(*freeride::ctl::parse_span_ms("90s") == 90'000);
  CHECK(*freeride::ctl::parse_span_ms("1.5h") == 5'400'000);
  CHECK(*freeride::ctl::parse_span_ms("2d") == 172'800'000);
  for (const char* wrong : {"", "h", "-1h", "1 fortnight", "1e300h", "nan", "inf"})
    CHECK_FALSE(freeride::ctl::parse_span_ms(wrong).ok());
}

TEST_CASE("sizes with and without units") {
  CHECK(parse_size("0").value() == 0);
  CHECK(parse_size("4096").value() == 4096);
  CHECK(parse_size("1k").value() == 1024);
  CHECK(parse_size("512MiB").value() == 512LL << 20);
  CHECK(parse_size("2GiB").value() == 2LL << 30);
  CHECK(parse_size("2 GiB").value() == 2LL << 30);
  CHECK(parse_size("1.5g").value() == 3LL << 29);
  CHECK(parse_size("1T").value() == 1LL << 40);
  CHECK(parse_size("3MB").value() == 3'000'000);
}

TEST_CASE("what is no size is refused and named") {
  for (const char* text :
       {"", "x", "-1", "+1", "GiB", "12 parsecs", "1e400", "99999999TiB", "nan", "inf", "2GiBs", " 2G"}) {
    CAPTURE(text);
    const auto size = parse_size(text);
    REQUIRE_FALSE(size.ok());
    CHECK(size.error().code == Code::kInvalidArgument);
    CHECK(size.error().message.find(std::string("'") + text + "'") != std::string::npos);
    CHECK_FALSE(size.error().hint.empty());
  }
}

TEST_CASE("parameters") {
  const auto params = parse_params({"scale=14", "url=a=b", "empty="});
  REQUIRE(params.ok());
  CHECK(params.value() == std::map<std::string, std::string>{{"scale", "14"}, {"url", "a=b"}, {"empty", ""}});
  CHECK(parse_params({}).value().empty());
  CHECK(parse_params({"scale"}).error().code == Code::kInvalidArgument);
  CHECK(parse_params({"=1"}).error().code == Code::kInvalidArgument);
  CHECK(parse_params({"a=1", "a=2"}).error().message.find("'a'") != std::string::npos);
}
