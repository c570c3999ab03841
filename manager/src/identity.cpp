#include "identity.hpp"

#include "freeride/base/access.hpp"

namespace freeride::manager {
namespace {
constexpr size_t kMaxUsers = 4096;
}  // namespace

policy::Identity Identities::of(const bus::Sender& sender, const bus::Message& message) {
  policy::Identity who;
  if (!sender.remote) {
    who.local = true;
    who.uid = sender.process.uid;
    who.pid = sender.process.pid;
    who.role = is_trusted_user(who.uid) ? policy::Role::kOperator : policy::Role::kSubmitter;
    who.account = name_of(who.uid);
    return who;
  }
  who.address = sender.address;
  if (keys_ == nullptr) {
    who.role = policy::Role::kMonitor;
    who.account = "anybody at " + sender.address;
    return who;
  }
  const auto key = keys_->find(sender.key);
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

const std::string& Identities::name_of(uid_t uid) {
  if (users_.size() >= kMaxUsers) users_.clear();
  auto [known, fresh] = users_.try_emplace(uid);
  if (fresh) known->second = user_name(uid);
  return known->second;
}

}  // namespace freeride::manager
