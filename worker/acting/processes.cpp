#include "acting/processes.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace freeride::worker {

int64_t SystemProcesses::cpu_ns(int pid) {
  return process_cpu_ns(pid);
}

Starvation SystemProcesses::starvation(int pid) {
  return starvation_of(pid);
}

bool SystemProcesses::lives(int pid, int pidfd) {
  // A pidfd that polls readable has ended: its number may be somebody else's by now.
  pollfd ended{pidfd, POLLIN, 0};
  return pid > 1 && pidfd >= 0 && poll(&ended, 1, 0) <= 0;
}

bool SystemProcesses::stop(int, int pidfd) {
  return syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, nullptr, 0) == 0;
}

void SystemProcesses::go_on(int, int pidfd) {
  syscall(SYS_pidfd_send_signal, pidfd, SIGCONT, nullptr, 0);
}

void SystemProcesses::freeze_and_kill(int pid, int pidfd) {
  if (!lives(pid, pidfd)) return;
  ::kill(-pid, SIGSTOP);
  syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, nullptr, 0);
  ::kill(-pid, SIGKILL);
  syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

void TaskProcess::stop(int64_t now_ns) {
  if (stopped() || !known() || !processes_.stop(pid_, fd())) return;
  stopped_since_ns_ = now_ns;
  measured_since_ns_ = 0;
}

void TaskProcess::go_on(int64_t now_ns) {
  if (!stopped()) return;
  earlier_stops_ = stops(now_ns);
  stopped_since_ns_ = 0;
  processes_.go_on(pid_, fd());
}

void TaskProcess::look_stopped(int64_t now_ns) {
  const int64_t at_ns = look_stopped_at();
  if (at_ns == 0 || now_ns < at_ns) return;
  measured_since_ns_ = now_ns;
  cpu_at_stop_ns_ = processes_.cpu_ns(pid_);
}

TaskProcess::Stops TaskProcess::stops(int64_t now_ns) {
  Stops all = earlier_stops_;
  if (!stopped() || measured_since_ns_ == 0) return all;
  const int64_t cpu_ns = processes_.cpu_ns(pid_);
  all.length_ns += std::max<int64_t>(0, now_ns - measured_since_ns_);
  if (cpu_ns >= 0 && cpu_at_stop_ns_ >= 0) all.executed_ns += std::max<int64_t>(0, cpu_ns - cpu_at_stop_ns_);
  return all;
}

}  // namespace freeride::worker
