// Verdicts between this worker and others: from a supervisor's report, to the bus, for the log.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "freeride/bus/events.hpp"
#include "freeride/policy/verdict.hpp"

namespace freeride::worker {

/// Of a report's message of the event "verdict". What the runner says is bounded; a kind that is not known counts as
/// failed.
policy::Verdict verdict_of(const nlohmann::json& message);

/// The one place where a verdict becomes strings on the bus.
bus::Verdict to_bus(const policy::Verdict& verdict, const std::string& log_tail);

/// For people, in one line.
std::string text_of(const policy::Verdict& verdict);

}  // namespace freeride::worker
