// Granted files: what of the host a side task asks for, as the sandbox can give it.
#pragma once

#include <string>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// Whether anything of it concerns the sandbox, so that grant_files() is to be asked.
bool asks_for_files(const bus::CreateTask& spec);

/// Adds to `grants` the files, folders, variables and the working folder that `spec` asks for, whatever the manager has
/// checked before. Files are opened later, by the sandbox's child, under the rights that are looked up here. A profile
/// writes nothing of the host's: it has empty folders and files in their place.
///
/// `host`: id of this host. `takes_rights`: Sandbox::takes_rights(). Asks the host's user database, which may block:
/// not for the main thread. Errors: kInvalidArgument, kPermission, kNotFound (no such user).
Status grant_files(const bus::CreateTask& spec, const SandboxOptions& options, const std::string& host,
                   bool takes_rights, SandboxGrants& grants);

}  // namespace freeride::worker
