// freeride-recorder: writes what happens on the bus to a bounded folder of files. It only listens: nobody waits for it.
#include <poll.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "freeride/base/access.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/recorder/journal.hpp"

namespace freeride::recorder {
namespace {

constexpr uint64_t kMemoryBytes = uint64_t{1} << 30;
constexpr int64_t kTickNs = 60 * kNsPerSec;
// Events are taken in batches: being woken for each would cost more than all else. A batch is to have some hundred
// events, so that there is room for a burst: the first after a silence comes soon, and then each later by what is
// there.
constexpr int kShortestBatchMs = 50, kLongestBatchMs = 800;
constexpr int kFewEvents = 1024, kManyEvents = 2048;
// So many wait in this process, the rest in the kernel and at the broker: libzmq's thread is woken for these one by
// one, and for the rest once in half of them.
constexpr int kQueued = 512;
// What had to wait elsewhere comes some dozens at a time, where others leave libzmq's thread a processor; fewer are
// what happens at this moment.
constexpr std::chrono::milliseconds kUnderWay{200};
constexpr int kAtOnce = 3;

struct Arguments {
  std::string run_dir, events_endpoint, recordings, group;
  LogOptions log;
  double keep_hours = 24;
  uint64_t keep_bytes = uint64_t{1} << 30, keep_free = uint64_t{256} << 20;
};

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--run-dir", arguments.run_dir, "folder of the sockets")->capture_default_str();
  app.add_option("--events-endpoint", arguments.events_endpoint,
                 "where to listen (default: ipc://<run-dir>/events.sock)");
  app.add_option("--recordings", arguments.recordings,
                 "folder of the recordings (default: recordings in the state folder)");
  app.add_option("--keep-hours", arguments.keep_hours, "recordings older than this are deleted")
      ->check(within(0.01, 24.0 * 3660))
      ->capture_default_str();
  app.add_option("--keep-bytes", arguments.keep_bytes,
                 "size of all recordings together, e.g. 1GiB; the oldest are deleted")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1GiB");
  app.add_option("--keep-free", arguments.keep_free, "with less than this free on the disk, recording pauses")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256MiB");
  app.add_option("--group", arguments.group,
                 "group that may read; none: only this user (default: freeride, where root runs this)");
  add_log_options(app, arguments.log);
}

// What is queued; returns how many. A jump in a publisher's numbers is a gap in front of the event that shows it.
int take_all(bus::Subscriber& events, Journal& journal) {
  constexpr int kMost = 100'000;  // then the disk is looked after again
  uint64_t lost = events.lost();
  int64_t before_ns = 0;
  int taken = 0, in_a_row = 0;
  for (; taken < kMost; ++taken, ++in_a_row) {
    auto event = events.receive(std::chrono::milliseconds(0));
    if (!event && in_a_row >= kAtOnce) {
      in_a_row = 0;  // more may have waited elsewhere, and is under way now
      event = events.receive(kUnderWay);
    }
    if (!event) break;
    if (events.lost() > lost) {
      bus::RecordingGap gap;
      gap.publisher = event->envelope.source, gap.reason = "overload", gap.lost = events.lost() - lost;
      gap.begin_ns = before_ns, gap.end_ns = event->envelope.t_ns;
      journal.note_gap(gap);
      lost = events.lost();
    }
    before_ns = event->envelope.t_ns;
    journal.take(*event);
  }
  return taken;
}

int fail(const Error& error) {
  std::fprintf(stderr, "freeride-recorder: %s\n", error.text().c_str());
  return error.code == Code::kInvalidArgument ? 2 : 1;
}

int record(bus::Subscriber& events, Journal& journal, const sigset_t& signals) {
  const Fd ends(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!ends.valid()) return fail(errno_error("cannot wait for signals", errno));
  const SteadyClock clock;
  pollfd wanted[] = {{ends.get(), POLLIN, 0}, {events.fd(), POLLIN, 0}};
  int64_t ticked_ns = clock.now_ns();
  int batch_ms = kShortestBatchMs;
  while (true) {
    const int64_t due = std::min(journal.due_ns().value_or(INT64_MAX), ticked_ns + kTickNs);
    const int64_t wait_ms = std::clamp<int64_t>((due - clock.now_ns()) / kNsPerMs + 1, 0, kTickNs / kNsPerMs);
    const int64_t asked_ns = clock.now_ns();
    poll(wanted, 2, static_cast<int>(wait_ms));
    const int64_t now = clock.now_ns();
    if (now - asked_ns > kShortestBatchMs * kNsPerMs) batch_ms = kShortestBatchMs;
    // What has waited is to be on the disk in time.
    const int64_t left_ms = std::clamp<int64_t>((due - now) / kNsPerMs + 1, 0, batch_ms);
    if (wanted[0].revents != 0 || poll(wanted, 1, wanted[1].revents != 0 ? static_cast<int>(left_ms) : 0) > 0) break;
    const int taken = take_all(events, journal);
    if (taken > kManyEvents) batch_ms = std::max(batch_ms / 2, kShortestBatchMs);
    if (taken < kFewEvents) batch_ms = std::min(batch_ms * 2, kLongestBatchMs);
    journal.tick();
    ticked_ns = clock.now_ns();
  }
  take_all(events, journal);
  spdlog::info("told to end; {} events found no room", journal.lost());
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  Paths paths = Paths::defaults();
  arguments.run_dir = paths.run_dir;
  CLI::App app("FreeRide's flight recorder: every event of this host, in a bounded folder of MCAP files");
  app.name("freeride-recorder");
  add_options(app, arguments);
  if (const auto end = parse_options(app, "freeride-recorder", "recorder", argc, argv)) return *end;
  init_log("freeride-recorder", arguments.log);
  const sigset_t signals = block_end_signals();
  // Before any thread exists.
  if (auto s = stand_behind_training(); !s.ok()) spdlog::warn("{}", s.error().text());
  if (auto s = leave_memory_to_training(kMemoryBytes); !s.ok()) spdlog::warn("{}", s.error().text());

  const auto readers = operators_group(arguments.group);
  if (!readers) return fail(readers.error());
  JournalOptions options;
  options.folder =
      arguments.recordings.empty() ? paths.state_dir / "recordings" : std::filesystem::path(arguments.recordings);
  options.keep_ns = static_cast<int64_t>(arguments.keep_hours * 3600 * kNsPerSec);
  options.keep_bytes = arguments.keep_bytes, options.keep_free_bytes = arguments.keep_free;
  options.group = *readers;
  const SteadyClock clock;
  auto journal = Journal::open(options, clock);
  if (!journal) return fail(journal.error());

  paths.run_dir = arguments.run_dir;
  const std::string endpoint = arguments.events_endpoint.empty() ? paths.events_endpoint() : arguments.events_endpoint;
  zmq::context_t context(1);
  auto events = bus::Subscriber::connect(context, endpoint, {""}, nullptr, kQueued);
  if (!events) return fail(events.error());
  spdlog::info("ready: records {} to {}", endpoint, options.folder.string());
  return record(**events, **journal, signals);
}

}  // namespace
}  // namespace freeride::recorder

int main(int argc, char** argv) {
  try {
    return freeride::recorder::run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, or a library's own
    std::fprintf(stderr, "freeride-recorder: %s\n", error.what());
    return 1;
  }
}
