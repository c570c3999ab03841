// TaskSlot: what the acting thread knows of one side task: its lease page, its answers, and what it executed when.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/starvation.hpp"
#include "freeride/pages/mapping.hpp"
#include "freeride/policy/lease.hpp"
#include "freeride/policy/overrun.hpp"

namespace freeride::worker {

/// A task's two pages and what the main thread wants to know of it. Shared by both threads; the pages' own rules say
/// who writes, the atomics are written by the acting thread only.
struct TaskSource {
  uint64_t id = 0;
  pages::Mapped<freeride_lease_page> lease;
  pages::Mapped<const freeride_answer_page> answer;
  bool profile = false;  ///< where there is no training, wants the profiling grant instead of the initialisation grant
  bool when_idle = false;
  int32_t priority = 0;
  int64_t predicted_ns = 0;  ///< of a step, from its profile; 0: not known
  std::atomic<int64_t> harvested_ns{0}, overrun_ns{0};
  std::atomic<uint64_t> leases{0};
  std::atomic<uint64_t> save_lease{0};  ///< id of the latest save grant
  std::atomic<bool> in_bubbles{false};  ///< has had a lease of a bubble
};

/// The operating system's side of a task's process, replaced in tests. Any thread.
class Processes {
 public:
  virtual ~Processes() = default;
  /// CPU time of all threads of `pid`, ns; -1 when there is no such process.
  virtual int64_t cpu_ns(int pid) = 0;
  /// What `pid` has waited for a core, and whether it does so now.
  virtual Starvation starvation(int pid) = 0;
  /// Freezes and kills the process group that `pid` leads, if `pidfd` says that it still lives. Does not block.
  virtual void freeze_and_kill(int pid, int pidfd) = 0;
};

/// The real one.
class SystemProcesses final : public Processes {
 public:
  int64_t cpu_ns(int pid) override;
  Starvation starvation(int pid) override;
  void freeze_and_kill(int pid, int pidfd) override;
};

struct TaskLimits {
  bool by_cpu_clock = true;  ///< execution is CPU time (CPU devices); false: wall time (GPUs)
  uint32_t cores = 1;
  int64_t grace_ns = 0, hang_ns = 0;
  int64_t stop_ns = 15 * kNsPerSec;  ///< for StopSideTask, where a task comes to it of itself
};

/// Belongs to the acting thread. No allocation but for a kill. Nothing on the answer page is trusted.
class TaskSlot {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order of its phases
 public:
  TaskSlot(std::shared_ptr<TaskSource> source, const TaskLimits& limits, Processes& processes);

  /// Looks at the answer page. Fills the members below.
  void read();

  policy::TaskView view;  ///< for decide_lease(); last_served and declined_ns are kept here between calls
  uint32_t sequence = 0;  ///< value of the answer page's futex word, read before anything else
  uint32_t state = 0;
  uint32_t transition = 0;
  bool executing = false;  ///< has not paused, as far as it says; StopSideTask has a bound of its own

  /// Whether its state is another than at the last call; RUNNING and PAUSED, which alternate with the bubbles, count as
  /// one.
  bool take_state_change();

  // ---- orders
  void set_process(int pid, std::shared_ptr<const Fd> pidfd) {
    pid_ = pid;
    pidfd_ = std::move(pidfd);
  }
  void set_order(uint32_t order, int64_t now_ns);

  // ---- leases and grants
  enum class Kind : uint32_t {
    kNone = FREERIDE_LEASE_NONE,
    kBubble = FREERIDE_LEASE_BUBBLE,
    kInit = FREERIDE_LEASE_INIT,
    kProfile = FREERIDE_LEASE_PROFILE,
    kIdle = FREERIDE_LEASE_IDLE,
    kSave = FREERIDE_LEASE_SAVE,
  };
  void open(Kind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns);
  /// Takes the open lease back; its end, for the kill rule, is the earlier of its deadline and `ended_ns`.
  void close(int64_t ended_ns, int64_t now_ns);
  Kind kind() const { return static_cast<Kind>(lease_.kind); }
  int64_t deadline_ns() const { return static_cast<int64_t>(lease_.deadline_ns); }
  bool wants_grant() const;  ///< created, ordered to run, and never granted
  bool wants_save() const;   ///< asked to save, and held in a pause
  bool grant_done() const;   ///< holds a grant and has done what it is for
  /// Takes a profiling grant back, since a training has come; its steps are for the bubbles then.
  void take_back_profile(int64_t now_ns) {
    training_came_ = true;
    close(now_ns, now_ns);
  }
  /// After close(): a task that got no processor to take its grant up is to have another.
  void forget_unused_grant() {
    if (!killed_ && state == FREERIDE_STATE_CREATED && transition == FREERIDE_IN_NONE) granted_ = false;
  }
  bool holds_profile() const { return kind() == Kind::kProfile && initialised(); }
  bool training_came() const { return training_came_; }
  bool has_grant() const { return kind() == Kind::kInit || kind() == Kind::kProfile || kind() == Kind::kSave; }
  /// It saves its state once it is paused under the order to pause; false takes that back.
  void ask_to_save(bool wanted) { save_wanted_ = wanted; }
  /// It is initialised although it is ordered to pause: its place is taken only once it has been seen to work.
  void initialise_paused() { init_paused_ = true; }

  // ---- what it executed: window = stretch in which all ranks are in bubbles
  void enter_window(int64_t now_ns);
  bool in_window() const { return in_window_; }
  /// Leaves the window; returns the step time harvested in it, at most `longest_ns`.
  int64_t leave_window(int64_t end_ns, int64_t longest_ns);
  /// Of the window just left: its first step began, and it had paused (0: not by then). Both 0: it made no step. For
  /// pictures.
  int64_t side_begin_ns() const { return side_begin_ns_; }
  int64_t side_end_ns() const { return side_end_ns_; }
  /// Whether execution past the window's end is being measured now, since leave_window().
  bool overruns() const { return overrunning_; }
  /// The measure, once it is complete: it has paused, or the `next_window` begins. -1: not yet.
  int64_t overrun(int64_t now_ns, bool next_window);

  // ---- the kill rule
  /// Judges it; kills and returns true when a limit is passed (reason() and limit() say which). `look_ns` is set when
  /// it has to be judged again by time alone.
  bool judge(int64_t now_ns, int64_t& look_ns);
  /// For the time in which nothing is expected: execution while it says that it is paused.
  bool audit(int64_t now_ns);
  bool watched() const { return watching_; }
  /// Wakes the supervisor once a change of the lease has stood for a moment; until then nobody but the runner needs to
  /// know, and on a CPU device the supervisor would take the core before the side task. Returns when to call again, 0:
  /// not needed.
  int64_t tell_supervisor(int64_t now_ns);
  /// Whether the runner has not begun to execute under the lease that is open.
  bool not_started() const;
  bool killed() const { return killed_; }
  const std::string& reason() const { return reason_; }
  const std::string& limit() const { return limit_; }

  const TaskSource& source() const { return *source_; }
  TaskSource& source() { return *source_; }
  const uint32_t& sequence_word() const { return source_->answer->sequence; }
  uint32_t order() const { return lease_.order; }
  bool initialised() const { return state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING; }

 private:
  int64_t in_steps_ns(int64_t now_ns) const;
  void note_first_step(int64_t now_ns);
  int64_t cpu_ns();  // as of the first call since read()
  void write(int64_t now_ns, int64_t tell_after_ns);
  void watch(int64_t ended_ns, int64_t cpu_ns);
  void seen_paused();
  void look_for_starvation(policy::OverrunSnapshot& snapshot);
  bool judge_stop(int64_t now_ns, int64_t& look_ns);
  void kill(std::string reason, std::string limit);

  std::shared_ptr<TaskSource> source_;
  TaskLimits limits_;
  Processes& processes_;
  pages::Lease lease_;
  int pid_ = 0;
  std::shared_ptr<const Fd> pidfd_;
  bool granted_ = false, killed_ = false, training_came_ = false;
  bool stops_ = false;          // has been seen in StopSideTask: whatever it says from then on, it is to end
  int64_t stops_since_ns_ = 0;  // 0: not judged yet
  int64_t tell_at_ns_ = 0;      // the supervisor does not know of the lease page's last change; 0: it does
  std::optional<int64_t> cpu_seen_ns_;
  bool save_wanted_ = false, init_paused_ = false;
  uint32_t told_state_ = FREERIDE_STATE_SUBMITTED;
  uint64_t skipped_at_open_ = 0;

  bool in_window_ = false;
  int64_t steps_at_entry_ns_ = 0, cpu_at_entry_ns_ = -1;
  int64_t entered_ns_ = 0, side_begin_ns_ = 0, side_end_ns_ = 0;
  bool overrunning_ = false;
  int64_t window_end_ns_ = 0, cpu_at_window_end_ns_ = -1;

  // Since the first lease that ended and was not followed by a pause. A new lease does not forgive: whoever never
  // pauses adds up.
  bool unpaused_ = false;
  int64_t first_end_ns_ = 0, cpu_at_first_end_ns_ = -1;
  int64_t starved_at_first_end_ns_ = -1;  // -1: not looked at yet
  int64_t carried_ns_ = 0;                // executed past the ends of all leases but the last

  bool watching_ = false;  // the last lease has ended, and it has not been seen paused since
  int64_t ended_ns_ = 0, cpu_at_end_ns_ = -1;
  uint64_t ended_lease_ = 0;
  int64_t executed_at_kill_ns_ = 0;
  int64_t cpu_when_paused_ns_ = -1, paused_at_ns_ = 0;  // baseline of audit()
  std::string reason_, limit_;
};

}  // namespace freeride::worker
