// AuditLog: who has changed what, one JSON object a line, in a file that is only appended to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "freeride/base/result.hpp"
#include "freeride/policy/permission.hpp"

namespace freeride::manager {

/// A command that changes something, and what became of it.
struct AuditEntry {
  int64_t unix_ms = 0;
  policy::Identity by;
  std::string command;         ///< as on the wire
  std::string target{};        ///< what `arguments` name: a task, a plugin, a worker; empty: nothing
  std::string arguments{};     ///< a JSON object; of parameters the names only
  std::string outcome = "ok";  ///< or "pending" (the outcome is another line), or the code of the error
  std::string message{};       ///< of the error
};

/// Appends from a thread of its own, so that no disk makes note() wait; what does not fit between them is counted, and
/// the next line says so. Whoever rotates the file may rename or truncate it (logrotate's `create` or `copytruncate`):
/// where its name is another file, or none, it is opened again. No signal is needed.
class AuditLog {
 public:
  static constexpr size_t kMostWaiting = 4096;  ///< lines that wait for the disk

  /// Opens or makes `file`, mode 0640; `group`: who else may read it. Errors: kPermission, kInvalidArgument (no regular
  /// file), kExhausted.
  static Result<std::unique_ptr<AuditLog>> open(const std::filesystem::path& file, std::optional<gid_t> group);
  /// Waits for what has been noted to be written, two seconds at most.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  void note(AuditEntry entry);  ///< any thread; does not wait

 private:
  struct Shared;
  explicit AuditLog(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;  // with the thread, which may hang at its disk longer than this lives
};

}  // namespace freeride::manager
