// What subscribers want of hosts' events, so that a node sends no more; and which events are a host's to tell.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace freeride::bus::detail {

/// Topics that tell what happens on a host. What a manager says is nobody else's to say.
bool is_host_topic(std::string_view topic);
/// Their prefixes, without those of bubbles: few events, and states that are kept.
const std::vector<std::string>& always_of_hosts();
/// The prefixes of what a manager says.
const std::vector<std::string>& always_of_managers();

/// The subscriptions of one XPUB socket, as far as they are of bubbles. Not thread-safe.
class Wishes {
 public:
  static constexpr size_t kMost = 64;  ///< more prefixes than that count as all bubbles

  /// `connection` has subscribed to `prefix`.
  void add(std::string_view prefix, int connection);
  /// libzmq says that nobody wants `prefix` any more, because `connection` has said so (-1: because the last one has
  /// gone). It says that also of who never subscribed: such a word takes nothing from the others.
  void drop(std::string_view prefix, int connection);
  /// Prefixes that cover what is wanted of bubbles.
  std::set<std::string> of_bubbles() const;

 private:
  std::map<std::string, std::set<int>, std::less<>> wishes_;
};

}  // namespace freeride::bus::detail
