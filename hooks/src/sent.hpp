// SentMember: one rank's place on the sent page that the ranks of a job on this host share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::hooks {

/// Joins, produces, waits, and watches over the others. produce() and wait() from any thread, the rest from one.
class SentMember {
 public:
  /// Which counters of a pair of ranks: messages produced, or collectives come to.
  enum class Row { kSent, kMet };
  enum class Slot { kLocalRank, kAny };
  enum class Waited { kReached, kReleased, kTimeout };

  /// Joins the job's page in `folder` (/dev/shm), or makes it. Pages whose ranks are all dead are removed on the way; a
  /// page on which some rank has died, or whose slot is taken by a living process, is another incarnation of the job
  /// and left alone. Blocks at most 250 ms for other ranks that join at this moment, or whoever else holds the folder's
  /// lock, and then joins without it. Errors: kInvalidArgument (local_rank), kExhausted, kPermission.
  /// `first` is where the counters of this rank's row start: 0, or FREERIDE_SENT_FIRST where a GPU counts. Where others
  /// look for the world's rank (slot_of), any free slot will do, and `local_rank` is a wish: launchers that show each
  /// rank one GPU call all of them 0. Another incarnation is then told by a living rank of this one's number in the
  /// world.
  static Result<std::unique_ptr<SentMember>> join(const std::string& folder, const std::string& job,
                                                  uint32_t local_rank, uint32_t world_rank = 0, uint32_t first = 0,
                                                  Slot slot = Slot::kLocalRank);

  /// One more message for `destination`; the counter's new value. 0: out of range. A released counter stays released.
  uint32_t produce(uint32_t destination);
  /// Sleeps until `source` has produced `count`, was released, or the deadline (CLOCK_MONOTONIC).
  Waited wait(uint32_t source, uint32_t count, int64_t deadline_ns);

  /// For GPUs, which count and wait in stream order. Any thread.
  /// The slot of a rank of the job on this page; none: on another host, not hooked, or of a version that does not tell;
  /// or the page was made by a version that has no such counters.
  std::optional<uint32_t> slot_of(uint32_t world_rank, Row row = Row::kSent) const;
  bool is_hooked(uint32_t slot) const;
  uint32_t counter_from(uint32_t slot, Row row = Row::kSent) const;
  const uint32_t& word_from(uint32_t slot, Row row) const;
  /// Sets `slot`'s counter for us forward, at least to `value`; one that is further, or released, stays.
  void advance_from(uint32_t slot, uint32_t value, Row row = Row::kSent);

  /// This rank's FREERIDE_ENDED() for `slot`, and `slot`'s for this rank; 0: it has told none, or is not hooked.
  void tell_ended(uint32_t slot, uint64_t word);
  uint64_t ended_by(uint32_t slot) const;

  /// Releases everybody who waits for this rank, for good or until rejoin(). Any thread.
  void release(uint32_t status);
  bool released() const { return !is_hooked(local_rank_); }
  /// Undoes this rank's own release, for ranks that count what they produce by themselves: each counter gets what
  /// `value_of` says of that rank of the job, and each of collectives `met`. Any thread.
  void rejoin(const std::function<uint32_t(uint32_t world_rank)>& value_of, uint32_t met);
  /// A write that a GPU had been told before the release may come after it: releases again what is not, of this rank
  /// and of all that have left. Call now and then.
  void release_again();
  /// Leaves: release(), and the last one removes the file.
  void leave();

  /// The helper thread's part: one pidfd for each other rank that lives. Call about once a second, for ranks that have
  /// joined since.
  void look_for_ranks();
  /// Poll these for readability; on one, call rank_died() with its index.
  const std::vector<int>& pidfds() const { return pidfds_; }
  void rank_died(size_t index);
  /// In a forked child: closes the descriptors and nothing else.
  void drop_descriptors();

  const std::string& path() const { return path_; }
  uint32_t local_rank() const { return local_rank_; }
  freeride_sent_page& page() const { return *page_; }
  /// How much of it all ranks share; what lies behind that in its layout is this process's own.
  size_t shared_bytes() const { return std::min(page_.page_bytes(), sizeof(freeride_sent_page)); }
  ~SentMember();

 private:
  SentMember() = default;
  void release_rank(uint32_t rank, uint32_t status);
  void release_counters(uint32_t rank);
  // A member's row of counters of collectives; empty on a page of a version that has none.
  std::span<uint32_t> met_of(uint32_t rank);

  std::string folder_, path_;
  uint32_t local_rank_ = 0;
  pages::Mapped<freeride_sent_page> page_;
  std::vector<int> pidfds_;  // parallel to watched_
  std::vector<uint32_t> watched_;
};

/// Sets a number that others raise at the same moment to `value`, unless it is higher.
void raise_to(uint32_t& number, uint32_t value);

/// Field 22 of /proc/<pid>/stat: with the pid, one process for ever. 0: there is no such process.
uint64_t process_start_time(uint32_t pid);

}  // namespace freeride::hooks
