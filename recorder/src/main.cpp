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
// Events are taken in batches: being woken for each would cost more than all else.
constexpr int kBatchMs = 100;

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
                 "folder of the recordings (default: recordings in the state directory)");
  app.add_option("--keep-hours", arguments.keep_hours, "older recordings are deleted")
      ->check(within(0.01, 24.0 * 3660))
      ->capture_default_str();
  app.add_option("--keep-bytes", arguments.keep_bytes, "of all recordings together, e.g. 1GiB; the oldest are deleted")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1GiB");
  app.add_option("--keep-free", arguments.keep_free, "of the disk, for others; with less free, recording pauses")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256MiB");
  app.add_option("--group", arguments.group,
                 "group that may read; none: only this user (default: freeride, where root runs this)");
  add_log_options(app, arguments.log);
}

// What is queued. A jump in a publisher's numbers is a gap in front of the event that shows it.
void take_all(bus::Subscriber& events, Journal& journal) {
  constexpr int kMost = 100'000;  // then the disk is looked after again
  uint64_t lost = events.lost();
  int64_t before_ns = 0;
  for (int i = 0; i < kMost; ++i) {
    const auto event = events.receive(std::chrono::milliseconds(0));
    if (!event) return;
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
  while (true) {
    const int64_t due = std::min(journal.due_ns().value_or(INT64_MAX), ticked_ns + kTickNs);
    const int64_t wait_ms = std::clamp<int64_t>((due - clock.now_ns()) / kNsPerMs + 1, 0, kTickNs / kNsPerMs);
    poll(wanted, 2, static_cast<int>(wait_ms));
    if (wanted[0].revents != 0 || poll(wanted, 1, wanted[1].revents != 0 ? kBatchMs : 0) > 0) break;
    take_all(events, journal);
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
  auto events = bus::Subscriber::connect(context, endpoint, {""});
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
