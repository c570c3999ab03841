// What tells a batch's member from another task.
#pragma once

#include <string>

#include "freeride/bus/commands.hpp"

namespace freeride::manager {

inline constexpr const char* kMembersGroup = "batch ";

/// The group of the members of the batch with this id.
inline std::string members_group(const std::string& id) {
  return kMembersGroup + id;
}

inline bool is_member(const bus::Load& load) {
  return load.group.rfind(kMembersGroup, 0) == 0;
}

}  // namespace freeride::manager
