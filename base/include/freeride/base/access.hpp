// Who is believed and who may come in: the owner of the run folder, the user behind a socket, the group of operators.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride {

/// The rule of all programs: trusted are root and this process's own user. A socket is believed if nobody else could
/// have made it, and one of these two listens there.
bool is_trusted_user(uid_t uid);

/// "root", "alice", or "uid 1234" for a user without a name. May ask the host's user database, which may block.
std::string user_name(uid_t uid);

/// "root", "staff", or "gid 1234" for a group without a name. May ask the host's user database, which may block.
std::string group_name(gid_t gid);

/// The groups of a user, as the host's user database has them.
struct UserGroups {
  gid_t first = 0;
  std::vector<gid_t> all;  ///< with the first
};
/// May block. Errors: kNotFound (this host has no such user, or its database cannot be read), kExhausted (more groups
/// than the kernel has of one user).
Result<UserGroups> groups_of_user(uid_t uid);

/// The process at the other end of a connected UNIX socket, when it connected or began to listen.
struct Peer {
  uid_t uid = 0;
  pid_t pid = 0;  ///< 0: of a PID namespace that is not to be seen from this one
};
Result<Peer> peer_of(int socket);

/// Whether `uid` is the number of all users for whom this process's user namespace has none. In the host's own there
/// are none of these, and the number is a user's like any other.
bool is_nobody_known(uid_t uid);

/// As whom process `pid` acts now; nothing where there is no such process, or /proc hides it (its option hidepid).
std::optional<uid_t> user_of_process(pid_t pid);

/// Whether there is a process `pid`, be it hidden or not.
bool process_exists(pid_t pid);

/// Whether the sockets of `folder` can be believed. It must belong to a trusted user, or only a trusted user can have
/// put it there and given it to its owner. Nobody else may write there. A link is followed if a trusted user made it.
/// Blocks on the file system only. Errors: kNotFound, kInvalidArgument (no folder), kPermission (says who could put a
/// socket there, and what to do).
Status check_run_folder(const std::filesystem::path& folder);

/// Makes `folder` if it is missing, with mode 0755 whatever the umask, and checks it.
Status make_run_folder(const std::filesystem::path& folder);

/// Whether the listener at the other end of the connected `socket` is believed: a trusted user, or the one whom the
/// folder of `path` was given to. Errors: kPermission.
Status check_listener(int socket, const std::filesystem::path& path);

/// Why this process could not connect to the socket at `path`, as far as that can be told without connecting. The
/// folder is not to be believed; or the mode lets others in, and the error says which group to join, or whose command
/// it is. No error if nothing is there yet.
Status check_socket(const std::filesystem::path& path);

/// The group `name`, whose members may command and listen. Empty: the group "freeride", for a service of root's on a
/// host that has this group. "none": nobody but the owner. Errors: kNotFound (names the group).
Result<std::optional<gid_t>> operators_group(const std::string& name);
constexpr const char* kOperatorsGroup = "freeride";

/// From now on the files that this process makes can be read by its group at most, and not by others.
void make_files_private();
/// Makes `folder` if it is missing, gives it to `group`, and lets others neither see what is in it nor write there.
/// They may pass through: a sandbox of another uid is shown its plugin by name. So what is in it needs a mode too.
Status make_private_folder(const std::filesystem::path& folder, std::optional<gid_t> group);
/// Gives the file `file`, if it is there, to `group` to read, and takes others' rights to it away. Not for a file that
/// this process has locked (fcntl, and so SQLite's): its locks end with the descriptor that is closed here.
Status make_private_file(const std::filesystem::path& file, std::optional<gid_t> group);

/// Raises the limit of open descriptors to the highest that this process may have; returns it.
size_t raise_descriptor_limit();

}  // namespace freeride
