#include "sandbox/task_uid.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "freeride/base/access.hpp"

namespace freeride::worker {

Result<TaskUid> TaskUid::take(const std::filesystem::path& folder, int64_t first) {
  if (folder.empty()) return TaskUid(static_cast<uid_t>(first + kMost), Fd());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return errno_error("cannot make " + folder.string() + ", where user numbers for tasks are taken", errno);
  // Nobody else may hold a number: a name that all of the host may take would stop all tasks.
  if (auto ours = check_run_folder(folder); !ours.ok()) return ours.error();
  for (int64_t uid = first; uid < first + kMost; ++uid) {
    const auto file = folder / std::to_string(uid);
    Fd fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return errno_error("cannot take a user number for a task in " + folder.string(), errno);
    // The lock ends with this process; the empty file stays, since two could otherwise lock two files of one name.
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return TaskUid(static_cast<uid_t>(uid), std::move(fd));
    if (errno != EWOULDBLOCK) return errno_error("cannot lock " + file.string(), errno);
  }
  return Error{Code::kExhausted, "no user number from " + std::to_string(first) + " on is free",
               "name others with --first-task-uid"};
}

}  // namespace freeride::worker
