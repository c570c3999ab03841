// What the driver says of the GPU: its serial number, memory errors, clocks. By NVML, where the sandbox has it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace canary {

/// One look. What the driver does not say is missing.
struct DeviceReading {
  std::optional<uint64_t> corrected, uncorrected;  ///< memory errors since the driver was loaded
  std::optional<unsigned> sm_mhz;
  std::string throttled;  ///< why the clock is lower than it could be, in words; empty: it is not, or nobody knows
};

/// NVML is opened, never linked. One thread. A look may take milliseconds: the driver asks the GPU's own processor.
class DeviceFacts {
 public:
  /// Null where there is no NVML or no such GPU in it; `why` says so then.
  static std::unique_ptr<DeviceFacts> open(const std::string& uuid, std::string& why);
  ~DeviceFacts();
  DeviceFacts(const DeviceFacts&) = delete;
  DeviceFacts& operator=(const DeviceFacts&) = delete;

  const std::string& serial() const { return serial_; }  ///< empty: the GPU has none
  const std::string& model() const { return model_; }
  DeviceReading read() const;

 private:
  struct Nvml;
  DeviceFacts();
  std::unique_ptr<Nvml> nvml_;
  std::string serial_, model_;
};

}  // namespace canary
