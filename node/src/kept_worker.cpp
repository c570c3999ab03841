#include "kept_worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/base/log.hpp"

namespace freeride::node {
namespace {

constexpr int64_t kLongestPauseNs = 60 * kNsPerSec;
constexpr const char* kOomScoreAdj = "/proc/self/oom_score_adj";

Fd open_process(pid_t pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// Who listens there; 0: nobody whom this process believes.
pid_t listener_at(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = path.native();
  if (name.size() >= sizeof address.sun_path) return 0;
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  const Fd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid() || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return 0;
  const auto peer = peer_of(probe.get());
  return peer && is_trusted_user(peer->uid) ? peer->pid : 0;
}

// In the child, where nothing may allocate or lock.
[[noreturn]] void become(char* const* words, const sigset_t& signals, const rlimit& limit,
                         const std::string& oom_score_adj, int group) {
  if (group >= 0) (void)!::write(group, "0", 1);
  (void)::setrlimit(RLIMIT_DATA, &limit);
  if (const int file = ::open(kOomScoreAdj, O_WRONLY | O_CLOEXEC); file >= 0 && !oom_score_adj.empty())
    (void)!::write(file, oom_score_adj.data(), oom_score_adj.size());
  for (const int number : {SIGPIPE, SIGTERM}) (void)::signal(number, SIG_DFL);
  (void)::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::execv(words[0], words);
  constexpr int kCannotStart = 127;
  ::_exit(kCannotStart);
}

std::string how(int status, int code) {
  if (code == CLD_EXITED) return "with code " + std::to_string(status);
  return "by signal " + std::to_string(status);
}

}  // namespace

int64_t pause_ns(int ends) {
  constexpr int kDoublings = 6;
  return std::min(kLongestPauseNs, kNsPerSec << std::clamp(ends - 1, 0, kDoublings));
}

Beginning Beginning::now() {
  Beginning beginning;
  rlimit limit{};
  beginning.data_limit = ::getrlimit(RLIMIT_DATA, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  char text[16] = {};
  const Fd file(::open(kOomScoreAdj, O_RDONLY | O_CLOEXEC));
  if (file.valid() && ::read(file.get(), text, sizeof text - 1) > 0) beginning.oom_score_adj = text;
  return beginning;
}

KeptWorker::KeptWorker(std::string device, std::vector<std::string> words, std::filesystem::path socket,
                       Beginning beginning)
    : device_(std::move(device)),
      words_(std::move(words)),
      socket_(std::move(socket)),
      beginning_(std::move(beginning)) {}

void KeptWorker::look(int64_t now_ns) {
  if (process_.valid()) {
    pollfd end{process_.get(), POLLIN, 0};
    if (::poll(&end, 1, 0) <= 0) return;
    has_ended(now_ns);
  }
  if (ending_ || now_ns < start_at_ns_) return;
  started_ns_ = now_ns;
  if (!find_running()) start(now_ns);
}

int64_t KeptWorker::next_look_ns() const {
  return ending_ || process_.valid() ? 0 : start_at_ns_;
}

// One that a node before this one has started, or an operator. Looked at twice: a process's number is given again.
bool KeptWorker::find_running() {
  const pid_t pid = listener_at(socket_);
  if (pid <= 0) return false;
  Fd process = open_process(pid);
  if (!process.valid() || listener_at(socket_) != pid) return false;
  process_ = std::move(process);
  pid_ = pid;
  ours_ = false;
  spdlog::info("the worker of {} runs already (pid {}) and is left so", device_, pid);
  return true;
}

void KeptWorker::start(int64_t now_ns) {
  std::vector<char*> words;
  words.reserve(words_.size() + 1);
  for (const std::string& word : words_) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  rlimit limit{};
  (void)::getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = beginning_.data_limit;
  const Fd group = beginning_.groups.join(device_);
  const pid_t pid = ::fork();
  if (pid == 0) become(words.data(), none, limit, beginning_.oom_score_adj, group.get());
  if (pid > 0) process_ = open_process(pid);  // a child's number is not given again before it is waited for
  if (!process_.valid()) {
    const int why = errno;
    if (pid > 0) {  // nobody would learn of its end, and the next one would find its device taken
      (void)::kill(pid, SIGKILL);
      siginfo_t info{};
      (void)::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
    }
    start_at_ns_ = now_ns + pause_ns(++ends_);
    return spdlog::error("{}; it is tried again", errno_error("cannot start the worker of " + device_, why).text());
  }
  pid_ = pid;
  ours_ = true;
  spdlog::info("the worker of {} is started (pid {})", device_, pid);
}

void KeptWorker::has_ended(int64_t now_ns) {
  siginfo_t info{};
  std::string end;
  if (ours_ && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) == 0 && info.si_pid == pid_)
    end = " " + how(info.si_status, info.si_code);
  process_.reset();
  if (now_ns - started_ns_ >= kLongRunNs) ends_ = 0;
  start_at_ns_ = now_ns + pause_ns(++ends_);
  if (ending_) return spdlog::info("the worker of {} has ended{}", device_, end);
  spdlog::warn("the worker of {} has ended{}; it is started again in {} s", device_, end,
               (start_at_ns_ - now_ns) / kNsPerSec);
}

void KeptWorker::end() {
  ending_ = true;
  if (process_.valid()) (void)::syscall(SYS_pidfd_send_signal, process_.get(), SIGTERM, nullptr, 0);
}

}  // namespace freeride::node
