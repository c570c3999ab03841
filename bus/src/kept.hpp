// The last state of every topic that keeps one, for those who join late.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace freeride::bus::detail {

/// Whether the last event of `topic` is kept: task.state, worker.state, plugin.state, training.state,
/// training.measures, batch.state.
bool is_kept_topic(std::string_view topic);

/// The same event with "kept" set to true; nothing if `payload` is no event.
std::optional<std::string> mark_kept(std::string_view payload);

/// Last payload by topic, bounded in number and bytes: what has not changed for longest goes first. Not thread-safe.
class KeptStates {
 public:
  explicit KeptStates(size_t max_topics = 4096, size_t max_bytes = 32u << 20)
      : max_topics_(max_topics), max_bytes_(max_bytes) {}
  /// A task or batch that is said to be removed ends its topic.
  void update(std::string_view topic, std::string_view payload);
  /// Ends the topics of which `which` says so.
  void forget_if(const std::function<bool(const std::string& topic)>& which);
  /// Calls `visit` for every topic that begins with `prefix`, the longest unchanged first.
  void for_each(std::string_view prefix,
                const std::function<void(const std::string& topic, const std::string& payload)>& visit) const;
  size_t size() const { return by_topic_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string topic, payload;
  };
  void remove(std::list<Entry>::iterator entry);
  size_t max_topics_, max_bytes_, bytes_ = 0;
  std::list<Entry> entries_;  // oldest change first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_topic_;
};

}  // namespace freeride::bus::detail
