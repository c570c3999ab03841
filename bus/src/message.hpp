// Commands and replies as frames, and the odds and ends that the two command sockets share.
#pragma once

#include <chrono>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "freeride/bus/sockets.hpp"

namespace freeride::bus::detail {

constexpr size_t kMaxEventBytes = 256u << 10;  ///< payload of an event
constexpr size_t kMaxTopicBytes = 512;         ///< of an event, and of a subscription
constexpr size_t kMaxCommandFrameBytes =
    (256u << 20) + (1u << 20);  ///< an attachment: the largest plugin, and some room
/// Events queued for one subscriber or from one publisher before the next are dropped. libzmq tells a queue's writer
/// what was read only once in half of that: so up to half of it nothing is ever dropped, and beyond it events may be.
constexpr int kEventsHwm = Subscriber::kQueued;
constexpr int kRequestsHwm = 16;       ///< requests of one connection that wait; each may have an attachment
constexpr int kLingerMs = 200;         ///< what a closing socket waits at most for its last messages to leave
constexpr int kReconnectMs = 100;      ///< first pause between attempts to connect ...
constexpr int kReconnectMaxMs = 1000;  ///< ... doubling up to this: few wake-ups while the other side is away

using Frames = std::vector<zmq::message_t>;

/// The first frame of a command or reply.
std::string pack_message(const Message& message);
/// Errors: kInvalidArgument, kVersion. `frame` is untrusted.
Result<Message> unpack_message(std::string_view frame, std::string attachment);
/// Kind and id of a message that unpack_message() refused, as far as they can be told: for the answer that says so.
struct Salvaged {
  bool is_request = false;
  std::string id, command;
};
Salvaged salvage(std::string_view frame);

/// The process at the other end of the connection that `frame` came over, when that was made; libzmq keeps it.
Peer peer_of(zmq::message_t& frame);

constexpr size_t kMaxFrames = 4;
/// Receives one whole message without waiting, or nothing. Frames past `most` are thrown away, and `too_many` says so.
bool receive_frames(zmq::socket_t& socket, Frames& frames, bool& too_many, size_t most = kMaxFrames);
/// Sends without waiting. False: the socket cannot take it now (errno says why).
bool send_frames(zmq::socket_t& socket, Frames frames);

inline std::string_view view(const zmq::message_t& frame) {
  return {static_cast<const char*>(frame.data()), frame.size()};
}
/// Throws std::bad_alloc, which attachments may find; libzmq's own word for it would end a thread that serves sockets.
inline zmq::message_t frame_of(std::string_view bytes) {
  try {
    return {bytes.data(), bytes.size()};
  } catch (const zmq::error_t&) {
    throw std::bad_alloc();
  }
}

/// What a node puts in front of its clients' messages, and finds there before those for them: a zero, which begins no
/// MessagePack map, and how it calls the client.
inline std::string relay_address(std::string_view client) {
  return std::string(1, '\0') + std::string(client);
}
inline bool is_relay_address(std::string_view frame) {
  return frame.size() > 1 && frame.size() <= 256 && frame[0] == '\0';
}

/// How long until `deadline`, never negative, rounded up: rounding down would turn the last millisecond into a busy
/// loop.
long milliseconds_until(int64_t deadline_ns);
int64_t deadline_after(std::chrono::milliseconds timeout);

}  // namespace freeride::bus::detail
