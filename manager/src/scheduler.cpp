#include "scheduler.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <string>

#include "create_order.hpp"
#include "text.hpp"
#include "verdicts.hpp"

namespace freeride::manager {
namespace {

using policy::Cause;
using policy::VerdictKind;

constexpr uint32_t kCreateTries = 4;
constexpr int64_t kRefusedPause = 5 * kNsPerSec;

}  // namespace

void Scheduler::run() {
  if (!the_.due.raised) return;
  the_.due.raised = false;
  const int64_t now = the_.clock.now_ns();
  std::vector<policy::QueuedTask> queue;
  std::map<std::string, uint64_t> live_by_user;
  for (const auto& [name, task] : the_.tasks.live()) {
    const auto& load = task->load();
    if (task->on_worker()) ++live_by_user[load.user];
    if (task->phase == Task::Phase::kQueued)
      queue.push_back({static_cast<uint64_t>(task->row.id), load.priority, load.user});
  }
  auto devices = the_.capacity.devices();
  for (const uint64_t id : policy::order_queue(std::move(queue), the_.config.queue_order, std::move(live_by_user))) {
    Task& task = *the_.tasks.by_id(static_cast<int64_t>(id));
    if (task.phase != Task::Phase::kQueued) continue;
    const bool claimed = task.claimed_ns != 0 && now - task.claimed_ns < the_.config.worker_timeout_ns;
    if (std::max(task.not_before_ns, task.fenced_until_ns) > now || claimed) {
      the_.due.raised = true;
      continue;
    }
    if (place(task, devices)) devices = the_.capacity.devices();
  }
}

bool Scheduler::place(Task& task, const std::vector<policy::DeviceView>& all) {
  // A device of a job in whose bubbles too much has faulted is none for anybody; CPUs have no such faults.
  std::vector<policy::DeviceView> devices;
  std::optional<std::string> blocked;
  for (const auto& device : all) {
    const Worker& worker = the_.workers.at(device.worker);
    const std::string job = worker.ranks.empty() ? "" : worker.ranks.front().job;
    auto why = worker.on_gpu() ? the_.faults.blocked(task.state().sha256, task.load().user, job) : std::nullopt;
    if (!why) {
      devices.push_back(device);
    } else {
      blocked = std::move(why);
    }
  }
  if (blocked && (devices.empty() ||
                  policy::place(the_.capacity.request_of(task), devices).kind != policy::Placement::Kind::kPlace)) {
    the_.tasks.wait(task, policy::Why::kFaults, *blocked);
    return false;
  }
  const auto placement = policy::place(the_.capacity.request_of(task), devices);
  if (placement.kind == policy::Placement::Kind::kReject) {
    the_.lifecycle.end(task, verdict_of(VerdictKind::kRejected, Cause::kNoRoom, placement.what));
    return false;
  }
  if (placement.kind == policy::Placement::Kind::kPlace) {
    const Worker& worker = the_.workers.at(placement.worker);
    if (the_.profiles.find(task, worker.model) == nullptr) {
      const auto outcome = the_.profiler.take_for(task, worker.name, devices);
      the_.tasks.wait(task, outcome.why, outcome.what);
      return outcome.begun;
    }
    task.create_tries = 0;
    task.state().worker = worker.name;
    create(task, worker, the_.capacity.need_bytes(task));
    return true;
  }
  the_.tasks.wait(task, placement.why, placement.what);
  // The wait can be used for the profile, on whichever worker has room.
  for (const auto& device : devices) {
    if (the_.profiles.find(task, the_.workers.at(device.worker).model) != nullptr) return false;
  }
  return the_.profiler.take_for(task, {}, devices).begun;
}

void Scheduler::create(Task& task, const Worker& worker, int64_t reserved_bytes) {
  if (task.create_tries == 0) task.row.info.epoch = the_.tasks.next_epoch();
  const bus::CreateTask order = create_order(task, worker, the_.capacity, the_.profiles);
  task.phase = Task::Phase::kCreating;
  task.row.reserved_bytes = reserved_bytes;
  task.create_sent_ns = the_.clock.now_ns();
  ++task.create_tries;
  if (task.create_tries == 1) {
    task.queued_since.clear();
    spdlog::info("task {}: placed on {}", task.name(), worker.name);
    the_.tasks.wait(task, policy::Why::kCreating, worker.name);
    the_.tasks.save(task);
  }
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
    create(task, *worker, task.row.reserved_bytes);
  }
}

}  // namespace freeride::manager
