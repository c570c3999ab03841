// What the server remembers of requests, so that a repeated one is answered again and not executed again.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

namespace freeride::bus::detail {

/// Requests by id for 60 s, bounded in number and bytes: the oldest go first. Time is passed in. Not thread-safe.
class Answers {
 public:
  static constexpr int64_t kLifeNs = 60'000'000'000;
  explicit Answers(size_t max_ids = 8192, size_t max_bytes = 32u << 20) : max_ids_(max_ids), max_bytes_(max_bytes) {}

  enum class Known { kNew, kInProgress, kAnswered };
  /// Notes a request. A repetition moves the answer's address to `peer`: a client that reconnected has a new one.
  Known note(const std::string& id, const std::string& peer, int64_t now_ns);
  /// The answer that was given; valid after note() said kAnswered.
  const std::string& answer(const std::string& id) const { return entries_.at(id).frame; }
  /// Where the answer to `id` should go: the last peer that asked, or `fallback`.
  std::string peer(const std::string& id, const std::string& fallback) const;
  /// Remembers the answer. One that is large is a read (a plugin's bytes): its request is forgotten, and executed again
  /// if repeated.
  void answered(const std::string& id, const std::string& frame, bool has_attachment);
  /// As if it had never been noted: it was not executed.
  void forget(const std::string& id) { entries_.erase(id); }
  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kLargest = 256u << 10;
  struct Entry {
    uint64_t order = 0;
    std::string peer, frame;
    bool done = false;
  };
  struct Age {
    int64_t at_ns = 0;
    uint64_t order = 0;
    std::string id;
  };
  void expire(int64_t now_ns);
  void drop_oldest();
  size_t max_ids_, max_bytes_, bytes_ = 0;
  uint64_t next_order_ = 0;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<Age> ages_;  // may name entries that are gone: `order` tells
};

}  // namespace freeride::bus::detail
