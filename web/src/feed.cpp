#include "feed.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"

namespace freeride::web {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kTickNs = 100 * kNsPerMs;
constexpr int64_t kAskNs = 5 * kNsPerSec;
constexpr int64_t kSilentNs = 12 * kNsPerSec;  // two questions without an answer
constexpr size_t kBatch = 2000;                // events between two looks at the clock

int64_t steady_to_unix_ns() {
  using namespace std::chrono;
  static const int64_t distance =
      duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count() - SteadyClock::now();
  return distance;
}

}  // namespace

int64_t Feed::now_ns() {
  return SteadyClock::now() + steady_to_unix_ns();
}

Result<std::unique_ptr<Feed>> Feed::connect(zmq::context_t& context, std::string events_endpoint,
                                            const std::string& commands_endpoint, Live& live) {
  std::unique_ptr<Feed> feed(new Feed(context, std::move(events_endpoint), live));
  const std::vector<std::string> prefixes{"task.", "worker.", "training.", "plugin.", "batch."};
  if (auto made = take(feed->states_, bus::Subscriber::connect(context, feed->events_endpoint_, prefixes)); !made)
    return made.error();
  if (auto made = take(feed->manager_, bus::Requester::connect(context, commands_endpoint)); !made) return made.error();
  return feed;
}

void Feed::drain(bus::Subscriber& subscriber) {
  std::vector<bus::Event> events;
  while (events.size() < kBatch) {
    auto event = subscriber.receive(0ms);
    if (!event) break;
    events.push_back(std::move(*event));
  }
  if (events.empty()) return;
  const int64_t received_ns = now_ns();
  live_.feed([&](Model& model) {
    for (const auto& event : events) model.on_event(event.topic, event.payload, received_ns);
  });
}

void Feed::hear_answers() {
  while (auto message = manager_->receive(0ms)) {
    if (!message->is_reply || message->error) continue;
    answered_ns_ = SteadyClock::now();
    if (message->command == bus::GetStatus::kCommand) {
      if (const auto answer = message->as<bus::StatusReply>())
        live_.feed([&](Model& model) { model.on_status(*answer, now_ns()); });
    } else if (message->command == bus::GetReport::kCommand) {
      if (const auto answer = message->as<bus::ReportReply>())
        live_.feed([&](Model& model) { model.on_report(*answer, now_ns()); });
    } else if (message->command == bus::ListFaults::kCommand) {
      if (const auto answer = message->as<bus::FaultsReply>())
        live_.feed([&](Model& model) { model.on_faults(*answer); });
    }
  }
}

void Feed::ask(int64_t now) {
  if (now < next_ask_ns_) return;
  next_ask_ns_ = now + kAskNs;
  if (asked_ns_ == 0) asked_ns_ = now;
  if (now - std::max(answered_ns_, asked_ns_) > kSilentNs) {
    const auto reachable = manager_->reachable();
    const std::string why = reachable ? "it does not answer; is freeride-manager running?" : reachable.error().text();
    live_.feed([&](Model& model) { model.on_silence(why); });
  }
  manager_->send(bus::GetStatus{});
  manager_->send(bus::GetReport{});
  manager_->send(bus::ListFaults{});
}

void Feed::follow_viewers() {
  const bool wanted = live_.wants_bubbles();
  if (wanted == (bubbles_ != nullptr)) return;
  bubbles_.reset();
  if (!wanted) return;
  if (auto made = take(bubbles_, bus::Subscriber::connect(context_, events_endpoint_, {"bubble.end/"})); !made)
    spdlog::warn("{}", made.error().text());
}

void Feed::run(int end_fd) {
  int64_t next_tick_ns = SteadyClock::now();
  while (true) {
    const int64_t now = SteadyClock::now();
    if (now >= next_tick_ns) {
      next_tick_ns = std::max(next_tick_ns + kTickNs, now);
      follow_viewers();
      ask(now);
      live_.publish(now_ns());
    }
    const int64_t left_ms = std::clamp<int64_t>((next_tick_ns - SteadyClock::now()) / kNsPerMs + 1, 0, 1000);
    // Bubbles wait for the tick: to be woken by each would cost more than to read it.
    pollfd fds[3] = {{end_fd, POLLIN, 0}, {states_->fd(), POLLIN, 0}, {manager_->fd(), POLLIN, 0}};
    poll(fds, 3, static_cast<int>(left_ms));
    if ((fds[0].revents & POLLIN) != 0) return;
    drain(*states_);
    if (bubbles_) drain(*bubbles_);
    hear_answers();
  }
}

}  // namespace freeride::web
