#include "env_file.hpp"

#include <catch2/catch.hpp>

using namespace freeride;       // NOLINT(google-build-using-namespace)
using namespace freeride::ctl;  // NOLINT(google-build-using-namespace)

namespace {

std::string changed(const std::string& text, const std::vector<EnvSetting>& settings) {
  const auto result = with_env_settings(text, settings, "node.env");
  REQUIRE(result.ok());
  // Once more changes nothing, and both readers agree.
  CHECK(with_env_settings(*result, settings, "node.env").value() == *result);
  for (const EnvSetting& setting : settings) CHECK(env_value(*result, setting.name) == setting.value);
  return *result;
}

}  // namespace

TEST_CASE("environment files: a value is what systemd takes it for") {
  CHECK(env_value("", "A").empty());
  CHECK(env_value("A=1\n", "A") == "1");
  CHECK(env_value("A=1", "A") == "1");
  CHECK(env_value("  A = one two \t\n", "A") == "one two");
  CHECK(env_value("A=1\nA=2\n", "A") == "2");
  CHECK(env_value("A=1\nA=\n", "A").empty());
  CHECK(env_value("#A=1\n ; A=2\nAA=3\nA\n", "A").empty());
  CHECK(env_value("A=\"x # y\"\n", "A") == "x # y");
  CHECK(env_value("A='x\\' \"y\n", "A") == "x\\y\n");  // after a quoted part another may begin, which has no end here
  CHECK(env_value("A=\"x\\\"\\$\\n\"\n", "A") == "x\"$\\n");
  CHECK(env_value("A=x \\\nB=y\nC=z\n", "A") == "x B=y");
  CHECK(env_value("A=x \\\nB=y\nC=z\n", "B").empty());
  CHECK(env_value("A=\"x\nB=y\"\nC=z\n", "B").empty());
  CHECK(env_value("A=\"x\nB=y\"\nC=z\n", "C") == "z");
  CHECK(env_value("A=it's\nB=1\n", "B") == "1");  // within a value it is a mark like any other
  CHECK(env_value("\n\n\tA=1\r\n", "A") == "1");
}

TEST_CASE("environment files: settings are replaced or added, and all else stays") {
  CHECK(changed("", {{"A", "1"}}) == "A=1\n");
  CHECK(changed("B=2", {{"A", "1"}}) == "B=2\nA=1\n");
  CHECK(changed("# A=0\nB = 2 \n\nA=0\nC=3\n", {{"A", "1"}}) == "# A=0\nB = 2 \n\nA=1\nC=3\n");
  CHECK(changed("A=0\nB=2\nA=9\n", {{"A", "1"}, {"C", "3"}}) == "A=1\nB=2\nC=3\n");
  CHECK(changed(" A = \"1\"\nB=2\n", {{"A", "1"}}) == " A = \"1\"\nB=2\n");
  CHECK(changed("A=0 \\\n 5\nB=\"x\nA=7\"\n", {{"A", "1"}}) == "A=1\nB=\"x\nA=7\"\n");
  CHECK(changed("AB=0\n", {{"A", "1"}}) == "AB=0\nA=1\n");
  CHECK(changed("", {{"A", "tcp://*:7420"}, {"B", "0,2-3"}}) == "A=tcp://*:7420\nB=0,2-3\n");
  CHECK(changed("", {{"A", "/my \"$folder\"/`x`\\"}}) == "A=\"/my \\\"\\$folder\\\"/\\`x\\`\\\\\"\n");
}

TEST_CASE("environment files: one that ends within a value is left alone") {
  for (const char* text : {"A='x\nB=1\n", "A=\"x", "A=x\\"}) {
    const auto result = with_env_settings(text, {{"B", "2"}}, "node.env");
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == Code::kInvalidArgument);
    CHECK(result.error().message == "node.env ends within the value of A");
  }
}
