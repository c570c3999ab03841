// DropFolder: watches the folder that users drop plugins into, and takes every whole .so file into the store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "loop.hpp"
#include "store.hpp"

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

/// Lives on the main loop's thread. A file that somebody still writes is left alone until it is closed. A folder that
/// is missing or unreadable is warned of once and tried again every few seconds; what was known stays known meanwhile.
class DropFolder {
 public:
  using Listener = std::function<void(const DroppedFile&)>;
  DropFolder(std::filesystem::path folder, PluginStore& store, Loop& loop, Listener listener);
  ~DropFolder();
  DropFolder(const DropFolder&) = delete;
  DropFolder& operator=(const DropFolder&) = delete;

  /// Begins watching and takes what is there. Never fails: see above.
  void start();

  /// Puts a content into the store again that has gone from there, if a file still has it.
  bool restore(const std::string& sha256);

  /// Everything known now, by name.
  const std::map<std::string, DroppedFile>& files() const { return files_; }

 private:
  static constexpr size_t kMostFiles = 4096;
  bool open_watch();
  void retry_later();
  void rescan();
  void on_readable();
  void take(const std::string& name);
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
};

}  // namespace freeride::worker
