#include "accounts.hpp"

#include <algorithm>

#include "freeride/base/names.hpp"
#include "text.hpp"

namespace freeride::manager {

Status Accounts::charge(bus::Load& load, const policy::Identity& who,
                        const std::function<bool(const std::string& group)>& in_group) const {
  if (load.account.empty()) load.account = load.user;
  if (load.account == load.user) return {};
  if (!is_plain(load.account))
    return Error{Code::kInvalidArgument, "the account " + in_quotes(load.account) + " will not do", {}};
  policy::AccountFacts facts;
  const auto list = lists_.find(load.account);
  facts.listed =
      list != lists_.end() && std::find(list->second.begin(), list->second.end(), who.account) != list->second.end();
  if (!facts.listed && who.local && who.role != policy::Role::kOperator) facts.in_group = in_group(load.account);
  return policy::permit_account(who, load.account, facts);
}

}  // namespace freeride::manager
