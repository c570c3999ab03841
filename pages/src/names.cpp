#include "freeride/pages/names.hpp"

#include "freeride/base/enum_names.hpp"
#include "freeride/pages.h"

namespace freeride::pages {
namespace {

constexpr EnumName<uint32_t> kStates[] = {
    {FREERIDE_STATE_SUBMITTED, "SUBMITTED"}, {FREERIDE_STATE_CREATED, "CREATED"}, {FREERIDE_STATE_PAUSED, "PAUSED"},
    {FREERIDE_STATE_RUNNING, "RUNNING"},     {FREERIDE_STATE_STOPPED, "STOPPED"},
};

constexpr EnumName<uint32_t> kTransitions[] = {
    {FREERIDE_IN_NONE, ""},
    {FREERIDE_IN_CREATE, "CreateSideTask"},
    {FREERIDE_IN_INIT, "InitSideTask"},
    {FREERIDE_IN_START, "StartSideTask"},
    {FREERIDE_IN_STEP, "RunNextStep"},
    {FREERIDE_IN_PAUSE, "PauseSideTask"},
    {FREERIDE_IN_STOP, "StopSideTask"},
    {FREERIDE_IN_LOAD, "load"},
    {FREERIDE_IN_SAVE, "SaveState"},
    {FREERIDE_IN_RESTORE, "RestoreState"},
};

}  // namespace

const char* state_name(uint32_t state) {
  return name_in(kStates, state);
}

const char* transition_name(uint32_t transition) {
  return name_in(kTransitions, transition);
}

std::optional<uint32_t> transition_of(std::string_view name) {
  return value_in(kTransitions, name);
}

}  // namespace freeride::pages
