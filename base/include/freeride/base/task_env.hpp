// The environment that libraries find in a side task's process, the worker's and that of `plugin check`.
#pragma once

#include <map>
#include <string>

namespace freeride {

/// What threads of OpenMP, Intel's and OpenBLAS do between two pieces of work: sleep. Else they would look for more,
/// OpenBLAS's for a tenth of a second, and what is paused executes nothing. Where the operator has set one of these,
/// that counts.
inline std::map<std::string, std::string> sleeping_threads() {
  return {{"OMP_WAIT_POLICY", "passive"}, {"KMP_BLOCKTIME", "0"}, {"OPENBLAS_THREAD_TIMEOUT", "4"}};
}

/// Where libraries may keep what they compile and download: below `home`, the task's own folder. Without a network
/// those that would ask a server for news are told not to: they would wait for its time-out.
inline std::map<std::string, std::string> library_caches(const std::string& home, bool network) {
  const std::string caches = home + "/.cache";
  std::map<std::string, std::string> all{{"XDG_CACHE_HOME", caches},
                                         {"TRITON_CACHE_DIR", caches + "/triton"},
                                         {"TORCHINDUCTOR_CACHE_DIR", caches + "/inductor"},
                                         {"MPLCONFIGDIR", caches + "/matplotlib"},
                                         {"NUMBA_CACHE_DIR", caches + "/numba"},
                                         {"CUDA_CACHE_PATH", caches + "/cuda"}};
  if (!network) all.insert({{"HF_HUB_OFFLINE", "1"}, {"TRANSFORMERS_OFFLINE", "1"}, {"HF_DATASETS_OFFLINE", "1"}});
  return all;
}

}  // namespace freeride
