// The names of what the answer page holds as numbers: a side task's states and transitions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace freeride::pages {

/// The paper's name of FREERIDE_STATE_*; "" for a number that means nothing. Any thread.
const char* state_name(uint32_t state);

/// The paper's name of FREERIDE_IN_*, "load" for FREERIDE_IN_LOAD; "" for FREERIDE_IN_NONE and for a number that means
/// nothing. Any thread.
const char* transition_name(uint32_t transition);
/// The number of a transition's name; nothing for a name that is none.
std::optional<uint32_t> transition_of(std::string_view name);

}  // namespace freeride::pages
