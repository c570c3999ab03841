// A side task on a GPU that works without a lease: from the `after`-th step on in the way `how`. Its host says that it
// has paused each time.
//
//   none        never; what probes must not find
//   persistent  a kernel that never ends
//   queued      seconds of work are queued in one step, on a stream that nobody waits for
//   thread      a thread of its own keeps so much in the GPU's queue that it lasts while the thread is stopped
//   graph       a graph that launches itself, again and again
#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "../tiny.h"

namespace {

constexpr size_t kAhead = 200;  // kernels of a millisecond that `thread` keeps queued

struct Task {
  const freeride_host* host;
  std::string how;
  long after, step_us, seconds;
  cudaStream_t side = nullptr;
  std::thread thread;
  std::atomic<bool> ends{false};
};

__global__ void spin(long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (ns < 0 || static_cast<long long>(now - begin) < ns);
}

__global__ void again(long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (static_cast<long long>(now - begin) < ns);
  if (threadIdx.x == 0 && blockIdx.x == 0) cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

freeride_status failed(const Task& task, const char* what, cudaError_t error) {
  const std::string text = std::string(what) + ": " + cudaGetErrorName(error);
  task.host->fail(task.host->context, text.c_str());
  return FREERIDE_ERROR;
}

cudaError_t launch_graph(cudaStream_t stream) {
  long long ns = 500'000;
  void* arguments[] = {&ns};
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(again);
  node.gridDim = dim3(8);
  node.blockDim = dim3(256);
  node.kernelParams = arguments;
  cudaGraph_t graph;
  cudaGraphNode_t added;
  cudaGraphExec_t ready;
  if (auto e = cudaGraphCreate(&graph, 0)) return e;
  if (auto e = cudaGraphAddKernelNode(&added, graph, nullptr, 0, &node)) return e;
  if (auto e = cudaGraphInstantiateWithFlags(&ready, graph, cudaGraphInstantiateFlagDeviceLaunch)) return e;
  if (auto e = cudaGraphUpload(ready, stream)) return e;
  return cudaGraphLaunch(ready, stream);
}

freeride_status create(const freeride_host* host, const freeride_task_info* info, void** out) {
  auto* task = new Task{};
  task->host = host;
  task->how = tiny_param(info, "how");
  task->after = atol(tiny_param(info, "after"));
  task->step_us = atol(tiny_param(info, "step_us"));
  task->seconds = atol(tiny_param(info, "seconds"));
  *out = task;
  return FREERIDE_OK;
}

freeride_status init(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  if (auto error = cudaStreamCreateWithFlags(&task.side, cudaStreamNonBlocking)) return failed(task, "a stream", error);
  spin<<<1, 1>>>(1000);
  if (auto error = cudaDeviceSynchronize()) return failed(task, "InitSideTask", error);
  return FREERIDE_OK;
}

freeride_status step(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  if (task.after-- == 0) {
    task.host->metric(task.host->context, "cheats", 1);
    if (task.how == "persistent") spin<<<1, 32, 0, task.side>>>(-1);
    if (task.how == "queued") {
      for (long i = 0; i < task.seconds * 10; ++i) spin<<<8, 256, 0, task.side>>>(100'000'000);
    }
    if (task.how == "thread") {
      task.thread = std::thread([&task] {
        cudaEvent_t queued[kAhead] = {};
        for (auto& event : queued) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        for (size_t i = 0; !task.ends; i = (i + 1) % kAhead) {
          cudaEventSynchronize(queued[i]);
          spin<<<8, 256, 0, task.side>>>(1'000'000);
          cudaEventRecord(queued[i], task.side);
        }
      });
    }
    if (task.how == "graph") {
      if (auto error = launch_graph(task.side)) return failed(task, "the graph", error);
    }
  }
  cudaEvent_t done;
  if (auto error = cudaEventCreateWithFlags(&done, cudaEventDisableTiming)) return failed(task, "an event", error);
  spin<<<8, 256>>>(task.step_us * 1000);
  cudaEventRecord(done);
  const cudaError_t error = cudaEventSynchronize(done);
  cudaEventDestroy(done);
  return error == cudaSuccess ? FREERIDE_OK : failed(task, "a step", error);
}

freeride_status stop(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  task.ends = true;
  if (task.thread.joinable()) task.thread.join();
  return FREERIDE_OK;
}

const freeride_param_spec kParams[] = {
    {"how", "none", "none, persistent, queued, thread or graph"},
    {"after", "20", "honest steps before"},
    {"step_us", "500", "length of a step"},
    {"seconds", "10", "of work that is queued"},
};

freeride_plugin make() {
  freeride_plugin plugin = tiny_plugin("gpu_cheat");
  plugin.params = kParams;
  plugin.param_count = 4;
  plugin.create = create;
  plugin.init = init;
  plugin.run_next_step = step;
  plugin.stop = stop;
  plugin.destroy = [](void* task) { delete static_cast<Task*>(task); };
  return plugin;
}

}  // namespace

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static const freeride_plugin plugin = make();
  return &plugin;
}
