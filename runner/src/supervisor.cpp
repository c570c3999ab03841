#include "supervisor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <thread>

#include "confine.hpp"
#include "enforcer.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/copy_tree.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/fd.hpp"
#include "process_tree.hpp"
#include "program.hpp"
#include "program_process.hpp"
#include "report.hpp"
#include "runner_process.hpp"
#include "saved_state.hpp"
#include "stop_signal.hpp"
#include "thaw.hpp"

namespace freeride::runner {
namespace {

constexpr int64_t kReapMs = 5000;

uint32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&set));
}

/// What must outlive the enforcing thread and the thawing one, so: never freed.
struct Session {
  pages::Mapped<const freeride_lease_page> lease;
  pages::Mapped<const freeride_answer_page> answer;
  std::optional<Enforcer> enforcer;
  pages::Mapped<freeride_answer_page> own_answer;  ///< of a program: the supervisor writes it
  std::optional<Program> program;
};

// A line for the task's log, unless its reader has stopped reading.
void warn(const std::string& line) {
  pollfd room{STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0) return;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

policy::Verdict lost() {
  return {policy::VerdictKind::kLost, policy::Cause::kWorker, "its worker has ended"};
}

/// What the supervisor waits for besides the lease page. Descriptors; -1: none.
struct Waits {
  int process = -1, lifeline = -1, signals = -1;
  int words = -1;     ///< the last words
  int children = -1;  ///< signals of children that have ended
};

// Reaps what a program has orphaned, which is ours by now. `root`, its first process, is left to who asks how it ended.
void reap_orphans(pid_t root) {
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || info.si_pid == root) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

// Blocks until the plugin's process has ended, of itself or because we made it.
void wait_for_end(pid_t pid, const Waits& on, Enforcer& enforcer, Program* program) {
  pollfd waits[5] = {{on.process, POLLIN, 0},
                     {on.lifeline, POLLIN, 0},
                     {on.signals, POLLIN, 0},
                     {on.words, POLLIN, 0},
                     {on.children, POLLIN, 0}};
  int timeout_ms = -1;
  while ((waits[0].revents & POLLIN) == 0) {
    const int ready = poll(waits, 5, timeout_ms);
    if (ready < 0 && errno != EINTR) {
      enforcer.kill(lost());
      return;
    }
    if ((waits[1].revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL)) != 0) {
      enforcer.kill(lost());
      waits[1].fd = -1;
      waits[1].revents = 0;
    }
    if (ready > 0 && waits[3].revents != 0) {
      enforcer.words_came();
      waits[3].fd = -1;  // only the first ones count
    }
    if (ready > 0 && (waits[4].revents & POLLIN) != 0) {
      signalfd_siginfo ignored{};
      while (read(on.children, &ignored, sizeof(ignored)) > 0) {
      }
      reap_orphans(pid);
    }
    if (ready > 0 && (waits[2].revents & POLLIN) != 0) {
      signalfd_siginfo info{};
      const ssize_t length = read(on.signals, &info, sizeof(info));
      if (length != static_cast<ssize_t>(sizeof(info))) continue;
      enforcer.stop_requested();
      if (program != nullptr) {
        program->stop_now();
      } else {
        // To the main thread: it is the one that sleeps on the lease page.
        syscall(SYS_tgkill, pid, pid, stop_signal());
        ::kill(pid, SIGCONT);
      }
    } else if (ready != 0 && timeout_ms < 0) {
      continue;
    }
    // Only once a stop was asked for: the enforcing thread may not have heard of it.
    uint32_t sequence = 0;
    const auto look_at_ns = enforcer.look(sequence);
    const int64_t wait_ns = look_at_ns ? *look_at_ns - SteadyClock::now() : INT64_MAX;
    timeout_ms =
        wait_ns > kReapMs * kNsPerMs * 20 ? -1 : static_cast<int>(std::max<int64_t>(0, wait_ns) / kNsPerMs) + 1;
  }
}

// Hands the state to go on from over to the plugin's process when it asks for it. Never ends before it has.
void start_sending_state(int file_fd, Fd socket) {
  std::thread([file_fd, socket = std::move(socket)] { send_saved_state(file_fd, socket.get()); }).detach();
}

// What the task kept from an earlier run.
Status bring_back(const std::string& saved, const std::string& scratch) {
  const Fd from(open(saved.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!from.valid()) return errno_error("cannot open " + saved, errno);
  const Fd to(open(scratch.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!to.valid()) return errno_error("cannot open " + scratch, errno);
  auto copied = copy_tree(from.get(), to.get(), {.bytes = INT64_MAX});
  if (copied.ok()) return {};
  return Error{copied.error().code,
               "its scratch folder cannot be filled with what an earlier run has left: " + copied.error().message,
               "remove some of it, or give the worker a larger --scratch-bytes"};
}

// The process has ended: sweeps up, and says how.
Outcome end_of(pid_t pid, Enforcer& enforcer, Program* program) {
  enforcer.process_ended();
  if (program != nullptr) program->process_ended();
  // Its group is killed before it is reaped: until then its number belongs to nobody else.
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  kill(-pid, SIGKILL);
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  if (program != nullptr) {
    if (const auto ended = program_outcome(status, program->ending())) enforcer.program_ended(*ended);
  }
  Outcome outcome = enforcer.outcome(status);
  const int left_behind = kill_descendants(kReapMs);
  outcome.processes_left = static_cast<uint32_t>(std::max(0, left_behind));
  const std::string whose = program == nullptr ? "the plugin" : "the program";
  if (left_behind > 0)
    warn("warn " + std::to_string(left_behind) + " process(es) that " + whose + " had left behind were killed\n");
  if (left_behind < 0) warn("error processes that " + whose + " had left behind could not be killed\n");
  outcome.peak_resident_bytes = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  return outcome;
}

}  // namespace

Status supervise(const Job& job, const Channels& channels, const Limits& limits) {
  // The worker, which everything here obeys, is its maker. What has the shim of libcuda opens it by its name.
  auto lease = job.program.empty() && !job.gated ? pages::map_page<freeride_lease_page>(channels.lease_fd)
                                                 : pages::map_trusted_lease(channels.lease_fd);
  if (!lease.ok()) return lease.error();
  auto answer = pages::map_page<freeride_answer_page>(channels.answer_fd);
  if (!answer.ok()) return answer.error();
  Session& session = *new Session{std::move(*lease), std::move(*answer), {}, {}, {}};
  signal(SIGPIPE, SIG_IGN);
  const Report report(channels.report_fd);
  const bool confined = job.confinement.on;
  if (confined) {
    if (auto s = shield_supervisor(); !s.ok()) return s;
    if (auto s = job.confinement.saved.empty() ? Status() : bring_back(job.confinement.saved, job.scratch); !s.ok()) {
      Outcome outcome;
      outcome.verdict = {policy::VerdictKind::kFailed, policy::Cause::kSandbox, s.error().text()};
      report.verdict(outcome);
      return {};
    }
  }
  const bool is_program = !job.program.empty();
  Fd gate, gate_child;
  if (is_program) {
    if (auto s = take(session.own_answer, pages::map_page_writable<freeride_answer_page>(channels.answer_fd)); !s.ok())
      return s;
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
      return errno_error("cannot make a socket", errno);
    gate.reset(sockets[0]);
    gate_child.reset(sockets[1]);
  }
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK) != 0) return errno_error("cannot make a pipe", errno);
  const Fd words_in(pipe_fds[0]);
  Fd words_out(pipe_fds[1]);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const sigset_t stray = stray_signals();
  sigprocmask(SIG_BLOCK, &stray, nullptr);
  // In a sandbox no signal is an order: the plugin's process can send any, in anybody's name (rt_sigqueueinfo), while
  // its worker orders by the lease page. There they stay blocked, and nobody looks at them.
  const Fd signal_fd(confined ? -1 : signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!confined && !signal_fd.valid()) return errno_error("cannot make a signalfd", errno);
  Fd children_fd;
  if (is_program) {
    struct sigaction ends_only {};
    ends_only.sa_handler = SIG_DFL;
    ends_only.sa_flags = SA_NOCLDSTOP;
    sigaction(SIGCHLD, &ends_only, nullptr);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, nullptr);
    children_fd.reset(signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!children_fd.valid()) return errno_error("cannot make a signalfd", errno);
  }
  adopt_descendants();

  // On a GPU the worker stops and continues the process.
  const bool by_cpu_clock = job.by_cpu_clock();
  auto* thaw =
      static_cast<Thaw*>(mmap(nullptr, sizeof(Thaw), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (thaw == MAP_FAILED) return errno_error("cannot map a page", errno);
  Fd state_socket, state_child;
  if (job.state_in_fd >= 0) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
      return errno_error("cannot make a socket", errno);
    state_socket.reset(sockets[0]);
    state_child.reset(sockets[1]);
  }
  const int64_t started_ns = SteadyClock::now();
  const pid_t supervisor = getpid();
  const pid_t pid = fork();
  if (pid < 0) return errno_error("cannot fork the plugin's process", errno);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != supervisor) _exit(EXIT_FAILURE);  // it died before that held
    if (is_program) run_program(job, words_out.get(), gate_child.get());
    Job childs = job;
    childs.state_in_fd = state_child.get();
    run_child(std::move(childs), *session.lease, channels.answer_fd, words_out.get(), by_cpu_clock ? thaw : nullptr);
  }
  words_out.reset();
  state_child.reset();
  gate_child.reset();
  if (auto s = confined ? confine_supervisor() : Status(); !s.ok()) {
    kill(pid, SIGKILL);
    kill_descendants(kReapMs);
    return s;
  }
  const Fd pid_fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pid_fd.valid()) {
    const int error = errno;
    kill(pid, SIGKILL);
    kill_descendants(kReapMs);
    return errno_error("cannot open a pidfd", error, "Linux 5.14 or later is needed");
  }
  const Fd scratch(confined ? open(job.scratch.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  if (scratch.valid()) {
    report.started(pid, {pid_fd.get(), scratch.get()});
  } else {
    report.started(pid, {pid_fd.get()});
  }
  Enforcer& enforcer = session.enforcer.emplace(pid, *session.lease, *session.answer, words_in.get(),
                                                LeaseWatch(limits, by_cpu_clock, usable_cores(), started_ns));
  if (is_program) {
    Program::Links links{*session.lease, *session.own_answer};
    links.pid = pid;
    links.gate_fd = gate.get();
    links.words_fd = words_in.get();
    links.state_fd = job.state_out_fd;
    links.shim_fd = job.shim_fd;
    links.cores = usable_cores();
    links.by_cpu_clock = by_cpu_clock;
    enforcer.watch(session.program.emplace(links, confined, started_ns));
  }
  // NOLINTBEGIN(concurrency-mt-unsafe): nobody changes the environment
  const char* const shim = std::getenv("FREERIDE_SHIM_DRIVER");
  const char* const real = std::getenv("FREERIDE_SHIM_REAL");
  // NOLINTEND(concurrency-mt-unsafe)
  if (shim != nullptr && real != nullptr) enforcer.watch(DriverWatch(shim, real));
  enforcer.start();
  if (by_cpu_clock && !is_program)
    std::thread([&session, &enforcer, thaw] {
      keep_thawing([&enforcer] { return enforcer.go_on(); }, *session.lease, *thaw);
    }).detach();
  if (state_socket.valid()) start_sending_state(job.state_in_fd, std::move(state_socket));
  const Waits waits{pid_fd.get(), channels.lifeline_fd, signal_fd.get(), words_in.get(), children_fd.get()};
  Program* const program = is_program ? &*session.program : nullptr;
  const auto see_it_end = [&] {
    wait_for_end(pid, waits, enforcer, program);
    report.verdict(end_of(pid, enforcer, program));
  };
  if (program == nullptr) {
    see_it_end();
    return {};
  }
  // This thread is the one whose wait for a core counts, so it is the one that stops and continues the program.
  std::thread([&] {
    see_it_end();
    fflush(nullptr);
    _exit(EXIT_SUCCESS);
  }).detach();
  program->run();
}

}  // namespace freeride::runner
