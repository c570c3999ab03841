// Profiles as text.
#include "profile.hpp"

#include <catch2/catch.hpp>

#include "render.hpp"

using namespace freeride;  // NOLINT(google-build-using-namespace)
using namespace freeride::ctl;
using Catch::Contains;

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
