#include "task_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "freeride/pages.h"
#include "last_words.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

// The kernel's choice when memory runs out must be the side task, never the training.
void offer_to_oom_killer() {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, "1000", 4);
  close(fd);
}

// A process that the worker put behind all others must stay there in a session of its own: with autogroups the kernel
// weighs sessions before it looks at policies.
void keep_autogroup_last() {
  if (sched_getscheduler(0) != SCHED_IDLE) return;
  const int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;  // no autogroups here
  // Without privileges the kernel takes ten changes a second from all sessions together.
  for (int tries = 0; tries < 10 && write(fd, "19", 2) < 0 && errno == EAGAIN; ++tries) {
    const timespec pause{0, 100'000'000};
    nanosleep(&pause, nullptr);
  }
  close(fd);
}

}  // namespace

void set_up_process(const Job& job) {
  if (job.confinement.on) {
    // In the supervisor's session, which the worker has put last: the sandbox's /proc can't be written.
    setpgid(0, 0);
  } else {
    setsid();
    keep_autogroup_last();
    offer_to_oom_killer();
  }
  prctl(PR_SET_NAME, job.task.c_str());
  // A core dump of gigabytes would take the disk and the memory bandwidth of the training.
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  core.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &core);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  install_stop_signal();
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
    if (null > STDERR_FILENO) close(null);
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
}

void confine_process(const Job& job, int last_words_fd) {
  if (!job.confinement.on) return;
  const Status confined = confine_plugin(job.confinement);
  if (confined.ok()) return;
  write_last_words(last_words_fd, last_words(VerdictKind::kFailed, Cause::kSandbox, FREERIDE_IN_LOAD,
                                             confined.error().text().c_str()));
  _exit(EXIT_FAILURE);
}

void enter_working_dir(const Job& job, int last_words_fd) {
  const std::string& folder = job.confinement.working_dir;
  if (folder.empty() || chdir(folder.c_str()) == 0) return;
  const std::string reason = "its working folder is not there: " + errno_error(folder, errno).text();
  write_last_words(last_words_fd,
                   last_words(VerdictKind::kRejected, Cause::kParameter, FREERIDE_IN_LOAD, reason.c_str()));
  _exit(EXIT_FAILURE);
}

}  // namespace freeride::runner
