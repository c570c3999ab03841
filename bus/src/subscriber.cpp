#include <unordered_map>

#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/probe.hpp"
#include "freeride/bus/sockets.hpp"
#include "kept.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {
namespace {
constexpr size_t kMaxSources = 32768, kMaxTopics = 131072;
}  // namespace

struct Subscriber::Impl {
  Impl(zmq::context_t& context) : socket(context, zmq::socket_type::sub), wait(socket) {}

  struct Seen {
    std::string source;
    uint64_t seq = 0;
  };

  // Whether the event is news; counts gaps. A late joiner is sent each kept state once more, perhaps beside its live
  // copy, and so is everybody else, because a broker cannot send to one subscriber only.
  bool is_news(const Event& event) {
    const Envelope& envelope = event.envelope;
    if (!envelope.kept) {
      if (last_seq.size() > kMaxSources)
        last_seq.clear();  // publishers come and go; forgetting costs no more than a gap unseen
      auto [entry, first] = last_seq.try_emplace(envelope.source, envelope.seq);
      if (!first) {
        if (envelope.seq <= entry->second) return false;
        lost += envelope.seq - entry->second - 1;
        entry->second = envelope.seq;
      }
    }
    if (detail::is_kept_topic(event.topic)) {
      if (topics.size() > kMaxTopics) topics.clear();
      Seen& seen = topics[event.topic];
      if (seen.source == envelope.source && seen.seq >= envelope.seq) return false;
      seen = {envelope.source, envelope.seq};
    }
    return true;
  }

  std::optional<Event> next() {
    detail::Frames frames;
    bool too_many = false;
    while (detail::receive_frames(socket, frames, too_many)) {
      if (frames.size() != 2 || too_many || frames[0].size() > detail::kMaxTopicBytes) {
        ++malformed;
        continue;
      }
      auto envelope = decode<Envelope>(detail::view(frames[1]));
      if (!envelope || envelope->source.empty() || envelope->seq == 0) {
        ++malformed;
        continue;
      }
      Event event{std::string(detail::view(frames[0])), std::move(*envelope), std::string(detail::view(frames[1]))};
      if (is_news(event)) return event;
    }
    return std::nullopt;
  }

  zmq::socket_t socket;
  std::unique_ptr<detail::HandshakeWatch> watch;  // at a TCP endpoint
  detail::WaitFd wait;
  std::string endpoint;
  std::unordered_map<std::string, uint64_t> last_seq;
  std::unordered_map<std::string, Seen> topics;
  uint64_t lost = 0, malformed = 0;
};

Subscriber::Subscriber() = default;
Subscriber::~Subscriber() = default;

Result<std::unique_ptr<Subscriber>> Subscriber::connect(zmq::context_t& context, const std::string& endpoint,
                                                        const std::vector<std::string>& topic_prefixes,
                                                        const ClientKey* key, int queued) {
  std::unique_ptr<Subscriber> subscriber(new Subscriber);
  for (const std::string& prefix : topic_prefixes) {
    if (prefix.size() > detail::kMaxTopicBytes / 2) {
      return Error{Code::kInvalidArgument, "topic prefix '" + prefix.substr(0, 40) + "…' is too long",
                   "use a shorter one"};
    }
  }
  try {
    subscriber->impl_ = std::make_unique<Impl>(context);
    zmq::socket_t& socket = subscriber->impl_->socket;
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvhwm, queued);
    socket.set(zmq::sockopt::reconnect_ivl, detail::kReconnectMs);
    socket.set(zmq::sockopt::reconnect_ivl_max, detail::kReconnectMaxMs);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxEventBytes));
    for (const std::string& prefix : topic_prefixes) socket.set(zmq::sockopt::subscribe, prefix);
    subscriber->impl_->endpoint = endpoint;
    if (detail::is_tcp(endpoint)) {
      if (auto known = detail::check_tcp_host(endpoint); !known) return known.error();
      detail::set_client_key(socket, key);
      subscriber->impl_->watch = std::make_unique<detail::HandshakeWatch>(context, socket, endpoint, key);
    }
    connect_endpoint(socket, endpoint);
  } catch (const zmq::error_t& error) {
    return detail::socket_error("cannot subscribe at " + endpoint, error, "check the endpoint");
  }
  return subscriber;
}

Status Subscriber::reachable() {
  return impl_->watch ? impl_->watch->look() : Status();
}

Status Subscriber::await(std::chrono::milliseconds timeout) {
  if (!impl_->watch) return {};
  const int64_t deadline = detail::deadline_after(timeout);
  for (;;) {
    if (auto hope = impl_->watch->look(); !hope || impl_->watch->connected()) return hope;
    const long left = detail::milliseconds_until(deadline);
    if (left == 0) break;
    detail::wait_readable(impl_->watch->socket(), left);
  }
  if (auto there = probe_tcp(impl_->endpoint); !there) return there;
  return Error{Code::kTimeout, "no manager answers at " + impl_->endpoint, "check --manager"};
}

std::optional<Event> Subscriber::receive(std::chrono::milliseconds timeout) {
  const int64_t deadline = detail::deadline_after(timeout);
  for (;;) {
    if (auto event = impl_->next()) return event;
    const long left = detail::milliseconds_until(deadline);
    if (left == 0) break;
    detail::wait_readable(impl_->socket, left);
  }
  impl_->wait.drained();
  return std::nullopt;
}

uint64_t Subscriber::lost() const {
  return impl_->lost;
}
uint64_t Subscriber::malformed() const {
  return impl_->malformed;
}
int Subscriber::fd() const {
  return impl_->wait.fd();
}

}  // namespace freeride::bus
