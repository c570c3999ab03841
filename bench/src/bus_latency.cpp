// bench-bus [--quick]: one hop and the sustained rate of a bubble event through freeride-bus, beside a raw libzmq
// XSUB/XPUB proxy that forwards the same bytes, taken in turns within one run; and the codec alone. Prints one JSON
// object.
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <msgpack.hpp>
#include <thread>
#include <zmq.hpp>

#include "child.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/sockets.hpp"
#include "stats.hpp"

namespace freeride::bench {
namespace {
using bus::BubbleEnd;
using namespace std::chrono_literals;

constexpr int kHwm = 4096;  // the same on both sides
// Events under way at most, so that nothing is dropped and the rate is a sustained one. A bare socket counts as queued
// what was read since libzmq last told it (each kHwm / 2 events), and what was read since it last looked for that (each
// 3 million clock ticks: 1.5 ms at 2 GHz). At 780 000 events a second that leaves kHwm / 2 - 1170 = 878 for what is
// really under way: with 1000, one run in five lost some.
constexpr uint64_t kWindow = 500;

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

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "bench-bus: %s\n", what);
  std::exit(1);
}

// The broker to compare with, in a process of its own like freeride-bus: libzmq's own proxy.
int raw_broker(const std::string& folder) {
  zmq::context_t context(1);
  zmq::socket_t in(context, zmq::socket_type::xsub), out(context, zmq::socket_type::xpub);
  in.set(zmq::sockopt::rcvhwm, kHwm);
  out.set(zmq::sockopt::sndhwm, kHwm);
  in.bind("ipc://" + folder + "/raw-publish.sock");
  out.bind("ipc://" + folder + "/raw-events.sock");
  std::puts("ready");
  std::fflush(stdout);
  zmq::proxy(in, out);
  return 0;
}

// Ours, as everybody uses it: with encoding, numbering and decoding.
struct Ours {
  Ours(const std::string& folder)
      : publisher(bus::Publisher::connect(out_context, "ipc://" + folder + "/publish.sock", "bench").value()),
        subscriber(bus::Subscriber::connect(in_context, "ipc://" + folder + "/events.sock", {"bubble."}).value()) {}
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

// The same bytes with bare sockets, through the broker whose sockets are called `prefix`…; the number is written into
// them.
struct Raw {
  Raw(const std::string& folder, const std::string& prefix)
      : publisher(out_context, zmq::socket_type::pub), subscriber(in_context, zmq::socket_type::sub) {
    publisher.set(zmq::sockopt::linger, 0);
    publisher.set(zmq::sockopt::sndhwm, kHwm);
    subscriber.set(zmq::sockopt::rcvhwm, kHwm);
    subscriber.set(zmq::sockopt::subscribe, "bubble.");
    publisher.connect("ipc://" + folder + "/" + prefix + "publish.sock");
    subscriber.connect("ipc://" + folder + "/" + prefix + "events.sock");
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
    if (side.receive(5ms, number)) {
      while (side.receive(100ms, number)) {
      }
      return;
    }
  }
  fail("no event came through");
}

template <class Side>
int64_t hop(Side& side, uint64_t number) {
  const int64_t begin = SteadyClock::now();
  side.publish(number);
  uint64_t got = 0;
  do {
    if (!side.receive(5s, got)) fail("an event was lost");
  } while (got != number);
  return SteadyClock::now() - begin;
}

template <class Side>
double rate(Side& side, uint64_t events, uint64_t first) {
  std::atomic<uint64_t> received{0};
  const int64_t begin = SteadyClock::now();
  std::thread reading([&] {
    uint64_t number = 0;
    while (received.load(std::memory_order_relaxed) < events) {
      if (!side.receive(5s, number)) fail("events were lost under load");
      received.fetch_add(1, std::memory_order_release);
      received.notify_one();
    }
  });
  for (uint64_t i = 0; i < events; ++i) {
    for (uint64_t done = received.load(std::memory_order_acquire); i - std::min(done, i) >= kWindow;
         done = received.load(std::memory_order_acquire)) {
      received.wait(done, std::memory_order_acquire);
    }
    side.publish(first + i);
  }
  reading.join();
  return static_cast<double>(events) * 1e9 / static_cast<double>(SteadyClock::now() - begin);
}

// CPU time of this thread: another program on the core must not count.
int64_t cpu_now() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kNsPerSec + time.tv_nsec;
}

// encode() and decode(), and in turns with them what msgpack-c alone takes for the same bytes: into its own tree and
// back.
void codec(Figures& figures, int rounds) {
  constexpr int kPerRound = 20'000;
  bus::Envelope envelope;
  envelope.source = "worker host:GPU-5f3c1e0a #12345-0123abcd";
  std::vector<double> ours, bare;
  uint64_t check = 0;
  for (int round = 0; round < rounds; ++round) {
    int64_t begin = cpu_now();
    for (int i = 0; i < kPerRound; ++i) {
      envelope.seq = static_cast<uint64_t>(i);
      const std::string bytes = bus::encode(envelope, event_number(static_cast<uint64_t>(i)));
      check += bus::decode<BubbleEnd>(bytes)->iteration;
    }
    ours.push_back(static_cast<double>(cpu_now() - begin) / kPerRound);
    const std::string bytes = bus::encode(envelope, event_number(0));
    begin = cpu_now();
    for (int i = 0; i < kPerRound; ++i) {
      const msgpack::object_handle tree = msgpack::unpack(bytes.data(), bytes.size());
      msgpack::sbuffer again;
      msgpack::pack(again, tree.get());
      check += again.size();
    }
    bare.push_back(static_cast<double>(cpu_now() - begin) / kPerRound);
  }
  if (check == 0) fail("the codec lost its numbers");
  figures.set("codec_ns", quantile(ours, 0.5));
  figures.set("raw_msgpack_ns", quantile(bare, 0.5));
}

int run(const std::string& self, bool quick) {
  char name[] = "/tmp/freeride-bench-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  Figures figures;
  {
    const auto programs = std::filesystem::path(self).parent_path();
    Child ours_broker({(programs / "freeride-bus").string(), "--run-dir", folder}, "ready");
    Child raw({self, "--raw-broker", folder}, "ready");
    auto ours_end = std::make_unique<Ours>(folder);
    Ours& ours = *ours_end;
    Raw bare(folder, "raw-");
    connect(ours);
    connect(bare);

    std::vector<int64_t> ours_ns, raw_ns;
    const int hops = quick ? 500 : 5000;
    for (int i = -100; i < hops; ++i) {  // in turns, each first every other time
      const uint64_t number = static_cast<uint64_t>(i) + 1000;
      int64_t a = 0, b = 0;
      if (i % 2 == 0) {
        a = hop(ours, number), b = hop(bare, number);
      } else {
        b = hop(bare, number), a = hop(ours, number);
      }
      if (i >= 0) ours_ns.push_back(a), raw_ns.push_back(b);
    }
    figures.set_us("bus_hop", ours_ns);
    figures.set_us("raw_broker_hop", raw_ns);

    const uint64_t events = quick ? 20'000 : 100'000;
    std::vector<double> whole_rates, ours_rates, raw_rates;
    for (uint64_t round = 0; round < 3; ++round) whole_rates.push_back(rate(ours, events, round * events));
    ours_end.reset();  // a second subscriber of our broker would have to be fed, too

    // The brokers alone, with bare sockets at both ends of both.
    Raw through_ours(folder, "");
    connect(through_ours);
    for (uint64_t round = 0; round < (quick ? 3 : 7); ++round) {
      ours_rates.push_back(rate(through_ours, events, round * events));
      raw_rates.push_back(rate(bare, events, round * events));
    }
    figures.set("bus_rate_per_s", quantile(ours_rates, 0.5));
    figures.set("raw_broker_rate_per_s", quantile(raw_rates, 0.5));
    figures.set("bus_rate_with_codec_per_s", quantile(whole_rates, 0.5));
  }
  codec(figures, quick ? 5 : 25);
  std::filesystem::remove_all(folder);
  figures.print();
  return 0;
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--raw-broker") return freeride::bench::raw_broker(argv[2]);
  if (argc == 2 && std::string(argv[1]) == "--codec") {
    freeride::bench::Figures figures;
    freeride::bench::codec(figures, 25);
    figures.print();
    return 0;
  }
  const bool quick = argc == 2 && std::string(argv[1]) == "--quick";
  return freeride::bench::run(std::filesystem::canonical("/proc/self/exe").string(), quick);
}
