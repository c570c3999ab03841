// KeyBook: the keys that are authorised, as they lie in a folder, one file each.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "freeride/base/fd.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/permission.hpp"

namespace freeride::manager {

/// Follows the folder: a key that is added, changed or removed there is so from that moment on. The kernel's
/// notifications are looked at before every answer, so that nothing that was removed is believed once more. Where a
/// file is not to be believed (whose it is, who may write it, what it says), its key is unknown. So it is where it
/// cannot be read for now, which is tried again at a question a second later. All calls: any thread; they block on the
/// folder's disk when it has changed.
class KeyBook {
 public:
  struct Entry {
    std::string name, account, host;
    policy::Role role = policy::Role::kNobody;
  };
  /// `keys_dir` holds manager.key and the folder authorized/. Errors: kNotFound (no manager.key: nobody has made keys
  /// yet), kPermission (a file or folder that somebody else may write), kInvalidArgument.
  /// `most`: keys that are used. `authorized`: the folder of authorised keys, where it is not that one. It may be a
  /// link whose maker gives it another folder: the keys of that one count at the next question.
  static Result<std::unique_ptr<KeyBook>> open(const std::filesystem::path& keys_dir, size_t most = 4096,
                                               const std::filesystem::path& authorized = {});
  ~KeyBook();
  KeyBook(const KeyBook&) = delete;
  KeyBook& operator=(const KeyBook&) = delete;

  const std::string& secret_key() const { return secret_key_; }  ///< the manager's own
  /// Whose the key is; nothing: it is unknown.
  std::optional<Entry> find(const std::string& public_key);
  /// The same by the last look at the folder: for a message that admits() has just let in. Two looks at each message
  /// were a fifth of what it costs.
  std::optional<Entry> known(const std::string& public_key);
  bool admits(const std::string& public_key) { return find(public_key).has_value(); }
  uint64_t looks() const { return looks_; }  ///< at the folder so far
  /// Calls `changed` whenever the keys have changed, on this object's thread or on that of whoever has asked. From the
  /// call on; at most once. It must not call back.
  void on_change(std::function<void()> changed);

 private:
  KeyBook(std::filesystem::path folder, std::string secret_key, size_t most);
  bool look();    // whether something has changed; with the mutex
  void reload();  // with the mutex
  void follow();
  void tell();

  std::filesystem::path folder_;
  std::string secret_key_;
  size_t most_;
  Fd notify_, stop_;
  int64_t read_again_ns_ = 0;        // at the next question after it, since something could not be read; 0: all was
  std::pair<dev_t, ino_t> watched_;  // the folder that is followed; 0: none, and there are no keys
  std::atomic<uint64_t> looks_ = 0;
  std::mutex mutex_;
  std::map<std::string, Entry> keys_;  // by public key
  std::set<std::string> complained_;   // of which files, so that each is said once
  std::mutex changed_mutex_;
  std::function<void()> changed_;
  std::thread thread_;
};

}  // namespace freeride::manager
