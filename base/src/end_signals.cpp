#include "freeride/base/end_signals.hpp"

#include <pthread.h>

namespace freeride {

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  struct sigaction hangup {};
  // A signal that is blocked is delivered even where it is ignored.
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

sigset_t block_end_signals() {
  const sigset_t set = end_signals();
  const sigset_t stray = stray_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  pthread_sigmask(SIG_BLOCK, &stray, nullptr);
  return set;
}

sigset_t stray_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  return set;
}

}  // namespace freeride
