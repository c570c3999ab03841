// bench-curve [HOPS]: one bubble event through a manager to a subscriber over TCP with a key, beside a raw libzmq
// XSUB/XPUB proxy that forwards the same bytes over TCP with CURVE; in turns, in one run, over the loopback interface.
// Both are published over a UNIX socket, as workers do. Prints one JSON object, with every sample.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <zmq.hpp>

#include "child.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/bus/sockets.hpp"
#include "stats.hpp"

namespace freeride::bench {
namespace {
using bus::BubbleEnd;
using namespace std::chrono_literals;

constexpr int kHwm = 4096;  // the same on both sides

BubbleEnd event_number(uint64_t number) {
  BubbleEnd event;
  event.job = "gpt-3.6b";
  event.device = "GPU-5f3c1e0a-9a53-4f27-8d0e-2f6f8e1b7c11";
  event.stage = event.rank = 3;
  event.wait = 7;
  event.iteration = number;
  event.type = std::string("B");
  event.begin_ns = 123'456'789'012'345;
  event.end_ns = event.begin_ns + 61'234'567;
  event.learned_ns = 60'000'000;
  event.harvested_ns = 44'123'456;
  event.leased = true;
  return event;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench-curve: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) fail(result.error().text());
  return std::move(*result);
}

bool is_free(uint16_t port) {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Three in a row: the manager's two and the raw broker's.
uint16_t free_ports() {
  for (uint16_t port = static_cast<uint16_t>(20000 + ::getpid() % 10000); port < 32000; port += 3) {
    if (is_free(port) && is_free(port + 1) && is_free(port + 2)) return port;
  }
  fail("no ports are free");
}

std::string at(int port) {
  return "tcp://127.0.0.1:" + std::to_string(port);
}

// The broker to compare with, in a process of its own like the manager: libzmq's own proxy, any key may come in.
int raw_broker(const std::string& folder, const std::string& port, const std::string& secret) {
  zmq::context_t context(1);
  zmq::socket_t in(context, zmq::socket_type::xsub), out(context, zmq::socket_type::xpub);
  in.set(zmq::sockopt::rcvhwm, kHwm);
  out.set(zmq::sockopt::sndhwm, kHwm);
  out.set(zmq::sockopt::curve_server, true);
  out.set(zmq::sockopt::curve_secretkey, secret);
  in.bind("ipc://" + folder + "/raw-publish.sock");
  out.bind(at(std::atoi(port.c_str())));
  std::puts("ready");
  std::fflush(stdout);
  zmq::proxy(in, out);
  return 0;
}

// Ours, as everybody uses it: with encoding, numbering and decoding.
struct Ours {
  Ours(const std::string& folder, int port, const bus::ClientKey& key)
      : publisher(must(bus::Publisher::connect(out_context, "ipc://" + folder + "/publish.sock", "bench"))),
        subscriber(must(bus::Subscriber::connect(in_context, at(port), {"bubble."}, &key))) {}
  void publish(uint64_t number) { publisher->publish(event_number(number)); }
  bool receive(std::chrono::milliseconds timeout, uint64_t& number) {
    auto event = subscriber->receive(timeout);
    if (!event) return false;
    number = event->as<BubbleEnd>()->iteration;
    return true;
  }
  zmq::context_t out_context, in_context;
  std::unique_ptr<bus::Publisher> publisher;
  std::unique_ptr<bus::Subscriber> subscriber;
};

// The same bytes with bare sockets; the number is written into them.
struct Raw {
  Raw(const std::string& folder, int port, const bus::ClientKey& key)
      : publisher(out_context, zmq::socket_type::pub), subscriber(in_context, zmq::socket_type::sub) {
    publisher.set(zmq::sockopt::linger, 0);
    publisher.set(zmq::sockopt::sndhwm, kHwm);
    subscriber.set(zmq::sockopt::rcvhwm, kHwm);
    subscriber.set(zmq::sockopt::subscribe, "bubble.");
    subscriber.set(zmq::sockopt::curve_serverkey, key.manager_key);
    subscriber.set(zmq::sockopt::curve_publickey, key.public_key);
    subscriber.set(zmq::sockopt::curve_secretkey, key.secret_key);
    publisher.connect("ipc://" + folder + "/raw-publish.sock");
    subscriber.connect(at(port));
    bus::Envelope envelope;
    envelope.source = "bench #12345-0123abcd";
    envelope.seq = 1 << 20;
    envelope.t_ns = 123'456'789'012'345;
    bytes = bus::encode(envelope, event_number(1 << 20));
  }
  void publish(uint64_t number) {
    std::memcpy(bytes.data() + bytes.size() - sizeof number, &number, sizeof number);
    publisher.send(zmq::buffer(topic), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    publisher.send(zmq::buffer(bytes), zmq::send_flags::dontwait);
  }
  bool receive(std::chrono::milliseconds timeout, uint64_t& number) {
    zmq::message_t frame;
    if (!subscriber.recv(frame, zmq::recv_flags::dontwait)) {
      if (timeout.count() == 0) return false;
      zmq::pollitem_t item = {subscriber.handle(), 0, ZMQ_POLLIN, 0};
      zmq::poll(&item, 1, timeout);
      if (!subscriber.recv(frame, zmq::recv_flags::dontwait)) return false;
    }
    if (!subscriber.recv(frame, zmq::recv_flags::none)) return false;
    if (frame.size() != bytes.size()) return false;
    std::memcpy(&number, static_cast<const char*>(frame.data()) + frame.size() - sizeof number, sizeof number);
    return true;
  }
  zmq::context_t out_context, in_context;
  zmq::socket_t publisher, subscriber;
  std::string topic = "bubble.end/gpt-3.6b/3", bytes;
};

template <class Side>
void connect(Side& side) {
  uint64_t number = 0;
  for (int i = 0; i < 5000; ++i) {
    side.publish(0);
    if (!side.receive(5ms, number)) continue;
    while (side.receive(100ms, number)) {
    }
    return;
  }
  fail("no event came through");
}

template <class Side>
double hop_us(Side& side, uint64_t number) {
  const int64_t begin = SteadyClock::now();
  side.publish(number);
  uint64_t got = 0;
  do {
    if (!side.receive(5s, got)) fail("an event was lost");
  } while (got != number);
  return static_cast<double>(SteadyClock::now() - begin) / 1e3;
}

// A tenth of a microsecond is more than a sample is worth.
std::vector<double> rounded(const std::vector<double>& samples) {
  std::vector<double> shorter;
  shorter.reserve(samples.size());
  for (const double sample : samples) shorter.push_back(static_cast<double>(static_cast<int64_t>(sample * 10)) / 10);
  return shorter;
}

int run(const std::string& self, int hops) {
  char name[] = "/tmp/freeride-bench-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name), keys = folder / "s/keys";
  const auto manager = must(bus::make_key_pair()), pair = must(bus::make_key_pair());
  const bus::ClientKey key{pair.public_key, pair.secret_key, manager.public_key, "bench"};
  std::filesystem::create_directories(keys / "authorized");
  for (const auto& one : {folder / "s", keys, keys / "authorized"}) (void)::chmod(one.c_str(), 0700);
  const KeyFile own{"manager", "manager", "", "", manager.public_key, manager.secret_key, ""};
  const KeyFile bench{"bench", "monitor", "bench", "", pair.public_key, "", ""};
  if (!make_key_file(keys / "manager.key", own, 0600, ::geteuid()) ||
      !make_key_file(keys / "authorized/bench.key", bench, 0600, ::geteuid()))
    fail("cannot write keys in " + folder.string());
  const uint16_t port = free_ports();
  std::vector<double> ours_us, raw_us;
  {
    const auto programs = std::filesystem::path(self).parent_path();
    Child ours_broker({(programs / "freeride-manager").string(), "--run-dir", folder.string(), "--state-dir",
                       (folder / "s").string(), "--listen", at(port)},
                      "ready");
    Child raw({self, "--raw-broker", folder.string(), std::to_string(port + 2), manager.secret_key}, "ready");
    Ours ours(folder.string(), port + 1, key);
    Raw bare(folder.string(), port + 2, key);
    connect(ours);
    connect(bare);
    for (int i = -200; i < hops; ++i) {  // in turns, each first every other time
      const uint64_t number = static_cast<uint64_t>(i) + 1000;
      double a = 0, b = 0;
      if (i % 2 == 0) {
        a = hop_us(ours, number), b = hop_us(bare, number);
      } else {
        b = hop_us(bare, number), a = hop_us(ours, number);
      }
      if (i >= 0) ours_us.push_back(a), raw_us.push_back(b);
    }
  }
  std::filesystem::remove_all(folder);
  nlohmann::ordered_json out;
  out["event_tcp_curve_p50_ratio"] = quantile(ours_us, 0.5) / quantile(raw_us, 0.5);
  out["event_tcp_curve_p50_us"] = quantile(ours_us, 0.5);
  out["event_tcp_curve_p99_us"] = quantile(ours_us, 0.99);
  out["raw_tcp_curve_p50_us"] = quantile(raw_us, 0.5);
  out["raw_tcp_curve_p99_us"] = quantile(raw_us, 0.99);
  out["samples"] = {{"event_tcp_curve_us", rounded(ours_us)}, {"raw_tcp_curve_us", rounded(raw_us)}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  using namespace freeride::bench;
  if (argc == 5 && std::string(argv[1]) == "--raw-broker") return raw_broker(argv[2], argv[3], argv[4]);
  const int hops = argc == 2 ? std::atoi(argv[1]) : 2000;
  if (argc > 2 || hops < 1) fail("usage: bench-curve [HOPS]");
  return run(std::filesystem::canonical("/proc/self/exe").string(), hops);
}
