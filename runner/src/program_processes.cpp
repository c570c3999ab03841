#include "program_processes.hpp"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/process_stat.hpp"
#include "freeride/base/starvation.hpp"

namespace freeride::runner {
namespace {

/// Calls `use` with each number that names an entry of `folder`.
template <class Use>
void each_number(const std::string& folder, Use use) {
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    pid_t number = 0;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    const auto [stop, error] = std::from_chars(entry->d_name, end, number);
    if (error == std::errc() && stop == end && number > 0) use(number);
  }
  closedir(entries);
}

/// Of a process with `stat`: the file has the state of its first thread only.
bool any_thread_executes(pid_t pid, const ProcessStat& stat) {
  if (stat.threads <= 1) return !executes_nothing(stat.state);
  bool executes = false;
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  each_number(folder, [&](pid_t thread) {
    if (executes) return;
    const auto own = read_process_stat(folder + "/" + std::to_string(thread) + "/stat");
    executes = own && !executes_nothing(own->state);
  });
  return executes;
}

int64_t ns_of_tick() {
  static const int64_t ns = kNsPerSec / std::max(1L, sysconf(_SC_CLK_TCK));
  return ns;
}

// CPU time of the children that this process has waited for, and of theirs.
int64_t reaped_here_ns() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto ns = [](const timeval& time) { return time.tv_sec * kNsPerSec + time.tv_usec * 1000; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

struct Found {
  pid_t pid;
  ProcessStat stat;
  bool ours;
};

// `gone`: so many have ended between the list's making and the look at them. Each ran then, and may have forked.
std::vector<Found> all_processes(int& gone) {
  std::vector<Found> found;
  each_number("/proc", [&](pid_t pid) {
    if (const auto stat = stat_of(pid)) {
      found.push_back({pid, *stat, false});
    } else {
      ++gone;
    }
  });
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.pid < b.pid; });
  return found;
}

// Leaves those that descend from `root`. Numbers wrap, so a parent's may be the greater: until nothing changes.
void keep_descendants(std::vector<Found>& all, pid_t root) {
  const auto is_ours = [&](pid_t pid) {
    if (pid == root) return true;
    const auto at = std::lower_bound(all.begin(), all.end(), pid, [](const Found& f, pid_t p) { return f.pid < p; });
    return at != all.end() && at->pid == pid && at->ours;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (Found& one : all) {
      if (one.ours || one.pid == root || !is_ours(one.stat.parent)) continue;
      one.ours = changed = true;
    }
  }
  std::erase_if(all, [](const Found& one) { return !one.ours; });
}

}  // namespace

bool executes_nothing(char state) {
  return std::strchr("TtZXxDI", state) != nullptr && state != 0;
}

void ProgramProcesses::signal_all(int signal) {
  if (alone_) {
    ::kill(-1, signal);  // all but this one, at once
    return;
  }
  for (const Process& process : known_) {
    // A number may have gone to a stranger since: the descriptor stands for whoever has it now, so who is that?
    const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
    const auto stat = stat_of(process.pid);
    if (fd.valid() && stat && stat->started == process.started)
      syscall(SYS_pidfd_send_signal, fd.get(), signal, nullptr, 0);
  }
}

bool ProgramProcesses::stop() {
  if (!alone_) look();  // to know whom
  signal_all(SIGSTOP);
  return look() == 0 && look() == 0;
}

void ProgramProcesses::go_on() {
  signal_all(SIGCONT);
}

void ProgramProcesses::kill_all() {
  if (!alone_) look();
  signal_all(SIGKILL);
}

std::vector<pid_t> ProgramProcesses::list() const {
  int gone = 0;
  auto found = all_processes(gone);
  keep_descendants(found, getpid());
  std::vector<pid_t> numbers;
  numbers.reserve(found.size());
  for (const Found& one : found) numbers.push_back(one.pid);
  return numbers;
}

int ProgramProcesses::look() {
  int running = 0;
  auto found = all_processes(running);
  keep_descendants(found, getpid());
  int64_t total_ns = reaped_here_ns();
  std::vector<Process> now;
  now.reserve(found.size());
  for (const Found& one : found) {
    Process process{one.pid, one.stat.started, 0, any_thread_executes(one.pid, one.stat)};
    const auto before = std::lower_bound(known_.begin(), known_.end(), one.pid,
                                         [](const Process& p, pid_t pid) { return p.pid < pid; });
    const bool known = before != known_.end() && before->pid == one.pid && before->started == process.started;
    const int64_t last_ns = known ? before->cpu_ns : 0;
    process.cpu_ns = std::max(last_ns, process_cpu_ns(one.pid));
    executed_ns_ += process.cpu_ns - last_ns;
    total_ns += process.cpu_ns + one.stat.reaped_ticks * ns_of_tick();
    running += process.runs ? 1 : 0;
    now.push_back(process);
  }
  known_ = std::move(now);
  total_ns_ = std::max(total_ns_, total_ns);
  return running;
}

}  // namespace freeride::runner
