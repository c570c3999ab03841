// TaskUid: a user number of the host's that no other sandbox on it has at the same time.
#pragma once

#include <sys/types.h>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Held until destroyed; the kernel gives it back should this process die. Workers of one network namespace share the
/// numbers; in different ones (containers) give them different first numbers.
class TaskUid {
 public:
  static constexpr int kMost = 4096;  ///< numbers that are tried

  /// A free one from `first` on. Errors: kExhausted.
  static Result<TaskUid> take(int64_t first);
  uid_t get() const { return uid_; }

 private:
  TaskUid(uid_t uid, Fd lock) : uid_(uid), lock_(std::move(lock)) {}
  uid_t uid_ = 0;
  Fd lock_;
};

}  // namespace freeride::worker
