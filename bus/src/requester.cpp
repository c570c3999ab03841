#include <algorithm>
#include <deque>
#include <unordered_set>

#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/random.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/probe.hpp"
#include "freeride/bus/sockets.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {
namespace {
constexpr int64_t kRepeatNs = kNsPerSec;                 // a request is repeated after so much silence
constexpr size_t kBulkBytes = WritePlugin::kPieceBytes;  // more than that is repeated after pauses that double
constexpr int64_t kUnsentLifeNs =
    10 * kNsPerSec;  // what could not be sent for so long is not sent any more: it is history by then
constexpr size_t kMaxUnsent = 64, kMaxInbox = 1024, kMaxOutstanding = 1024;
}  // namespace

struct Requester::Impl {
  Impl(zmq::context_t& context) : socket(context, zmq::socket_type::dealer), wait(socket) {}

  struct Unsent {
    int64_t since_ns = 0;
    detail::Frames frames;
  };

  detail::Frames frames_of(const Message& message) const {
    detail::Frames frames;
    frames.push_back(detail::frame_of(detail::pack_message(message)));
    const size_t most = tcp ? detail::kTcpFrameBytes : detail::kMaxCommandFrameBytes;
    for (std::string_view rest = message.attachment; !rest.empty(); rest.remove_prefix(std::min(most, rest.size())))
      frames.push_back(detail::frame_of(rest.substr(0, most)));
    return frames;
  }

  // Why waiting does not help; fine while it may.
  Status hopeless() { return watch ? watch->look() : Status(); }

  // libzmq shares the bytes: copies for another attempt are cheap, also for a plugin of many megabytes.
  static detail::Frames share(detail::Frames& frames) {
    detail::Frames copies(frames.size());
    for (size_t i = 0; i < frames.size(); ++i) copies[i].copy(frames[i]);
    return copies;
  }

  void flush() {
    const int64_t now = SteadyClock::now();
    while (!unsent.empty()) {
      if (now - unsent.front().since_ns <= kUnsentLifeNs && !detail::send_frames(socket, share(unsent.front().frames)))
        return;
      unsent.pop_front();
    }
  }

  void send(detail::Frames frames) {
    flush();
    if (!unsent.empty() || !detail::send_frames(socket, share(frames))) {
      if (unsent.size() >= kMaxUnsent) unsent.pop_front();
      unsent.push_back({SteadyClock::now(), std::move(frames)});
    }
    wait.after_send(!inbox.empty());
  }

  void reply(const std::string& id, const std::string& command, std::optional<Error> error, std::string body,
             std::string attachment) {
    Message message;
    message.is_reply = true;
    message.id = id;
    message.command = command;
    message.error = std::move(error);
    message.body = std::move(body);
    message.attachment = std::move(attachment);
    send(frames_of(message));
  }

  // Reads what has arrived. Stops at the reply to `awaited`, if that is not null.
  std::optional<Result<Message>> take(const std::string* awaited) {
    detail::Frames frames;
    bool too_many = false;
    while (detail::receive_frames(socket, frames, too_many)) {
      const std::string_view first = detail::view(frames.front());
      Result<Message> message =
          frames.size() > 2 || too_many
              ? Result<Message>(Error{Code::kInvalidArgument, "malformed command: too many frames", ""})
              : detail::unpack_message(first, frames.size() == 2 ? frames[1].to_string() : std::string());
      if (!message) {
        const detail::Salvaged salvaged = detail::salvage(first);
        if (salvaged.id.empty()) continue;
        if (awaited != nullptr && !salvaged.is_request && salvaged.id == *awaited) return message;
        if (salvaged.is_request) reply(salvaged.id, salvaged.command, message.error(), {}, {});
        continue;
      }
      if (message->is_reply) {
        if (awaited != nullptr && message->id == *awaited) return message;
        if (outstanding.erase(message->id) == 0) continue;  // a second answer, or one that came after we had given up
      }
      if (inbox.size() >= kMaxInbox) inbox.pop_front();
      inbox.push_back(std::move(*message));
    }
    return std::nullopt;
  }

  // Whether to send once more what a connection has been given. Over TCP a connection loses nothing while it lives, and
  // what is under way would be sent twice. Behind a socket of this host there may be a node, which loses what its link
  // does.
  bool repeats(uint64_t sent_over, bool attached) const {
    return !watch || !attached || watch->connections() != sent_over;
  }

  std::string next_id() { return prefix + "-" + std::to_string(++count); }

  zmq::socket_t socket;
  std::unique_ptr<detail::HandshakeWatch> watch;  // at a TCP endpoint
  detail::WaitFd wait;
  std::string endpoint;
  bool tcp = false, sent = false;
  std::optional<uint32_t> uid;
  std::string prefix = random_hex();
  uint64_t count = 0;
  std::deque<Unsent> unsent;
  std::deque<Message> inbox;
  std::unordered_set<std::string> outstanding;
};

Requester::Requester() = default;
Requester::~Requester() = default;

Result<std::unique_ptr<Requester>> Requester::connect(zmq::context_t& context, const std::string& endpoint,
                                                      const ClientKey* key) {
  std::unique_ptr<Requester> requester(new Requester);
  try {
    requester->impl_ = std::make_unique<Impl>(context);
    requester->impl_->endpoint = endpoint;
    zmq::socket_t& socket = requester->impl_->socket;
    socket.set(zmq::sockopt::linger, detail::kLingerMs);
    socket.set(zmq::sockopt::reconnect_ivl, detail::kReconnectMs);
    socket.set(zmq::sockopt::reconnect_ivl_max, detail::kReconnectMaxMs);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxCommandFrameBytes));
    // Without this, libzmq would queue requests while nobody is there, and a manager that comes minutes later would be
    // given them.
    socket.set(zmq::sockopt::immediate, true);
    if (requester->impl_->tcp = detail::is_tcp(endpoint); requester->impl_->tcp) {
      if (auto known = detail::check_tcp_host(endpoint); !known) return known.error();
      detail::set_client_key(socket, key);
      requester->impl_->watch = std::make_unique<detail::HandshakeWatch>(context, socket, endpoint, key);
    }
    connect_endpoint(socket, endpoint);
  } catch (const zmq::error_t& error) {
    return detail::socket_error("cannot connect to " + endpoint, error, "check the endpoint");
  }
  return requester;
}

Result<Message> Requester::request_raw(const std::string& command, std::string body, std::chrono::milliseconds timeout,
                                       std::string attachment, const std::string& id) {
  Message request;
  request.id = id.empty() ? impl_->next_id() : id;
  request.command = command;
  request.body = std::move(body);
  request.attachment = std::move(attachment);
  request.uid = impl_->uid;
  detail::Frames frames = impl_->frames_of(request);
  if (impl_->tcp && frames.front().size() > detail::kTcpFrameBytes) {
    return Error{Code::kInvalidArgument, command + " is larger than a command may be over TCP",
                 "run freeride-ctl on the manager's host"};
  }
  const int64_t deadline = detail::deadline_after(timeout);
  const bool attached = !request.attachment.empty(), bulk = request.attachment.size() > kBulkBytes;
  int64_t repeat_at = 0, pause_ns = kRepeatNs;
  uint64_t sent_over = 0;
  bool& sent = impl_->sent = false;
  for (bool first = true;; first = false) {
    const int64_t now = SteadyClock::now();
    if (now >= repeat_at && sent && !impl_->repeats(sent_over, attached)) {
      repeat_at = now + kRepeatNs;
    } else if (now >= repeat_at) {
      if (sent && bulk) pause_ns *= 2;
      repeat_at = detail::send_frames(impl_->socket, Impl::share(frames)) ? now + pause_ns : 0;
      sent = sent || repeat_at != 0;
      (void)impl_->hopeless();  // which notes the connection
      if (impl_->watch) sent_over = std::max<uint64_t>(impl_->watch->connections(), 1);
    }
    // Not connected: what waiting does not mend is said at once.
    if (first && repeat_at == 0) {
      if (auto open = why_unreachable(impl_->endpoint); !open) return open.error();
    }
    if (auto reply = impl_->take(&request.id)) {
      impl_->wait.after_send(!impl_->inbox.empty());
      if (reply->ok() && (*reply)->error) return *(*reply)->error;
      return std::move(*reply);
    }
    if (auto hope = impl_->hopeless(); !hope) return hope.error();
    const long left = detail::milliseconds_until(repeat_at == 0 ? deadline : std::min(deadline, repeat_at));
    if (detail::milliseconds_until(deadline) == 0) break;
    const short unsent = repeat_at == 0 ? ZMQ_POLLOUT : 0;  // not connected yet: wait for that too
    zmq::pollitem_t items[] = {{impl_->socket.handle(), 0, static_cast<short>(ZMQ_POLLIN | unsent), 0},
                               {impl_->watch ? impl_->watch->socket().handle() : nullptr, -1, ZMQ_POLLIN, 0}};
    try {
      zmq::poll(items, impl_->watch ? 2 : 1, std::chrono::milliseconds(left));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR)
        return Error{Code::kUnavailable, "the connection to " + impl_->endpoint + " was closed", ""};
    }
  }
  impl_->wait.after_send(!impl_->inbox.empty());
  if (impl_->tcp) {
    if (auto there = probe_tcp(impl_->endpoint); !there) return there.error();
  }
  const std::string what = " (command " + command + ", waited " + std::to_string(timeout.count()) + " ms)";
  return Error{Code::kTimeout, "no manager answers at " + impl_->endpoint + what,
               impl_->sent ? "look whether freeride-manager is busy, or its link slow, and wait longer with --timeout"
                           : "start freeride-manager, or name its run folder with --run-dir"};
}

bool Requester::may_be_done() const {
  return impl_->sent;
}

void Requester::speak_for(std::optional<uint32_t> uid) {
  impl_->uid = uid;
}

Status Requester::reachable() const {
  if (auto hope = impl_->hopeless(); !hope) return hope;
  return why_unreachable(impl_->endpoint);
}

std::string Requester::send_raw(const std::string& command, std::string body, std::string attachment) {
  Message request;
  request.id = impl_->next_id();
  request.command = command;
  request.body = std::move(body);
  request.attachment = std::move(attachment);
  request.uid = impl_->uid;
  if (impl_->outstanding.size() >= kMaxOutstanding) impl_->outstanding.clear();  // answers that will never come
  impl_->outstanding.insert(request.id);
  impl_->send(impl_->frames_of(request));
  return request.id;
}

void Requester::reply_raw(const Message& request, std::optional<Error> error, std::string body,
                          std::string attachment) {
  impl_->reply(request.id, request.command, std::move(error), std::move(body), std::move(attachment));
}

std::optional<Message> Requester::receive(std::chrono::milliseconds timeout) {
  const int64_t deadline = detail::deadline_after(timeout);
  for (;;) {
    impl_->flush();
    if (impl_->inbox.empty()) (void)impl_->take(nullptr);
    if (!impl_->inbox.empty()) {
      Message message = std::move(impl_->inbox.front());
      impl_->inbox.pop_front();
      return message;
    }
    const long left = detail::milliseconds_until(deadline);
    if (left == 0) break;
    detail::wait_readable(impl_->socket, left);
  }
  impl_->wait.drained();
  return std::nullopt;
}

int Requester::fd() const {
  return impl_->wait.fd();
}

}  // namespace freeride::bus
