// Batches: lists of items that are handed out over side tasks, until each has a result or has failed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "batch_ledger.hpp"
#include "contents.hpp"
#include "disk_trouble.hpp"
#include "load_check.hpp"
#include "outside.hpp"
#include "pace.hpp"
#include "placement_due.hpp"
#include "state_store.hpp"
#include "task_book.hpp"
#include "task_commands.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// A batch's members are ordinary tasks, NAME-1 and so on; what places, limits and ends tasks knows nothing of batches.
/// What a member is to do goes to it as bus::TaskWork with its worker's plan, and what it has done comes back in its
/// counters (docs/internals/batches.md). A range is on disk before a member hears of it. One thread; blocks on the
/// disk.
class Batches {
 public:
  struct Parts {
    Outside& outside;
    const Clock& clock;
    StateStore& store;
    DiskTrouble& trouble;
    TaskBook& tasks;
    const Workers& workers;
    Contents& contents;
    const LoadCheck& check;
    TaskCommands& commands;
    PlacementDue& due;
  };
  explicit Batches(const Parts& parts) : the_(parts) {}
  /// Takes over what the store holds, after the tasks. Errors: the store's.
  Status restore();

  void submit(Ticket ticket, const bus::SubmitBatch& wish);
  void show(Ticket ticket, const std::string& name) const;
  void list(Ticket ticket) const;
  void remove(Ticket ticket, const std::string& name);
  std::optional<std::string> user_of(const std::string& name) const;

  /// Takes in what has become of members, gives them work, adds and stops members. After every report, as long as that
  /// takes little of the time; else now and then. `ended`: a task has ended, whose device has nothing to do.
  void look(bool ended = false);
  /// A worker has taken this task. A member's items go after it at once, so that they are there before its first step.
  /// Whether it is one that was given some.
  bool feed_new(int64_t task);
  /// What the tasks of the worker are to do.
  std::vector<bus::TaskWork> work_of(const Worker& worker) const;
  /// The workers whose members were given something since this was last called.
  std::set<std::string> take_fed() { return std::exchange(fed_, {}); }
  void save_progress();

 private:
  struct Member {
    uint64_t most = 32;     ///< items that it may have at once
    bool measured = false;  ///< by what it has done
    int64_t since_ns = 0;
    uint64_t done = 0;                ///< since then
    uint64_t failed = 0;              ///< items that have failed in it by an exception, as it has said
    int64_t progress_ns = 0;          ///< when it had done something last, or was given something first
    std::optional<uint64_t> idle_at;  ///< it makes nothing of what it has; its steps then
  };
  struct Batch {
    bus::BatchInfo info;
    BatchLedger ledger;
    std::map<int64_t, Member> members;  ///< by id of their tasks
    uint32_t assembly_ends = 0;         ///< of members while the output was put together
    uint32_t plugin_ends = 0;           ///< of members that were at no item, since an item was done
    std::set<std::string> barren_on;    ///< workers on which they were
    int64_t not_before_ns = 0;          ///< no member is added earlier
    Pace pace;                          ///< of items that are done or have failed
    bus::BatchState told;               ///< what was published last, and when
    int64_t told_ns = 0;
    bool unsaved = false;
    bool live() const { return info.ended_unix_ms == 0; }
  };

  void look_at(Batch& batch);
  void carry_on(Batch& batch);
  void look_at_member(Batch& batch, int64_t id, Member& member);
  void leave_queued(Batch& batch, int64_t id);
  void note_end(Batch& batch, const Task& task);
  void note_idle(Batch& batch, const Task& task, Member& member, int64_t now);
  void take_progress(Batch& batch, const Task& task, Member& member);
  void hand_out(Batch& batch);
  void add_members(Batch& batch);
  static uint64_t most_of_slowest(const Batch& batch);
  bool add_member(Batch& batch);
  void stop_members(Batch& batch, size_t keep);
  size_t wanted_members(const Batch& batch) const;
  void end(Batch& batch, const std::string& state, const std::string& reason);
  std::string text_for(const Batch& batch, const Task& task) const;
  Status save(Batch& batch);
  bus::BatchInfo info_of(const Batch& batch) const;
  uint32_t live_members(const Batch& batch) const;
  void tell(Batch& batch);
  void tell_removed(const Batch& batch);
  void forget_old();

  Parts the_;
  std::map<std::string, Batch> batches_;
  std::set<std::string> fed_;
  // A look at many members, or a slow disk, leaves most of the time to others. A device whose member has ended has
  // nothing to do, so a look rests for less after an end.
  int64_t looked_ns_ = 0, took_ns_ = 0;
  bool ended_ = false;
};

}  // namespace freeride::manager
