#include "canary/device_facts.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <utility>

namespace canary {
namespace {

// NVML's numbers are stable, so they are written down here instead of needing the toolkit.
constexpr unsigned kCorrected = 0, kUncorrected = 1;  // nvmlMemoryErrorType_t
constexpr unsigned kVolatile = 0;                     // nvmlEccCounterType_t: since the driver was loaded
constexpr unsigned kSmClock = 1;                      // nvmlClockType_t
// nvmlClocksEventReasons; idle clocks and an application's own setting are no news.
constexpr std::array<std::pair<unsigned long long, const char*>, 6> kReasons = {{{0x04, "power cap"},
                                                                                 {0x08, "hardware slowdown"},
                                                                                 {0x20, "software thermal slowdown"},
                                                                                 {0x40, "hardware thermal slowdown"},
                                                                                 {0x80, "power brake"},
                                                                                 {0x10, "sync boost"}}};

}  // namespace

struct DeviceFacts::Nvml {
  void* library = nullptr;
  void* device = nullptr;
  bool initialised = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*serial)(void*, char*, unsigned) = nullptr;
  int (*name)(void*, char*, unsigned) = nullptr;
  int (*errors)(void*, unsigned, unsigned, unsigned long long*) = nullptr;
  int (*clock)(void*, unsigned, unsigned*) = nullptr;
  int (*reasons)(void*, unsigned long long*) = nullptr;

  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (initialised && shutdown != nullptr) shutdown();
    if (library != nullptr) dlclose(library);
  }
  template <class F>
  void find(F& function, const char* symbol) const {
    function = reinterpret_cast<F>(dlsym(library, symbol));
  }
  std::optional<uint64_t> count(unsigned kind) const {
    unsigned long long value = 0;
    if (errors == nullptr || errors(device, kind, kVolatile, &value) != 0) return std::nullopt;
    return value;
  }
  std::string text(int (*call)(void*, char*, unsigned)) const {
    std::array<char, 96> said{};
    if (call == nullptr || call(device, said.data(), said.size()) != 0) return {};
    return {said.data(), static_cast<size_t>(std::find(said.begin(), said.end(), '\0') - said.begin())};
  }
};

DeviceFacts::DeviceFacts() : nvml_(std::make_unique<Nvml>()) {}
DeviceFacts::~DeviceFacts() = default;

std::unique_ptr<DeviceFacts> DeviceFacts::open(const std::string& uuid, std::string& why) {
  std::unique_ptr<DeviceFacts> facts(new DeviceFacts);
  Nvml& nvml = *facts->nvml_;
  nvml.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml.library == nullptr) {
    why = "NVML is not to be had here";
    return nullptr;
  }
  nvml.find(nvml.init, "nvmlInit_v2");
  nvml.find(nvml.shutdown, "nvmlShutdown");
  nvml.find(nvml.by_uuid, "nvmlDeviceGetHandleByUUID");
  nvml.find(nvml.serial, "nvmlDeviceGetSerial");
  nvml.find(nvml.name, "nvmlDeviceGetName");
  nvml.find(nvml.errors, "nvmlDeviceGetTotalEccErrors");
  nvml.find(nvml.clock, "nvmlDeviceGetClockInfo");
  nvml.find(nvml.reasons, "nvmlDeviceGetCurrentClocksEventReasons");
  if (nvml.reasons == nullptr) nvml.find(nvml.reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (nvml.init == nullptr || nvml.by_uuid == nullptr || nvml.init() != 0) {
    why = "NVML does not answer in the sandbox";
    return nullptr;
  }
  nvml.initialised = true;
  if (nvml.by_uuid(uuid.c_str(), &nvml.device) != 0) {
    why = "NVML knows no GPU " + uuid;
    return nullptr;
  }
  facts->serial_ = nvml.text(nvml.serial);
  facts->model_ = nvml.text(nvml.name);
  return facts;
}

DeviceReading DeviceFacts::read() const {
  DeviceReading reading;
  reading.corrected = nvml_->count(kCorrected);
  reading.uncorrected = nvml_->count(kUncorrected);
  unsigned mhz = 0;
  if (nvml_->clock != nullptr && nvml_->clock(nvml_->device, kSmClock, &mhz) == 0) reading.sm_mhz = mhz;
  unsigned long long reasons = 0;
  if (nvml_->reasons != nullptr && nvml_->reasons(nvml_->device, &reasons) == 0) {
    for (const auto& [bit, word] : kReasons) {
      if ((reasons & bit) != 0) reading.throttled += (reading.throttled.empty() ? "" : ", ") + std::string(word);
    }
  }
  return reading;
}

}  // namespace canary
