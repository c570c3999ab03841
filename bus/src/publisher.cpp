#include <spdlog/spdlog.h>
#include <unistd.h>

#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/random.hpp"
#include "freeride/bus/bounds.hpp"
#include "freeride/bus/sockets.hpp"
#include "kept.hpp"
#include "message.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {

namespace {
constexpr int64_t kLookNs = 50 * kNsPerMs;
constexpr uint64_t kCatchUpEvents = 128;
}  // namespace

// XPUB, not PUB: it tells when a broker has (re)connected, because that broker subscribes. Then the kept states are
// said again, so that a broker started anew has them without any help from the program.
struct Publisher::Impl {
  Impl(zmq::context_t& context) : socket(context, zmq::socket_type::xpub) {}

  void say(const std::string& topic, std::string_view payload) {
    try {  // what does not fit is a gap
      if (socket.send(zmq::buffer(topic), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
        (void)socket.send(zmq::buffer(payload), zmq::send_flags::dontwait);
      }
    } catch (const zmq::error_t&) {
    }
  }

  // What libzmq's own thread has sent on counts as queued until this socket is told, and a socket that only sends looks
  // for that once in 3 million clock ticks: at full speed a thousand events later, which can make an almost empty queue
  // a full one. Asked for its state it looks at once.
  void catch_up() {
    if (++said % kCatchUpEvents == 0) (void)socket.get(zmq::sockopt::events);
  }

  // Looking for subscriptions is a system call: not for every event.
  void answer_brokers(int64_t now_ns) {
    if (now_ns < next_look_ns) return;
    next_look_ns = now_ns + kLookNs;
    detail::Frames frames;
    bool too_many = false;
    bool joined = false;
    while (detail::receive_frames(socket, frames, too_many)) {
      const std::string_view frame = detail::view(frames.front());
      joined = joined || (frames.size() == 1 && !frame.empty() && frame[0] == 1);
    }
    if (!joined) return;
    kept.for_each("", [this](const std::string& topic, const std::string& payload) {
      if (auto marked = detail::mark_kept(payload)) say(topic, *marked);
    });
  }

  zmq::socket_t socket;
  std::string source;
  uint64_t seq = 0, said = 0;
  int64_t last_ns = 0, next_look_ns = 0;
  bool warned = false;
  detail::KeptStates kept{bounds().kept_topics, bounds().kept_bytes};
};

Publisher::Publisher() = default;
Publisher::~Publisher() = default;

Result<std::unique_ptr<Publisher>> Publisher::connect(zmq::context_t& context, const std::string& endpoint,
                                                      const std::string& source) {
  std::unique_ptr<Publisher> publisher(new Publisher);
  try {
    publisher->impl_ = std::make_unique<Impl>(context);
    publisher->impl_->source = source + " #" + std::to_string(::getpid()) + "-" + random_hex().substr(0, 8);
    zmq::socket_t& socket = publisher->impl_->socket;
    socket.set(zmq::sockopt::linger, detail::kLingerMs);
    // A connecting socket keeps its queue and subscriptions while the broker is away: what is published meanwhile
    // arrives later, and the new broker's subscription is not the first of its kind. Verbose shows it all the same.
    socket.set(zmq::sockopt::xpub_verbose, true);
    socket.set(zmq::sockopt::sndhwm, detail::kEventsHwm);
    socket.set(zmq::sockopt::reconnect_ivl, detail::kReconnectMs);
    socket.set(zmq::sockopt::reconnect_ivl_max, detail::kReconnectMaxMs);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxTopicBytes));
    connect_endpoint(socket, endpoint);
  } catch (const zmq::error_t& error) {
    return detail::socket_error("cannot publish to " + endpoint, error, "check the endpoint");
  }
  return publisher;
}

const std::string& Publisher::source() const {
  return impl_->source;
}

Envelope Publisher::next_envelope() {
  Envelope envelope;
  envelope.source = impl_->source;
  envelope.seq = ++impl_->seq;
  envelope.t_ns = impl_->last_ns = SteadyClock::now();
  return envelope;
}

void Publisher::publish_raw(const std::string& topic, const std::string& payload) {
  impl_->answer_brokers(impl_->last_ns);
  if (payload.size() > detail::kMaxEventBytes || topic.size() > detail::kMaxTopicBytes) {
    if (!impl_->warned) {
      spdlog::warn("event {} of {} bytes is dropped: at most {} bytes travel; further ones are dropped silently",
                   topic.substr(0, 80), payload.size(), detail::kMaxEventBytes);
    }
    impl_->warned = true;
    return;
  }
  if (detail::is_kept_topic(topic)) impl_->kept.update(topic, payload);
  impl_->catch_up();
  impl_->say(topic, payload);
}

void Publisher::refresh() {
  impl_->next_look_ns = 0;
  impl_->answer_brokers(SteadyClock::now());
}

}  // namespace freeride::bus
