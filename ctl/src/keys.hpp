// The keys verbs: who may reach this host's manager over the network.
#pragma once

#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "session.hpp"

namespace freeride::ctl {

struct KeysArguments {
  std::string folder, name, role, account, host, out;
  std::vector<std::string> names;
};

/// They work on the manager's folder of keys and need no manager. Each returns the exit code.
Result<int> run_keys_make(Session& session, const KeysArguments& arguments);
Result<int> run_keys_list(Session& session, const KeysArguments& arguments);
Result<int> run_keys_revoke(Session& session, const KeysArguments& arguments);

}  // namespace freeride::ctl
