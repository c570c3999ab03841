#include "message.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "freeride/base/clock.hpp"
#include "unpack.hpp"

namespace freeride::bus::detail {
namespace {

constexpr size_t kMaxIdBytes = 128, kMaxCommandBytes = 64;

void pack_entry(Packer& packer, const char* key, const std::string& value) {
  pack_text(packer, key);
  pack_text(packer, value);
}

Error malformed(const char* why) {
  return {Code::kInvalidArgument, std::string("malformed command: ") + why, "see bus/WIRE.md"};
}

bool read_text(const Tree& tree, const char* key, size_t limit, std::string& text) {
  const msgpack::object* object = tree.find(key);
  if (object == nullptr) return true;
  if (object->type != msgpack::type::STR || object->via.str.size > limit) return false;
  text.assign(object->via.str.ptr, object->via.str.size);
  return true;
}

}  // namespace

std::string pack_message(const Message& message) {
  Buffer buffer;
  Packer packer(buffer);
  const bool for_user = !message.is_reply && message.uid.has_value();
  packer.pack_map((message.is_reply ? (message.error ? 9 : 6) : 5) + (for_user ? 1 : 0));
  pack_text(packer, "v");
  packer.pack(kWireVersion);
  pack_entry(packer, "kind", message.is_reply ? "reply" : "request");
  pack_entry(packer, "id", message.id);
  pack_entry(packer, "command", message.command);
  if (message.is_reply) {
    pack_text(packer, "ok");
    packer.pack(!message.error.has_value());
    if (message.error) {
      pack_entry(packer, "code", to_string(message.error->code));
      pack_entry(packer, "message", message.error->message);
      pack_entry(packer, "hint", message.error->hint);
    }
  }
  if (for_user) {
    pack_text(packer, "uid");
    packer.pack(*message.uid);
  }
  pack_text(packer, "body");
  if (message.body.empty()) {
    packer.pack_map(0);
  } else {
    buffer.write(message.body.data(), message.body.size());  // already MessagePack: nests as it is
  }
  return buffer.str();
}

Result<Message> unpack_message(std::string_view frame, std::string attachment) {
  Tree tree;
  if (Status parsed = tree.parse(frame); !parsed) return parsed.error();
  if (tree.find("v") == nullptr) return malformed("no version");
  if (Status version = check_version(tree); !version) return version.error();
  Message message;
  std::string kind, code;
  Error error;
  if (!read_text(tree, "kind", 16, kind) || (kind != "request" && kind != "reply")) {
    return malformed("kind is neither request nor reply");
  }
  message.is_reply = kind == "reply";
  if (!read_text(tree, "id", kMaxIdBytes, message.id) || message.id.empty())
    return malformed("no id of 1 to 128 bytes");
  if (!read_text(tree, "command", kMaxCommandBytes, message.command) || message.command.empty()) {
    return malformed("no command of 1 to 64 bytes");
  }
  if (!read_text(tree, "code", 64, code) || !read_text(tree, "message", kMaxMessageBytes, error.message) ||
      !read_text(tree, "hint", kMaxMessageBytes, error.hint)) {
    return malformed("code, message or hint is no text");
  }
  if (message.is_reply) {
    const msgpack::object* ok = tree.find("ok");
    if (ok == nullptr || ok->type != msgpack::type::BOOLEAN) return malformed("a reply without ok");
    if (!ok->via.boolean) {
      error.code = code_from_string(code);
      message.error = std::move(error);
    }
  }
  if (const msgpack::object* uid = tree.find("uid"); uid != nullptr && uid->type != msgpack::type::NIL) {
    if (uid->type != msgpack::type::POSITIVE_INTEGER || uid->via.u64 > UINT32_MAX) return malformed("uid is no user");
    message.uid = static_cast<uint32_t>(uid->via.u64);
  }
  Buffer body;
  Packer packer(body);
  if (const msgpack::object* object = tree.find("body")) {
    if (object->type != msgpack::type::MAP) return malformed("body is no map");
    packer.pack(*object);
  } else {
    packer.pack_map(0);
  }
  message.body = body.str();
  message.attachment = std::move(attachment);
  return message;
}

Salvaged salvage(std::string_view frame) {
  Salvaged salvaged;
  Tree tree;
  if (!tree.parse(frame)) return salvaged;
  std::string kind;
  salvaged.is_request = read_text(tree, "kind", 16, kind) && kind == "request";
  if (!read_text(tree, "id", kMaxIdBytes, salvaged.id)) salvaged.id.clear();
  if (!read_text(tree, "command", kMaxCommandBytes, salvaged.command)) salvaged.command.clear();
  return salvaged;
}

// "Peer-Address" of an ipc connection ends with ":uid:gid:pid". Nobody: who cannot be told is a stranger.
Peer peer_of(zmq::message_t& frame) {
  Peer peer{static_cast<uid_t>(-1), 0};
  const char* address = ::zmq_msg_gets(frame.handle(), "Peer-Address");
  if (address == nullptr) return peer;
  const std::string_view text(address);
  const size_t pid = text.rfind(':'), gid = text.rfind(':', pid - 1), uid = text.rfind(':', gid - 1);
  if (pid == text.npos || pid == 0 || gid == text.npos || gid == 0 || uid == text.npos) return peer;
  uint32_t user = 0;
  int32_t process = 0;
  const auto user_end = text.data() + gid, process_end = text.data() + text.size();
  if (std::from_chars(text.data() + uid + 1, user_end, user).ptr != user_end ||
      std::from_chars(text.data() + pid + 1, process_end, process).ptr != process_end) {
    return peer;
  }
  return {user, process};
}

bool receive_frames(zmq::socket_t& socket, Frames& frames, bool& too_many, size_t most) {
  frames.clear();
  too_many = false;
  try {
    for (;;) {
      zmq::message_t frame;
      if (!socket.recv(frame, zmq::recv_flags::dontwait)) return false;
      const bool more = frame.more();
      if (frames.size() < most) {
        frames.push_back(std::move(frame));
      } else {
        too_many = true;
      }
      if (!more) return true;
    }
  } catch (const zmq::error_t&) {  // EINTR, or the context ends
    return false;
  }
}

bool send_frames(zmq::socket_t& socket, Frames frames) {
  try {
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto flags =
          zmq::send_flags::dontwait | (i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
      if (!socket.send(std::move(frames[i]), flags)) return false;
    }
    return true;
  } catch (const zmq::error_t&) {
    return false;
  }
}

int64_t deadline_after(std::chrono::milliseconds timeout) {
  constexpr int64_t kLongest = int64_t{1} << 31;  // ms: some 24 days, and no overflow
  return SteadyClock::now() + std::clamp<int64_t>(timeout.count(), 0, kLongest) * kNsPerMs;
}

long milliseconds_until(int64_t deadline_ns) {
  const int64_t left = deadline_ns - SteadyClock::now();
  return left <= 0 ? 0 : static_cast<long>((left + kNsPerMs - 1) / kNsPerMs);
}

}  // namespace freeride::bus::detail
