#include "runner_process.hpp"

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
#include <exception>
#include <string>

#include "last_words.hpp"
#include "runner.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

// Descriptors of the plugin's process, beside its output.
constexpr int kLastWordsFd = 3, kStateInFd = 4, kStateOutFd = 5;
constexpr int kOutOfTheWay = 6;

const freeride_answer_page* the_answer = nullptr;

// An exception that nobody can catch (in a thread of the plugin's, out of a noexcept function): says what it was, then
// ends the process without the destructors of a program in an unknown state.
[[noreturn]] void on_terminate() {
  const uint32_t transition = pages::load_relaxed(the_answer->transition);
  char reason[512] = "called std::terminate";
  if (const auto exception = std::current_exception()) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      snprintf(reason, sizeof(reason), "threw %s where nothing could catch it", error.what());
    } catch (...) {
      snprintf(reason, sizeof(reason), "threw something that is no std::exception where nothing could catch it");
    }
  }
  write_last_words(kLastWordsFd, last_words(VerdictKind::kFailed, Cause::kTransition, transition, reason));
  _exit(EXIT_FAILURE);
}

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

// `fd` under the number `wanted`; -1 stays -1.
int placed(int fd, int wanted) {
  return fd < 0 ? -1 : dup3(fd, wanted, O_CLOEXEC);
}

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

}  // namespace

void run_child(Job job, const freeride_lease_page& lease, int answer_fd, int last_words_fd, int listener_socket,
               Thaw* thaw) {
  set_up_process(job);
  auto answer = pages::map_page_writable<freeride_answer_page>(answer_fd);
  if (job.confinement.on) {
    const auto listener = confine_plugin(job.confinement);
    if (!listener.ok() || !send_fd(listener_socket, listener->get())) {
      const std::string reason = listener.ok() ? "its supervisor has ended" : listener.error().text();
      write_last_words(last_words_fd,
                       last_words(VerdictKind::kFailed, Cause::kSandbox, FREERIDE_IN_LOAD, reason.c_str()));
      _exit(EXIT_FAILURE);
    }
  }
  // Copies first: any of them may lie where another is to go.
  const int words = fcntl(last_words_fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  const int state_in = job.state_in_fd < 0 ? -1 : fcntl(job.state_in_fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  const int state_out = job.state_out_fd < 0 ? -1 : fcntl(job.state_out_fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  // Lifeline, report socket and page descriptors are not the plugin's.
  placed(words, kLastWordsFd);
  close(kStateInFd);
  close(kStateOutFd);
  job.state_in_fd = placed(state_in, kStateInFd);
  job.state_out_fd = placed(state_out, kStateOutFd);
  close_range(kStateOutFd + 1, ~0U, 0);
  if (!answer.ok()) {
    write_last_words(kLastWordsFd, last_words(VerdictKind::kFailed, Cause::kSandbox, FREERIDE_IN_LOAD,
                                              answer.error().text().c_str()));
    _exit(EXIT_FAILURE);
  }
  // Not sooner: whoever sets the sandbox up has descriptors of the host's folders, which /proc would name.
  const std::string& folder = job.confinement.working_dir;
  if (!folder.empty() && chdir(folder.c_str()) != 0) {
    const std::string reason = "its working folder is not there: " + errno_error(folder, errno).text();
    write_last_words(kLastWordsFd,
                     last_words(VerdictKind::kRejected, Cause::kParameter, FREERIDE_IN_LOAD, reason.c_str()));
    _exit(EXIT_FAILURE);
  }
  the_answer = answer->get();
  std::set_terminate(on_terminate);
  Runner runner(std::move(job), lease, **answer, kLastWordsFd, thaw);
  runner.run();
  // The plugin's own buffered output, but none of its static destructors: nothing may run after the verdict.
  fflush(nullptr);
  _exit(EXIT_SUCCESS);
}

}  // namespace freeride::runner
