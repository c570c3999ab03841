// Task files: which files of a host a side task may be given, under whose rights, and what may stand in its
// environment.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::policy {

/// A file or folder that a task asks for.
struct WantedFile {
  std::string source;  ///< absolute, on the worker's host
  std::string target;  ///< where the task sees it; empty: at the same path
  bool write = false;

  const std::string& seen_at() const { return target.empty() ? source : target; }
};

constexpr size_t kMostFiles = 32;
constexpr size_t kMostEnvironment = 64;
constexpr size_t kLongestPath = 4000;

/// Whether the paths could be given to any task: absolute, without "..", in nobody's way inside the sandbox, each place
/// once. Pure. Errors: kInvalidArgument, with a sentence that names the path.
Status check_files(const std::vector<WantedFile>& files);
/// The same of a folder to work in, inside the sandbox; empty is fine.
Status check_working_dir(const std::string& path);

/// Whether variables of these names may be set in a task's environment. The task's supervisor, which enforces leases,
/// starts with them. So none may change what is loaded into it, what FreeRide says to it, or which device it has. Pure.
/// Errors: kInvalidArgument, with a sentence that names the variable.
Status check_environment(const std::map<std::string, std::string>& env);

/// Where `source` lies below one of `folders` (absolute, without links): the longest of them, and the rest of the path,
/// "." for the folder itself. By the letters only: what the path leads to is found out when it is opened. Pure. Error:
/// kPermission.
struct Below {
  size_t folder = 0;
  std::string rest;
};
Result<Below> below(const std::string& source, const std::vector<std::string>& folders);

/// Under whose rights a task's files are asked for, and by whom they would be opened.
struct FileClaim {
  int64_t uid = -1;            ///< the submitter, by the kernel's word on the host `said_on`; -1: nobody knows
  std::string said_on;         ///< host id
  std::string host;            ///< of the worker
  bool users_of_all = false;   ///< the worker's operator says that user numbers mean the same on all hosts
  uint32_t worker_uid = 0;     ///< as whom the worker runs
  bool worker_may_map = true;  ///< a root worker: it can mount (CAP_SYS_ADMIN) and become others
};

/// Whether the worker can take on exactly these rights. Pure. Error: kPermission, saying what to do.
Status may_take_rights(const FileClaim& claim);

}  // namespace freeride::policy
