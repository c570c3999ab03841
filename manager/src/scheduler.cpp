#include "scheduler.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <string>

#include "accounts.hpp"
#include "create_order.hpp"
#include "freeride/base/about.hpp"
#include "text.hpp"
#include "verdicts.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

using policy::Cause;
using policy::VerdictKind;

constexpr uint32_t kCreateTries = 4;
constexpr int64_t kRefusedPause = 5 * kNsPerSec;
constexpr int64_t kSlice = 20 * kNsPerMs;
constexpr int64_t kShort = kNsPerMs;  // what takes no longer needs no rest
constexpr int64_t kRests = 1;         // as long as the slice was

}  // namespace

int64_t Scheduler::next_ns() const {
  const int64_t wanted_ns = the_.due.raised || !queue_.empty() ? INT64_MIN : wake_ns_;
  return std::max(wanted_ns, rest_until_ns_);
}

void Scheduler::run() {
  const int64_t begin_ns = the_.clock.now_ns();
  if (begin_ns < next_ns()) return;
  if (queue_.empty()) begin_pass();
  Slice slice;
  slice.now_ns = begin_ns;
  devices_.begin_slice();
  {
    TaskBook::Together together(the_.tasks);
    while (!queue_.empty() && the_.clock.now_ns() - begin_ns < kSlice) {
      Task* task = the_.tasks.by_id(static_cast<int64_t>(queue_.back()));
      queue_.pop_back();
      if (task != nullptr && task->phase == Task::Phase::kQueued) look_at(*task, slice);
    }
  }
  // Their epochs are on the disk now, before any worker hears of them.
  for (const int64_t id : slice.created) {
    Task* task = the_.tasks.by_id(id);
    // One that the disk has not taken is sent by retry_creates(), when it may have been.
    if (task != nullptr && task->phase == Task::Phase::kCreating && !task->unsaved)
      send(*task, the_.workers.at(task->state().worker));
  }
  const int64_t end_ns = the_.clock.now_ns();
  if (const int64_t took_ns = end_ns - begin_ns; took_ns > kShort) rest_until_ns_ = end_ns + kRests * took_ns;
}

void Scheduler::begin_pass() {
  the_.due.raised = false;
  wake_ns_ = INT64_MAX;
  std::vector<policy::QueuedTask> queue;
  std::map<std::string, uint64_t> live_by_user;
  for (const auto& [name, task] : the_.tasks.live()) {
    const auto& load = task->load();
    if (task->on_worker()) ++live_by_user[load.user];
    if (task->phase == Task::Phase::kQueued)
      queue.push_back({static_cast<uint64_t>(task->row.id), load.priority, load.user, account_of(load)});
  }
  if (queue.empty()) return;
  groups_ = at_work(the_.tasks);
  queue_ = policy::order_queue(std::move(queue), the_.config.queue_order, std::move(live_by_user), the_.usage.turns());
  std::reverse(queue_.begin(), queue_.end());
}

void Scheduler::look_at(Task& task, Slice& slice) {
  const int64_t claimed_until_ns = task.claimed_ns == 0 ? 0 : task.claimed_ns + the_.config.worker_timeout_ns;
  const int64_t until_ns = std::max({task.not_before_ns, task.fenced_until_ns, claimed_until_ns});
  if (until_ns > slice.now_ns) {
    wake_ns_ = std::min(wake_ns_, until_ns);
    return;
  }
  if (const auto hindrance = hindrance_of(task, the_.tasks, groups_)) {
    if (hindrance->never) {
      the_.lifecycle.end(task, verdict_of(VerdictKind::kRejected, Cause::kRefused, hindrance->what));
    } else {
      the_.tasks.wait(task, hindrance->why, hindrance->what);
    }
    return;
  }
  place(task, slice);
  if (task.on_worker()) count(task, groups_);
}

void Scheduler::place(Task& task, Slice& slice) {
  Devices::Choice& choice = devices_.choice_for(task);
  const policy::PlacementRequest request = the_.capacity.request_of(task);
  const auto placement = choice.devices->place(request);
  if (choice.blocked && placement.kind != policy::Placement::Kind::kPlace)
    return the_.tasks.wait(task, policy::Why::kFaults, *choice.blocked);
  // Where none is left out, the reason is another one.
  if (choice.left_out != nullptr && placement.kind != policy::Placement::Kind::kPlace &&
      devices_.all().place(request).kind != policy::Placement::Kind::kReject &&
      (choice.devices->devices().empty() || placement.kind == policy::Placement::Kind::kReject ||
       placement.why != policy::Why::kNoMemory)) {
    const bool drained = choice.left_out->drain != 0;
    return the_.tasks.wait(
        task, drained ? policy::Why::kDrained : policy::Why::kNoTrainer,
        drained ? choice.left_out->name : wanted_worker(task.load(), can_run_program(task.load(), *choice.left_out)));
  }
  if (placement.kind == policy::Placement::Kind::kReject)
    return the_.lifecycle.end(task, verdict_of(VerdictKind::kRejected, Cause::kNoRoom, placement.what));
  if (placement.kind == policy::Placement::Kind::kPlace) {
    const Worker& worker = the_.workers.at(placement.worker);
    if (!task.load().no_profile && the_.profiles.find(task, worker.model) == nullptr) {
      const auto outcome = profile(task, worker.name, choice);
      return the_.tasks.wait(task, outcome.why, outcome.what);
    }
    task.create_tries = 0;
    task.state().worker = worker.name;
    const int64_t bytes = the_.capacity.need_bytes(task);
    create(task, worker, bytes);
    slice.created.push_back(task.row.id);
    return devices_.promise(worker.name, bytes, 1);
  }
  the_.tasks.wait(task, placement.why, placement.what);
  if (task.load().no_profile || choice.devices->devices().empty()) return;
  // The wait can be used for the profile, on whichever worker has room.
  for (const Worker* worker : the_.workers.kinds()) {
    if (the_.profiles.find(task, worker->model) != nullptr) return;
  }
  (void)profile(task, {}, choice);
}

Profiler::Outcome Scheduler::profile(const Task& task, const std::string& preferred, const Devices::Choice& choice) {
  auto outcome = the_.profiler.take_for(task, preferred, choice.devices->devices());
  if (outcome.begun) devices_.promise(outcome.what, the_.capacity.cap_bytes(task.load()), 0);
  return outcome;
}

void Scheduler::create(Task& task, const Worker& worker, int64_t reserved_bytes) {
  task.row.info.epoch = the_.tasks.next_epoch();
  task.claimed = false;
  task.phase = Task::Phase::kCreating;
  the_.tasks.moved(task);
  task.row.reserved_bytes = reserved_bytes;
  task.queued_since.clear();
  the_.usage.placed(task.load());
  spdlog::info("{}: placed on {}", about_task(task.name()), worker.name);
  if (task.row.info.placed_unix_ms == 0) {
    task.row.info.placed_unix_ms = the_.tasks.unix_ms();
    task.begun_ns = the_.clock.now_ns();
  }
  the_.tasks.wait(task, policy::Why::kCreating, worker.name);
  the_.tasks.save(task);
}

void Scheduler::send(Task& task, const Worker& worker) {
  const bus::CreateTask order = create_order(task, worker, the_.capacity, the_.profiles);
  task.create_sent_ns = the_.clock.now_ns();
  ++task.create_tries;
  auto id = the_.orders.send(worker, order, {Pending::Kind::kCreate, task.row.id});
  task.create_id = id ? *id : "unsent";
}

void Scheduler::create_reply(const Pending& pending, const std::optional<Error>& error) {
  Task* task = the_.tasks.by_id(pending.task);
  if (task == nullptr || task->phase != Task::Phase::kCreating || task->state().worker != pending.worker) return;
  if (!error) {
    // Taken. It counts as there from now on; if it never shows up in a report, it is missed like any other.
    task->create_id.clear();
    task->phase = Task::Phase::kPlaced;
    task->reported_ns = the_.clock.now_ns();
    return;
  }
  switch (error->code) {
    case Code::kAlreadyExists:
      // Either it has taken our first try, then a report will name it; or it still has an ended task of that name, then
      // the plan makes it forget that one. Sending again in a while is right for both.
      return the_.workers.plan_is_due(pending.worker);
    case Code::kUnavailable:
    case Code::kTimeout:
    case Code::kExhausted:
      task->not_before_ns = the_.clock.now_ns() + kRefusedPause;
      return the_.lifecycle.requeue(
          *task, "worker " + pending.worker + " cannot take it now: " + bounded(error->text(), kMaxReason), false,
          Lifecycle::Left::kNothing);
    default:
      return the_.lifecycle.end(*task, verdict_of(VerdictKind::kRejected, Cause::kRefused,
                                                  "worker " + pending.worker + ": " + error->text()));
  }
}

void Scheduler::retry_creates(int64_t now) {
  for (auto& [id, task] : the_.tasks.all()) {
    if (task.phase != Task::Phase::kCreating || now - task.create_sent_ns < kOrderPatience) continue;
    const Worker* worker = the_.workers.find_up(task.state().worker);
    if (worker == nullptr) continue;  // Lifecycle looks after it
    if (task.create_tries >= kCreateTries) {
      task.not_before_ns = now + kRefusedPause;
      the_.lifecycle.requeue(task, "worker " + worker->name + " did not take it", false, Lifecycle::Left::kPerhaps);
      continue;
    }
    send(task, *worker);
  }
}

}  // namespace freeride::manager
