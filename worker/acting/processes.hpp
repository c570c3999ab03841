// Processes: the operating system's side of a task's process, as the acting thread sees it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "freeride/base/fd.hpp"
#include "freeride/base/starvation.hpp"

namespace freeride::worker {

/// Replaced in tests. Any thread.
class Processes {
 public:
  virtual ~Processes() = default;
  /// CPU time of all threads of `pid`, ns; -1 when there is no such process.
  virtual int64_t cpu_ns(int pid) = 0;
  /// What `pid` has waited for a core, and whether it does so now.
  virtual Starvation starvation(int pid) = 0;
  /// Whether the process that `pidfd` stands for, of number `pid`, can still be killed.
  virtual bool lives(int pid, int pidfd) = 0;
  /// Stops all threads of the process that `pidfd` stands for, or lets them go on. False: it could not. Does not block:
  /// 10 to 20 us until the last instruction of one that executes (2-core virtual machine).
  virtual bool stop(int pid, int pidfd) = 0;
  virtual void go_on(int pid, int pidfd) = 0;
  /// Freezes and kills the process group that `pid` leads, if it lives. Does not block.
  virtual void freeze_and_kill(int pid, int pidfd) = 0;
};

/// The real one.
class SystemProcesses final : public Processes {
 public:
  int64_t cpu_ns(int pid) override;
  Starvation starvation(int pid) override;
  bool lives(int pid, int pidfd) override;
  bool stop(int pid, int pidfd) override;
  void go_on(int pid, int pidfd) override;
  void freeze_and_kill(int pid, int pidfd) override;
};

/// One task's process. Belongs to the acting thread.
class TaskProcess {
 public:
  TaskProcess(Processes& processes, bool by_cpu_clock) : processes_(processes), by_cpu_clock_(by_cpu_clock) {}

  void set(int pid, std::shared_ptr<const Fd> pidfd) {
    pid_ = pid;
    pidfd_ = std::move(pidfd);
  }
  bool known() const { return pid_ > 0; }
  /// A new look: the clock is read again when it is asked for next.
  void look() { cpu_seen_ns_.reset(); }
  /// CPU time, as of the first call in this look; -1: there is no process, or execution is not counted so.
  int64_t cpu_ns() {
    if (!cpu_seen_ns_) cpu_seen_ns_ = by_cpu_clock_ && pid_ > 0 ? processes_.cpu_ns(pid_) : -1;
    return *cpu_seen_ns_;
  }
  /// CPU time now, on a GPU's device, too: there it says whether a task has done anything, not how much.
  int64_t host_cpu_ns() { return pid_ > 0 ? processes_.cpu_ns(pid_) : -1; }
  Starvation starvation() { return processes_.starvation(pid_); }
  bool lives() { return processes_.lives(pid_, fd()); }
  void freeze_and_kill() { processes_.freeze_and_kill(pid_, fd()); }

  void stop(int64_t now_ns);
  void go_on(int64_t now_ns);
  bool stopped() const { return stopped_since_ns_ != 0; }
  /// Until a stop has taken hold of all threads, what they execute is not theirs to answer for: a spinning one went on
  /// for 1.6 ms (H200 host, MPS client). Has to be called again at look_stopped_at(); 0: never.
  void look_stopped(int64_t now_ns);
  static constexpr int64_t kTakesHoldNs = 5'000'000;
  int64_t look_stopped_at() const {
    return stopped() && measured_since_ns_ == 0 ? stopped_since_ns_ + kTakesHoldNs : 0;
  }
  /// All its stops so far, from when they had taken hold: how long they were, and the CPU time that it took in them. A
  /// process can arrange that it goes on (a timer whose signal is SIGCONT), so a stop is looked at like everything
  /// else.
  struct Stops {
    int64_t length_ns = 0, executed_ns = 0;
  };
  Stops stops(int64_t now_ns);

 private:
  int fd() const { return pidfd_ == nullptr ? -1 : pidfd_->get(); }

  Processes& processes_;
  const bool by_cpu_clock_;
  int pid_ = 0;
  std::shared_ptr<const Fd> pidfd_;
  std::optional<int64_t> cpu_seen_ns_;
  int64_t stopped_since_ns_ = 0, measured_since_ns_ = 0, cpu_at_stop_ns_ = -1;  // of the present stop
  Stops earlier_stops_;
};

}  // namespace freeride::worker
