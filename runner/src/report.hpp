// What a supervisor tells its worker: JSON datagrams, written here and read by the harness and the worker.
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <nlohmann/json_fwd.hpp>

#include "outcome.hpp"

namespace freeride::runner {

/// Longest datagram, bytes: a message of last words whose every byte is escaped, with all that is beside it.
constexpr size_t kMostReportBytes = 16384;

/// The datagram "verdict", and its reading; a field that is not there, or of another type, keeps its default.
nlohmann::json to_json(const Outcome& outcome);
Outcome outcome_of(const nlohmann::json& report);

/// The supervisor's end of the socket, which stays the caller's. The worker may be frozen or gone: never blocks, never
/// raises SIGPIPE, tells nobody then. Any thread.
class Report {
 public:
  explicit Report(int fd) : fd_(fd) {}
  /// `fds`: the process, which in a namespace of its own has another number outside; in a sandbox the scratch folder.
  void started(pid_t pid, std::initializer_list<int> fds) const;
  void verdict(const Outcome& outcome) const;

 private:
  void post(const nlohmann::json& message, std::initializer_list<int> fds = {}) const;
  int fd_;
};

}  // namespace freeride::runner
