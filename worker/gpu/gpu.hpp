// Gpu: what the driver says of one GPU: its memory, its mode, who is on it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::worker {

/// A process with a context on the GPU. Pids are of the host's namespace.
struct GpuProcess {
  pid_t pid = 0;
  int64_t bytes = 0;        ///< its memory on the GPU, the context's included; 0 where the driver does not say
  bool mps_client = false;  ///< of whichever server
};

/// One look.
struct GpuReading {
  int64_t total_bytes = 0, used_bytes = 0;
  std::vector<GpuProcess> processes;  ///< MPS servers among them
};

/// How the GPU lets processes on it.
enum class ComputeMode { kDefault, kProhibited, kExclusive };

/// One GPU. One thread. A look takes some 20 µs (measured with NVML on an H200).
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const std::string& model() const = 0;
  /// Empty where the driver says none.
  virtual const std::string& serial() const = 0;
  /// The folder that the driver's libraries were found in.
  virtual const std::string& driver_folder() const = 0;
  /// Errors: kUnavailable (the driver does not answer).
  virtual Result<GpuReading> read() = 0;
  virtual Result<ComputeMode> compute_mode() = 0;
  virtual bool mig() = 0;
  /// The Xids that the driver has reported of the GPU since the last call, oldest first; none where it tells nobody.
  virtual std::vector<uint32_t> take_xids() { return {}; }
};

/// The GPU with this UUID, by NVML, which is opened here (libnvidia-ml.so.1) and never linked: a worker without a GPU
/// runs without a driver. Errors: kUnavailable (no driver), kNotFound (no such GPU, naming those there are), kVersion
/// (a driver without what is needed).
Result<std::unique_ptr<Gpu>> open_gpu(const std::string& uuid);

/// The UUIDs of this host's GPUs. Errors: as of open_gpu().
Result<std::vector<std::string>> gpu_uuids();

}  // namespace freeride::worker
