#include "up.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <list>
#include <optional>
#include <ostream>

#include "child.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/paths.hpp"
#include "json.hpp"
#include "pressed_keys.hpp"
#include "run_program.hpp"
#include "runner.hpp"

namespace freeride::ctl {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kStartNs = 60 * kNsPerSec;  // so long a program may take until it answers
constexpr int64_t kEndNs = 20 * kNsPerSec;    // and to end: the worker's --stop-ms, and some
constexpr int64_t kAgainNs = kNsPerSec;       // a signal that comes sooner is the same wish, sent to a group, too
constexpr milliseconds kLookAgain{100};       // a socket or a line of a log is no event
constexpr milliseconds kAnswer{1000};
constexpr size_t kLastLines = 3;
constexpr size_t kMostLog = 64u << 20;

const char* const kManager = "manager";
const char* const kPage = "page";

// Who serves the manager's commands in `run_dir`. Nothing: nobody, or somebody whom this user cannot reach.
std::optional<Peer> manager_in(const std::filesystem::path& run_dir) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = (run_dir / "commands.sock").string();
  if (path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid() || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return std::nullopt;
  const auto peer = peer_of(probe.get());
  return peer ? *peer : Peer{};
}

Status check_none_runs(const std::string& given) {
  for (const auto& folder : Paths::run_dirs(given)) {
    const auto peer = manager_in(folder);
    if (!peer) continue;
    return Error{Code::kAlreadyExists,
                 "a manager runs already in " + folder.string() + " (process " + std::to_string(peer->pid) +
                     " of user " + user_name(peer->uid) + "); nothing was started",
                 "use it: freeride-ctl --run-dir " + folder.string() +
                     " status; or give this one folders of its own: --run-dir and --state-dir"};
  }
  return {};
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

// The worker's program knows the driver. Without one there are none.
std::vector<std::string> find_gpus(const std::string& worker) {
  const auto ran = run_program({worker, "--list-devices"});
  return ran && ran->code == 0 ? listed_gpus(ran->out) : std::vector<std::string>();
}

/// One of the programs, and what is said of it.
struct Program {
  std::string name;    ///< manager, worker DEVICE, page
  std::string device;  ///< of a worker
  std::string where;   ///< for people: folder, cores, URL
  Child child;
  bool answers = false;
  bool over = false;  ///< its end was told
};

class Up {
 public:
  Up(Session& session, const UpArguments& arguments, Paths paths, Fd signals)
      : out_(session),
        arguments_(arguments),
        paths_(std::move(paths)),
        signals_(std::move(signals)),
        manager_(own(session.options(), paths_), session.out()) {}

  Result<int> run(const std::vector<PlannedWorker>& workers);

 private:
  static Options own(Options options, const Paths& paths) {
    options.commands_endpoint = paths.commands_endpoint();
    options.events_endpoint = paths.events_endpoint();
    options.usable = {};
    options.timeout = kAnswer;
    return options;
  }
  Result<Program*> start(const std::string& name, const std::string& program, std::vector<std::string> flags,
                         const std::string& where, const std::string& device = {});
  Status start_all(const std::vector<PlannedWorker>& workers);
  Status start_manager();
  void start_workers(const std::vector<PlannedWorker>& workers);
  void start_page();
  template <class Answers>
  void await(Answers answers);
  void tell_up();
  bool wait(milliseconds most);
  void take_signals(short events);
  void note_ends();
  void end_all();
  void end(const std::vector<Program*>& programs);
  bool runs(const std::string& prefix) const;
  void say(const char* event, const Program& program, const std::string& what,
           const std::vector<std::string>& more = {});
  void say(const char* event, const std::string& what);
  std::string log_of(const Program& program) const {
    const auto text = read_file(program.child.log(), kMostLog);
    return text ? *text : std::string();
  }

  Session& out_;
  const UpArguments& arguments_;
  const Paths paths_;
  const Fd signals_;
  Session manager_;
  std::optional<PressedKeys> keys_;
  std::list<Program> programs_;  // in the order of their starts; whoever has one keeps it
  int asked_ = 0;                // how often the user wanted the end
  int64_t asked_ns_ = 0;         // the last time
  bool failed_ = false;
};

void Up::say(const char* event, const Program& program, const std::string& what, const std::vector<std::string>& more) {
  std::ostream& out = out_.out();
  if (out_.json()) {
    out << dump({{"event", event},
                 {"program", program.name},
                 {"pid", program.child.pid()},
                 {"what", what},
                 {"where", program.where},
                 {"log", program.child.log().string()},
                 {"last_lines", more}})
        << "\n"
        << std::flush;
    return;
  }
  std::string name = program.name;
  name.resize(std::max<size_t>(name.size(), 13), ' ');
  const bool started = std::string_view(event) == "started";
  out << printable(name + "  " + what + (started ? "  (log: " + program.child.log().string() + ")" : "")) << "\n";
  for (const std::string& line : more) out << "    " << printable(line) << "\n";
  out << std::flush;
}

void Up::say(const char* event, const std::string& what) {
  if (out_.json()) {
    out_.out() << dump({{"event", event}, {"what", what}}) << "\n" << std::flush;
  } else {
    out_.out() << printable(what) << "\n" << std::flush;
  }
}

Result<Program*> Up::start(const std::string& name, const std::string& program, std::vector<std::string> flags,
                           const std::string& where, const std::string& device) {
  const auto found = find_program(program);
  if (!found) return found.error();
  std::vector<std::string> words{found->string(), "--run-dir", paths_.run_dir.string(), "--log-format", "text"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::string file = name + ".log";
  std::replace(file.begin(), file.end(), ' ', '-');
  auto child = Child::start(words, paths_.state_dir / "logs" / file);
  if (!child) return child.error();
  programs_.push_back({name, device, where, std::move(*child)});
  return &programs_.back();
}

// Waits until all that was started answers, or has ended, or the user has seen enough. `answers`: whether one does.
template <class Answers>
void Up::await(Answers answers) {
  const int64_t until_ns = SteadyClock::now() + kStartNs;
  for (;;) {
    bool all = true;
    for (Program& program : programs_) {
      if (program.answers || program.over) continue;
      program.answers = answers(program);
      all = all && program.answers;
      if (program.answers) say("started", program, program.where);
    }
    if (all || !wait(kLookAgain)) return;
    if (SteadyClock::now() < until_ns) continue;
    for (Program& program : programs_) {
      if (!program.answers && !program.over)
        say("silent", program, "does not answer yet; it says so in " + program.child.log().string());
    }
    return;
  }
}

Status Up::start_manager() {
  const auto started = start(kManager, "freeride-manager", {"--state-dir", paths_.state_dir.string()},
                             "run folder " + paths_.run_dir.string());
  if (!started) return started.error();
  await([this](Program&) { return manager_.ask<bus::StatusReply>(bus::GetStatus{}).ok(); });
  if (asked_ != 0 || (*started)->answers) return {};
  return Error{Code::kUnavailable, "without a manager nothing can run", "see " + (*started)->child.log().string()};
}

void Up::start_workers(const std::vector<PlannedWorker>& workers) {
  for (const PlannedWorker& worker : workers) {
    std::vector<std::string> flags{"--device", worker.device, "--state-dir", paths_.state_dir.string()};
    if (!worker.cores.empty()) flags.insert(flags.end(), {"--cores", worker.cores});
    flags.insert(flags.end(), arguments_.worker_flags.begin(), arguments_.worker_flags.end());
    const bool cpu = worker.device.rfind("cpu-", 0) == 0;
    const bool one = worker.cores.find_first_of(",-") == worker.cores.npos;
    const std::string where = cpu ? (one ? "core " : "cores ") + worker.cores : "up";
    if (const auto started = start("worker " + worker.device, kWorker, flags, where, worker.device); !started)
      say("failed", "worker " + worker.device + " is not started: " + started.error().text());
  }
}

void Up::start_page() {
  if (arguments_.no_page) return;
  std::vector<std::string> flags{"--log-level", "info"};  // it says where it is
  if (!arguments_.listen.empty()) flags.insert(flags.end(), {"--listen", arguments_.listen});
  if (const auto started = start(kPage, "freeride-web", flags, ""); !started)
    say("failed", "there is no page: " + started.error().text());
}

Status Up::start_all(const std::vector<PlannedWorker>& workers) {
  if (auto started = start_manager(); !started || asked_ != 0) return started;
  start_workers(workers);
  start_page();
  await([this](Program& program) {
    if (program.name == kPage) return !(program.where = address_in(log_of(program))).empty();
    const auto reply = manager_.ask<bus::WorkersReply>(bus::ListWorkers{});
    return reply && std::any_of(reply->workers.begin(), reply->workers.end(), [&](const bus::WorkerInfo& info) {
             return info.state.device == program.device && info.state.state == "up" &&
                    info.pid == static_cast<uint32_t>(program.child.pid());
           });
  });
  return {};
}

bool Up::runs(const std::string& prefix) const {
  return std::any_of(programs_.begin(), programs_.end(),
                     [&prefix](const Program& program) { return !program.over && program.name.rfind(prefix, 0) == 0; });
}

void Up::tell_up() {
  const auto workers = std::count_if(programs_.begin(), programs_.end(), [](const Program& one) {
    return !one.device.empty() && one.answers && !one.over;
  });
  say("up", "up: a manager, " + std::to_string(workers) + (workers == 1 ? " worker" : " workers") +
                (runs(kPage) ? " and the page" : ", no page") +
                (keys_->on() ? "; q or Ctrl-C ends all" : "; SIGTERM ends all"));
  if (out_.json()) return;
  if (Paths::defaults().run_dir != paths_.run_dir)
    out_.out() << "in another terminal, and for the training: export FREERIDE_RUN_DIR=" << paths_.run_dir.string()
               << "\n";
  out_.out() << "in another terminal: freeride-ctl load pagerank.so --stage 1\n" << std::flush;
}

void Up::take_signals(short events) {
  bool wants = false;
  signalfd_siginfo info{};
  while ((events & POLLIN) != 0 && read(signals_.get(), &info, sizeof info) == sizeof info) wants = true;
  for (char key = keys_ ? keys_->next() : '\0'; key != '\0'; key = keys_->next())
    wants = wants || key == 'q' || key == 'Q';
  const int64_t now = SteadyClock::now();
  if (!wants || (asked_ != 0 && now - asked_ns_ < kAgainNs)) return;
  ++asked_;
  asked_ns_ = now;
}

// Sleeps that long, or until something happens, and notes it. False: it is time to end.
bool Up::wait(milliseconds most) {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  if (keys_ && keys_->on()) fds.push_back({STDIN_FILENO, POLLIN, 0});
  for (const Program& program : programs_) {
    if (!program.over) fds.push_back({program.child.fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), static_cast<int>(most.count()));
  take_signals(fds.front().revents);
  note_ends();
  return asked_ == 0 && !failed_;
}

void Up::note_ends() {
  for (Program& program : programs_) {
    const auto ending = program.over ? std::nullopt : program.child.ended();
    if (!ending) continue;
    program.over = true;
    if (asked_ != 0 || failed_) continue;  // it was asked to
    const bool page = program.name == kPage;
    say("ended", program,
        "has ended " + ending->text() + (page ? "; all else goes on without it" : "") + "; its log is " +
            program.child.log().string() + ", its last lines:",
        last_words(log_of(program), kLastLines));
    failed_ = failed_ || program.name == kManager;
  }
}

// All at once, each within kEndNs; who has not ended then, or where the user asks again, is killed.
void Up::end(const std::vector<Program*>& programs) {
  const int asked = std::max(asked_, 1);
  asked_ = asked;
  const auto left = [&programs] {
    return std::any_of(programs.begin(), programs.end(), [](const Program* one) { return !one->over; });
  };
  for (const Program* program : programs) {
    if (!program->over) program->child.ask_to_end();
  }
  for (const int64_t until_ns = SteadyClock::now() + kEndNs;
       left() && asked_ == asked && SteadyClock::now() < until_ns;)
    wait(milliseconds(1000));
  for (const Program* program : programs) {
    if (program->over) continue;
    say("killed", *program, "does not end, and is killed; its log is " + program->child.log().string());
    program->child.kill();
  }
  while (left()) wait(milliseconds(1000));
}

// Workers first, so that the manager hears where their tasks are.
void Up::end_all() {
  std::vector<Program*> workers, page, manager;
  for (Program& program : programs_)
    (program.name == kManager ? manager : program.name == kPage ? page : workers).push_back(&program);
  if (runs("")) say("ending", "ending all");
  for (const auto& group : {workers, page, manager}) end(group);
  say("down", "all have ended");
}

Result<int> Up::run(const std::vector<PlannedWorker>& workers) {
  keys_.emplace();
  const Status started = start_all(workers);
  if (started && !failed_ && asked_ == 0) {
    if (runs("worker ")) tell_up();
    while (runs("worker ") && wait(milliseconds(60'000))) {
    }
  }
  const bool by_user = asked_ != 0;
  if (!by_user && started && !failed_)
    say("failed",
        "no worker is left; freeride-ctl doctor says what this host lacks for one, and a worker's flags follow --");
  end_all();
  keys_.reset();
  if (!started) return started.error();
  return by_user ? kExitOk : kExitFailed;
}

}  // namespace

Result<int> run_up(Session& session, const UpArguments& arguments) {
  if (session.remote()) return Error{Code::kInvalidArgument, "up starts a manager of this host", "leave --manager out"};
  if (auto none = check_none_runs(arguments.run_dir); !none) return none.error();
  Paths paths = Paths::defaults();
  if (!arguments.run_dir.empty()) paths.run_dir = std::filesystem::absolute(arguments.run_dir);
  if (!arguments.state_dir.empty()) paths.state_dir = std::filesystem::absolute(arguments.state_dir);
  const auto worker = find_program(kWorker);
  if (!worker) return worker.error();
  const bool by_name = !arguments.devices.devices.empty() || arguments.devices.cpus != 0;
  const auto workers =
      plan_workers(arguments.devices, by_name ? std::vector<std::string>() : find_gpus(*worker), usable_cores());
  if (!workers) return workers.error();
  std::error_code error;
  std::filesystem::create_directories(paths.state_dir / "logs", error);
  if (error)
    return Error{Code::kPermission,
                 "cannot make the folder " + (paths.state_dir / "logs").string() + ": " + error.message(),
                 "name another with --state-dir"};
  for (const char* ours : {"FREERIDE_DEVICE", "FREERIDE_CORES"}) unsetenv(ours);  // a worker is told its own
  const sigset_t set = block_end_signals();                                       // before any thread is made
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value)
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return errno_error("cannot wait for signals", errno);
  return Up(session, arguments, std::move(paths), std::move(signals)).run(*workers);
}

}  // namespace freeride::ctl
