// The host verbs: another host joins this host's manager. Both change files below /etc/freeride and use systemctl.
#pragma once

#include <string>

#include "freeride/base/result.hpp"
#include "keys.hpp"
#include "session.hpp"

namespace freeride::ctl {

struct HostArguments {
  std::string etc;        ///< the folder of settings; empty: /etc/freeride
  bool no_start = false;  ///< leave units as they are
  std::string run_dir;
  KeysArguments keys;                         ///< of add: folder, host, out
  std::string head, key_file, device, cores;  ///< of join
};

/// On the manager's host: makes a key for the other host's node, and has the manager listen on the network where it
/// does not. Done again, it changes nothing. Errors: make_key()'s; kInvalidArgument (settings that cannot be read, or
/// that keep the manager from other hosts); kPermission; kUnavailable (systemd, or the manager after its start).
Result<int> run_host_add(Session& session, const HostArguments& arguments);

/// On the other host: checks all that can be checked, then installs key and settings, starts freeride-node and waits
/// until it is connected. Errors: kInvalidArgument, kNotFound, kPermission (the key, or root); kAlreadyExists (units
/// that want the same devices); kTimeout, kUnavailable (ports, systemd, or the node does not reach the manager);
/// kExhausted (no worker).
Result<int> run_host_join(Session& session, const HostArguments& arguments);

/// The endpoint that `head` means: a host's name or address, with or without a port, or an endpoint. Errors:
/// kInvalidArgument.
Result<std::string> manager_endpoint(const std::string& head);

/// What another host calls the manager that listens at `listen`: the host alone where the port is the usual one.
/// `hostname` stands for all addresses.
std::string head_of(const std::string& listen, const std::string& hostname);

}  // namespace freeride::ctl
