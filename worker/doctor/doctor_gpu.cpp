// The doctor's look at GPUs: what a worker of each would say at its start.
#include <stdlib.h>  // mkdtemp
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>

#include "doctor/doctor.hpp"
#include "doctor/doctor_probe.hpp"
#include "freeride/pages/handover.hpp"
#include "gpu/gpu.hpp"
#include "gpu/gpu_guard.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {
namespace {

constexpr const char* kArea = "GPUs";

// Folders of a worker that runs are none of the doctor's: it looks with an empty one of its own.
class EmptyFolder {
 public:
  EmptyFolder() : made_(mkdtemp(path_.data()) != nullptr) {}
  ~EmptyFolder() {
    std::error_code ignored;
    if (made_) std::filesystem::remove(path_, ignored);
  }
  EmptyFolder(const EmptyFolder&) = delete;
  EmptyFolder& operator=(const EmptyFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/freeride-doctor-XXXXXX";
  bool made_;
};

Finding look_at(const std::string& uuid, const Options& options) {
  Finding f{kArea, uuid, Health::kOk, "", ""};
  if (pages::connect_to_worker(options.paths.worker_socket(uuid).string()).ok()) {
    f.found = "its worker is running";
    return f;
  }
  const Health if_not = uuid == options.device ? Health::kMissing : Health::kWarn;
  auto loop = Loop::create();
  if (!loop.ok()) return {kArea, uuid, if_not, loop.error().message, loop.error().hint};
  const EmptyFolder folder;
  GpuGuardOptions guard;
  guard.gpu = uuid;
  guard.control = options.mps_control;
  guard.reserve_bytes = options.reserve_bytes;
  guard.mps_folder = folder.path();
  GpuGuard::Calls calls{[] { return false; }, [](uint64_t) { return pid_t{0}; }, [](auto&&...) {}, [](auto&&...) {}};
  auto opened = GpuGuard::open(guard, **loop, std::move(calls));
  if (!opened.ok()) return {kArea, uuid, if_not, opened.error().message, opened.error().hint};
  f.found = (*opened)->model() + ": compute mode DEFAULT, MPS is there and nobody else's runs, " +
            std::to_string((*opened)->usable_bytes() >> 20) + " MiB for a side task now";
  return f;
}

}  // namespace

void look_at_gpus(const Options& options, Findings& findings) {
  auto uuids = gpu_uuids();
  if (!uuids.ok()) {
    if (options.cpu_device() && !std::filesystem::exists("/proc/driver/nvidia")) {
      findings.push_back({kArea, "driver", Health::kOk, "no NVIDIA driver: CPU devices only", ""});
    } else {
      findings.push_back({kArea, "driver", options.cpu_device() ? Health::kWarn : Health::kMissing,
                          uuids.error().message, uuids.error().hint});
    }
    return;
  }
  const std::string version = first_line("/proc/driver/nvidia/version");
  findings.push_back({kArea, "driver", Health::kOk,
                      std::to_string(uuids->size()) + (uuids->size() == 1 ? " GPU" : " GPUs") +
                          (version.empty() ? "" : ", " + version),
                      ""});
  // One that is not there as well: its worker's error names those that are.
  if (!options.cpu_device() && std::find(uuids->begin(), uuids->end(), options.device) == uuids->end())
    uuids->push_back(options.device);
  for (const std::string& uuid : *uuids) findings.push_back(look_at(uuid, options));
}

}  // namespace freeride::worker
