// `up`: one user's FreeRide on this host, in the foreground: a manager, a worker for each device, and the page.
#pragma once

#include <string>
#include <vector>

#include "session.hpp"
#include "up_plan.hpp"

namespace freeride::ctl {

struct UpArguments {
  std::string run_dir, state_dir;  ///< empty: the defaults
  std::string listen;              ///< the page's; empty: its default
  bool no_page = false;
  WantedDevices devices;
  std::vector<std::string> worker_flags;  ///< further ones, of every worker
};

/// Starts them, says when all answer, tells of each that ends, and ends them all at q, SIGINT, SIGTERM or SIGHUP. They
/// end when this process does, too. 0: ended by the user; 1: the manager or every worker has ended. Errors:
/// kInvalidArgument; kAlreadyExists (a manager is in the run folder: who, and how to use it); those of the manager's
/// start.
Result<int> run_up(Session& session, const UpArguments& arguments);

}  // namespace freeride::ctl
