#include "freeride/base/access.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

#include "freeride/base/fd.hpp"

namespace freeride {
namespace {

constexpr size_t kMostNameBytes = 16384;

std::string me() {
  return user_name(geteuid());
}

Error not_believed(const std::filesystem::path& folder, const std::string& why) {
  return Error{Code::kPermission, "the run folder " + folder.string() + " is not used: " + why,
               "name the manager's run folder with --run-dir, or make one that is yours or root's, with mode 0755"};
}

// A folder that only a trusted user could have put there, and has given to somebody else: a service's of another user.
bool is_given(const std::filesystem::path& folder) {
  struct stat above {};
  std::error_code failed;
  const auto real = std::filesystem::canonical(folder, failed);
  return !failed && stat(real.parent_path().c_str(), &above) == 0 && is_trusted_user(above.st_uid) &&
         (above.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

bool is_trusted_user(uid_t uid) {
  return uid == 0 || uid == geteuid();
}

std::string user_name(uid_t uid) {
  char space[kMostNameBytes];
  passwd entry{}, *found = nullptr;
  if (getpwuid_r(uid, &entry, space, sizeof space, &found) == 0 && found != nullptr) return found->pw_name;
  return "uid " + std::to_string(uid);
}

std::string group_name(gid_t gid) {
  char space[kMostNameBytes];
  group entry{}, *found = nullptr;
  if (getgrgid_r(gid, &entry, space, sizeof space, &found) == 0 && found != nullptr) return found->gr_name;
  return "gid " + std::to_string(gid);
}

Result<UserGroups> groups_of_user(uid_t uid) {
  constexpr int kMost = 65'536;  // the kernel's
  char space[kMostNameBytes];
  passwd entry{}, *found = nullptr;
  const int error = getpwuid_r(uid, &entry, space, sizeof space, &found);
  if (found == nullptr) {
    return Error{Code::kNotFound,
                 "this host has no user " + std::to_string(uid) + (error == 0 ? "" : " (its database cannot be read)"),
                 ""};
  }
  UserGroups groups;
  groups.first = entry.pw_gid;
  int count = 64;
  groups.all.resize(static_cast<size_t>(count));
  while (getgrouplist(entry.pw_name, entry.pw_gid, groups.all.data(), &count) < 0) {
    if (count > kMost) return Error{Code::kExhausted, "user " + std::to_string(uid) + " has too many groups", ""};
    groups.all.resize(static_cast<size_t>(count));
  }
  groups.all.resize(static_cast<size_t>(count));
  return groups;
}

Result<Peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return errno_error("cannot identify the process at the other end of a socket", errno);
  return Peer{credentials.uid, credentials.pid};
}

bool is_nobody_known(uid_t uid) {
  uid_t nobody = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> nobody;
  if (uid != nobody) return false;
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  map >> inside >> outside >> count;
  return !(map && inside == 0 && outside == 0 && count == UINT32_MAX);
}

std::optional<uid_t> user_of_process(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Uid:", 0) != 0) continue;
    std::istringstream numbers(line.substr(4));
    uid_t real = 0, effective = 0;
    if (numbers >> real >> effective) return effective;
  }
  return std::nullopt;
}

bool process_exists(pid_t pid) {
  return pid > 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

Status check_run_folder(const std::filesystem::path& folder) {
  struct stat info {};
  // A link in a folder like /tmp is its maker's to change at any time.
  if (lstat(folder.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && !is_trusted_user(info.st_uid))
    return not_believed(folder, "it is a link that " + user_name(info.st_uid) + " has made");
  if (stat(folder.c_str(), &info) != 0)
    return errno_error("cannot look at the run folder " + folder.string(), errno, "set --run-dir");
  if (!S_ISDIR(info.st_mode)) {
    return Error{Code::kInvalidArgument, "the run folder " + folder.string() + " is no directory", "set --run-dir"};
  }
  const bool believed = is_trusted_user(info.st_uid) || is_given(folder);
  if (!believed && is_nobody_known(info.st_uid)) {
    return Error{Code::kPermission,
                 "the run folder " + folder.string() +
                     " is not used: it belongs to a user of the host's who has no number in this container",
                 "mount it into a folder where only the container's root may write, such as /run"};
  }
  if (!believed)
    return not_believed(folder, "it belongs to " + user_name(info.st_uid) + ", who is neither root nor " + me());
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error{Code::kPermission,
                 "the run folder " + folder.string() +
                     " is not used: other users may write there, so that its "
                     "sockets may be anybody's",
                 "chmod go-w " + folder.string() + ", or set --run-dir"};
  }
  return {};
}

Status make_run_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  if (!std::filesystem::exists(folder, failed)) {
    std::filesystem::create_directories(folder, failed);
    if (failed) return errno_error("cannot make the run folder " + folder.string(), failed.value(), "set --run-dir");
    if (chmod(folder.c_str(), 0755) != 0) return errno_error("cannot set the mode of " + folder.string(), errno);
  }
  return check_run_folder(folder);
}

Status check_listener(int socket, const std::filesystem::path& path) {
  const auto peer = peer_of(socket);
  if (!peer) return peer.error();
  if (is_trusted_user(peer->uid)) return {};
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  struct stat info {};
  if (stat(folder.c_str(), &info) == 0 && info.st_uid == peer->uid && is_given(folder)) return {};
  return Error{Code::kPermission,
               "process " + std::to_string(peer->pid) + " of " + user_name(peer->uid) + " listens at " + path.string() +
                   ", who is neither root nor " + me() + ": it is not believed",
               "find out how it came there, or set --run-dir"};
}

Status check_socket(const std::filesystem::path& path) {
  struct stat info {};
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (auto believed = check_run_folder(folder); !believed) {
    if (believed.error().code == Code::kNotFound) return {};
    return believed;
  }
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return errno_error("cannot look at " + path.string(), errno,
                       "run this as the user of the manager, or join the group " + std::string(kOperatorsGroup));
  }
  if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0 || errno != EACCES) return {};
  const std::string message = me() + " may not use " + path.string();
  if ((info.st_mode & S_IWGRP) == 0) {
    return Error{Code::kPermission, message + ": it is for " + user_name(info.st_uid) + " only",
                 "run this as " + user_name(info.st_uid) + " (sudo)"};
  }
  const std::string group = group_name(info.st_gid);
  return Error{Code::kPermission, message + ": it is for " + user_name(info.st_uid) + " and the group " + group,
               "join the group (sudo usermod -aG " + group + " " + me() + ", then log in again), or run this as " +
                   user_name(info.st_uid)};
}

Result<std::optional<gid_t>> operators_group(const std::string& name) {
  if (name == "none" || (name.empty() && geteuid() != 0)) return std::optional<gid_t>();
  const std::string wanted = name.empty() ? kOperatorsGroup : name;
  char space[kMostNameBytes];
  group entry{}, *found = nullptr;
  if (getgrnam_r(wanted.c_str(), &entry, space, sizeof space, &found) == 0 && found != nullptr)
    return std::optional<gid_t>(found->gr_gid);
  if (name.empty()) return std::optional<gid_t>();
  return Error{Code::kNotFound, "there is no group " + name,
               "make it (groupadd --system " + name + "), or --group none"};
}

void make_files_private() {
  umask(umask(077) | 027);
}

Status make_private_folder(const std::filesystem::path& folder, std::optional<gid_t> group) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  struct stat info {};
  if (failed || stat(folder.c_str(), &info) != 0)
    return errno_error("cannot make " + folder.string(), failed ? failed.value() : errno, "set --state-dir");
  if (info.st_uid != geteuid()) return {};  // its owner's to decide
  if (group && info.st_gid != *group && chown(folder.c_str(), static_cast<uid_t>(-1), *group) != 0)
    return errno_error("cannot give " + folder.string() + " to group " + group_name(*group), errno, "set --group");
  // Sandboxes of another uid come through it to what they know the name of.
  const mode_t before = info.st_mode & 07777, mode = (before & ~mode_t{026}) | (group ? 051 : 01);
  if (mode != before && chmod(folder.c_str(), mode) != 0)
    return errno_error("cannot close " + folder.string() + " to others", errno);
  return {};
}

Status make_private_file(const std::filesystem::path& file, std::optional<gid_t> group) {
  const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 || info.st_uid != geteuid()) return {};
  if (group && info.st_gid != *group && fchown(fd.get(), static_cast<uid_t>(-1), *group) != 0)
    return errno_error("cannot give " + file.string() + " to group " + group_name(*group), errno, "set --group");
  if (fchmod(fd.get(), (info.st_mode & 0600) | (group ? 0040 : info.st_mode & 0040)) != 0)
    return errno_error("cannot close " + file.string() + " to others", errno);
  return {};
}

size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit highest{limit.rlim_max, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &highest) == 0) limit = highest;
  }
  return limit.rlim_cur;
}

}  // namespace freeride
