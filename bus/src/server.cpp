#include <new>

#include "answers.hpp"
#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/sockets.hpp"
#include "message.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {

struct Server::Impl {
  Impl(zmq::context_t& context) : socket(context, zmq::socket_type::router), wait(socket) {}

  bool send(const std::string& peer, const std::string& frame, const std::string& attachment) {
    detail::Frames frames;
    frames.push_back(detail::frame_of(peer));
    frames.push_back(detail::frame_of(frame));
    if (!attachment.empty()) frames.push_back(detail::frame_of(attachment));
    const bool sent = detail::send_frames(socket, std::move(frames));
    wait.after_send();
    return sent;
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
  static Result<Message> unpack(detail::Frames& frames) {
    try {
      std::string attachment = frames.size() == 3 ? frames[2].to_string() : std::string();
      if (frames.size() == 3) frames[2].rebuild();  // it would be held twice
      return detail::unpack_message(detail::view(frames[1]), std::move(attachment));
    } catch (const std::bad_alloc&) {
      return Error{Code::kExhausted, "there is no memory left for this request's attachment", "try again"};
    }
  }

  std::optional<Incoming> next() {
    detail::Frames frames;
    bool too_many = false;
    while (detail::receive_frames(socket, frames, too_many)) {
      const std::string peer = frames[0].to_string();
      const Peer process = detail::peer_of(frames.back());
      if (frames.size() < 2 || frames.size() > 3 || too_many) {
        refuse(peer, frames.size() < 2 ? std::string_view() : detail::view(frames[1]),
               {Code::kInvalidArgument, "malformed command: one frame and at most one attachment are expected",
                "see bus/WIRE.md"});
        continue;
      }
      Result<Message> message = unpack(frames);
      if (!message) {
        refuse(peer, detail::view(frames[1]), message.error());
        continue;
      }
      if (!message->is_reply) {
        switch (answers.note(message->id, peer, SteadyClock::now())) {
          case detail::Answers::Known::kAnswered:
            (void)send(peer, answers.answer(message->id), {});
            continue;
          case detail::Answers::Known::kInProgress:
            continue;  // its answer will go to where it was repeated from
          case detail::Answers::Known::kNew:
            break;
        }
      }
      return Incoming{peer, process, std::move(*message)};
    }
    return std::nullopt;
  }

  EndpointLock lock;  // before the socket: released after it is closed
  zmq::socket_t socket;
  detail::WaitFd wait;
  detail::Answers answers;
  std::string prefix = detail::random_hex();
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
    auto lock = bind_endpoint(socket, endpoint, group);
    if (!lock) return lock.error();
    server->impl_->lock = std::move(*lock);
  } catch (const zmq::error_t& error) {
    return Error{Code::kInternal, "cannot bind " + endpoint + ": " + error.what(), ""};
  }
  return server;
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
    detail::wait_readable(impl_->socket, left);
  }
  impl_->wait.drained();
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
  const std::string peer = impl_->answers.peer(reply.id, request.peer);
  impl_->answers.answered(reply.id, frame, !attachment.empty());
  (void)impl_->send(peer, frame, attachment);  // if the peer is gone, it may come back and ask again
}

Result<std::string> Server::send_raw(const std::string& peer, const std::string& command, std::string body,
                                     std::string attachment) {
  Message request;
  request.id = impl_->prefix + "-" + std::to_string(++impl_->count);
  request.command = command;
  request.body = std::move(body);
  if (!impl_->send(peer, detail::pack_message(request), attachment)) {
    return Error{Code::kUnavailable, "cannot send " + command + ": the peer is gone or does not read", ""};
  }
  return request.id;
}

uint64_t Server::malformed() const {
  return impl_->malformed;
}
int Server::fd() const {
  return impl_->wait.fd();
}

}  // namespace freeride::bus
