// The keys verbs: who may reach this host's manager over the network.
#pragma once

#include <string>
#include <vector>

#include "freeride/base/key_file.hpp"
#include "freeride/base/result.hpp"
#include "session.hpp"

namespace freeride::ctl {

struct KeysArguments {
  std::string folder, name, role, account, host, out;
  std::vector<std::string> names;
};

/// What `keys make` does, without a word of it: makes a key, authorises it, and writes it with its secret to
/// secret_file_of(arguments). Returns it without its secret. Errors: kInvalidArgument, kAlreadyExists, the disk's.
Result<KeyFile> make_key(const KeysArguments& arguments);
std::string secret_file_of(const KeysArguments& arguments);
/// What is authorised under the name. Errors: read_authorized_key()'s.
Result<KeyFile> authorized_key(const KeysArguments& arguments);

/// They work on the manager's folder of keys and need no manager. Each returns the exit code.
Result<int> run_keys_make(Session& session, const KeysArguments& arguments);
Result<int> run_keys_list(Session& session, const KeysArguments& arguments);
Result<int> run_keys_revoke(Session& session, const KeysArguments& arguments);

}  // namespace freeride::ctl
