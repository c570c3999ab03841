#include <sys/epoll.h>

#include <new>

#include "answers.hpp"
#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/random.hpp"
#include "freeride/bus/bounds.hpp"
#include "freeride/bus/sockets.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {

struct Server::Impl {
  Impl(zmq::context_t& context) : socket(context, zmq::socket_type::router), wait(socket) {}

  // The TCP port has a socket of its own: what comes out of it has come from the network, whatever it says of itself.
  struct Network {
    Network(zmq::context_t& context, const Doorkeeper* keys)
        : socket(context, zmq::socket_type::router), wait(socket), door(keys) {}
    detail::TcpListener listener;  // before the socket: released after it is closed
    zmq::socket_t socket;
    detail::WaitFd wait;
    const Doorkeeper* door;
    Fd either;  // readable when one of both sockets is
  };

  // A peer's name begins with the letter of its socket, since peers may choose the rest. One behind a node has its
  // node's name, with its length before it, and its address there.
  static constexpr char kLocal = 'l', kRemote = 'r', kRelayed = 'n';

  bool send(const std::string& peer, const std::string& frame, const std::string& attachment) {
    const bool relayed = !peer.empty() && peer[0] == kRelayed;
    const bool remote = relayed || (!peer.empty() && peer[0] == kRemote);
    if (peer.empty() || (remote && !network)) return false;
    const std::string_view name = std::string_view(peer).substr(1);
    detail::Frames frames;
    if (relayed) {
      const size_t node = static_cast<unsigned char>(name[0]);
      frames.push_back(detail::frame_of(name.substr(1, node)));
      frames.push_back(detail::frame_of(name.substr(1 + node)));
    } else {
      frames.push_back(detail::frame_of(name));
    }
    frames.push_back(detail::frame_of(frame));
    if (!attachment.empty()) frames.push_back(detail::frame_of(attachment));
    const bool sent = detail::send_frames(remote ? network->socket : socket, std::move(frames));
    (remote ? network->wait : wait).after_send();
    return sent;
  }

  // Under which name a request is remembered: nobody is given the answer to another key's request, or to that of
  // another user of a node's host.
  static std::string scoped(const Sender& sender, const Message& message) {
    if (!sender.remote) return "l " + message.id;
    const std::string user = message.uid ? std::to_string(*message.uid) : "";
    return "r " + sender.key + " " + user + " " + message.id;
  }

  void refuse(const std::string& peer, std::string_view frame, const Error& error) {
    ++malformed;
    const detail::Salvaged salvaged = detail::salvage(frame);
    if (salvaged.id.empty() || !salvaged.is_request) return;  // nobody to tell: it would not know what we answer
    Message reply;
    reply.is_reply = true;
    reply.id = salvaged.id;
    reply.command = salvaged.command.empty() ? "unknown" : salvaged.command;
    reply.error = error;
    (void)send(peer, detail::pack_message(reply), {});
  }

  // Attachments are large, and this process's memory may be bounded: one that does not fit is its sender's to repeat.
  static Status attach(detail::Frames& frames, std::string& attachment) {
    try {
      size_t size = 0;
      for (size_t i = 2; i < frames.size(); ++i) size += frames[i].size();
      if (size > detail::kMaxCommandFrameBytes)
        return Error{Code::kInvalidArgument, "malformed command: the attachment is too large", "see bus/WIRE.md"};
      attachment.reserve(size);
      for (size_t i = 2; i < frames.size(); ++i) {
        attachment += detail::view(frames[i]);
        frames[i].rebuild();  // it would be held twice
      }
      return {};
    } catch (const std::bad_alloc&) {
      return Error{Code::kExhausted, "there is no memory left for this request's attachment", "try again"};
    }
  }

  // Who has sent `frames`. False: by TCP and not to be listened to.
  bool tell_sender(detail::Frames& frames, bool remote, Sender& sender) const {
    if (!remote) {
      sender.process = detail::peer_of(frames.back());
      return true;
    }
    sender.process = {static_cast<uid_t>(-1), 0};
    sender.remote = true;
    sender.address = detail::address_of(frames.back());
    if (network->door == nullptr) return true;
    sender.key = detail::key_of(frames.back());
    return network->door->admits(sender.key);
  }

  // From both sockets in turns: neither can keep the other waiting.
  std::optional<Incoming> next() {
    if (!network) return next(false);
    remote_first = !remote_first;
    if (auto incoming = next(remote_first)) return incoming;
    return next(!remote_first);
  }

  std::optional<Incoming> next(bool remote) {
    detail::Frames frames;
    bool too_many = false;
    const size_t most = remote ? detail::kMaxTcpFrames : 3;
    while (detail::receive_frames(remote ? network->socket : socket, frames, too_many, most)) {
      std::string peer = (remote ? kRemote : kLocal) + frames[0].to_string();
      if (remote && frames.size() > 1 && detail::is_relay_address(detail::view(frames[1]))) {
        peer = kRelayed + std::string(1, static_cast<char>(frames[0].size())) + frames[0].to_string() +
               frames[1].to_string();
        frames.erase(frames.begin() + 1);
      }
      Sender sender;
      if (!tell_sender(frames, remote, sender)) {
        refuse(peer, frames.size() < 2 ? std::string_view() : detail::view(frames[1]),
               {Code::kPermission, "this manager does not know your key any more",
                "it was revoked: ask its operator (freeride-ctl keys list)"});
        continue;
      }
      if (frames.size() < 2 || too_many) {
        refuse(peer, frames.size() < 2 ? std::string_view() : detail::view(frames[1]),
               {Code::kInvalidArgument, "malformed command: one frame and at most one attachment are expected",
                "see bus/WIRE.md"});
        continue;
      }
      Result<Message> message = detail::unpack_message(detail::view(frames[1]), {});
      if (!message) {
        refuse(peer, detail::view(frames[1]), message.error());
        continue;
      }
      if (!message->is_reply) {
        const std::string id = scoped(sender, *message);
        switch (answers.note(id, peer, SteadyClock::now())) {
          case detail::Answers::Known::kAnswered:
            (void)send(peer, answers.answer(id), {});
            continue;
          case detail::Answers::Known::kInProgress:
            continue;  // its answer will go to where it was repeated from
          case detail::Answers::Known::kNew:
            break;
        }
      }
      // Of a repetition nobody needs the bytes.
      if (auto joined = attach(frames, message->attachment); !joined) {
        if (!message->is_reply) answers.forget(scoped(sender, *message));
        refuse(peer, detail::view(frames[1]), joined.error());
        continue;
      }
      return Incoming{peer, std::move(sender), std::move(*message)};
    }
    return std::nullopt;
  }

  EndpointLock lock;  // before the socket: released after it is closed
  zmq::socket_t socket;
  detail::WaitFd wait;
  std::unique_ptr<Network> network;
  bool remote_first = false;
  detail::Answers answers{bounds().answers, bounds().answer_bytes};
  std::string prefix = random_hex();
  uint64_t count = 0, malformed = 0;
};

Server::Server() = default;
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::bind(zmq::context_t& context, const std::string& endpoint,
                                             std::optional<gid_t> group) {
  std::unique_ptr<Server> server(new Server);
  try {
    server->impl_ = std::make_unique<Impl>(context);
    zmq::socket_t& socket = server->impl_->socket;
    socket.set(zmq::sockopt::linger, detail::kLingerMs);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxCommandFrameBytes));
    socket.set(zmq::sockopt::router_mandatory, true);
    socket.set(zmq::sockopt::rcvhwm, detail::kRequestsHwm);
    auto lock = bind_endpoint(socket, endpoint, group);
    if (!lock) return lock.error();
    server->impl_->lock = std::move(*lock);
  } catch (const zmq::error_t& error) {
    return Error{Code::kInternal, "cannot bind " + endpoint + ": " + error.what(), ""};
  }
  return server;
}

Status Server::listen(zmq::context_t& context, const TcpPort& port) {
  try {
    auto network = std::make_unique<Impl::Network>(context, port.door);
    network->socket.set(zmq::sockopt::linger, detail::kLingerMs);
    network->socket.set(zmq::sockopt::router_mandatory, true);
    network->socket.set(zmq::sockopt::rcvhwm, detail::kRequestsHwm);
    network->either.reset(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event = {};
    event.events = EPOLLIN;
    for (const int fd : {impl_->wait.fd(), network->wait.fd()}) {
      if (!network->either.valid() || ::epoll_ctl(network->either.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        return errno_error("cannot wait for the network", errno);
    }
    if (auto open = network->listener.open(context, network->socket, port, detail::kTcpFrameBytes + (64u << 10)); !open)
      return open;
    impl_->network = std::move(network);
  } catch (const zmq::error_t& error) {
    return Error{Code::kInternal, "cannot open " + port.endpoint + ": " + error.what(), ""};
  }
  return {};
}

void Server::keep_listening() {
  impl_->lock.keep_named(impl_->socket);
}

std::optional<Server::Incoming> Server::receive(std::chrono::milliseconds timeout) {
  const int64_t deadline = detail::deadline_after(timeout);
  for (;;) {
    if (auto incoming = impl_->next()) return incoming;
    const long left = detail::milliseconds_until(deadline);
    if (left == 0) break;
    detail::wait_readable(impl_->socket, left, impl_->network ? &impl_->network->socket : nullptr);
  }
  impl_->wait.drained();
  if (impl_->network) impl_->network->wait.drained();
  return std::nullopt;
}

void Server::reply_raw(const Incoming& request, std::optional<Error> error, std::string body, std::string attachment) {
  Message reply;
  reply.is_reply = true;
  reply.id = request.message.id;
  reply.command = request.message.command;
  reply.error = std::move(error);
  reply.body = std::move(body);
  const std::string frame = detail::pack_message(reply);
  const std::string id = Impl::scoped(request.sender, request.message);
  const std::string peer = impl_->answers.peer(id, request.peer);
  impl_->answers.answered(id, frame, !attachment.empty());
  try {
    (void)impl_->send(peer, frame, attachment);  // if the peer is gone, it may come back and ask again
  } catch (const std::bad_alloc&) {
    reply.body.clear();
    reply.error = Error{Code::kExhausted, "there is no memory left for the answer's attachment", "try again"};
    (void)impl_->send(peer, detail::pack_message(reply), {});
  }
}

Result<std::string> Server::send_raw(const std::string& peer, const std::string& command, std::string body,
                                     std::string attachment) {
  Message request;
  request.id = impl_->prefix + "-" + std::to_string(++impl_->count);
  request.command = command;
  request.body = std::move(body);
  if (!impl_->send(peer, detail::pack_message(request), attachment)) {
    return Error{Code::kUnavailable, "cannot send " + command + ": the peer has ended or does not read", ""};
  }
  return request.id;
}

uint64_t Server::malformed() const {
  return impl_->malformed;
}
int Server::fd() const {
  return impl_->network ? impl_->network->either.get() : impl_->wait.fd();
}

}  // namespace freeride::bus
