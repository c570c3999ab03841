// JSON as freeride-ctl prints it.
#pragma once

#include <string>

#include "freeride/bus/json.hpp"

namespace freeride::ctl {

using bus::to_json;

/// Text that is no UTF-8 (an event's, a task's log) gets replacement characters instead of failing.
inline std::string dump(const nlohmann::json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace freeride::ctl
