// Actor: the acting thread's logic without the thread: looks at the pages, opens and closes leases, kills, measures.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "acting/act_event.hpp"
#include "acting/plans.hpp"
#include "acting/prober.hpp"
#include "acting/rank_slot.hpp"
#include "acting/task_slot.hpp"
#include "acting/transitions.hpp"
#include "freeride/base/wait_set.hpp"
#include "freeride/policy/verdict.hpp"

namespace freeride::worker {

/// A bell page of this worker's.
using Bell = pages::Created<freeride_bell_page>;

struct ActorConfig {
  TaskLimits task;
  policy::LeaseLimits lease;
  policy::ProbeLimits probe;
  int64_t settled_ns = 0;  ///< LeaseSnapshot::settled_ns
  uint64_t probe_secret = 0;
  std::shared_ptr<ProbeCounts> probe_counts = std::make_shared<ProbeCounts>();
};

/// A task that was killed for what it executed.
struct Kill {
  uint64_t task = 0;
  policy::Verdict verdict;
};

/// One thread owns it (the acting thread, or a test). All of a device's ranks and tasks are in here.
class Actor {
 public:
  static constexpr size_t kMostRanks = 16, kMostTasks = 64;

  Actor(const ActorConfig& config, Processes& processes, EventRing& events);

  // ---- orders; all cheap but for allocation
  void add_rank(std::shared_ptr<const RankSource> source);
  void remove_rank(uint64_t id, int64_t now_ns);
  void add_task(std::shared_ptr<TaskSource> source);
  void remove_task(uint64_t id, int64_t now_ns);
  void set_process(uint64_t id, int pid, std::shared_ptr<const Fd> pidfd);
  void set_order(uint64_t id, uint32_t order, int64_t now_ns);
  void ask_to_save(uint64_t id, bool wanted);
  void initialise_paused(uint64_t id);
  void set_plans(std::shared_ptr<const PlanSet> plans);
  /// The page of the process that probes the GPU; null: there is none.
  void set_probe(std::shared_ptr<ProbeMapping> mapping) { prober_.set(std::move(mapping)); }

  /// What rings while step() waits for words without futex_waitv; null: nothing does.
  void set_bell(std::shared_ptr<const Bell> bell) { bell_ = std::move(bell); }
  const Bell* bell() const { return bell_.get(); }

  /// Whether a process that may be an unseen training is on the GPU (LeaseSnapshot::other_process).
  void set_other_process(bool there) { other_process_ = there; }

  /// Takes every open lease back, for good.
  void stop(int64_t now_ns);

  struct Next {
    int64_t look_ns = 0;     ///< step again then at the latest; 0: only when woken
    bool tell_now = false;   ///< the main thread should look at events and kills at once
    bool in_window = false;  ///< all ranks are in bubbles
    int64_t awake_ns = 0;    ///< a lease may be to be opened at any moment up to then; 0: none is expected
  };
  /// One look at everything. `waits` gets the words to wait for, with the values that were seen.
  /// `suspended_ns`: CLOCK_BOOTTIME less CLOCK_MONOTONIC, on which orders expire.
  Next step(int64_t now_ns, WaitSet& waits, int64_t suspended_ns = 0);

  /// `when_ns`, but later while a side task has a lease and has not made the first step that will wake this thread. A
  /// timer nearer than the kernel's next tick must be set in hardware, which takes a virtual machine as long as all the
  /// rest of a bubble's begin: it waits until the task has started, or kStartNs.
  int64_t after_start(int64_t when_ns, int64_t now_ns) const;
  static constexpr int64_t kStartNs = 5'000'000;

  std::vector<Kill> take_kills() { return std::exchange(kills_, {}); }
  bool has_kills() const { return !kills_.empty(); }

 private:
  void act(int64_t now_ns);
  policy::LeaseSnapshot snapshot(int64_t now_ns);
  void carry_out(const policy::LeaseAction& action, int64_t now_ns);
  void close_lease(int64_t ended_ns, int64_t now_ns);
  void account(int64_t now_ns);
  void leave_window(int64_t now_ns, RankSlot* leaver);
  void settle(int64_t now_ns, bool next_window);
  void note_why(int64_t now_ns);
  void judge(int64_t now_ns);
  void probe(int64_t now_ns);
  bool all_stopped() const;
  void note_kill(TaskSlot& task);
  bool note_transitions();
  void tell_states();
  void tell_state(const TaskSlot& task);
  void tell_supervisors(int64_t now_ns);
  bool starting() const;
  void look_at(int64_t when_ns);
  void add_waits(WaitSet& waits) const;
  int64_t awake_until(int64_t now_ns) const;
  bool all_in_bubbles() const;
  RankSlot* rank(uint64_t id);
  TaskSlot* task(uint64_t id);

  struct Charge {  // whose bubble a task's overrun counts to
    uint64_t task = 0, rank = 0, serial = 0;
  };

  ActorConfig config_;
  Processes& processes_;
  EventRing& events_;
  Prober prober_;
  Transitions transitions_;
  int64_t probe_room_ns_ = 0;
  bool controlling_ = false, other_process_ = false;
  std::vector<std::unique_ptr<RankSlot>> ranks_;
  std::vector<std::unique_ptr<TaskSlot>> tasks_;
  std::vector<policy::RankView> rank_views_;
  std::vector<policy::TaskView> task_views_;
  std::vector<policy::ProbeSuspect> suspects_;
  std::vector<TaskSlot*> suspect_slots_;
  std::vector<Charge> charges_;
  std::vector<Kill> kills_;
  std::shared_ptr<const PlanSet> plans_;
  std::shared_ptr<const Bell> bell_;
  size_t open_task_ = policy::kNoTask;  // index of who holds the open lease
  bool open_is_idle_ = false;
  policy::Why why_ = policy::Why::kNone;  // nobody has a lease for steps
  uint64_t served_ = 0;
  bool window_open_ = false, window_leased_ = false;
  int64_t window_begin_ns_ = 0;
  int64_t next_audit_ns_ = 0;
  Next next_;
};

}  // namespace freeride::worker
