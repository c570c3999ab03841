// SupervisedProcesses: of a program, whose processes only its supervisor knows, what the acting thread sees of them.
#pragma once

#include "acting/processes.hpp"
#include "acting/task_source.hpp"

namespace freeride::worker {

/// A program's supervisor stops and continues all of its processes, and says on the answer page, which no process of
/// the program can write, what they have executed outside of leases. So that is the clock by which a program is judged,
/// and the supervisor is the one that may starve. Killing is as for every task: the supervisor sweeps up the rest.
class SupervisedProcesses final : public Processes {
 public:
  /// Both outlive it.
  SupervisedProcesses(const TaskSource& source, Processes& system) : source_(source), system_(system) {}

  int64_t cpu_ns(int) override;
  Starvation starvation(int) override;
  bool lives(int pid, int pidfd) override { return system_.lives(pid, pidfd); }
  bool stop(int, int) override { return true; }
  void go_on(int, int) override {}
  void freeze_and_kill(int pid, int pidfd) override { system_.freeze_and_kill(pid, pidfd); }

 private:
  const TaskSource& source_;
  Processes& system_;
};

}  // namespace freeride::worker
