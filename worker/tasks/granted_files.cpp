#include "tasks/granted_files.hpp"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/policy/task_files.hpp"

namespace freeride::worker {
namespace {

Result<FileUser> find_user(uid_t uid) {
  auto groups = groups_of_user(uid);
  if (!groups) {
    Error error = groups.error();
    error.message += ", under whose rights the task's files would be used";
    error.hint = "load the task as a user that its worker's host knows";
    return error;
  }
  return FileUser{uid, groups->first, std::move(groups->all)};
}

}  // namespace

bool asks_for_files(const bus::CreateTask& spec) {
  return !spec.files.empty() || !spec.env.empty() || !spec.working_dir.empty();
}

Status grant_files(const bus::CreateTask& spec, const SandboxOptions& options, const std::string& host,
                   bool takes_rights, SandboxGrants& grants) {
  std::vector<policy::WantedFile> wanted;
  wanted.reserve(spec.files.size());
  for (const bus::FileGrant& file : spec.files) wanted.push_back({file.source, file.target, file.write});
  if (auto s = policy::check_files(wanted); !s) return s;
  if (auto s = policy::check_environment(spec.env); !s) return s;
  if (auto s = policy::check_working_dir(spec.working_dir); !s) return s;
  grants.own_env = spec.env;
  grants.working_dir = spec.working_dir;
  if (wanted.empty()) return {};

  policy::FileClaim claim;
  claim.uid = spec.uid;
  claim.said_on = spec.uid_host;
  claim.host = host;
  claim.users_of_all = options.users_of_all_hosts;
  claim.worker_uid = geteuid();
  claim.worker_may_map = takes_rights;
  if (auto s = policy::may_take_rights(claim); !s) return s;
  if (auto s = take(grants.data_user, find_user(static_cast<uid_t>(spec.uid))); !s) return s;
  // As they are now: what the operator has named may be a link.
  std::vector<std::string> open;
  for (const std::string& folder : options.data_dirs) {
    std::error_code error;
    const auto real = std::filesystem::canonical(folder, error);
    open.push_back(error ? folder : real.string());
  }
  for (const policy::WantedFile& file : wanted) {
    auto found = policy::below(file.source, options.data_dirs);
    if (!found) found = policy::below(file.source, open);
    if (!found) return found.error();
    GrantedFile granted;
    granted.folder = open[found->folder];
    granted.path = found->rest;
    granted.source = file.source;
    granted.target = file.seen_at();
    granted.write = file.write;
    granted.empty = file.write && spec.purpose == "profile";
    grants.data.push_back(std::move(granted));
  }
  return {};
}

}  // namespace freeride::worker
