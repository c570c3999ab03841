// Verdicts: bus::Verdict, which has names, made and read by policy's closed sets.
#pragma once

#include <string>

#include "freeride/bus/events.hpp"
#include "freeride/policy/verdict.hpp"

namespace freeride::manager {

/// A verdict of the manager's own.
bus::Verdict verdict_of(policy::VerdictKind kind, policy::Cause cause, std::string reason);

/// kNone for a verdict without kind, and for one whose kind this version does not know.
policy::VerdictKind kind_of(const bus::Verdict& verdict);

/// What came from a worker, bounded: a kind that is not known is taken as failed, with its words kept; a cause that is
/// not known is left out.
bus::Verdict checked(bus::Verdict verdict);

}  // namespace freeride::manager
