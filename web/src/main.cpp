// freeride-web: the live page and /metrics, in a process of their own.
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>

#include "feed.hpp"
#include "freeride/base/config.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/priority.hpp"
#include "live.hpp"
#include "replay.hpp"
#include "server.hpp"

namespace {

using namespace freeride;

struct Options {
  std::string run_dir, events_endpoint, commands_endpoint, listen = "127.0.0.1:7473", token_file, replay;
  LogOptions log;
  std::vector<std::string> hosts;
  double speed = 1, skip_s = 0;
  size_t viewers = 128, task_series = 100, lanes = 128;
};

void declare(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("--run-dir", o.run_dir, "the manager's run folder, where its sockets are");
  app.add_option("--events-endpoint", o.events_endpoint, "where events can be read; default: in the run folder");
  app.add_option("--commands-endpoint", o.commands_endpoint,
                 "the manager's command socket; default: in the run folder");
  app.add_option("--listen", o.listen, "ADDRESS:PORT or unix:PATH; beyond this host only with --token-file");
  app.add_option("--token-file", o.token_file, "file whose first line is the token that every request carries");
  app.add_option("--host", o.hosts, "name by which a proxy calls this server; repeatable")->delimiter(':');
  app.add_option("--max-viewers", o.viewers, "the most pages that may be open at the same time")
      ->check(CLI::Range(size_t{1}, size_t{1000}));
  app.add_option("--max-task-series", o.task_series, "how many running tasks /metrics names; the rest is summed up")
      ->check(CLI::Range(size_t{0}, size_t{4096}));
  app.add_option("--max-lanes", o.lanes, "up to so many ranks the page draws every bubble")
      ->check(CLI::Range(size_t{0}, size_t{512}));
  app.add_option("--replay", o.replay,
                 "a recording (a file or a folder) that is shown as if it happened now, without a manager");
  app.add_option("--replay-speed", o.speed, "how many seconds of the recording pass in one")
      ->check(CLI::Range(0.01, 1000.0));
  app.add_option("--replay-skip-s", o.skip_s, "how many seconds of the recording are skipped at its begin")
      ->check(CLI::Range(0.0, 1e9));
  add_log_options(app, o.log);
}

int fail(const Error& error, int code = 1) {
  spdlog::error("{}", error.text());
  return code;
}

Result<web::ServerConfig> server_config(const Options& o) {
  web::ServerConfig config;
  if (auto listen = take(config.listen, web::parse_listen(o.listen)); !listen) return listen.error();
  if (!o.token_file.empty()) {
    if (auto token = take(config.token, web::read_token(o.token_file)); !token) return token.error();
  } else if (!config.listen.loopback) {
    return Error{Code::kInvalidArgument, o.listen + " is not opened: without a token it would be everybody's",
                 "give --token-file FILE, or listen at 127.0.0.1"};
  }
  config.names = o.hosts;
  config.connections = o.viewers + 64;
  return config;
}

int run(const Options& o) {
  // Like the manager: where it shares cores with training, training goes first. Before any thread is made.
  if (auto s = stand_behind_training(); !s) spdlog::warn("{}", s.error().text());
  if (auto s = leave_memory_to_training(kServiceMemoryBytes); !s) spdlog::warn("{}", s.error().text());
  const sigset_t ends = block_end_signals();
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value)
  const Fd end_fd(signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!end_fd.valid()) return fail(errno_error("cannot wait for signals", errno), 1);

  auto config = server_config(o);
  if (!config) return fail(config.error(), 2);
  if (o.replay.empty() && (o.speed != Options{}.speed || o.skip_s != Options{}.skip_s)) {
    return fail(
        {Code::kInvalidArgument, "--replay-speed and --replay-skip-s are for a recording", "name one with --replay"},
        2);
  }
  Paths paths = Paths::defaults();
  paths.run_dir = Paths::run_dir_with("events.sock", o.run_dir);
  web::Limits limits;
  limits.lanes = o.lanes;
  web::Hub::Limits viewers;
  viewers.viewers = o.viewers;
  web::Live live(limits, viewers, FREERIDE_VERSION, o.task_series);
  std::unique_ptr<web::Replay> replay;
  if (!o.replay.empty()) {
    if (auto opened = take(replay, web::Replay::open(o.replay, o.speed, o.skip_s, live)); !opened)
      return fail(opened.error());
  }
  zmq::context_t context(1);
  std::unique_ptr<web::Feed> feed;
  if (!replay) {
    auto connected = take(
        feed, web::Feed::connect(context, o.events_endpoint.empty() ? paths.events_endpoint() : o.events_endpoint,
                                 o.commands_endpoint.empty() ? paths.commands_endpoint() : o.commands_endpoint, live));
    if (!connected) return fail(connected.error());
  }
  const bool open_to_host = !config->listen.local_socket && config->token.empty();
  auto server = web::Server::start(
      std::move(*config),
      {[&] { return live.join(replay ? replay->now_ns() : web::Feed::now_ns()); },
       [&](const auto& viewer) { live.leave(viewer); }, [&](bool open_metrics) { return live.metrics(open_metrics); }});
  if (!server) return fail(server.error());
  spdlog::info(
      "ready: {}{}", (*server)->address(),
      open_to_host ? ", for every user of this host (--token-file FILE, or --listen unix:PATH, for some)" : "");
  replay ? replay->run(end_fd.get()) : feed->run(end_fd.get());
  live.end();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Shows bubbles, side tasks and what they cost: a live page, and /metrics for Prometheus"};
  Options options;
  declare(app, options);
  if (const auto end = parse_options(app, "freeride-web", "web", argc, argv)) return *end;
  init_log("freeride-web", options.log);
  return run(options);
}
