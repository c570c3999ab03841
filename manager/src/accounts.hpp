// Accounts: to which the use of bubbles is charged.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/policy/permission.hpp"

namespace freeride::manager {

/// The account that a task is charged to; its user's own where none is named.
inline const std::string& account_of(const bus::Load& load) {
  return load.account.empty() ? load.user : load.account;
}

/// One thread; blocks only where `in_group` does.
class Accounts {
 public:
  /// By account, who may charge it: users as `tasks` shows them, "alice" or "alice@gpu7".
  using Lists = std::map<std::string, std::vector<std::string>>;
  explicit Accounts(Lists lists) : lists_(std::move(lists)) {}

  /// Sets what `load`, whose user is set, is charged to. `in_group`: whether this host has a group of that name with
  /// `who` in it; asked only where the answer counts. Errors: policy::permit_account()'s, kInvalidArgument (no name).
  Status charge(bus::Load& load, const policy::Identity& who,
                const std::function<bool(const std::string& group)>& in_group) const;

 private:
  Lists lists_;
};

}  // namespace freeride::manager
