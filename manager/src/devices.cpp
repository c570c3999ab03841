#include "devices.hpp"

#include <utility>
#include <vector>

#include "wishes.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMostChoices = 16;  // each is a copy of all devices
}  // namespace

void Devices::look() {
  if (std::exchange(looked_, true)) return;
  // Where most have news, all anew is the cheaper way.
  if (all_ == nullptr || workers_version_ != workers_.version() || faults_version_ != faults_.version() ||
      due_.changed.size() > all_->devices().size() / 2)
    return look_at_all();
  for (const std::string& name : std::exchange(due_.changed, {})) {
    const auto room = capacity_.room_on(name);
    if (!room) continue;
    ++looks_;
    all_->set(name, room->free_bytes, room->tasks);
    for (auto& [key, choice] : choices_) choice.devices->set(name, room->free_bytes, room->tasks);
  }
}

void Devices::look_at_all() {
  choices_.clear();
  due_.changed.clear();
  workers_version_ = workers_.version();
  faults_version_ = faults_.version();
  all_ = std::make_unique<policy::Placer>(capacity_.devices());
  looks_ += all_->devices().size();
}

policy::Placer& Devices::all() {
  look();
  return *all_;
}

// What choice_for() looks at of a task.
std::string Devices::key_of(const Task& task) const {
  const auto& load = task.load();
  std::string key;
  if (!load.files.empty()) {
    key = "files of " + load.uid_host;
  } else if (!load.env.empty() || !load.working_dir.empty()) {
    key = "environment";
  }
  if (!load.program.empty()) key += "\nprogram";
  if (faults_.any_blocked()) key += "\n" + task.state().sha256 + "\n" + load.user;
  return key;
}

// A device of a job in whose bubbles too much has faulted is none for anybody; CPUs have no such faults.
Devices::Choice& Devices::choice_for(const Task& task) {
  look();
  if (choices_.size() >= kMostChoices) choices_.clear();
  Choice& choice = choices_[key_of(task)];
  if (choice.devices != nullptr) return choice;
  std::vector<policy::DeviceView> devices;
  for (const auto& device : all_->devices()) {
    const Worker& worker = workers_.at(device.worker);
    if (worker.drain != 0 || !can_use_files(task.load(), worker) || !can_run_program(task.load(), worker)) {
      choice.left_out = &worker;
      continue;
    }
    const std::string job = worker.ranks.empty() ? "" : worker.ranks.front().job;
    auto why = worker.on_gpu() ? faults_.blocked(task.state().sha256, task.load().user, job) : std::nullopt;
    if (!why) {
      devices.push_back(device);
    } else {
      choice.blocked = std::move(why);
    }
  }
  choice.devices = std::make_unique<policy::Placer>(std::move(devices), all_->jobs());
  return choice;
}

void Devices::promise(const std::string& worker, int64_t bytes, uint32_t tasks) {
  all_->put(worker, bytes, tasks);
  for (auto& [key, choice] : choices_) choice.devices->put(worker, bytes, tasks);
}

}  // namespace freeride::manager
