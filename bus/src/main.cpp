// freeride-bus: the event broker alone, for hosts where it must not live and die with a manager.
#include <csignal>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "freeride/base/access.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/priority.hpp"
#include "freeride/bus/sockets.hpp"

int main(int argc, char** argv) {
  freeride::Paths paths = freeride::Paths::defaults();
  std::string run_dir = paths.run_dir, publish, events, group;
  freeride::LogOptions log;
  CLI::App app("FreeRide's event broker: publishers on one socket, subscribers on another");
  app.name("freeride-bus");
  app.add_option("--run-dir", run_dir, "folder of the sockets")->capture_default_str();
  app.add_option("--publish-endpoint", publish, "where publishers connect (default: ipc://<run-dir>/publish.sock)");
  app.add_option("--events-endpoint", events, "where subscribers connect (default: ipc://<run-dir>/events.sock)");
  app.add_option("--group", group,
                 "group that may read events; none: only this user (default: freeride, where root runs this)");
  freeride::add_log_options(app, log);
  if (const auto end = freeride::parse_options(app, "freeride-bus", "bus", argc, argv)) return *end;
  paths.run_dir = run_dir;
  freeride::init_log("freeride-bus", log);

  // Before any thread exists, so that all of them leave these signals to sigwait().
  const sigset_t signals = freeride::block_end_signals();

  // Monitors can wait: where it shares cores with training, training goes first. Before any thread exists.
  if (auto s = freeride::stand_behind_training(); !s.ok()) spdlog::warn("{}", s.error().text());
  if (auto s = freeride::leave_memory_to_training(freeride::kServiceMemoryBytes); !s.ok())
    spdlog::warn("{}", s.error().text());
  (void)freeride::raise_descriptor_limit();  // each connection takes one
  const auto readers = freeride::operators_group(group);
  if (!readers) {
    std::fprintf(stderr, "freeride-bus: %s\n", readers.error().text().c_str());
    return 1;
  }
  zmq::context_t context(1);
  if (publish.empty()) publish = paths.publish_endpoint();
  if (events.empty()) events = paths.events_endpoint();
  auto broker = freeride::bus::Broker::start(context, publish, events, *readers);
  if (!broker) {
    std::fprintf(stderr, "freeride-bus: %s\n", broker.error().text().c_str());
    return broker.error().code == freeride::Code::kInvalidArgument ? 2 : 1;
  }
  spdlog::info("ready: publishers at {}, subscribers at {}", publish, events);
  const timespec second{1, 0};
  int signal = -1;
  while ((signal = sigtimedwait(&signals, nullptr, &second)) < 0) (*broker)->keep_listening();
  spdlog::info("signal {}: stopping", signal);
  return 0;
}
