// The off switch: devices without side tasks, and the proof of it.
#pragma once

#include <string>

#include "session.hpp"

namespace freeride::ctl {

/// Drains a job's devices, a device or a host, and waits until every worker of it has looked and found nothing; returns
/// 0 then. Else, after `for_s` seconds or when a worker cannot look, the error that says why; what is drained stays so.
Result<int> run_drain(Session& session, const std::string& subject, double for_s);
Result<int> run_uncordon(Session& session, const std::string& subject);

}  // namespace freeride::ctl
