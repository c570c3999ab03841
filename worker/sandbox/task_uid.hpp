// TaskUid: a user number of the host's that no other sandbox on it has at the same time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Held until destroyed; the kernel gives it back should this process die. Workers of one run folder share the numbers;
/// give those of different run folders on one host different first numbers.
class TaskUid {
 public:
  static constexpr int kMost = 4096;  ///< numbers that are tried

  /// A free one from `first` on; who takes one locks a file of its name in `folder`. No folder: the
  /// number behind all of these, which is nobody's own; for a trial. Errors: kExhausted, kPermission
  /// (others may change the folder).
  static Result<TaskUid> take(const std::filesystem::path& folder, int64_t first);
  uid_t get() const { return uid_; }

 private:
  TaskUid(uid_t uid, Fd lock) : uid_(uid), lock_(std::move(lock)) {}
  uid_t uid_ = 0;
  Fd lock_;
};

}  // namespace freeride::worker
