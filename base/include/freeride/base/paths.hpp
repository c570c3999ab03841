// Where FreeRide keeps its sockets, its state and its plugins; one home for every default path and endpoint name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace freeride {

/// Folders of one installation. All programs of it must agree on run_dir; the manager and the workers of a host on
/// state_dir.
struct Paths {
  std::filesystem::path
      run_dir;  ///< sockets: $FREERIDE_RUN_DIR, else /run/freeride (root), else $XDG_RUNTIME_DIR/freeride
  std::filesystem::path
      state_dir;  ///< durable: $FREERIDE_STATE_DIR, else /var/lib/freeride (root), else ~/.local/state/freeride

  static Paths defaults();
  /// Where a client looks, best first: the run folder that it was given, else this user's own, else the host's
  /// (/run/freeride), where there is one.
  static std::vector<std::filesystem::path> run_dirs(const std::filesystem::path& given = {});
  /// The first of run_dirs() in which there is `name`, else the first.
  static std::filesystem::path run_dir_with(const std::string& name, const std::filesystem::path& given = {});

  std::filesystem::path drop_dir() const { return state_dir / "plugins"; }  ///< users drop .so files here
  std::filesystem::path store_dir() const { return state_dir / "store"; }   ///< plugins by SHA-256: store/<sha256>.so
  std::filesystem::path keys_dir() const { return state_dir / "keys"; }  ///< of the network: the manager's, authorised
  std::filesystem::path database() const { return state_dir / "freeride.db"; }  ///< the manager's SQLite file
  std::filesystem::path task_dir(const std::string& task) const {
    return state_dir / "tasks" / task;
  }  ///< scratch and log

  std::string commands_endpoint() const {
    return "ipc://" + (run_dir / "commands.sock").string();
  }  ///< ROUTER, mode 0600
  std::string publish_endpoint() const { return "ipc://" + (run_dir / "publish.sock").string(); }  ///< XSUB, mode 0600
  std::string events_endpoint() const { return "ipc://" + (run_dir / "events.sock").string(); }    ///< XPUB, mode 0666

  /// UNIX socket (SOCK_SEQPACKET) at which the worker of `device` takes trainers' bubble pages. `device` is a GPU UUID
  /// ("GPU-…") or "cpu-N" (on CPU: the N-th slot, by default the rank's local rank).
  std::filesystem::path worker_socket(const std::string& device) const {
    return run_dir / ("worker-" + device + ".sock");
  }
};

/// Where this process's program lies.
std::filesystem::path program_folder();
/// The program `name` beside this one; the first on the $PATH, which one thread may ask for at a time. Empty: there is
/// none.
std::filesystem::path find_beside(const std::string& name);
std::filesystem::path find_on_path(const std::string& name);

}  // namespace freeride
