// DropFolder: watches the folder that users drop plugins into, and takes every whole .so file into the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/base/result.hpp"
#include "loop/background.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// What became of one file.
struct DroppedFile {
  enum class State { kAdded, kReplaced, kRejected, kRemoved };
  std::string name;  ///< file name
  State state = State::kAdded;
  std::string sha256;  ///< of the present content; of the last one when removed
  std::string reason;  ///< kRejected only
  uint64_t size_bytes = 0;
};

/// The states' names on the bus.
const char* to_string(DroppedFile::State state);

/// Lives on the main loop's thread, and looks at the files on one of its own once the loop runs: a large one takes
/// seconds to hash and store, and what else the loop looks after cannot wait for that. A file that somebody still
/// writes is left alone until it is closed. A folder that is missing or unreadable is warned of once and tried again
/// every few seconds; what was known stays known meanwhile.
class DropFolder {
 public:
  using Listener = std::function<void(const DroppedFile&)>;
  DropFolder(std::filesystem::path folder, PluginStore& store, Loop& loop, Listener listener);
  ~DropFolder();
  DropFolder(const DropFolder&) = delete;
  DropFolder& operator=(const DropFolder&) = delete;

  /// Begins watching and takes what is there, at the first call before it returns. Never fails: see above.
  void start();

  /// The files that had this content when they were looked at.
  std::vector<std::filesystem::path> files_of(const std::string& sha256) const;
  /// Puts a content into the store again that has gone from there, if one of `files` still has it. On any thread.
  static bool restore(const std::vector<std::filesystem::path>& files, const std::string& sha256, PluginStore& store);

  /// Everything known now, by name.
  const std::map<std::string, DroppedFile>& files() const { return files_; }

 private:
  static constexpr size_t kMostFiles = 4096;
  bool open_watch();
  void retry_later();
  void rescan();
  void on_readable();
  void take(const std::string& name);
  void look_at_next();
  /// What the file of that name is; nothing when it is gone or still being written. On any thread.
  static std::optional<DroppedFile> look(const std::filesystem::path& path, PluginStore& store,
                                         const std::atomic<bool>& ends);
  void keep(DroppedFile file);
  void remove(const std::string& name);
  void set(DroppedFile file);

  const std::filesystem::path folder_;
  PluginStore& store_;
  Loop& loop_;
  Listener listener_;
  Fd inotify_;
  Loop::Timer retry_ = 0;
  bool warned_ = false;
  std::map<std::string, DroppedFile> files_;

  std::set<std::string> waiting_;           ///< names to be looked at
  std::string looking_at_;                  ///< in the background; empty: nothing
  bool gone_meanwhile_ = false;             ///< that one was removed since
  std::atomic<bool> ends_{false};           ///< what is in the background is to come to its end
  std::unique_ptr<Background> background_;  ///< null in the first start(), and where no thread is to be had
};

}  // namespace freeride::worker
