#include "create_order.hpp"

#include <string>

#include "freeride/policy/permission.hpp"
#include "wishes.hpp"

namespace freeride::manager {

bus::CreateTask create_order(const Task& task, const Worker& worker, const Capacity& capacity,
                             const ProfileBook& profiles) {
  const auto& load = task.load();
  bus::CreateTask order;
  order.task = task.name();
  order.purpose = "run";
  order.plugin = load.plugin;
  order.sha256 = task.state().sha256;
  order.params = load.params;
  // On a GPU a task may hold what was reserved for it and no more: training's memory begins there.
  order.memory_limit_bytes = worker.on_gpu() ? capacity.need_bytes(task) : capacity.cap_bytes(load);
  order.steps = load.steps;
  order.priority = load.priority;
  order.when_idle = load.when_idle;
  order.network = load.network;
  order.program = load.program;
  give_files(load, worker, order);
  order.start_paused = task.state().paused_by_user;
  order.instance = instance_of(task.row);
  order.epoch = task.row.info.epoch;
  order.heard = worker.number;
  order.revision = task.row.info.revision;
  // Workers of one host have their tasks' folders in one place.
  const std::string& last = task.row.info.last_worker;
  if (load.program.empty() && policy::host_of_worker(last) != policy::host_of_worker(worker.name))
    order.state_worker = last;
  // With the imperative interface there are no steps: what was measured are stretches between pauses.
  const auto interface = load.params.find("interface");
  const bool steps = !load.no_profile && (interface == load.params.end() || interface->second != "imperative");
  if (const bus::Profile* profile = profiles.find(task, worker.model); profile != nullptr && steps) {
    order.predicted_step_ns = profile->steps.p90_ns;
    for (const bus::Durations& piece : profile->pieces) order.predicted_pieces_ns.push_back(piece.p90_ns);
  }
  return order;
}

}  // namespace freeride::manager
