#include "plugin_task.hpp"

#include <vector>

#include "freeride/base/clock.hpp"

namespace freeride::runner {

freeride_status PluginTask::create(const Job& job, const Params& params) {
  std::vector<freeride_param> list;
  list.reserve(params.size());
  for (const auto& [key, value] : params) list.push_back({key.c_str(), value.c_str()});
  freeride_task_info info{};
  info.struct_size = sizeof(info);
  info.param_count = static_cast<uint32_t>(list.size());
  info.params = list.data();
  info.name = job.task.c_str();
  info.device = job.device.c_str();
  info.scratch_dir = job.scratch.c_str();
  const int64_t begin_ns = SteadyClock::now();
  answer_.enter(FREERIDE_IN_CREATE, begin_ns);
  void* task = nullptr;
  const freeride_status status = table_.create(host_.table(), &info, &task);
  if (status != FREERIDE_OK) return status;
  task_ = task;
  answer_.created(SteadyClock::now() - begin_ns);
  return status;
}

void PluginTask::destroy() {
  if (task_ == nullptr) return;
  table_.destroy(task_);
  task_ = nullptr;
}

}  // namespace freeride::runner
