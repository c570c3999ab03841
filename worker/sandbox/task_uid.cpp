#include "sandbox/task_uid.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace freeride::worker {

Result<TaskUid> TaskUid::take(int64_t first) {
  for (int64_t uid = first; uid < first + kMost; ++uid) {
    // An abstract socket's name is a lock that needs no file and cannot be left behind.
    Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return errno_error("cannot make a socket", errno);
    const std::string name = "freeride-uid-" + std::to_string(uid);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // NOLINT: the first byte stays 0
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) {
      return TaskUid(static_cast<uid_t>(uid), std::move(fd));
    }
    if (errno != EADDRINUSE) return errno_error("cannot take a user number for a task", errno);
  }
  return Error{Code::kExhausted, "no user number from " + std::to_string(first) + " on is free",
               "name others with --first-task-uid"};
}

}  // namespace freeride::worker
