#include "stop_signal.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace freeride::runner {
namespace {

volatile std::sig_atomic_t requested = 0;

// The wait's deadline: for ever, until the handler sets it to the past. A signal that comes just before the system call
// is entered therefore ends the wait at once; one that comes later interrupts it. There is no moment at which it could
// be missed.
timespec deadline{4'000'000'000, 0};

void on_signal(int) {
  requested = 1;
  __atomic_store_n(&deadline.tv_sec, 0, __ATOMIC_SEQ_CST);
}

}  // namespace

int stop_signal() {
  return SIGRTMIN + 7;
}

void install_stop_signal() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // the plugin's own system calls are not disturbed
  sigemptyset(&action.sa_mask);
  sigaction(stop_signal(), &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, stop_signal());
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool stop_requested() {
  return requested != 0;
}

void wait_for_change(const uint32_t& word, uint32_t expected, uint32_t bits) {
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &deadline, nullptr, bits);
}

}  // namespace freeride::runner
