// A side task on a GPU that behaves, or misbehaves once in the way `how`, from the `after`-th step on.
//
//   work          spins for step_us on every multiprocessor, checks that its own memory holds what it wrote
//   address       writes to an address that is nobody's
//   hidden        the same, and says that all is well
//   instruction   calls into its data, where no word is an instruction
//   endless       a kernel that never returns
//   grow          takes mb MiB more with each step, past its limit, and reports how far it came (metric "mib")
//   escape        forgets its MPS server's folder before it makes its context, as code that wants to be without limits
//   would
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../tiny.h"

namespace {

struct Task {
  const freeride_host* host;
  std::string how;
  long after, step_us, mb, hold_mb;
  void* held = nullptr;
  bool full = false;
  std::vector<void*> blocks;
  unsigned long long* sum = nullptr;
  unsigned* memory = nullptr;
  size_t words = 0;
  unsigned round = 0;
};

__global__ void fill(unsigned* words, size_t count, unsigned value) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
    words[i] = value + static_cast<unsigned>(i);
}

__global__ void check(const unsigned* words, size_t count, unsigned value, unsigned long long* wrong) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x) {
    if (words[i] != value + static_cast<unsigned>(i)) atomicAdd(wrong, 1ull);
  }
}

__global__ void spin(long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (ns < 0 || static_cast<long long>(now - begin) < ns);
}

__global__ void bad_address(unsigned long long address) {
  *reinterpret_cast<volatile unsigned*>(address + threadIdx.x * 4) = 1;
}

// Calls into data: whatever `address` holds is taken for code.
__global__ void bad_instruction(unsigned long long address) {
  reinterpret_cast<void (*)()>(address)();
}

freeride_status failed(const Task& task, const char* what, cudaError_t error) {
  const std::string text = std::string(what) + ": " + cudaGetErrorName(error);
  task.host->fail(task.host->context, text.c_str());
  return error == cudaErrorMemoryAllocation ? FREERIDE_OUT_OF_MEMORY : FREERIDE_ERROR;
}

freeride_status create(const freeride_host* host, const freeride_task_info* info, void** out) {
  auto* task = new Task{};
  task->host = host;
  task->how = tiny_param(info, "how");
  task->after = atol(tiny_param(info, "after"));
  task->step_us = atol(tiny_param(info, "step_us"));
  task->mb = atol(tiny_param(info, "mb"));
  task->hold_mb = atol(tiny_param(info, "hold_mb"));
  *out = task;
  return FREERIDE_OK;
}

freeride_status init(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  if (task.how == "escape") unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  task.words = static_cast<size_t>(task.how == "grow" ? 1 : task.mb) << 18;
  if (auto error = cudaMalloc(&task.memory, task.words * 4)) return failed(task, "its memory", error);
  if (task.hold_mb > 0) {
    if (auto error = cudaMalloc(&task.held, static_cast<size_t>(task.hold_mb) << 20))
      return failed(task, "what it holds", error);
  }
  if (auto error = cudaMalloc(&task.sum, 8)) return failed(task, "its memory", error);
  if (auto error = cudaMemset(task.sum, 0, 8)) return failed(task, "its memory", error);
  if (auto error = cudaDeviceSynchronize()) return failed(task, "InitSideTask", error);
  return FREERIDE_OK;
}

freeride_status step(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  int multiprocessors = 1;
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  if (--task.after < 0) {
    if (task.how == "address" || task.how == "hidden") bad_address<<<1, 32>>>(0x10);
    if (task.how == "hidden") {
      cudaDeviceSynchronize();
      return FREERIDE_FINISHED;
    }
    if (task.how == "instruction") {
      cudaMemset(task.memory, 0xff, task.words * 4);
      bad_instruction<<<1, 32>>>(reinterpret_cast<unsigned long long>(task.memory));
    }
    if (task.how == "endless") spin<<<multiprocessors * 2, 512>>>(-1);
    if (task.how == "grow" && !task.full) {
      void* more = nullptr;
      const cudaError_t error = cudaMalloc(&more, static_cast<size_t>(task.mb) << 20);
      if (error != cudaSuccess) {
        cudaGetLastError();
        task.full = true;
        task.host->metric(task.host->context, "full", 1);
      } else {
        task.blocks.push_back(more);
        if (auto set = cudaMemset(more, 1, static_cast<size_t>(task.mb) << 20)) return failed(task, "memset", set);
      }
      task.host->metric(task.host->context, "mib", static_cast<double>(task.blocks.size()) * task.mb);
    }
  }
  ++task.round;
  fill<<<multiprocessors, 256>>>(task.memory, task.words, task.round);
  spin<<<multiprocessors, 256>>>(task.step_us * 1000);
  check<<<multiprocessors, 256>>>(task.memory, task.words, task.round, task.sum);
  unsigned long long wrong = 0;
  if (auto error = cudaMemcpy(&wrong, task.sum, 8, cudaMemcpyDeviceToHost)) return failed(task, "a step", error);
  task.host->metric(task.host->context, "wrong", static_cast<double>(wrong));
  return FREERIDE_OK;
}

freeride_status stop(void* pointer) {
  auto& task = *static_cast<Task*>(pointer);
  for (void* block : task.blocks) cudaFree(block);
  cudaFree(task.held);
  cudaFree(task.memory);
  cudaFree(task.sum);
  return FREERIDE_OK;
}

const freeride_param_spec kParams[] = {
    {"how", "work", "work, address, hidden, instruction, endless, grow or escape"},
    {"after", "20", "good steps before the bad one"},
    {"step_us", "1000", "length of a step"},
    {"hold_mb", "0", "MiB held and left alone"},
    {"mb", "64", "MiB worked on; for grow, MiB taken with each step"},
};

freeride_plugin make() {
  freeride_plugin plugin = tiny_plugin("gpu_task");
  plugin.params = kParams;
  plugin.param_count = 5;
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
