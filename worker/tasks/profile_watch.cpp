#include "tasks/profile_watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "freeride/pages.h"
#include "freeride/policy/profile_plan.hpp"

namespace freeride::worker {
namespace {

constexpr size_t kMostBytes =
    sizeof(freeride_profile_record) + FREERIDE_PROFILE_MOST_SAMPLES * sizeof(freeride_profile_sample);
constexpr uint64_t kLongestNs = 86'400ULL * 1'000'000'000;  // no step of a profile can have taken a day

bus::Durations summary(std::vector<int64_t> durations_ns) {
  const auto all = policy::summarise(std::move(durations_ns));
  bus::Durations out;
  out.count = all.count;
  out.p50_ns = all.p50_ns;
  out.p90_ns = all.p90_ns;
  out.p99_ns = all.p99_ns;
  out.max_ns = all.max_ns;
  return out;
}

void thin(std::vector<int64_t>& values) {
  size_t kept = 0;
  for (size_t i = 0; i < values.size(); i += 2) values[kept++] = values[i];
  values.resize(kept);
}

}  // namespace

void ProfileWatch::look(int64_t now_ns, int64_t host_bytes, int64_t gpu_bytes) {
  if (t_ns_.size() == kMostLooks) {
    thin(t_ns_);
    thin(host_bytes_);
    thin(gpu_bytes_);
    pause_ns_ *= 2;
  }
  t_ns_.push_back(now_ns - begin_ns_);
  host_bytes_.push_back(host_bytes);
  if (gpu_bytes >= 0) gpu_bytes_.push_back(gpu_bytes);
}

bool ProfileWatch::receive(int pipe_fd) {
  char buffer[16384];
  for (;;) {
    const ssize_t got = read(pipe_fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0 || record_.size() + static_cast<size_t>(got) > kMostBytes) return false;
    record_.append(buffer, static_cast<size_t>(got));
  }
}

void ProfileWatch::fill(bus::Profile& profile) const {
  profile.memory_t_ns = t_ns_;
  profile.host_bytes = host_bytes_;
  profile.gpu_bytes = gpu_bytes_;

  freeride_profile_record header{};
  if (record_.size() < sizeof(header)) return;
  std::memcpy(&header, record_.data(), sizeof(header));
  const size_t room = (record_.size() - sizeof(header)) / sizeof(freeride_profile_sample);
  if (header.magic != FREERIDE_PROFILE_MAGIC || header.major != FREERIDE_PAGES_MAJOR || header.samples > room) return;
  if (header.stop_ns < kLongestNs) profile.stop_ns = static_cast<int64_t>(header.stop_ns);
  std::vector<int64_t> starts, pauses;
  std::map<uint32_t, std::vector<int64_t>> pieces;
  for (uint32_t i = 0; i < header.samples; ++i) {
    freeride_profile_sample sample{};
    std::memcpy(&sample, record_.data() + sizeof(header) + i * sizeof(sample), sizeof(sample));
    if (sample.duration_ns > kLongestNs) continue;
    const auto duration_ns = static_cast<int64_t>(sample.duration_ns);
    switch (sample.kind) {
      case FREERIDE_PROFILE_STEP:
        profile.step_ns.push_back(duration_ns);
        break;
      case FREERIDE_PROFILE_PIECE:
        if (sample.piece < kMostPieces) pieces[sample.piece].push_back(duration_ns);
        break;
      case FREERIDE_PROFILE_START:
        starts.push_back(duration_ns);
        break;
      case FREERIDE_PROFILE_PAUSE:
        pauses.push_back(duration_ns);
        break;
      default:
        break;
    }
  }
  const size_t warm_up = policy::warm_up_steps(profile.step_ns);
  const auto warm = [warm_up](const std::vector<int64_t>& all) {
    return std::vector<int64_t>(all.begin() + static_cast<ptrdiff_t>(std::min(warm_up, all.size())), all.end());
  };
  profile.warm_up_steps = warm_up;
  profile.steps = summary(warm(profile.step_ns));
  profile.starts = summary(std::move(starts));
  profile.pauses = summary(std::move(pauses));
  // By place: a gap would give the later ones a wrong one.
  for (uint32_t place = 0; pieces.count(place) != 0; ++place) profile.pieces.push_back(summary(warm(pieces.at(place))));
  if (profile.step_ns.size() > kMostSteps) profile.step_ns.resize(kMostSteps);
}

}  // namespace freeride::worker
