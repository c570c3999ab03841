// freeride-ctl profile: takes and lists profiles.
#pragma once

#include <string>

#include "session.hpp"
#include "verbs.hpp"

namespace freeride::ctl {

struct ProfileArguments {
  LoadArguments load;  ///< what is to be profiled; its steps are how many
  std::string worker, device;
  bool again = false;
};

Result<int> run_profile(Session& session, ProfileArguments arguments);
Result<int> run_profile_list(Session& session, const ProfileArguments& arguments);

}  // namespace freeride::ctl
