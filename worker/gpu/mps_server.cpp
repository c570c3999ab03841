#include "gpu/mps_server.hpp"

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "freeride/base/clock.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/log.hpp"
#include "gpu/end_child.hpp"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace freeride::worker {
namespace {

constexpr int64_t kStartNs = 20 * kNsPerSec;  // the driver's first context of a GPU takes seconds on some hosts
constexpr int64_t kCommandNs = 10 * kNsPerSec;
constexpr int64_t kSocketLookNs = 10 * kNsPerMs;  // while starting only: about 40 ms on an H200's host
constexpr int64_t kLogLookNs = kNsPerSec;
constexpr size_t kMostReply = 64u << 10;
constexpr uintmax_t kMostLog = 16u << 20;
// What its server writes down when a client's kernel has faulted (driver 580: bad addresses and traps).
constexpr std::string_view kFault = "fatal GPU error";
constexpr int64_t kMiB = int64_t{1} << 20;

std::filesystem::path logs_of(const std::filesystem::path& pipes) {
  return pipes.string() + "-logs";
}

std::filesystem::path log_folder_of(const MpsRequest& request) {
  return logs_of(request.folder.parent_path()) / request.folder.filename();
}

std::vector<std::string> environment_of(const MpsRequest& request) {
  std::vector<std::string> words;
  for (char** word = environ; word != nullptr && *word != nullptr; ++word) {
    const std::string_view text(*word);
    if (text.rfind("CUDA_", 0) != 0) words.emplace_back(text);
  }
  words.push_back("CUDA_VISIBLE_DEVICES=" + request.gpu);
  words.push_back("CUDA_MPS_PIPE_DIRECTORY=" + request.folder.string());
  words.push_back("CUDA_MPS_LOG_DIRECTORY=" + log_folder_of(request).string());
  return words;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> list;
  for (std::string& word : words) list.push_back(word.data());
  list.push_back(nullptr);
  return list;
}

// Starts the control program as the task's user, in a session of its own. Between fork and exec nothing but system
// calls.
Result<Child> spawn(const MpsRequest& request, std::vector<std::string> arguments, int in, int out) {
  arguments.insert(arguments.begin(), request.control);
  std::vector<std::string> words = environment_of(request);
  const std::vector<char*> argv = pointers(arguments), environment = pointers(words);
  const bool change = geteuid() == 0 && request.identity.uid != 0;
  const pid_t pid = fork();
  if (pid < 0) return errno_error("cannot start " + request.control, errno, "see the limit on processes (ulimit -u)");
  if (pid == 0) {
    const sigset_t stray = stray_signals();
    sigprocmask(SIG_SETMASK, &stray, nullptr);
    for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGIO}) signal(number, SIG_DFL);
    setsid();
    const bool as_user = !change || (setgroups(0, nullptr) == 0 &&
                                     setresgid(request.identity.gid, request.identity.gid, request.identity.gid) == 0 &&
                                     setresuid(request.identity.uid, request.identity.uid, request.identity.uid) == 0);
    // After the change of user, which clears it. The server follows its control daemon.
    if (!as_user || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(kCannotStart);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(kCannotStart);
    execve(argv[0], argv.data(), environment.data());
    _exit(kCannotStart);
  }
  Child child;
  child.pid = pid;
  child.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (child.pidfd.valid()) return child;
  const int err = errno;
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
  return errno_error("cannot watch " + request.control, err);
}

std::string read_all(int fd) {
  std::string text(kMostReply, '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string last_line(const std::string& text) {
  const std::string all = trimmed(text);
  const size_t end = all.rfind('\n');
  return (end == std::string::npos ? all : all.substr(end + 1)).substr(0, 300);
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pid);
    if (error == std::errc() && end == word.data() + word.size() && pid > 1) pids.push_back(pid);
  }
  return pids;
}

// Whether the control program's "512M", "4G", "1048576" or "0=512M" is this limit. It shows whole units of the largest
// that fits: 1408M is shown as 1G.
bool shows_limit(std::string text, int64_t limit_bytes) {
  text = last_line(text);
  if (const size_t sign = text.find('='); sign != std::string::npos) text.erase(0, sign + 1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  const std::string unit = text.substr(static_cast<size_t>(end - text.data()));
  const size_t shift = unit.empty() || unit[0] == 'B' ? 0 : unit[0] == 'K' ? 10 : unit[0] == 'M' ? 20 : 30;
  return (shift != 30 || unit[0] == 'G') && number > 0 && number == limit_bytes >> shift;
}

}  // namespace

// One run of the control program with one command on its standard input; its output goes to a memfd.
class MpsServer::Command {
 public:
  static Result<std::unique_ptr<Command>> run(const MpsRequest& request, Loop& loop, const std::string& text,
                                              Replied done) {
    std::unique_ptr<Command> command(new Command(loop, text, std::move(done)));
    const Fd input(memfd_create("mps-command", MFD_CLOEXEC));
    command->output_.reset(memfd_create("mps-reply", MFD_CLOEXEC));
    const std::string line = text + "\n";
    if (!input.valid() || !command->output_.valid() ||
        pwrite(input.get(), line.data(), line.size(), 0) != static_cast<ssize_t>(line.size())) {
      return errno_error("cannot make a file in memory", errno);
    }
    auto child = spawn(request, {}, input.get(), command->output_.get());
    if (!child.ok()) return child.error();
    command->child_ = std::move(*child);
    Command* self = command.get();
    if (auto s = loop.watch(self->child_.pidfd.get(), EPOLLIN, [self](uint32_t) { self->finished(); }); !s.ok())
      return s.error();
    self->watched_ = true;
    self->timer_ = loop.at(SteadyClock::now() + kCommandNs, [self] {
      self->timer_ = 0;
      self->reply(Error{Code::kTimeout, "the MPS control program did not answer '" + self->text_ + "'", ""});
    });
    return command;
  }
  ~Command() {
    loop_.cancel(timer_);
    if (watched_) loop_.forget(child_.pidfd.get());
    end_child(std::move(child_), loop_, nullptr);
  }

 private:
  Command(Loop& loop, std::string text, Replied done) : loop_(loop), text_(std::move(text)), done_(std::move(done)) {}
  void finished() {
    siginfo_t info{};
    loop_.forget(child_.pidfd.get());
    watched_ = false;
    waitid(P_PID, static_cast<id_t>(child_.pid), &info, WEXITED | WNOHANG);
    child_ = Child{};
    const std::string output = read_all(output_.get());
    if (info.si_code == CLD_EXITED && info.si_status == 0) return reply(output);
    reply(Error{Code::kUnavailable,
                "the MPS control program failed at '" + text_ +
                    "': " + (output.empty() ? "exit " + std::to_string(info.si_status) : last_line(output)),
                ""});
  }
  // The last thing done here: the callback ends this object.
  void reply(Result<std::string> result) {
    const Replied done = std::move(done_);
    done(std::move(result));
  }

  Loop& loop_;
  const std::string text_;
  Replied done_;
  Child child_;
  Fd output_;
  Loop::Timer timer_ = 0;
  bool watched_ = false;
};

Result<std::unique_ptr<MpsServer>> MpsServer::start(const MpsRequest& request, Loop& loop, Ready ready, Died died) {
  std::unique_ptr<MpsServer> server(new MpsServer(request, loop, std::move(ready), std::move(died)));
  if (auto launched = server->launch(); !launched.ok()) return launched.error();
  return server;
}

MpsServer::MpsServer(MpsRequest request, Loop& loop, Ready ready, Died died)
    : request_(std::move(request)), loop_(loop), ready_(std::move(ready)), died_(std::move(died)) {}

MpsServer::~MpsServer() {
  ready_ = nullptr;
  died_ = nullptr;
  end_processes();
}

void MpsServer::end_processes() {
  loop_.cancel(timer_);
  timer_ = 0;
  waiting_.clear();
  command_.reset();
  if (server_pidfd_.valid()) {
    loop_.forget(server_pidfd_.get());
    syscall(SYS_pidfd_send_signal, server_pidfd_.get(), SIGKILL, nullptr, 0);
    server_pidfd_.reset();
  }
  const auto remove = [pipes = request_.folder, log = log_folder_of(request_)] {
    std::error_code ignored;
    for (const auto& folder : {pipes, log}) std::filesystem::remove_all(folder, ignored);
  };
  if (control_.pid <= 1) return remove();
  loop_.forget(control_.pidfd.get());
  end_child(std::exchange(control_, Child{}), loop_, remove);
}

Status MpsServer::launch() {
  const std::string longest = (request_.folder / "control_privileged").string();
  if (longest.size() >= sizeof(sockaddr_un::sun_path)) {
    return Error{Code::kInvalidArgument, "the MPS pipe folder " + request_.folder.string() + " has too long a name",
                 "use a shorter --run-dir"};
  }
  for (const auto& folder : {request_.folder, log_folder_of(request_)}) {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    std::filesystem::create_directories(folder.parent_path(), error);
    if (mkdir(folder.c_str(), 0700) != 0)
      return errno_error("cannot make the MPS folder " + folder.string(), errno, "repair the run folder");
    // Of the task's user alone: other tasks have other users.
    if (geteuid() == 0 && chown(folder.c_str(), request_.identity.uid, request_.identity.gid) != 0)
      return errno_error("cannot hand over the MPS folder " + folder.string(), errno);
  }
  if (access(request_.control.c_str(), X_OK) != 0)
    return errno_error("cannot run " + request_.control, errno,
                       "install the driver's MPS, or name it with --mps-control");
  const Fd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  output_.reset(memfd_create("mps-log", MFD_CLOEXEC));
  if (!null_fd.valid() || !output_.valid()) return errno_error("cannot open files for the MPS server", errno);
  auto child = spawn(request_, {"-f"}, null_fd.get(), output_.get());
  if (!child.ok()) return child.error();
  control_ = std::move(*child);
  give_up_ns_ = SteadyClock::now() + kStartNs;
  timer_ = loop_.at(SteadyClock::now() + kSocketLookNs, [this] { look_for_socket(); });
  return loop_.watch(control_.pidfd.get(), EPOLLIN, [this](uint32_t) { ended("its control daemon ended"); });
}

void MpsServer::look_for_socket() {
  timer_ = 0;
  if (access((request_.folder / "control").c_str(), F_OK) == 0) return configure();
  if (SteadyClock::now() > give_up_ns_)
    return fail({Code::kTimeout, "the MPS control daemon has made no socket in " + request_.folder.string(), ""});
  timer_ = loop_.at(SteadyClock::now() + kSocketLookNs, [this] { look_for_socket(); });
}

void MpsServer::ask(const std::string& command, Replied done) {
  waiting_.emplace_back(command, std::move(done));
  if (command_ == nullptr) next_command();
}

void MpsServer::next_command() {
  if (waiting_.empty()) return;
  auto [text, done] = std::move(waiting_.front());
  waiting_.pop_front();
  auto command = Command::run(request_, loop_, text, [this, done = done](Result<std::string> result) {
    const auto ended = std::move(command_);  // until this returns
    next_command();
    done(std::move(result));
  });
  if (command.ok()) {
    command_ = std::move(*command);
  } else {
    done(command.error());
  }
}

void MpsServer::configure() {
  const int64_t mib = request_.limit_bytes / kMiB;
  const std::string limit = std::to_string(mib) + "M";
  const auto set = [this](Result<std::string> reply) {
    if (!reply.ok()) fail(reply.error());
  };
  ask("set_default_device_pinned_mem_limit 0 " + limit, set);
  if (!ready_) return;
  ask("set_default_active_thread_percentage " + std::to_string(request_.thread_pct), set);
  if (!ready_) return;
  ask("get_default_device_pinned_mem_limit 0", [this, mib, limit](Result<std::string> reply) {
    if (!ready_) return;
    if (!reply.ok()) return fail(reply.error());
    if (!shows_limit(*reply, mib * kMiB)) {
      return fail({Code::kInternal,
                   "the MPS server was given a memory limit of " + limit + " and says '" + last_line(*reply) + "'",
                   "its limits cannot be relied on; update the driver"});
    }
    ask("start_server -uid " + std::to_string(request_.identity.uid), [this](Result<std::string> started) {
      if (!ready_) return;
      if (!started.ok()) return fail(started.error());
      find_server();
    });
  });
}

void MpsServer::find_server() {
  timer_ = 0;
  ask("get_server_list", [this](Result<std::string> reply) {
    if (!ready_) return;
    if (!reply.ok()) return fail(reply.error());
    const auto pids = pids_in(*reply);
    if (!pids.empty()) return watch_server(pids.front());
    if (SteadyClock::now() > give_up_ns_) {
      const std::string log = output_tail();
      return fail({Code::kTimeout, "no MPS server has started" + (log.empty() ? "" : ": " + log), ""});
    }
    timer_ = loop_.at(SteadyClock::now() + kSocketLookNs, [this] { find_server(); });
  });
}

void MpsServer::watch_server(pid_t pid) {
  server_pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!server_pidfd_.valid() && errno != ESRCH) return fail(errno_error("cannot watch the MPS server", errno));
  if (!server_pidfd_.valid())
    return fail({Code::kUnavailable, "the MPS server ended as it started: " + output_tail(), ""});
  server_pid_ = pid;
  if (auto s = loop_.watch(server_pidfd_.get(), EPOLLIN, [this](uint32_t) { ended("its MPS server ended"); }); !s.ok())
    return fail(s.error());
  timer_ = loop_.at(SteadyClock::now() + kLogLookNs, [this] { look_at_log(); });
  const Ready ready = std::exchange(ready_, nullptr);
  ready({});
}

// A client makes it longer with each connection, and the run folder is memory.
void MpsServer::look_at_log() {
  timer_ = 0;
  for (const char* name : {"server.log", "control.log"}) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(log_folder_of(request_) / name, error);
    if (!error && bytes > kMostLog) return ended("its client made the MPS " + std::string(name) + " pass 16 MiB");
  }
  timer_ = loop_.at(SteadyClock::now() + kLogLookNs, [this] { look_at_log(); });
}

void MpsServer::clients(Clients done) {
  ask("get_client_list " + std::to_string(server_pid_), [done = std::move(done)](Result<std::string> reply) {
    if (!reply.ok()) return done(reply.error());
    done(pids_in(*reply));
  });
}

bool MpsServer::saw_fault() const {
  if (saw_fault_) return true;
  const std::filesystem::path log = log_folder_of(request_) / "server.log";
  std::error_code error;
  const auto bytes = std::filesystem::file_size(log, error);
  if (error) return false;
  if (bytes > kMostLog) return true;  // a client without end of messages hides one
  std::ifstream in(log);
  for (std::string line; std::getline(in, line);) {
    if (line.find(kFault) != std::string::npos) return true;
  }
  return false;
}

std::string MpsServer::output_tail() const {
  return last_line(read_all(output_.get()));
}

void MpsServer::fail(const Error& error) {
  if (!ready_) return;
  const Ready ready = std::exchange(ready_, nullptr);
  died_ = nullptr;
  loop_.cancel(timer_);
  // From the loop: whoever asked may end this object in the call.
  timer_ = loop_.at(SteadyClock::now(), [ready, error] { ready(error); });
}

void MpsServer::ended(const std::string& how) {
  const std::string log = output_tail();
  const std::string text = how + (log.empty() ? "" : ": " + log);
  if (ready_) {
    loop_.forget(control_.pidfd.get());
    return fail({Code::kUnavailable, "no MPS server: " + text, "see nvidia-smi and the driver's MPS"});
  }
  const Died died = std::exchange(died_, nullptr);
  saw_fault_ = saw_fault();
  end_processes();
  if (died) died(text);
}

void sweep_mps_folders(const std::filesystem::path& folder, const std::string& prefix) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().rfind(prefix, 0) != 0) continue;
    const std::string mark = "CUDA_MPS_PIPE_DIRECTORY=" + entry.path().string();
    for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
      const std::string name = process.path().filename().string();
      pid_t pid = 0;
      if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc() || pid <= 1) continue;
      const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      std::ifstream in(process.path() / "environ", std::ios::binary);
      std::ostringstream read;
      read << in.rdbuf();  // an iterator over the buffer would throw where the process ends meanwhile
      const std::string text = read.str();
      if (!pidfd.valid() || (std::string(1, '\0') + text).find(std::string(1, '\0') + mark + '\0') == std::string::npos)
        continue;
      spdlog::warn("ending process {}, left behind with the MPS pipe folder {}", pid, entry.path().string());
      syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
    }
    std::filesystem::remove_all(entry.path(), error);
  }
  for (const auto& entry : std::filesystem::directory_iterator(logs_of(folder), error)) {
    if (entry.path().filename().string().rfind(prefix, 0) == 0) std::filesystem::remove_all(entry.path(), error);
  }
}

}  // namespace freeride::worker
