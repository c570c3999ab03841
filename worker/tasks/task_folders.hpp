// TaskFolders: the folders tasks/<name> of the state folder. A task that ends leaves its scratch folder, its logs and,
// if it is to go on elsewhere, its state; what nobody wants any more goes by age and size.
#pragma once

#include <atomic>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/ended_folders.hpp"
#include "loop/background.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// Makes the folder and keeps everybody from removing it, as long as the descriptor is open: several workers of a host
/// share the state folder. Errors: it cannot be made; somebody is removing it just now.
Result<Fd> hold_task_folder(const std::filesystem::path& folder);

/// What the task has left there may go, whatever the manager that is asked later knows: its verdict is recorded. Until
/// the folder is used again.
void mark_ended(const std::filesystem::path& folder);
bool is_marked_ended(const std::filesystem::path& folder);
void unmark_ended(const std::filesystem::path& folder);

/// Workers of one host share the folder, and one that was out of reach may still have an earlier copy of the task:
/// whose was launched last. Descriptors are hold_task_folder()'s. 0: none is noted.
void note_epoch(int folder_fd, uint64_t epoch);
uint64_t noted_epoch(int folder_fd);

/// Before hold_task_folder(), for a run of the task `instance`: what another task of the name has left goes aside,
/// under a name that no task has, and is kept as long as anything that ended tasks have left. Errors: it cannot be
/// moved.
Status claim_folder(const std::filesystem::path& folder, const std::string& instance);
/// Where what the task of this instance has left is: `folder`, or the name that it was put aside under; empty: nowhere.
std::filesystem::path folder_of_instance(const std::filesystem::path& folder, const std::string& instance);
/// A start of the task has a log of its own; the one before is kept as log.previous.
void begin_log(const std::filesystem::path& folder);

/// Lives on the loop's thread; looks and removes on one of its own, for there may be millions of files.
class TaskFolders {
 public:
  /// Answers, now or later, whether the task of that name has ended for everybody. Somebody who cannot be asked wants
  /// it.
  using Ask = std::function<void(const std::string& task, std::function<void(bool ended)> answer)>;
  /// Errors: as Background::create().
  static Result<std::unique_ptr<TaskFolders>> create(std::filesystem::path root, const policy::KeepLimits& limits,
                                                     Loop& loop, Ask ask);
  ~TaskFolders();
  TaskFolders(const TaskFolders&) = delete;
  TaskFolders& operator=(const TaskFolders&) = delete;

  /// Looks at what there is, unless it did just now, or is at it: then once more later.
  void look_soon();

 private:
  struct Folder {
    std::string name;
    uint64_t inode = 0;
    policy::EndedFolder facts;
  };
  TaskFolders(std::filesystem::path root, const policy::KeepLimits& limits, Loop& loop, Ask ask)
      : root_(std::move(root)), limits_(limits), loop_(loop), ask_(std::move(ask)) {}
  void schedule(int64_t when_ns);
  void look();
  void ask_next(size_t at);
  void rest();
  std::vector<Folder> find_outdated() const;  // as the next, on the thread apart
  void remove(const Folder& folder) const;
  int64_t now_s() const;

  const std::filesystem::path root_;
  const policy::KeepLimits limits_;
  const int64_t started_s_ = time(nullptr), started_ns_ = SteadyClock::now();
  Loop& loop_;
  Ask ask_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();  // answers may come when this has gone
  Loop::Timer timer_ = 0;
  int64_t due_ns_ = 0, begun_ns_ = 0, earliest_ns_ = 0;
  bool busy_ = false, again_ = false;
  std::vector<Folder> outdated_, unwanted_;
  std::atomic<bool> ends_{false};
  std::unique_ptr<Background> background_;  // the last to be made, the first to go
};

}  // namespace freeride::worker
