// Permission: who somebody is, and what they may do. The one place where a right is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride::policy {

/// What somebody may do. Over the host's sockets the kernel says who it is: root and the manager's own user are
/// operators, the group's members users. Over the network a key says it.
enum class Role {
  kNobody,    ///< an unknown or revoked key, or no key at all on a network port
  kMonitor,   ///< hears events
  kUser,      ///< also looks, loads tasks, and steers its own; on the manager's host everybody's
  kNode,      ///< a host's daemon: serves with its host's workers; speaks for its host's users, each as kUser
  kOperator,  ///< everything; as its host's operator also what workers say
};

/// "monitor", ...; a key has one of monitor, user, node, operator.
const char* to_string(Role role);
std::optional<Role> role_of_key(std::string_view name);

/// Who has sent a message: from the kernel's word (`key` empty) or from a key.
struct Identity {
  Role role = Role::kNobody;
  bool local = false;   ///< over a socket of this host's, whose other end the kernel names
  uint32_t uid = 0;     ///< local, or spoken for by a node: the user
  int32_t pid = 0;      ///< local: the process
  std::string account;  ///< whose tasks are its own
  std::string key;      ///< name of the key; empty: none
  std::string address;  ///< where it is on the network
  std::string host;     ///< of a node: what its host is called
};

enum class Right {
  kLook,    ///< at tasks, workers, profiles, figures
  kSubmit,  ///< load a task, take a profile
  kSteer,   ///< stop, pause, resume or look into one task
  kLift,    ///< a block for GPU faults
  kServe,   ///< be a worker: register, report, get every plugin
  kRead,    ///< what has become of one task, and its log
  kFiles,   ///< what one task has written, and other code in its place, which could read that
  kDrain,   ///< keep side tasks off devices
};

/// Whether `who` may serve as the worker of this name ("<host id>:<device>"): a node as those of its own host. Asked
/// after permit(). Error: kPermission.
Status permit_worker(const Identity& who, std::string_view worker);
/// The part of a worker's name that names its host; "" of none.
std::string_view host_of_worker(std::string_view worker);

/// Whether `who` may drain, or give back, what is called `subject`. Root of a node's host may do so with that host, as
/// "host:NAME": it could switch the host off as well. Asked after permit(). Error: kPermission.
Status permit_drain(const Identity& who, std::string_view subject);

/// What people type for a command of the wire: "batch rm" for "batch.remove". Others are typed as they are.
std::string_view verb_of(std::string_view command);

/// Whether `who` may. `what` is the command of the wire, for the message; `owner` is the account whose task it is
/// about, where there is such a task. Error: kPermission.
Status permit(const Identity& who, Right right, std::string_view what, const std::optional<std::string>& owner = {});

/// What is known of an account beside the word of who wants to charge it.
struct AccountFacts {
  bool listed = false;    ///< the operator has written down who may charge it, and `who` is among them
  bool in_group = false;  ///< this host's user database has a group of its name, with `who`'s user in it
};

/// Whether `who` may have tasks charged to `account`, which is not its own name. A group counts only for a user of this
/// host: user numbers of other hosts mean nothing here. Error: kPermission.
Status permit_account(const Identity& who, std::string_view account, const AccountFacts& facts);

}  // namespace freeride::policy
