// What subscribers want of hosts' events, so that a node sends no more; and which events are a host's to tell.
#pragma once

#include <cstddef>
#include <functional>
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

/// Prefixes of bubbles' topics: one.
const std::vector<std::string>& of_bubbles();

/// The subscriptions of one XPUB socket, as far as they are of some families of topics. Not thread-safe.
class Wishes {
 public:
  static constexpr size_t kMost = 64;  ///< more prefixes than that count as all of the families

  /// `families`: prefixes, of which none begins another.
  explicit Wishes(const std::vector<std::string>& families) : families_(families) {}

  /// `connection` has subscribed to `prefix`.
  void add(std::string_view prefix, int connection);
  /// libzmq says that nobody wants `prefix` any more, because `connection` has said so (-1: because the last one has
  /// gone). It says that also of who never subscribed: such a word takes nothing from the others.
  void drop(std::string_view prefix, int connection);
  /// Prefixes that cover what is wanted of the families.
  std::set<std::string> wanted() const;

 private:
  const std::vector<std::string>& families_;
  std::map<std::string, std::set<int>, std::less<>> wishes_;
};

/// What the subscribers of a host's broker want of what its manager says: the broker says it, the relay beside it in
/// this process asks for no more. Any thread.
class WishesOfHost {
 public:
  /// Of the broker whose events are read at `endpoint`.
  static void set(const std::string& endpoint, std::set<std::string> prefixes);
  static std::set<std::string> get(const std::string& endpoint);
  /// `changed` is called on the broker's thread with each set(); nullptr: no more, and it is not being called.
  static void follow(const std::string& endpoint, std::function<void()> changed);
  static bool followed(const std::string& endpoint);
};

}  // namespace freeride::bus::detail
