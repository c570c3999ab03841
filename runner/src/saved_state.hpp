// A task's saved state (pages.h) on its way out of a plugin and into the next: freeride.state/1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "freeride/base/result.hpp"
#include "freeride/pages.h"
#include "freeride/plugin.h"

namespace freeride::runner {

/// What pages.h calls freeride_saved_state, with its bytes.
struct SavedState {
  uint64_t lease_id = 0;
  uint64_t steps = 0;  ///< that the task has made, over all its runs
  uint32_t version = 0;
  freeride_status status = FREERIDE_OK;
  bool present = false;  ///< false: the plugin keeps no state
  std::string plugin;
  std::string bytes;  ///< or, where status is not OK, why
};

/// The plugin's side of freeride.state/1, read as a table is (read_grown); nothing when it has none, or one that is not
/// whole. Main thread.
std::optional<freeride_state> state_extension(const freeride_plugin& plugin);

/// Calls save() and collects what it writes, FREERIDE_STATE_MOST_BYTES at most. May throw what the plugin throws.
freeride_status collect_state(const freeride_state& state, void* task, std::string& bytes);

/// Writes it whole, however long its reader takes. A reader that is gone is nobody to be told.
void write_saved_state(int fd, const SavedState& saved);

/// Reads a state file from its beginning; nothing when it is empty. Errors (kInternal): it is cut short, or no state.
Result<std::optional<SavedState>> read_saved_state(int fd);

/// The same, of a file that the supervisor has: the plugin's process has a socket to it and no descriptor of the file,
/// which it could open anew for writing (/proc/self/fd). Asks, then waits for all of it.
Result<std::optional<SavedState>> ask_for_saved_state(int socket);

/// The supervisor's side, in a thread of its own: waits to be asked, once, then sends the file. Blocks as long as the
/// other side likes. Both are the caller's.
void send_saved_state(int file_fd, int socket);

}  // namespace freeride::runner
