#include "identity.hpp"

#include <algorithm>

#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMaxUsers = 4096;
constexpr int64_t kGroupsHoldNs = 60 * kNsPerSec;  // a user database may be slow, and a user may ask all the time
}  // namespace

policy::Identity Identities::of(const bus::Sender& sender, const bus::Message& message) {
  policy::Identity who;
  if (!sender.remote) {
    who.local = true;
    who.uid = sender.process.uid;
    who.pid = sender.process.pid;
    who.role = is_trusted_user(who.uid) ? policy::Role::kOperator : policy::Role::kUser;
    who.account = name_of(who.uid);
    return who;
  }
  who.address = sender.address;
  if (keys_ == nullptr) {
    who.role = policy::Role::kMonitor;
    who.account = "anybody at " + sender.address;
    return who;
  }
  const auto key = keys_->known(sender.key);
  if (!key) return who;
  who.key = key->name;
  who.role = key->role;
  who.account = key->account;
  who.host = key->host;
  if (who.role == policy::Role::kNode && message.uid) {
    who.role = policy::Role::kUser;
    who.uid = *message.uid;
    who.account = name_of(who.uid) + "@" + key->host;
  }
  return who;
}

bool Identities::is_in_group(uid_t uid, const std::string& group) {
  if (groups_.size() >= kMaxUsers && groups_.count(uid) == 0) groups_.clear();
  Groups& known = groups_[uid];
  if (const int64_t now = SteadyClock::now(); known.asked_ns == 0 || now - known.asked_ns > kGroupsHoldNs) {
    known.names.clear();
    if (const auto groups = groups_of_user(uid)) {
      for (const gid_t one : groups->all) known.names.push_back(group_name(one));
    }
    known.asked_ns = now;
  }
  return std::find(known.names.begin(), known.names.end(), group) != known.names.end();
}

const std::string& Identities::name_of(uid_t uid) {
  if (users_.size() >= kMaxUsers) users_.clear();
  auto [known, fresh] = users_.try_emplace(uid);
  if (fresh) known->second = user_name(uid);
  return known->second;
}

}  // namespace freeride::manager
