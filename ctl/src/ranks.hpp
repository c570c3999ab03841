// `ranks`: each rank of a training with its state, and why its bubbles are used or not.
#pragma once

#include <string>

#include "format.hpp"
#include "session.hpp"

namespace freeride::ctl {

/// "rollout for 3.20 s"; "": no idle phase is under way, or it has only begun.
std::string present_phase(const bus::RankInfo& rank);
/// One row for each, and below them what each reason means. `job`: that was asked for; empty: all.
Listing list_ranks(const bus::RanksReply& ranks, const std::string& job);

/// Of all jobs with an empty name. Of a manager that knows no such command, the ranks that its workers have.
Result<int> run_ranks(Session& session, const std::string& job);

}  // namespace freeride::ctl
