#include "freeride/base/paths.hpp"

#include <unistd.h>

#include <cstdlib>

namespace freeride {
namespace {
std::filesystem::path env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
}  // namespace

Paths Paths::defaults() {
  Paths paths;
  const bool root = geteuid() == 0;
  paths.run_dir = env("FREERIDE_RUN_DIR");
  if (paths.run_dir.empty()) {
    auto runtime = env("XDG_RUNTIME_DIR");
    if (root) {
      paths.run_dir = "/run/freeride";
    } else if (!runtime.empty()) {
      paths.run_dir = runtime / "freeride";
    } else {
      paths.run_dir = "/tmp/freeride-" + std::to_string(geteuid());
    }
  }
  paths.state_dir = env("FREERIDE_STATE_DIR");
  if (paths.state_dir.empty()) {
    paths.state_dir = root ? std::filesystem::path("/var/lib/freeride") : env("HOME") / ".local/state/freeride";
  }
  return paths;
}

}  // namespace freeride
