// Who has sent a message: the one place where what a connection tells becomes an identity.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/bus/sockets.hpp"
#include "freeride/policy/permission.hpp"
#include "key_book.hpp"

namespace freeride::manager {

/// One thread. Asks the host's user database, which may block, once for a user.
class Identities {
 public:
  /// `keys` nullptr: the network has none, and whoever comes from there may hear events. Else they have been asked
  /// about each message before it is shown here, by whoever lets it in (bus::Doorkeeper).
  explicit Identities(KeyBook* keys) : keys_(keys) {}

  /// Who `message`'s sender is now. Of a host's socket the kernel says it: root and this process's user are operators,
  /// others (the socket's mode lets the group in only) users. Of TCP the key says it. A node's message that is for
  /// a user of its host is that user's, as kUser and under a name with the host's: root there is no operator here.
  policy::Identity of(const bus::Sender& sender, const bus::Message& message);

  /// Whether this host has a group of that name with the user in it. What the host says is kept for a minute.
  bool is_in_group(uid_t uid, const std::string& group);

 private:
  struct Groups {
    std::vector<std::string> names;
    int64_t asked_ns = 0;  // 0: not yet
  };
  const std::string& name_of(uid_t uid);
  KeyBook* keys_;
  std::map<uid_t, std::string> users_;  // names that were asked for
  std::map<uid_t, Groups> groups_;
};

}  // namespace freeride::manager
