// bench-recording FOLDER HOURS: writes a recording of 8 devices with 100 bubbles a second each, as long as is said, and
// reads it through, every bubble decoded. Prints one JSON object.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/recorder/reader.hpp"

using namespace freeride;

namespace {

constexpr uint32_t kDevices = 8;
constexpr int64_t kBubblesPerS = 100, kChunkNs = 2 * kNsPerSec;
constexpr int64_t kStart = 1'000'000 * kNsPerSec;
constexpr const char* kFailed = "bench-recording: %s\n";

class Bubbles {
 public:
  bus::BubbleEnd next(uint32_t rank, int64_t at_ns) {
    bus::BubbleEnd end;
    end.job = "gpt", end.device = "cpu-" + std::to_string(rank), end.stage = end.rank = rank;
    end.wait = static_cast<uint32_t>(at_ns / (kNsPerSec / kBubblesPerS) % 10 + 1);
    end.iteration = static_cast<uint64_t>((at_ns - kStart) / (10 * kNsPerSec / kBubblesPerS));
    end.type = "B";
    end.learned_ns = 4 * kNsPerMs + 100'000 * rank;
    const auto length = std::max<int64_t>(100'000, end.learned_ns + static_cast<int64_t>(80'000 * normal_(random_)));
    end.end_ns = at_ns + below(1'000'000), end.begin_ns = end.end_ns - length;
    end.harvested_ns = length * (85 + below(10)) / 100 + below(1000), end.overrun_ns = below(20'000);
    end.leased = true, end.task = "side-" + std::to_string(rank);
    end.side_begin_ns = end.begin_ns + 10'000 + below(30'000), end.side_end_ns = end.end_ns + below(20'000);
    return end;
  }

 private:
  int64_t below(int64_t most) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(most)); }
  std::mt19937_64 random_{1};
  std::normal_distribution<> normal_{0, 1};
};

int fail(const Error& error) {
  std::fprintf(stderr, kFailed, error.text().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const double hours = argc == 3 ? std::atof(argv[2]) : 0;
  if (hours <= 0) {
    std::fprintf(stderr, "usage: bench-recording FOLDER HOURS\n");
    return 2;
  }
  const std::filesystem::path file = std::filesystem::path(argv[1]) / "bench.mcap";
  auto writer = recorder::FileWriter::create(file, recorder::Clocks{kStart, kStart, "bench", "bench"});
  if (!writer) return fail(writer.error());
  const SteadyClock clock;
  const int64_t begin = clock.now_ns();
  Bubbles bubbles;
  uint64_t written = 0;
  bus::Envelope envelopes[kDevices];
  const int64_t end_ns = kStart + static_cast<int64_t>(hours * 3600 * kNsPerSec);
  int64_t flushed_ns = kStart;
  for (int64_t at = kStart; at < end_ns; at += kNsPerSec / kBubblesPerS) {
    for (uint32_t rank = 0; rank < kDevices; ++rank) {
      const bus::BubbleEnd bubble = bubbles.next(rank, at);
      bus::Envelope& envelope = envelopes[rank];
      envelope.source = "worker host:cpu-" + std::to_string(rank) + " #1234abcd";
      envelope.seq += 2, envelope.t_ns = bubble.end_ns + 30'000 + static_cast<int64_t>(written % 7) * 1000;
      (*writer)->add("bubble.end/" + bubble.key(), envelope.t_ns, envelope.t_ns, bus::encode(envelope, bubble));
      ++written;
    }
    if (at - flushed_ns < kChunkNs) continue;
    flushed_ns = at;
    if (auto flushed = (*writer)->flush(); !flushed) return fail(flushed.error());
  }
  if (auto finished = (*writer)->finish(); !finished) return fail(finished.error());
  const int64_t read_from = clock.now_ns(), cpu_from = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  auto reader = recorder::Reader::open(file);
  if (!reader) return fail(reader.error());
  uint64_t read = 0;
  int64_t harvested_ns = 0;
  while (const auto event = (*reader)->next()) {
    const auto bubble = bus::decode<bus::BubbleEnd>(event->payload);
    if (!bubble) return fail(bubble.error());
    harvested_ns += bubble->harvested_ns;
    ++read;
  }
  const int64_t read_to = clock.now_ns(), cpu_to = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  if (read != written) return fail(Error{Code::kInternal, "not all events were read", ""});
  std::printf("%s\n", nlohmann::json{{"events", read},
                                     {"bytes", (*writer)->size_bytes()},
                                     {"harvested_s", static_cast<double>(harvested_ns) / kNsPerSec},
                                     {"write_s", static_cast<double>(read_from - begin) / kNsPerSec},
                                     {"read_cpu_s", static_cast<double>(cpu_to - cpu_from) / kNsPerSec},
                                     {"read_s", static_cast<double>(read_to - read_from) / kNsPerSec}}
                          .dump()
                          .c_str());
  return 0;
}
