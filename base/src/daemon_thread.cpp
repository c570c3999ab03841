#include "freeride/base/daemon_thread.hpp"

#include <spdlog/spdlog.h>

#include <cstdlib>

namespace freeride {

void run_or_end(const std::string& name, const std::function<void()>& work) noexcept {
  std::string why = "for no known reason";
  try {
    return work();
  } catch (const std::exception& error) {
    why = error.what();
  } catch (...) {
  }
  spdlog::critical("{} has failed ({}): this process ends, so that it is started again", name, why);
  spdlog::shutdown();
  std::_Exit(1);  // other threads are still at work
}

}  // namespace freeride
