#include "interrupt.hpp"

#include <poll.h>

#include <csignal>

namespace freeride::ctl {
namespace {
volatile std::sig_atomic_t g_interrupted = 0;
void on_signal(int /*signal*/) {
  g_interrupted = 1;
}
}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a wait ends
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}
bool interrupted() {
  return g_interrupted != 0;
}
bool pause_for(std::chrono::milliseconds time) {
  // A signal that comes just before the wait ends it no earlier; times here are half a second at most.
  if (!interrupted()) poll(nullptr, 0, static_cast<int>(time.count()));
  return !interrupted();
}

}  // namespace freeride::ctl
