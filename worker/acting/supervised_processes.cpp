#include "acting/supervised_processes.hpp"

#include "freeride/base/time.hpp"

namespace freeride::worker {

int64_t SupervisedProcesses::cpu_ns(int) {
  return sane(pages::load_relaxed(source_.answer->last_paused_cpu_ns));
}

Starvation SupervisedProcesses::starvation(int) {
  return system_.starvation(source_.supervisor_pid.load(std::memory_order_relaxed));
}

}  // namespace freeride::worker
