// NVML, as far as it is needed: its types are stable, so they are written down here instead of needing the toolkit.
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "gpu/gpu.hpp"

namespace freeride::worker {
namespace {

constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr unsigned kModeDefault = 0, kModeProhibited = 2;  // 1 and 3: one thread, one process
constexpr unsigned kMostProcesses = 4096;

using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {  // nvmlProcessInfo_t of the _v2 and _v3 calls
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct EventData {  // nvmlEventData_t
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long kXidEvent = 8;  // nvmlEventTypeXidCriticalError
constexpr int kMostXids = 64;                // in one look
using ProcessesCall = int (*)(Device, unsigned*, ProcessInfo*);

struct Nvml {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*by_uuid)(const char*, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*serial)(Device, char*, unsigned) = nullptr;  // may be missing
  int (*memory)(Device, Memory*) = nullptr;
  int (*mode)(Device, unsigned*) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;  // may be missing
  ProcessesCall compute = nullptr, mps = nullptr;
  // May be missing.
  int (*new_events)(void**) = nullptr;
  int (*free_events)(void*) = nullptr;
  int (*register_events)(Device, unsigned long long, void*) = nullptr;
  int (*wait_events)(void*, EventData*, unsigned) = nullptr;
  bool initialised = false;

  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (initialised) shutdown();
    if (library != nullptr) dlclose(library);
  }

  template <class F>
  bool find(F& function, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      function = reinterpret_cast<F>(dlsym(library, name));
      if (function != nullptr) return true;
    }
    return false;
  }

  Status open() {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): before other threads start
      return Error{Code::kUnavailable, std::string("no NVIDIA driver: ") + (why != nullptr ? why : "dlopen failed"),
                   "install the driver, or use --device cpu-N"};
    }
    find(mig_mode, {"nvmlDeviceGetMigMode"});
    find(serial, {"nvmlDeviceGetSerial"});
    find(new_events, {"nvmlEventSetCreate"});
    find(free_events, {"nvmlEventSetFree"});
    find(register_events, {"nvmlDeviceRegisterEvents"});
    find(wait_events, {"nvmlEventSetWait_v2"});
    const bool all =
        find(init, {"nvmlInit_v2"}) && find(shutdown, {"nvmlShutdown"}) && find(error_text, {"nvmlErrorString"}) &&
        find(count, {"nvmlDeviceGetCount_v2"}) && find(by_index, {"nvmlDeviceGetHandleByIndex_v2"}) &&
        find(by_uuid, {"nvmlDeviceGetHandleByUUID"}) && find(uuid, {"nvmlDeviceGetUUID"}) &&
        find(name, {"nvmlDeviceGetName"}) && find(memory, {"nvmlDeviceGetMemoryInfo"}) &&
        find(mode, {"nvmlDeviceGetComputeMode"}) &&
        find(compute, {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"}) &&
        find(mps, {"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"});
    if (!all) {
      return Error{Code::kVersion, "the NVIDIA driver is too old: its NVML lacks the list of MPS clients",
                   "install driver 470 or later"};
    }
    if (const int error = init(); error != kSuccess)
      return Error{Code::kUnavailable, std::string("the NVIDIA driver does not answer: ") + error_text(error),
                   "see nvidia-smi"};
    initialised = true;
    return {};
  }

  std::vector<std::string> uuids() const {
    std::vector<std::string> found;
    unsigned devices = 0;
    if (count(&devices) != kSuccess) return found;
    for (unsigned i = 0; i < std::min(devices, 64u); ++i) {
      Device device = nullptr;
      std::array<char, 96> id{};
      if (by_index(i, &device) != kSuccess || uuid(device, id.data(), id.size()) != kSuccess) continue;
      found.emplace_back(id.data(), strnlen(id.data(), id.size()));
    }
    return found;
  }

  static size_t strnlen(const char* text, size_t most) {
    return static_cast<size_t>(std::find(text, text + most, '\0') - text);
  }
};

class NvmlGpu final : public Gpu {
 public:
  NvmlGpu(std::unique_ptr<Nvml> nvml, Device device) : nvml_(std::move(nvml)), device_(device) {
    std::array<char, 96> name{};
    if (nvml_->name(device_, name.data(), name.size()) == kSuccess)
      model_.assign(name.data(), Nvml::strnlen(name.data(), name.size()));
    if (model_.empty()) model_ = "NVIDIA GPU";
    std::array<char, 96> number{};
    if (nvml_->serial != nullptr && nvml_->serial(device_, number.data(), number.size()) == kSuccess)
      serial_.assign(number.data(), Nvml::strnlen(number.data(), number.size()));
    const link_map* map = nullptr;
    if (dlinfo(nvml_->library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr)
      driver_folder_ = std::filesystem::path(map->l_name).parent_path().string();
    const bool can = nvml_->new_events != nullptr && nvml_->free_events != nullptr &&
                     nvml_->register_events != nullptr && nvml_->wait_events != nullptr;
    if (!can || nvml_->new_events(&events_) != kSuccess) {
      events_ = nullptr;
    } else if (nvml_->register_events(device_, kXidEvent, events_) != kSuccess) {
      nvml_->free_events(events_);
      events_ = nullptr;
    }
  }
  ~NvmlGpu() override {
    if (events_ != nullptr) nvml_->free_events(events_);
  }
  NvmlGpu(const NvmlGpu&) = delete;
  NvmlGpu& operator=(const NvmlGpu&) = delete;

  std::vector<uint32_t> take_xids() override {
    std::vector<uint32_t> xids;
    EventData event{};
    while (events_ != nullptr && xids.size() < kMostXids && nvml_->wait_events(events_, &event, 0) == kSuccess) {
      if (event.type == kXidEvent) xids.push_back(static_cast<uint32_t>(event.data));
    }
    return xids;
  }

  const std::string& model() const override { return model_; }
  const std::string& serial() const override { return serial_; }
  const std::string& driver_folder() const override { return driver_folder_; }

  Result<GpuReading> read() override {
    Memory memory{};
    if (const int error = nvml_->memory(device_, &memory); error != kSuccess) return failed("memory", error);
    // MPS clients first: a client that comes in between is then taken for an outsider, never an outsider for a client.
    auto clients = list(nvml_->mps);
    if (!clients.ok()) return clients.error();
    auto processes = list(nvml_->compute);
    if (!processes.ok()) return processes.error();
    GpuReading reading;
    reading.total_bytes = bytes(memory.total);
    reading.used_bytes = bytes(memory.used);
    std::set<unsigned> seen;
    for (const ProcessInfo& process : *clients) {
      if (seen.insert(process.pid).second)
        reading.processes.push_back({static_cast<pid_t>(process.pid), bytes(process.used), true});
    }
    for (const ProcessInfo& process : *processes) {
      if (seen.insert(process.pid).second)
        reading.processes.push_back({static_cast<pid_t>(process.pid), bytes(process.used), false});
    }
    return reading;
  }

  Result<ComputeMode> compute_mode() override {
    unsigned mode = 0;
    if (const int error = nvml_->mode(device_, &mode); error != kSuccess) return failed("compute mode", error);
    if (mode == kModeDefault) return ComputeMode::kDefault;
    return mode == kModeProhibited ? ComputeMode::kProhibited : ComputeMode::kExclusive;
  }

  bool mig() override {
    unsigned now = 0, pending = 0;
    return nvml_->mig_mode != nullptr && nvml_->mig_mode(device_, &now, &pending) == kSuccess && now != 0;
  }

 private:
  static int64_t bytes(unsigned long long value) {
    // All ones: not available.
    return value > static_cast<unsigned long long>(INT64_MAX) ? 0 : static_cast<int64_t>(value);
  }
  Error failed(const std::string& what, int error) const {
    return Error{Code::kUnavailable,
                 "the NVIDIA driver does not tell the GPU's " + what + ": " + nvml_->error_text(error),
                 "see nvidia-smi"};
  }
  Result<std::vector<ProcessInfo>> list(ProcessesCall call) {
    for (unsigned room = 64; room <= kMostProcesses; room *= 4) {
      std::vector<ProcessInfo> processes(room);
      unsigned count = room;
      const int error = call(device_, &count, processes.data());
      if (error == kInsufficientSize) continue;
      if (error != kSuccess) return failed("processes", error);
      processes.resize(std::min(count, room));
      return processes;
    }
    return Error{Code::kExhausted, "more than 4096 processes on the GPU", ""};
  }

  std::unique_ptr<Nvml> nvml_;
  Device device_;
  void* events_ = nullptr;  // of this device; nullptr: the driver tells none
  std::string model_, serial_, driver_folder_;
};

}  // namespace

Result<std::unique_ptr<Gpu>> open_gpu(const std::string& uuid) {
  auto nvml = std::make_unique<Nvml>();
  if (auto opened = nvml->open(); !opened.ok()) return opened.error();
  Device device = nullptr;
  if (nvml->by_uuid(uuid.c_str(), &device) != kSuccess) {
    std::string others;
    for (const std::string& other : nvml->uuids()) others += (others.empty() ? "" : ", ") + other;
    return Error{Code::kNotFound, "there is no GPU " + uuid + " here; there are: " + (others.empty() ? "none" : others),
                 "name one of those with --device"};
  }
  return std::unique_ptr<Gpu>(std::make_unique<NvmlGpu>(std::move(nvml), device));
}

Result<std::vector<std::string>> gpu_uuids() {
  Nvml nvml;
  if (auto opened = nvml.open(); !opened.ok()) return opened.error();
  return nvml.uuids();
}

}  // namespace freeride::worker
