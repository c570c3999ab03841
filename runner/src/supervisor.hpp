// The supervisor: parent of one plugin's process, enforcer of its lease, and the one who says how it ended.
#pragma once

#include "freeride/base/result.hpp"
#include "job.hpp"
#include "limits.hpp"

namespace freeride::runner {

/// The descriptors a worker hands over; all stay the caller's.
struct Channels {
  int lease_fd = -1;     ///< memfd, mapped read-only
  int answer_fd = -1;    ///< memfd: read-write in the plugin's process, read-only here
  int lifeline_fd = -1;  ///< read end of a pipe; EOF = the worker is gone
  int report_fd = -1;    ///< SOCK_SEQPACKET: JSON datagrams {"event":"started"|"verdict", …}
};

/// Forks the plugin's process, supervises it to its end, reports the verdict, leaves no process behind. Blocks until
/// then; must be called while the process has one thread. SIGTERM and SIGINT, where the task is not confined: stops it
/// in good order. Errors: the descriptors are not what they should be, the kernel is too old; no verdict is reported
/// then.
Status supervise(const Job& job, const Channels& channels, const Limits& limits);

}  // namespace freeride::runner
