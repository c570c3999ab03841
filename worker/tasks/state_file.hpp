// StateFile: the progress that one content of a task leaves to the next (pages.h: freeride_saved_state), on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages.h"

namespace freeride::worker {

/// A state file in the making: `state.next` in the task's folder, until keep() makes it `state`. Main thread. Its bytes
/// come from a plugin: bounded, and never looked into.
class StateFile {
 public:
  /// Errors: the folder cannot be written.
  static Result<std::unique_ptr<StateFile>> create(const std::filesystem::path& folder, const std::string& instance);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// A read-only descriptor of what will be in it, for the runner that goes on from it.
  Result<Fd> reader() const;

  /// Takes the header of what follows; `size` bytes are to be appended then. Errors: no space.
  Status begin(const freeride_saved_state& header);
  Status append(const char* bytes, size_t count);
  /// A task that has made no step under its present content: what that was to go on from, if anything, else nothing but
  /// the number of steps.
  Status copy_or_none(uint64_t steps);
  /// On disk, under its name, in the place of the one before.
  Status keep();
  const freeride_saved_state& header() const { return header_; }

 private:
  StateFile(std::filesystem::path folder, std::string instance, Fd fd);
  std::filesystem::path next() const { return folder_ / "state.next"; }
  bool is_there() const;
  const std::filesystem::path folder_;
  const std::string instance_;
  Fd fd_;
  freeride_saved_state header_{};
  bool kept_ = false;
};

/// Whether it is a good header of this instance of a task.
bool is_header_of(const freeride_saved_state& header, const std::string& instance);
/// The kept state of this instance of a task, or an invalid descriptor. Another instance's is removed.
Fd open_state(const std::filesystem::path& folder, const std::string& instance);
void forget_state(const std::filesystem::path& folder);

/// Takes a task's saved states out of the pipe that its runner writes them into. Only the one that was asked for is
/// kept; whatever else a plugin may have written is skipped or refused.
class StateReceiver {
 public:
  enum class Progress { kMore, kDone };
  /// Reads what is there, at most 1 MiB. Errors: the task gave no state (its reason), or wrote what is none: then
  /// nothing more can be received. `file` is the caller's.
  Result<Progress> receive(int pipe_fd, uint64_t lease_id, StateFile& file);

 private:
  Result<Progress> take_header(uint64_t lease_id, StateFile& file);
  freeride_saved_state header_{};
  size_t header_bytes_ = 0;
  uint64_t left_ = 0;  ///< bytes of the present state still to come
  bool wanted_ = false, broken_ = false;
  std::string reason_;
};

}  // namespace freeride::worker
