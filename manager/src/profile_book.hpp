// ProfileBook: the profiles that are kept, in memory and on the disk.
#pragma once

#include <map>
#include <string>

#include "disk_trouble.hpp"
#include "freeride/bus/commands.hpp"
#include "state_store.hpp"
#include "task_book.hpp"

namespace freeride::manager {

/// Keeps one profile for each plugin content, parameters and device model. One thread; what saves blocks on the disk.
class ProfileBook {
 public:
  static constexpr size_t kMax = 1024;  ///< the oldest is dropped first

  ProfileBook(StateStore& store, DiskTrouble& trouble) : store_(store), trouble_(trouble) {}
  /// Takes over what the store holds. Errors: the store's.
  Status restore();

  static std::string key_of(const std::string& sha256, const std::map<std::string, std::string>& params,
                            const std::string& model);
  /// What a profile with this load holds for, as key_of() takes it: its parameters, and whose rights it has to which
  /// files, with which environment. How one task fails or fares with its files says nothing of another's.
  static std::map<std::string, std::string> scope_of(const bus::Load& load);
  /// nullptr: not known.
  const bus::Profile* find(const std::string& key) const;
  const bus::Profile* find(const Task& task, const std::string& model) const;

  /// Keeps it even if the disk refuses.
  void keep(const std::string& key, const bus::Profile& profile);
  /// The newest first, as many as a message can hold.
  bus::ProfilesReply list(const bus::ListProfiles& wish) const;

 private:
  StateStore& store_;
  DiskTrouble& trouble_;
  std::map<std::string, bus::Profile> profiles_;  // by key
};

}  // namespace freeride::manager
