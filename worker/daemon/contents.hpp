// Contents: the plugin files that side tasks are to start with, wherever they have to come from.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "daemon/drop_folder.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/verdict.hpp"
#include "loop/background.hpp"

namespace freeride::worker {

/// Hashes a content anew each time, and so on a thread apart: 250 MiB take 0.4 s. Main thread.
class Contents {
 public:
  /// Asks the manager for a content; answers later, once.
  using Fetch = std::function<void(const std::string& sha256, std::function<void(Result<std::string>)> answer)>;
  struct Request {
    std::string sha256;
    std::function<bool()> wanted;  ///< whether anybody still waits: nothing more is called where nobody does
    std::function<void(const std::filesystem::path& plugin)> found;
    std::function<void(policy::Verdict)> failed;
  };
  /// All outlive it.
  Contents(PluginStore& store, const DropFolder& drop_folder, Background& background, Fetch fetch)
      : store_(store), drop_folder_(drop_folder), background_(background), fetch_(std::move(fetch)) {}

  /// From the store, from the drop folder, or from the manager. Later calls `found` or `failed`, once.
  void get(Request request);
  /// Of a content that nobody on this worker uses. A store that the manager shares is the manager's to clear; one that
  /// it had to send lies in a store that it does not.
  void drop(const std::string& sha256);

 private:
  void fetch(const std::shared_ptr<const Request>& request);
  void store(const std::shared_ptr<const Request>& request, std::string bytes);

  PluginStore& store_;
  const DropFolder& drop_folder_;
  Background& background_;
  const Fetch fetch_;
  std::set<std::string> fetched_;  // that the manager had to send
};

}  // namespace freeride::worker
