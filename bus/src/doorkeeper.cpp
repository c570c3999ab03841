#include <unistd.h>

#include <atomic>
#include <cstring>
#include <system_error>
#include <thread>

#include "freeride/base/clock.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/log.hpp"
#include "freeride/bus/network.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {
namespace {

constexpr const char* kZapEndpoint = "inproc://zeromq.zap.01";
constexpr size_t kRawKeyBytes = 32;
constexpr int64_t kSayAgainNs = 10 * kNsPerSec;

}  // namespace

// ZeroMQ's RFC 27. libzmq asks for every connection before it takes a message from it.
struct Doorkeeper::Impl {
  explicit Impl(zmq::context_t& context) : socket(context, zmq::socket_type::rep), wake(detail::event_fd()) {}
  ~Impl() {
    if (!thread.joinable()) return;
    stop = true;
    const uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
    thread.join();
  }

  // Ports that ask nobody are open: what ends this thread ends the process.
  void serve() {
    zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wake.get(), ZMQ_POLLIN, 0}};
    while (!stop) {
      try {
        zmq::poll(items, 2, std::chrono::milliseconds(-1));
      } catch (const zmq::error_t& error) {
        if (!detail::goes_on(error)) return;
      }
      detail::Frames frames;
      bool too_many = false;
      if (detail::receive_frames(socket, frames, too_many, kRequestFrames)) answer(frames, too_many);
    }
  }

  // version, request id, domain, address, identity, mechanism, credentials: the client's public key.
  void answer(detail::Frames& frames, bool too_many) {
    std::string key;
    if (frames.size() == kRequestFrames && !too_many && detail::view(frames[0]) == "1.0" &&
        detail::view(frames[5]) == "CURVE" && frames[6].size() == kRawKeyBytes) {
      char text[kZ85KeyBytes + 1] = {};
      if (zmq_z85_encode(text, static_cast<const uint8_t*>(frames[6].data()), kRawKeyBytes) != nullptr) key = text;
    }
    const bool in = !key.empty() && admits(key);
    if (!in) say_refused(frames.size() > 3 ? std::string(detail::view(frames[3])) : "", key);
    detail::Frames reply;
    reply.push_back(detail::frame_of("1.0"));
    reply.push_back(detail::frame_of(frames.size() > 1 ? detail::view(frames[1]) : std::string_view()));
    reply.push_back(detail::frame_of(in ? "200" : "400"));
    reply.push_back(detail::frame_of(""));
    reply.push_back(detail::frame_of(in ? key : ""));  // what every message of the connection will carry
    reply.push_back(detail::frame_of(""));
    if (!detail::send_frames(socket, std::move(reply))) throw zmq::error_t();
  }

  void say_refused(const std::string& address, const std::string& key) {
    const int64_t now = SteadyClock::now();
    ++refused;
    if (now < say_at) return;
    say_at = now + kSayAgainNs;
    spdlog::warn("a connection from {} is refused: the key {}... is not authorised ({} refused so far)", address,
                 key.substr(0, 8), refused);
  }

  static constexpr size_t kRequestFrames = 7;
  std::string secret_key;
  Admits admits;
  zmq::socket_t socket;
  Fd wake;
  std::atomic<bool> stop{false};
  int64_t say_at = 0;
  uint64_t refused = 0;
  std::thread thread;
};

Doorkeeper::Doorkeeper() = default;
Doorkeeper::~Doorkeeper() = default;

Result<std::unique_ptr<Doorkeeper>> Doorkeeper::start(zmq::context_t& context, const std::string& secret_key,
                                                      Admits admits) {
  if (auto valid = public_key_of(secret_key); !valid) return valid.error();
  if (zmq_has("curve") == 0) return Error{Code::kUnavailable, "this libzmq has no CURVE", "install Debian's libzmq5"};
  std::unique_ptr<Doorkeeper> door(new Doorkeeper);
  try {
    door->impl_ = std::make_unique<Impl>(context);
    Impl& impl = *door->impl_;
    impl.secret_key = secret_key;
    impl.admits = std::move(admits);
    impl.socket.set(zmq::sockopt::linger, 0);
    impl.socket.bind(kZapEndpoint);
    impl.thread = std::thread([&impl] { run_or_end("the check of keys", [&impl] { impl.serve(); }); });
  } catch (const zmq::error_t& error) {
    return Error{error.num() == EADDRINUSE ? Code::kAlreadyExists : Code::kInternal,
                 std::string("cannot start the check of keys: ") + error.what(), ""};
  } catch (const std::system_error& error) {
    return Error{Code::kExhausted, std::string("cannot start the check of keys: ") + error.what(), ""};
  }
  return door;
}

const std::string& Doorkeeper::secret_key() const {
  return impl_->secret_key;
}
bool Doorkeeper::admits(const std::string& public_key) const {
  return !public_key.empty() && impl_->admits(public_key);
}

}  // namespace freeride::bus
