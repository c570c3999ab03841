// Contents: the plugin contents that tasks name, from the store, from workers' drop folders or sent along.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/bus/commands.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Finds contents, and removes from the store those that no live task, no profile run and no drop folder refers to any
/// more. One thread; what reads or writes a whole content is handed out as a job for another one.
class Contents {
 public:
  Contents(const Paths& paths, const Clock& clock, const TaskBook& tasks, const Workers& workers,
           const ProfileRuns& runs);

  /// A whole content is worked on: may take seconds. It may be called on any thread, once, and does not throw.
  using Job = std::function<Result<std::string>()>;
  /// What is to be done before resolve() where a load has its bytes with it, or names a file of the drop folder that no
  /// worker knows yet: takes them into the store, and gives their SHA-256 for the load. Null: nothing. taken() is to be
  /// called after it. Errors: kExhausted (too much at once). The job's: kInvalidArgument, the store's.
  Result<Job> taking(const bus::Load& load, std::string attachment);
  /// `sha256`: the job's; empty: it failed. `bytes`: the attachment's.
  void taken(const std::string& sha256, size_t bytes);
  /// The SHA-256 of what `load` names: a content by its hash, or a file name in the drop folders of this host. Errors:
  /// kInvalidArgument, kNotFound, kRejected.
  Result<std::string> resolve(const bus::Load& load);
  struct Received {
    uint64_t there = 0;  ///< bytes, with this piece
    Job kept;            ///< they are all there: to be done before they are in the store; null: nothing is to be
  };
  /// Takes a piece of a content that is to come before the command that names it. Once `kept` is done, received() is to
  /// be called, and the content stays for a minute at least. Errors: kInvalidArgument (no such content can be),
  /// kExhausted (too many come at once). The job's: kInvalidArgument (the bytes are others), the store's.
  Result<Received> receive(const std::string& account, const bus::WritePlugin& wish, const std::string& piece);
  void received(const bus::WritePlugin& wish);
  /// The bytes of a content that is in this host's store, or a piece of them. What another host alone has is not
  /// brought from there: any host could offer a content of its own under a common name. Errors: the store's, for
  /// explained().
  Job piece(const bus::FetchPlugin& wish) const;
  Error explained(const bus::FetchPlugin& wish, const Error& error) const;

  /// It may have lost its last user. Looked at a little later, and never sooner than it was to be: a worker may be
  /// about to say that its drop folder has it.
  void release(const std::string& sha256);
  /// It has a user that no task tells of, such as a batch, until it is let go as often.
  void keep(const std::string& sha256) { kept_.insert(sha256); }
  void let_go(const std::string& sha256);
  void drop_unneeded(int64_t now);

 private:
  Error not_dropped(const std::string& file) const;
  std::optional<Result<std::string>> reported_here(const std::string& file) const;
  bool needed(const std::string& sha256) const;
  void linger(const std::string& sha256);
  Status room_for(const std::string& account, size_t bytes) const;

  Paths paths_;
  PluginStore store_;
  const Clock& clock_;
  const TaskBook& tasks_;
  const Workers& workers_;
  const ProfileRuns& runs_;
  std::map<std::string, int64_t> released_;  // and when to look
  std::multiset<std::string> kept_;
  size_t jobs_ = 0, jobs_bytes_ = 0;  // under way
  struct Coming {
    std::string bytes;
    int64_t heard_ns = 0;
  };
  std::map<std::pair<std::string, std::string>, Coming> coming_;  // by account and SHA-256
};

}  // namespace freeride::manager
