#include "interrupt.hpp"

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

}  // namespace freeride::ctl
