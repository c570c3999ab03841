// Verdicts between this worker and others: from a supervisor's report, to the bus.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "freeride/bus/events.hpp"
#include "freeride/policy/verdict.hpp"

namespace freeride::worker {

/// Of a report's message of the event "verdict". What the runner says is bounded; a kind that is not known counts as
/// failed.
policy::Verdict verdict_of(const nlohmann::json& message);

/// Whether what ended the task, or what was seen with it, is a fault of the GPU. A plugin's word as well: it only
/// shortens its rights.
bool tells_gpu_fault(const policy::Verdict& verdict);

/// Whether a task with this verdict may be started again from its saved state: after every end that it was not meant to
/// have, but one in RestoreState, which the same state would bring about again.
bool may_continue(const policy::Verdict& verdict);

/// The one place where a verdict becomes strings on the bus.
bus::Verdict to_bus(const policy::Verdict& verdict, const std::string& log_tail);

}  // namespace freeride::worker
