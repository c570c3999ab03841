// freeride-ctl profile: takes, lists, exports and imports profiles.
#pragma once

#include <string>

#include "session.hpp"
#include "verbs.hpp"

namespace freeride::ctl {

struct ProfileArguments {
  LoadArguments load;  ///< what is to be profiled; its steps are how many
  std::string worker, device, plot;
  bool again = false;
  std::string file;  ///< of export and import
};

Result<int> run_profile(Session& session, ProfileArguments arguments);
Result<int> run_profile_list(Session& session, const ProfileArguments& arguments);
Result<int> run_profile_export(Session& session, const ProfileArguments& arguments);
Result<int> run_profile_import(Session& session, const ProfileArguments& arguments);

/// The file of exported profiles: JSON, an object with `format`, `version` and `profiles`.
constexpr const char* kProfilesFormat = "freeride-profiles";
constexpr int kProfilesVersion = 1;
std::string profiles_file(const std::vector<bus::Profile>& profiles);
/// What such a file holds; `name` is for messages. Errors: kInvalidArgument (not such a file, or damaged), kVersion (of
/// a newer version).
Result<bus::ImportProfiles> read_profiles(const std::string& text, const std::string& name);

}  // namespace freeride::ctl
