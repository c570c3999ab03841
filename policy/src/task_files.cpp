#include "freeride/policy/task_files.hpp"

#include <algorithm>
#include <array>

#include "freeride/base/utf8.hpp"

namespace freeride::policy {
namespace {

// What the sandbox has of its own, and where programs look for libraries and names.
constexpr std::array<std::string_view, 16> kTaken{"/proc", "/dev",     "/sys",     "/freeride",   "/scratch", "/etc",
                                                  "/usr",  "/lib",     "/lib32",   "/lib64",      "/libx32",  "/bin",
                                                  "/sbin", "/oldroot", "/newroot", "/nonexistent"};

// Prefixes where they end in "_" or "*", else names. What loads code into a process or changes what glibc does in it,
// what FreeRide and the GPU's driver and MPS go by, and what makes an interpreter another one.
constexpr std::array<std::string_view, 18> kRefused{"LD_*",
                                                    "GLIBC_TUNABLES",
                                                    "MALLOC_*",
                                                    "GCONV_PATH",
                                                    "LOCPATH",
                                                    "NLSPATH",
                                                    "FREERIDE_*",
                                                    "CUDA_MPS_*",
                                                    "CUDA_VISIBLE_DEVICES",
                                                    "CUDA_INJECTION*",
                                                    "NVIDIA_*",
                                                    "ASAN_*",
                                                    "LSAN_*",
                                                    "TSAN_*",
                                                    "UBSAN_*",
                                                    "MSAN_*",
                                                    "RESOLV_HOST_CONF",
                                                    "HOSTALIASES"};
// What the shim of a program on a GPU writes for its user, with the program's own rights.
constexpr std::string_view kShimLog = "FREERIDE_SHIM_LOG";
constexpr std::array<std::string_view, 5> kPythonAllowed{"PYTHONHASHSEED", "PYTHONUNBUFFERED", "PYTHONWARNINGS",
                                                         "PYTHONFAULTHANDLER", "PYTHONOPTIMIZE"};

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

bool is_at_or_below(std::string_view path, std::string_view folder) {
  return path.substr(0, folder.size()) == folder && (path.size() == folder.size() || path[folder.size()] == '/');
}

Status check_path(const std::string& path, const char* what) {
  if (path.empty() || path[0] != '/') return invalid(std::string(what) + " " + in_quotes(path) + " is not absolute");
  if (path.size() > kLongestPath) return invalid(std::string(what) + " is longer than 4000 bytes");
  if (path.find_first_of(std::string("\0\n", 2)) != std::string::npos)
    return invalid(std::string(what) + " " + in_quotes(path) + " holds a character that no path here may have");
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('/', at + 1), path.size());
    const std::string_view part = std::string_view(path).substr(at + 1, end - at - 1);
    const bool last = end == path.size();
    if (part == "." || part == ".." || (part.empty() && !(last && path.size() == 1)))
      return invalid(std::string(what) + " " + in_quotes(path) + " is not plain",
                     "write it without '.', '..' and '//'");
    at = end;
  }
  return {};
}

Status check_target(const std::string& target) {
  if (auto s = check_path(target, "the path in the sandbox"); !s) return s;
  if (target == "/") return invalid("'/' cannot be another folder inside the sandbox", "give it a place: SRC:DST");
  for (const std::string_view taken : kTaken) {
    if (is_at_or_below(target, taken))
      return invalid(in_quotes(target) + " is the sandbox's own", "give it another place: SRC:DST, e.g. SRC:/data");
  }
  if (target == "/tmp") return invalid("'/tmp' is the sandbox's own", "give it another place: SRC:DST");
  return {};
}

}  // namespace

Status check_files(const std::vector<WantedFile>& files) {
  if (files.size() > kMostFiles) return invalid("a task may be given 32 files and folders at most", "give a folder");
  for (size_t i = 0; i < files.size(); ++i) {
    if (auto s = check_path(files[i].source, "the path"); !s) return s;
    if (auto s = check_target(files[i].seen_at()); !s) return s;
    for (size_t j = 0; j < i; ++j) {
      const std::string &one = files[i].seen_at(), &other = files[j].seen_at();
      if (is_at_or_below(one, other) || is_at_or_below(other, one))
        return invalid(in_quotes(one) + " and " + in_quotes(other) + " are in each other's way",
                       "give one of them another place: SRC:DST");
    }
  }
  return {};
}

Status check_working_dir(const std::string& path) {
  return path.empty() ? Status() : check_path(path, "the working folder");
}

Status check_environment(const std::map<std::string, std::string>& env) {
  if (env.size() > kMostEnvironment) return invalid("a task may be given 64 variables at most");
  for (const auto& [name, value] : env) {
    const bool plain = !name.empty() && name.size() <= 128 && !(name[0] >= '0' && name[0] <= '9') &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                         return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
                       });
    if (!plain) return invalid(in_quotes(name) + " is no name of a variable", "letters, digits and '_'");
    if (value.size() > 4096 || value.find('\0') != std::string::npos)
      return invalid("the value of the variable " + name + " is too long or holds a NUL");
    const bool refused = std::any_of(kRefused.begin(), kRefused.end(), [&, &key = name](std::string_view rule) {
      return rule.back() == '*' ? key.rfind(rule.substr(0, rule.size() - 1), 0) == 0 : key == rule;
    });
    const bool python = name.rfind("PYTHON", 0) == 0 &&
                        std::find(kPythonAllowed.begin(), kPythonAllowed.end(), name) == kPythonAllowed.end();
    if ((refused && name != kShimLog) || python) {
      return invalid("the variable " + name + " may not be set: it changes what runs the task, not the task",
                     python ? "name the interpreter with --python" : "leave it out");
    }
  }
  return {};
}

Result<Below> below(const std::string& source, const std::vector<std::string>& folders) {
  Below found;
  size_t longest = 0;
  for (size_t i = 0; i < folders.size(); ++i) {
    std::string_view folder = folders[i];
    while (folder.size() > 1 && folder.back() == '/') folder.remove_suffix(1);
    const bool root = folder == "/";
    if (!root && !is_at_or_below(source, folder)) continue;
    if (folder.size() <= longest) continue;
    longest = folder.size();
    found.folder = i;
    found.rest = source.size() <= folder.size() ? "." : source.substr(root ? 1 : folder.size() + 1);
  }
  if (longest != 0) return found;
  return Error{Code::kPermission,
               in_quotes(source) + " is in no folder that this worker's operator has opened to tasks",
               folders.empty() ? "its operator opens one with freeride-worker --data FOLDER" : "open are: " + [&] {
                 std::string all;
                 for (const auto& folder : folders) all += (all.empty() ? "" : ", ") + folder;
                 return all;
               }()};
}

Status may_take_rights(const FileClaim& claim) {
  const auto no = [](std::string message, std::string hint) {
    return Error{Code::kPermission, std::move(message), std::move(hint)};
  };
  if (claim.uid < 0 || claim.uid >= int64_t{UINT32_MAX}) {
    return no("files are used under the submitter's rights, and no kernel vouches for this one's user number",
              "load the task on a host, over its own socket, instead of with a key of role user");
  }
  if (claim.said_on != claim.host) {
    if (!claim.users_of_all) {
      return no("files are used under the submitter's rights, and user " + std::to_string(claim.uid) + " of " +
                    (claim.said_on.empty() ? "another host" : claim.said_on) + " need not be the same user on " +
                    claim.host,
                "load the task on that host, or start its worker with --users-of-all-hosts");
    }
    if (claim.uid == 0)
      return no("root of another host is not root here, so its files cannot be used", "load the task as another user");
  }
  if (claim.uid == 0 || claim.uid == int64_t{claim.worker_uid}) return {};
  if (claim.worker_uid == 0) {
    if (claim.worker_may_map) return {};
    return no("this worker cannot take on a user's rights", "start it with CAP_SYS_ADMIN and in its sandbox");
  }
  return no("this worker runs as user " + std::to_string(claim.worker_uid) +
                ", so it cannot take on the rights of user " + std::to_string(claim.uid),
            "use a worker of root's");
}

}  // namespace freeride::policy
