#include "tasks/task_work.hpp"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"

namespace freeride::worker {
namespace {

constexpr const char* kFile = ".freeride-work";
constexpr const char* kNewFile = ".freeride-work.new";

// The folder's file system belongs to the sandbox's user namespace, which may have no number for this process's user:
// it takes no file of one. So the file is made as the folder's owner. For this thread only.
class AsOwner {
 public:
  explicit AsOwner(const struct stat& owned) : gid_(setfsgid(owned.st_gid)), uid_(setfsuid(owned.st_uid)) {}
  ~AsOwner() {
    setfsuid(static_cast<uid_t>(uid_));
    setfsgid(static_cast<gid_t>(gid_));
  }
  AsOwner(const AsOwner&) = delete;
  AsOwner& operator=(const AsOwner&) = delete;

 private:
  int gid_, uid_;
};

}  // namespace

Status put_work(int scratch_folder, const std::string& text) {
  const auto fail = [](int error) { return errno_error("cannot tell the task what to do", error); };
  struct stat folder {};
  if (fstat(scratch_folder, &folder) != 0) return fail(errno);
  const AsOwner owner(folder);
  (void)unlinkat(scratch_folder, kNewFile, 0);
  // A file that was not there is nobody's link or pipe.
  const Fd file(openat(scratch_folder, kNewFile, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file.valid()) return fail(errno);
  if (fchmod(file.get(), 0644) != 0 || !write_all(file.get(), text) ||
      renameat(scratch_folder, kNewFile, scratch_folder, kFile) != 0) {
    const int error = errno;
    (void)unlinkat(scratch_folder, kNewFile, 0);
    return fail(error);
  }
  return {};
}

}  // namespace freeride::worker
