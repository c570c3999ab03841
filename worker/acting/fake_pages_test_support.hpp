// For tests: the far sides of the pages that the acting thread looks at, turned by hand.
#pragma once

#include <fcntl.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "acting/rank_slot.hpp"
#include "acting/task_slot.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::worker::testing {

/// A training rank's side of a bubble page, as the hook writes it.
class FakeRank {
 public:
  explicit FakeRank(uint32_t rank = 0, const std::string& device = "cpu-0", const std::string& job = "gpt")
      : made_(std::move(pages::create_page<freeride_bubble_page>(true).value())) {
    freeride_bubble_page& p = page();
    std::strncpy(p.job, job.c_str(), sizeof(p.job) - 1);
    std::strncpy(p.device, device.c_str(), sizeof(p.device) - 1);
    std::strncpy(p.framework, "test", sizeof(p.framework) - 1);
    p.rank = p.stage = rank;
    p.stages = rank + 1;
    p.replicas = 1;
    p.hook_state = FREERIDE_HOOK_ACTIVE;
  }
  freeride_bubble_page& page() { return *made_.page; }
  int fd() const { return made_.fd.get(); }

  std::shared_ptr<const RankSource> source(uint64_t id) {
    auto source = std::make_shared<RankSource>();
    source->id = id;
    source->job = page().job;
    source->page = std::move(pages::map_page<freeride_bubble_page>(fd()).value());
    return source;
  }
  void learn(uint32_t wait, int64_t low_ns, int64_t mid_ns, int64_t high_ns) {
    auto& slot = page().learned[wait - 1];
    slot.low_ns = static_cast<uint64_t>(low_ns);
    slot.mid_ns = static_cast<uint64_t>(mid_ns);
    slot.high_ns = static_cast<uint64_t>(high_ns);
    slot.type = 'B';
  }
  void begin(int64_t now_ns) {
    ++wait_;
    begin_ns_ = now_ns;
    pages::store_release(page().begin_ns, static_cast<uint64_t>(now_ns));
    pages::store_release(page().state_word, FREERIDE_STATE(iteration_, wait_));
    pages::bump_and_wake(page().wake);
  }
  void end(int64_t now_ns) {
    pages::store_release(page().state_word, FREERIDE_STATE(iteration_, 0));
    auto& record = page().history[page().bubbles % FREERIDE_HISTORY];
    record.state_word = FREERIDE_STATE(iteration_, wait_);
    record.begin_ns = static_cast<uint64_t>(begin_ns_);
    record.end_ns = static_cast<uint64_t>(now_ns);
    pages::store_release(page().bubbles, page().bubbles + 1);
    bubble_ns_ += now_ns - begin_ns_;
    pages::bump_and_wake(page().wake);
  }
  void begin_phase(int64_t now_ns, uint32_t name = 0, uint32_t flags = 0, int64_t expected_ns = 0) {
    auto& p = page();
    p.phases[name].name[0] = 'p';
    p.idle_flags = flags;
    p.idle_begin_ns = static_cast<uint64_t>(begin_ns_ = now_ns);
    p.idle_expected_ns = static_cast<uint64_t>(expected_ns);
    pages::store_release(p.idle_begun, FREERIDE_PHASE(++phase_, name));
    pages::bump_and_wake(p.wake);
  }
  void end_phase(int64_t now_ns) {
    auto& p = page();
    const uint32_t name = FREERIDE_PHASE_NAME(p.idle_begun);
    pages::store_release(p.idle_ended, phase_);
    auto& record = p.history[p.bubbles % FREERIDE_HISTORY];
    record.state_word = FREERIDE_STATE(iteration_, FREERIDE_PHASE_WAIT(name));
    record.begin_ns = static_cast<uint64_t>(begin_ns_);
    record.end_ns = static_cast<uint64_t>(now_ns);
    pages::store_release(p.bubbles, p.bubbles + 1);
    bubble_ns_ += now_ns - begin_ns_;
    pages::bump_and_wake(p.wake);
  }
  void finish_iteration(int64_t now_ns) {
    auto& record = page().iterations[iteration_ % FREERIDE_ITERATIONS];
    record.iteration = iteration_;
    record.begin_ns = static_cast<uint64_t>(iteration_begin_ns_);
    record.end_ns = static_cast<uint64_t>(now_ns);
    record.bubble_ns = static_cast<uint64_t>(bubble_ns_);
    ++iteration_;
    iteration_begin_ns_ = now_ns;
    bubble_ns_ = 0;
    pages::store_relaxed(page().waits, wait_);
    wait_ = 0;
    pages::store_release(page().iteration, iteration_);
    pages::bump_and_wake(page().wake);
  }
  void started(int64_t now_ns) { iteration_begin_ns_ = now_ns; }
  uint64_t iteration() const { return iteration_; }

 private:
  pages::Created<freeride_bubble_page> made_;
  uint64_t iteration_ = 0;
  uint32_t wait_ = 0;
  uint64_t phase_ = 0;
  int64_t begin_ns_ = 0, iteration_begin_ns_ = 1, bubble_ns_ = 0;
};

/// Processes whose CPU clocks are turned by hand, and that remember who was killed.
class FakeProcesses final : public Processes {
 public:
  int64_t cpu_ns(int pid) override {
    if (before_look) before_look();
    return cpu.count(pid) != 0 ? cpu[pid] : -1;
  }
  Starvation starvation(int) override { return {starved_ns, runnable}; }
  bool lives(int pid, int) override { return ended.count(pid) == 0; }
  bool stop(int pid, int) override { return can_stop && stopped.insert(pid).second; }
  void go_on(int pid, int) override { stopped.erase(pid); }
  void freeze_and_kill(int pid, int) override { ++killed[pid]; }
  std::map<int, int64_t> cpu;
  std::function<void()> before_look;  ///< what happens before a clock is looked at
  bool runnable = true;
  int64_t starved_ns = 0;
  std::map<int, int> killed;
  std::set<int> ended;  // by themselves
  std::set<int> stopped;
  bool can_stop = true;
};

/// A runner's side of a task's pages: does what a runner does when the test says so.
class FakeTask {
 public:
  explicit FakeTask(uint64_t id, FakeProcesses& processes, uint32_t order = FREERIDE_ORDER_RUN)
      : processes_(processes), pid_(1000 + static_cast<int>(id)) {
    auto lease = std::move(pages::create_page<freeride_lease_page>(true).value());
    auto answer = std::move(pages::create_page<freeride_answer_page>(false).value());
    source_ = std::make_shared<TaskSource>();
    source_->id = id;
    source_->lease = std::move(lease.page);
    source_->answer = std::move(pages::map_page<freeride_answer_page>(answer.fd.get()).value());
    answer_ = std::move(answer.page);
    pages::Lease first;
    first.order = order;
    pages::write_lease(*source_->lease, first);
    processes_.cpu[pid_] = 0;
  }
  freeride_answer_page& answer() { return *answer_; }
  std::shared_ptr<TaskSource> source() { return source_; }
  int pid() const { return pid_; }
  bool killed() { return processes_.killed[pid_] > 0; }
  pages::Lease lease() const {
    pages::Lease lease;
    uint32_t sequence = 0;
    pages::read_lease(*source_->lease, lease, sequence);
    return lease;
  }
  void created() { answer().state = FREERIDE_STATE_CREATED; }
  void initialised(int64_t now_ns) {
    answer().state = FREERIDE_STATE_PAUSED;
    answer().last_paused_ns = static_cast<uint64_t>(now_ns);
  }
  void start(int64_t now_ns) {
    if (answer().lease_id != lease().lease_id) answer().first_step_ns = static_cast<uint64_t>(now_ns);
    answer().lease_id = lease().lease_id;
    answer().state = FREERIDE_STATE_RUNNING;
    answer().transition = FREERIDE_IN_STEP;
    answer().transition_ns = static_cast<uint64_t>(now_ns);
  }
  /// The step under way ends at `now_ns`; its whole time is executed.
  void step_done(int64_t now_ns, int64_t cpu_ns) {
    answer().step_ns += static_cast<uint64_t>(now_ns) - answer().transition_ns;
    answer().steps += 1;
    answer().transition = FREERIDE_IN_NONE;
    execute(cpu_ns);
  }
  void execute(int64_t cpu_ns) { processes_.cpu[pid_] += cpu_ns; }
  void pause(int64_t now_ns) {
    answer().last_paused_ns = static_cast<uint64_t>(now_ns);
    answer().last_paused_cpu_ns = static_cast<uint64_t>(processes_.cpu[pid_]);
    answer().transition = FREERIDE_IN_NONE;
    answer().state = FREERIDE_STATE_PAUSED;
    answer().sequence += 1;
  }

 private:
  FakeProcesses& processes_;
  std::shared_ptr<TaskSource> source_;
  pages::Mapped<freeride_answer_page> answer_;
  int pid_;
};

}  // namespace freeride::worker::testing
