// A sweep: one task for each combination of values.
#pragma once

#include <string>

#include "session.hpp"
#include "verbs.hpp"

namespace freeride::ctl {

/// Loads `load` once for each combination that `arguments.sweep` asks for, with its values as parameters and labels,
/// and the label "sweep" with the names that are swept. All of them, or none: where one is refused, those before it are
/// stopped.
Result<int> load_sweep(Session& session, const bus::Load& load, const std::string& attachment,
                       const LoadArguments& arguments);

}  // namespace freeride::ctl
