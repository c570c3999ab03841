// `why`: why a task or a rank's bubbles have no lease or no steps, now (the manager's word) or then (the recording's).
#pragma once

#include <string>

#include "session.hpp"

namespace freeride::ctl {

struct WhyArguments {
  std::string subject;    ///< a task, or JOB/RANK
  std::string at;         ///< a moment; empty: now
  std::string since;      ///< a length of time up to now, from the recording; empty: the last minute, if there is one
  std::string recording;  ///< a file or a folder; empty: where freeride-recorder writes
};

/// A line that says what a task's state is and why; of one that has ended, its verdict.
std::string now_line(const bus::TaskState& task);

/// In which idle phase a rank is, and for how long: a line, or "".
std::string phase_line(const bus::RankInfo& rank);

/// With `at` or `since` no manager is asked. Errors: kNotFound (no such task or rank, no recording of then).
Result<int> run_why(Session& session, const WhyArguments& arguments);

}  // namespace freeride::ctl
