#include "runner_process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "last_words.hpp"
#include "runner.hpp"
#include "stop_signal.hpp"
#include "task_process.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

// Descriptors of the plugin's process, beside its output and kLastWordsFd.
constexpr int kStateInFd = 4, kStateOutFd = 5;
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

// `fd` under the number `wanted`; -1 stays -1.
int placed(int fd, int wanted) {
  return fd < 0 ? -1 : dup3(fd, wanted, O_CLOEXEC);
}

}  // namespace

void run_child(Job job, const freeride_lease_page& lease, int answer_fd, int last_words_fd, Thaw* thaw) {
  set_up_process(job);
  // Unlike a program, which knows what it does with them, a plugin is not asked: they are for the training beside it.
  for (const int stray : {SIGUSR1, SIGUSR2}) ::signal(stray, SIG_IGN);
  auto answer = pages::map_page_writable<freeride_answer_page>(answer_fd);
  confine_process(job, last_words_fd);
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
  enter_working_dir(job, kLastWordsFd);
  the_answer = answer->get();
  std::set_terminate(on_terminate);
  Runner runner(std::move(job), lease, **answer, kLastWordsFd, thaw);
  runner.run();
  // The plugin's own buffered output, but none of its static destructors: nothing may run after the verdict.
  fflush(nullptr);
  _exit(EXIT_SUCCESS);
}

}  // namespace freeride::runner
