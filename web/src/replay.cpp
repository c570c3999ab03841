#include "replay.hpp"

#include <poll.h>

#include <algorithm>
#include <string>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"

namespace freeride::web {
namespace {

constexpr int64_t kTickNs = 100 * kNsPerMs;
constexpr int64_t kTellNs = 80 * kNsPerMs;  // of a tick, at most, is spent on reading
constexpr int64_t kNothingNs = 10 * kNsPerSec;
constexpr size_t kBatch = 2000;  // events of one frame

// A time that the disk tells, and so any number.
int64_t later(int64_t ns, double by_ns) {
  const double sum = static_cast<double>(ns) + by_ns;
  if (sum >= 9.2e18) return std::numeric_limits<int64_t>::max();
  return ns + static_cast<int64_t>(by_ns);
}

void take_in(Model& model, const recorder::Recorded& event) {
  // A repeated state was published long before: its publisher's clock is told by that moment.
  model.on_event(std::string(event.topic), event.payload, event.is_repeated() ? event.published_ns : event.time_ns);
}

}  // namespace

Result<std::unique_ptr<Replay>> Replay::open(const std::filesystem::path& recording, double speed, double skip_s,
                                             Live& live) {
  const Error nothing{Code::kNotFound,
                      "nothing happens in " + recording.string() + " after its first " +
                          std::to_string(static_cast<int64_t>(skip_s)) + " s",
                      "see freeride-ctl recording ls --recording " + recording.string()};
  recorder::Range range;
  {
    auto whole = recorder::Reader::open(recording);
    if (!whole) return whole.error();
    int64_t begin_ns = std::numeric_limits<int64_t>::max();
    for (const auto& file : (*whole)->files()) {
      if (file.chunks > 0) begin_ns = std::min(begin_ns, file.begin_ns);
    }
    if (begin_ns == std::numeric_limits<int64_t>::max()) return nothing;
    range.from_ns = later(begin_ns, skip_s * static_cast<double>(kNsPerSec));
    range.states_before = true;
  }
  const int64_t from_ns = range.from_ns;
  auto reader = recorder::Reader::open(recording, std::move(range));
  if (!reader) return reader.error();
  std::unique_ptr<Replay> replay(new Replay(std::move(*reader), speed, live));
  live.feed([&](Model& model) {
    model.on_replay(speed);
    replay->next_ = replay->reader_->next();
    for (; replay->next_ && (replay->next_->time_ns < from_ns || replay->next_->is_repeated());
         replay->next_ = replay->reader_->next()) {
      take_in(model, *replay->next_);
    }
  });
  if (!replay->next_) return nothing;
  replay->now_ns_ = replay->next_->time_ns;
  return replay;
}

// What has happened by now, or a part of it: then true.
bool Replay::tell() {
  const int64_t now = now_ns_;
  size_t told = 0;
  live_.feed([&](Model& model) {
    for (; next_ && next_->time_ns <= now && told < kBatch; next_ = reader_->next(), ++told) {
      // States with which each file begins are known from the one before.
      if (!next_->is_repeated()) take_in(model, *next_);
    }
    if (!next_ && !ended_) {
      ended_ = true;
      model.on_replay(0);
    }
  });
  return told == kBatch;
}

void Replay::run(int end_fd) {
  int64_t before = SteadyClock::now();
  while (true) {
    const int64_t tick = SteadyClock::now();
    if (live_.is_watched() && !ended_) {
      now_ns_ = later(now_ns_, static_cast<double>(tick - before) * speed_);
      bool behind = tell();
      while (behind && SteadyClock::now() - tick < kTellNs) {
        live_.publish(now_ns_);
        behind = tell();
      }
      // The disk, or this host, is slower than was asked for; or there is nothing for long.
      if (next_ && (behind || next_->time_ns - now_ns_ > kNothingNs)) now_ns_ = next_->time_ns;
    }
    before = tick;
    live_.publish(now_ns_);
    const int64_t left_ms = std::clamp<int64_t>((tick + kTickNs - SteadyClock::now()) / kNsPerMs + 1, 0, 100);
    pollfd end{end_fd, POLLIN, 0};
    if (poll(&end, 1, static_cast<int>(left_ms)) > 0) break;
  }
  if (reader_->damaged() > 0) spdlog::warn("{} damaged chunks of the recording were left out", reader_->damaged());
}

}  // namespace freeride::web
