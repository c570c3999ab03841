#include "tasks/profile_watch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/pages.h"

using namespace freeride;
using namespace freeride::worker;

namespace {

std::string record(const std::vector<freeride_profile_sample>& samples) {
  freeride_profile_record header{};
  header.magic = FREERIDE_PROFILE_MAGIC;
  header.major = FREERIDE_PAGES_MAJOR;
  header.samples = static_cast<uint32_t>(samples.size());
  header.stop_ns = 77;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  if (!samples.empty())
    bytes.append(reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(samples[0]));
  return bytes;
}

// What a worker makes of these bytes, written by a runner.
bus::Profile received(const std::string& bytes) {
  int fds[2];
  REQUIRE(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
  const Fd out(fds[0]);
  Fd in(fds[1]);
  ProfileWatch watch(1000);
  CHECK(watch.receive(out.get()));
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(in.get(), bytes.data() + at, bytes.size() - at);
    if (written > 0) at += static_cast<size_t>(written);
    if (!watch.receive(out.get())) break;
  }
  in.reset();
  CHECK_FALSE(watch.receive(out.get()));
  bus::Profile profile;
  watch.fill(profile);
  return profile;
}

}  // namespace

TEST_CASE("a profile's record: steps, pieces by place, starts and pauses", "[profile]") {
  const auto profile = received(record({{5, FREERIDE_PROFILE_START, 0},
                                        {10, FREERIDE_PROFILE_PIECE, 0},
                                        {20, FREERIDE_PROFILE_PIECE, 1},
                                        {30, FREERIDE_PROFILE_STEP, 0},
                                        {12, FREERIDE_PROFILE_PIECE, 0},
                                        {28, FREERIDE_PROFILE_PIECE, 1},
                                        {40, FREERIDE_PROFILE_STEP, 0},
                                        {7, FREERIDE_PROFILE_PAUSE, 0}}));
  CHECK(profile.step_ns == std::vector<int64_t>{30, 40});
  CHECK(profile.steps.count == 2);
  CHECK(profile.steps.max_ns == 40);
  CHECK(profile.starts.p50_ns == 5);
  CHECK(profile.pauses.p50_ns == 7);
  CHECK(profile.stop_ns == 77);
  REQUIRE(profile.pieces.size() == 2);
  CHECK(profile.pieces[0].max_ns == 12);
  CHECK(profile.pieces[1].max_ns == 28);
}

TEST_CASE("a profile's record that lies is no record, and harms nobody", "[profile]") {
  const std::string good = record({{30, FREERIDE_PROFILE_STEP, 0}, {40, FREERIDE_PROFILE_STEP, 0}});
  CHECK(received("").steps.count == 0);
  CHECK(received(good.substr(0, good.size() - 1)).steps.count == 0);
  std::string other = good;
  other[0] = 'x';
  CHECK(received(other).steps.count == 0);
  freeride_profile_record header{};
  std::memcpy(&header, good.data(), sizeof(header));
  header.samples = 0xffffffff;
  other = good;
  std::memcpy(other.data(), &header, sizeof(header));
  CHECK(received(other).steps.count == 0);
  // Durations beyond all sense, kinds and places that there are not.
  const auto odd = received(record({{UINT64_MAX, FREERIDE_PROFILE_STEP, 0},
                                    {30, FREERIDE_PROFILE_STEP, 0},
                                    {30, 99, 0},
                                    {30, FREERIDE_PROFILE_PIECE, 0xffffffff},
                                    {30, FREERIDE_PROFILE_PIECE, 3}}));
  CHECK(odd.steps.count == 1);
  CHECK(odd.pieces.empty());
  // More than a record can be: what is too much is not even kept.
  CHECK(received(std::string(1 << 20, 'x')).steps.count == 0);
}

TEST_CASE("a profile's memory: many looks become fewer, and none is of another moment", "[profile]") {
  ProfileWatch watch(1000);
  for (int64_t i = 0; i < 5000; ++i) watch.look(1000 + i, 10 * i, -1);
  bus::Profile profile;
  watch.fill(profile);
  CHECK(profile.memory_t_ns.size() <= ProfileWatch::kMostLooks);
  CHECK(profile.memory_t_ns.size() >= ProfileWatch::kMostLooks / 2);
  CHECK(watch.pause_ns() > ProfileWatch::kFirstPauseNs);
  CHECK(profile.gpu_bytes.empty());
  REQUIRE(profile.host_bytes.size() == profile.memory_t_ns.size());
  CHECK(profile.memory_t_ns.front() == 0);
  for (size_t i = 0; i < profile.host_bytes.size(); ++i) CHECK(profile.host_bytes[i] == 10 * profile.memory_t_ns[i]);
  ProfileWatch on_gpu(0);
  on_gpu.look(1, 2, 3);
  bus::Profile both;
  on_gpu.fill(both);
  CHECK(both.gpu_bytes == std::vector<int64_t>{3});
}
