// BatchLedger: which items of a batch are done, which are under way and where, and which cannot be done.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::manager {

/// Items are numbers from 0. What is open is kept as ranges, so a million items cost no more than ten. A plain value:
/// no clock, no disk.
///
/// A range is given to one member under a number that is never used again. A member works on its ranges in the order of
/// their numbers and on each from its beginning, so that one number and one count say how far it is. What it says of
/// numbers that it does not have is ignored: an item may be computed twice, and counts once.
class BatchLedger {
 public:
  struct Given {
    uint64_t number = 0, first = 0, count = 0;
    uint64_t done = 0;   ///< of its first items: they are on disk
    int64_t member = 0;  ///< id of the member's task
  };
  /// What a member had begun when it ended.
  struct Doing {
    uint64_t number = 0, offset = 0, count = 0;
  };
  struct Failure {
    uint32_t tries = 0;
    std::string reason;
  };
  enum class Blame {
    kItems,   ///< one of the items that it had begun, or it alone
    kPlugin,  ///< it ended before it had begun any
  };

  BatchLedger() = default;
  BatchLedger(uint64_t items, uint32_t tries);

  uint64_t items() const { return items_; }
  uint64_t done() const { return items_ - left() - failures_.size(); }
  uint64_t left() const;       ///< neither done nor failed
  uint64_t not_given() const;  ///< of these, with no member
  bool complete() const { return left() == 0; }
  const std::map<uint64_t, Failure>& failures() const { return failures_; }  ///< by item
  /// Ends of members by the plugin's fault since an item was last done.
  uint32_t barren_ends() const { return barren_ends_; }
  uint32_t crashes() const { return crashes_; }

  /// The next range for the member, of at most `most` items. Items that are suspected of having ended a member come
  /// first, in small ranges, until each was alone.
  std::optional<Given> hand_out(int64_t member, uint64_t most);
  std::vector<Given> given_to(int64_t member) const;  ///< by number
  std::vector<int64_t> holders() const;               ///< members that have ranges, each once

  /// The member is at range `number`, and has done so many of its first items. Returns how many that are more.
  uint64_t report(int64_t member, uint64_t number, uint64_t done);
  /// The member has ended by the plugin's fault. What it had begun is suspected; the rest is open again.
  Blame fail(int64_t member, const Doing& doing, const std::string& reason);
  /// The member is gone for another reason: what it had is open again.
  void lose(int64_t member);

  /// For the disk.
  std::string encode() const;
  /// Errors: kInvalidArgument (nothing that encode() has made).
  static Result<BatchLedger> decode(std::string_view text);

 private:
  void open(uint64_t first, uint64_t count);
  void suspect(uint64_t first, uint64_t count);
  void finish_before(int64_t member, uint64_t number);

  uint64_t items_ = 0;
  uint32_t tries_ = 1, barren_ends_ = 0, crashes_ = 0;
  uint64_t next_number_ = 1;
  std::map<uint64_t, uint64_t> open_;                    // first: one behind the last
  std::deque<std::pair<uint64_t, uint64_t>> suspected_;  // first, count
  std::map<uint64_t, uint32_t> ends_;                    // of members, by the item that was alone
  std::map<uint64_t, Given> given_;                      // by number
  std::map<uint64_t, Failure> failures_;
};

}  // namespace freeride::manager
