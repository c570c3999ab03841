// Profiles as text, and the file of exported ones.
#include "profile.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "freeride/bus/json.hpp"
#include "render.hpp"

using namespace freeride;  // NOLINT(google-build-using-namespace)
using namespace freeride::ctl;
using Catch::Contains;
using nlohmann::json;

namespace {

bus::Profile sample() {
  bus::Profile profile;
  profile.plugin = "side.so";
  profile.sha256 = std::string(64, 'a');
  profile.params["size"] = "3";
  profile.device_model = "NVIDIA H200";
  profile.worker = "host:GPU-1";
  profile.conditions = "idle";
  profile.taken_unix_ms = 1'700'000'000'000;
  profile.peak_bytes = {{"host", int64_t{3} << 20}, {"gpu", int64_t{5} << 30}};
  profile.create_ns = 1'500'000;
  profile.init_ns = 2'500'000'000;
  profile.steps = {64, 2'000'000, 3'000'000, 4'000'000, 5'000'000};
  profile.starts = {1, 7'000, 7'000, 7'000, 7'000};
  profile.step_ns = {1, 2, 3};
  profile.memory_t_ns = {0, 5};
  profile.host_bytes = {1, 2};
  profile.gpu_bytes = {3, 4};
  profile.ended = "profiled";
  return profile;
}

}  // namespace

TEST_CASE("profile: as a table, with every part that was measured and no other") {
  const std::string text = render_profile(sample(), false);
  CHECK_THAT(text, Contains("GPU memory          5.0 GiB at most"));
  CHECK_THAT(text, Contains("host memory         3.0 MiB at most"));
  CHECK_THAT(text, Contains("InitSideTask"));
  CHECK_THAT(text, Contains("a step"));
  CHECK_THAT(text, Contains("4.00 ms"));
  CHECK_THAT(text, !Contains("piece"));
  CHECK_THAT(text, !Contains("PauseSideTask"));
  CHECK_THAT(text, !Contains("--again"));
  CHECK_THAT(render_profile(sample(), true), Contains("--again takes it again"));
}

TEST_CASE("profile: without a GPU its columns are absent, not zero") {
  bus::Profile cpu = sample();
  cpu.peak_bytes.erase("gpu");
  CHECK_THAT(render_profile(cpu, false), !Contains("GPU memory"));
  bus::ProfilesReply reply;
  reply.profiles = {cpu};
  CHECK_THAT(list_profiles(reply).text(), !Contains("GPU MEMORY"));
  reply.profiles.push_back(sample());
  CHECK_THAT(list_profiles(reply).text(), Contains("GPU MEMORY"));
  CHECK_THAT(list_profiles(bus::ProfilesReply{}).text(), Contains("no profiles"));
}

TEST_CASE("profile: what a profile says cannot move the cursor") {
  bus::Profile odd = sample();
  odd.plugin = "a\x1b[2Jb";
  odd.params["\x1b[1m"] = "\r";
  odd.ended = "\x07";
  CHECK(render_profile(odd, true).find_first_of("\x1b\r\x07") == std::string::npos);
}

TEST_CASE("profile: a file comes back as it went") {
  const auto read = read_profiles(profiles_file({sample(), sample()}), "f.json");
  REQUIRE(read.ok());
  REQUIRE(read->profiles.size() == 2);
  CHECK(bus::to_json(read->profiles[0]) == bus::to_json(sample()));
}

TEST_CASE("profile: a file that is none, or is newer, is one clear line") {
  const auto refusal = [](const std::string& text) {
    const auto read = read_profiles(text, "f.json");
    REQUIRE_FALSE(read.ok());
    CHECK(read.error().text().find('\n') == std::string::npos);
    CHECK_THAT(read.error().message, Contains("f.json"));
    return read.error();
  };
  CHECK_THAT(refusal("").message, Contains("not JSON"));
  CHECK_THAT(refusal("{\"format\": \"freeride-profiles\"").message, Contains("not JSON"));
  CHECK_THAT(refusal("[]").message, Contains("its format is not"));
  CHECK_THAT(refusal("{\"format\": 3}").message, Contains("its format is not"));
  CHECK_THAT(refusal(R"({"format": "freeride-profiles", "profiles": []})").message, Contains("no version"));
  const Error newer = refusal(R"({"format": "freeride-profiles", "version": 2, "profiles": 3})");
  CHECK(newer.code == Code::kVersion);
  CHECK_THAT(newer.message, Contains("has version 2"));
  CHECK_THAT(refusal(R"({"format": "freeride-profiles", "version": 1})").message, Contains("no list"));
  json file = json::parse(profiles_file({sample()}));
  file["profiles"][0]["create_ns"] = "long";
  CHECK_THAT(refusal(file.dump()).message, Contains("'create_ns' must be an integer"));
  file["profiles"] = {1, 2, 3};
  refusal(file.dump());
  // Nested so deeply that whatever walks through it would run out of stack.
  const std::string deep(200'000, '[');
  const auto harmless = read_profiles(R"({"format": "freeride-profiles", "version": 1, "profiles": [{"step_ns": )" +
                                          deep + std::string(200'000, ']') + "}]}",
                                      "f.json");
  CHECK_FALSE((harmless.ok() && harmless->profiles.size() > 1));
}
