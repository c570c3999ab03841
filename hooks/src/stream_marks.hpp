// StreamMarks: bubbles marked, and receives held back, by a GPU's own stream.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "cuda_driver.hpp"
#include "followers.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/policy/count_ring.hpp"
#include "rank_page.hpp"
#include "remote_holds.hpp"
#include "sent.hpp"

namespace freeride::hooks {

/// Whether a batch's receives may be held: FREERIDE_HOLD_* of hook.h.
enum class Hold { kNever, kNow, kLater };

/// What became of a batch's receives. The values are those of hook.h.
enum class Held {
  kPlain = 0,     ///< not held, not marked: nobody to wait for, or the data is there
  kStream = 1,    ///< marked and held, in stream order
  kMeasured = 3,  ///< neither held nor marked, but measured: call received() where the stream has waited for it
};

struct StreamCounters {
  std::atomic<uint64_t> plain{0}, stream{0}, broken{0};
};

/// A receive of NCCL that waits spins on the GPU. So the receiver's stream is held before the receive is posted, until
/// the sender's stream has said by its sent counter that the data exists; begin and end of that wait are written into
/// the state word in stream order. The host never waits: it runs ahead of its GPU as it does without us. Streams that
/// wait for this one, NCCL's own among them, are made to wait for the same counter (followers.hpp): so all that is
/// pending waits for values in memory, and the GPU is another process's.
///
/// What a hold may cost when something is wrong is bounded: the helper thread ends one that lasts longer than
/// longest_hold() by setting the counter forward, and a wait index that needed this twice in a row is not held again.
/// So even a schedule in which a peer needs this batch's own send before it can produce (possible where a batch sends
/// and receives) is delayed for some seconds, once.
///
/// A receive that is posted ahead of its need is held on a stream apart, and training's stream where it waits for it.
/// Until then nothing of it shows on the page; if the state word stands still for kLongestEarlyNs, such holds are
/// ended.
///
/// Threads: batch(), post_early(), wait() and end_iteration() belong to one thread, the first to call; from others,
/// messages are counted and nothing is held. watch() is the helper's.
class StreamMarks {
 public:
  /// Bubbles shorter than this are held and measured, and give no lease. FREERIDE_HOOK_SHORTEST_MS in the environment
  /// says another.
  static constexpr int64_t kShortestLeaseNs = 3 * kNsPerMs;
  static int64_t shortest_lease_ns();
  /// So long before the learned end a lease ends: a step that is under way when the data comes delays training.
  static constexpr int64_t kLeadNs = kNsPerMs;
  static constexpr size_t kMostSources = 16;       ///< of one batch or collective; one with more is not held
  static constexpr uint32_t kMostMeetings = 1024;  ///< collectives of one pair of ranks in one iteration
  /// What counters show. Its quiet stretch is 1024 iterations of collectives, or a million messages: far more than
  /// NCCL's queues let one rank be ahead of another. A rank holds nothing for so long, after two million iterations or
  /// two billion messages.
  static constexpr policy::CountRing kRing{};
  static_assert(kRing.first == FREERIDE_SENT_FIRST && kRing.released == FREERIDE_POISON);
  static_assert(kRing.quiet == 1024 * kMostMeetings);
  /// Nothing is wrong with a receive that is posted long before its data exists. But should a schedule exist in which
  /// that blocks the training, it goes on after so long, and after the second time without such holds.
  static constexpr int64_t kLongestEarlyNs = 5 * kNsPerSec;

  /// On the thread that has the CUDA context, which must outlive the process's use of it. Errors: of CudaDriver.
  /// `counted`: as if so many messages and collectives of each pair of ranks had been before, the same on all ranks:
  /// for tests of what happens after weeks.
  static Result<std::unique_ptr<StreamMarks>> create(CudaDriver cuda, RankPage& page, SentMember& sent,
                                                     uint64_t counted = 0);

  /// Before a batch is posted on `stream`: counts its messages to and from ranks of the job, and holds the stream. An
  /// error means that a mark or a wait may be missing in the stream: switch the hook off.
  /// `receive_bytes`: of all that it receives; 0: not told.
  Result<Held> batch(CudaStream stream, std::span<const uint32_t> destinations, std::span<const uint32_t> sources,
                     Hold hold, uint64_t receive_bytes = 0);
  /// After `stream` was made to wait for a batch that was kMeasured; once more where it waits for it in parts.
  Status received(CudaStream stream);
  /// Ranks on other hosts. Before the first message; it must outlive this.
  void set_remote(RemoteHolds* remote) {
    remote_ = remote;
    remote_->set_followers(&followers_);
    looked_for_.store(remote, std::memory_order_release);
  }
  uint64_t iteration() const { return iteration_; }
  /// Call before batch() and post_early(), with the same ranks. True: one of them has ended an iteration that this rank
  /// has not, before the messages that come now, so end_iteration() comes first. For a rank that makes no optimizer's
  /// step, once or always: iterations that ranks count apart let collectives wait for the wrong count, and measures be
  /// of different iterations. Never sooner than after as many messages as in the iteration before.
  bool is_behind(std::span<const uint32_t> destinations, std::span<const uint32_t> sources);
  /// A batch that only receives, right before it is posted on `apart`, ahead of its need: holds that stream, which
  /// should be for receives from this source alone, until the first of its messages exists. Returns a number for
  /// wait(); 0: nothing is to be done there.
  Result<uint64_t> post_early(CudaStream apart, std::span<const uint32_t> sources);
  /// Where training's stream is about to wait for such a batch: marks and holds it as batch() does.
  Result<Held> wait(CudaStream stream, uint64_t early);
  /// Before a collective of `members` (without this rank) is posted on `stream`: counts that this rank has come to it,
  /// and, where the stream needs its result at once, holds the stream until those in `awaited` have come. It could not
  /// finish before, and who is waited for has counted before it waits itself. Numbered anew in each iteration, so that
  /// a miscount does not last.
  Result<Held> meet(CudaStream stream, std::span<const uint32_t> members, std::span<const uint32_t> awaited,
                    bool needed_at_once);
  /// The iteration's number follows what other ranks have ended, if they are ahead.
  Status end_iteration(CudaStream stream, uint64_t count = 0);
  /// An idle phase says that an iteration has ended. Any thread: in another one than batch()'s nothing happens.
  Status end_iteration_by_phase(CudaStream stream);
  /// Whether there was a batch of messages. Any thread.
  bool has_posted() const { return owner_.load() != 0; }
  bool is_capturing(CudaStream stream) const { return cuda_.is_capturing(stream); }
  /// Once `stream` comes to this place, an idle phase has begun: `word` is IdlePhases::begin()'s. Any thread.
  Status mark_phase(CudaStream stream, uint64_t word);
  /// Of the CUDA runtime's events. Any thread.
  Followers& followers() { return followers_; }
  /// After a release that was not for good: neighbours may wait for this rank again. Messages that were produced
  /// meanwhile count as there. Any thread.
  void rejoin();

  /// Ends all holds that are posted. What a sender's GPU had been told before may set a counter back: again after a
  /// while. Any thread.
  void let_go();
  /// The helper's look at `now_ns`: ends a hold that has become too long. True if it did.
  bool watch(int64_t now_ns);
  /// The helper's, at `now_ns`: sends what is due to other hosts, and ends holds for them. Returns when to look again;
  /// INT64_MAX: when convenient.
  int64_t tend_remote(int64_t now_ns);
  /// What the helper waits for besides; -1: nothing.
  int remote_socket() const;

  const StreamCounters& counters() const { return counters_; }

 private:
  struct alignas(8) Want {  // so that clang loads and stores it at once, without its library's help
    uint32_t slot = 0, value = 0;
  };
  // What the helper reads while the posting thread may write the next one: never one's slot with another's value.
  using SharedWant = std::atomic<Want>;
  static_assert(SharedWant::is_always_lock_free);
  // What a marked wait waits for, where the helper finds it by its state word.
  struct Pending {
    std::atomic<uint64_t> word{0};
    std::atomic<uint32_t> count{0};
    std::atomic<SentMember::Row> row{SentMember::Row::kSent};
    std::array<SharedWant, kMostSources> of{};
  };
  // Of each, so many may be posted that the GPU has not come to. One more is not held, since nobody could end it.
  static constexpr size_t kPending = 1024;
  struct Wants {
    std::array<Want, kMostSources> of{};
    size_t count = 0;
    SentMember::Row row = SentMember::Row::kSent;
    bool known = false;  // all sources are hooked, here, and count
    std::span<const Want> span() const { return {of.data(), known ? count : 0}; }
  };
  // A batch posted early, from its posting to its wait. What holds it apart is also the helper's, which ends a hold
  // that has become too long.
  struct Early {
    uint64_t number = 0;
    Wants wants;
    bool one_source = false;
    SharedWant held{};  // value: 0 where nothing is held
  };

  StreamMarks(CudaDriver cuda, RankPage& page, SentMember& sent, uint64_t counted)
      : cuda_(cuda), page_(page), sent_(sent), counted_(counted), met_base_(counted) {}
  // Under counting_.
  Wants expect(std::span<const uint32_t> sources, bool ours);
  bool ours();
  uint64_t ended_by(uint32_t rank);
  void tell_ended();
  void note_sources();
  Result<Held> hold(CudaStream stream, const Wants& wants);
  void follow(CudaStream stream, std::span<const Want> wants, SentMember::Row row);
  Status wait_for(CudaStream stream, const Want& want, SentMember::Row row = SentMember::Row::kSent);
  Status count_for(CudaStream stream, uint32_t rank, uint32_t value, SentMember::Row row);
  bool is_held(const Want& want) const;
  bool end_early_holds();
  void end(const Pending& pending);
  bool all_there(const Wants& wants) const;
  CudaAddress counter(SentMember::Row row, uint32_t from, uint32_t to) const;
  bool is_elsewhere(uint32_t rank) const;
  Status tell_elsewhere(CudaStream stream, std::span<const uint32_t> destinations, std::span<const uint32_t> sources);
  bool holds_nothing() const;
  Result<Held> receive_elsewhere(CudaStream stream, uint32_t source, bool sends, Hold hold, uint64_t bytes,
                                 uint64_t count, uint64_t own);
  int64_t longest_hold(uint32_t wait) const;

  CudaDriver cuda_;
  RankPage& page_;
  SentMember& sent_;
  Followers followers_{cuda_};
  const int64_t shortest_lease_ns_ = shortest_lease_ns();
  CudaAddress state_word_ = 0, idle_marked_ = 0, sent_page_ = 0;
  StreamCounters counters_;

  std::mutex counting_;
  uint64_t counted_;                                            // before the first
  std::unordered_map<uint32_t, uint64_t> produced_, expected_;  // messages, by rank of the job
  std::unordered_map<uint32_t, uint32_t> met_;                  // collectives in this iteration, by rank of the job
  uint64_t met_base_;                                           // their count before this iteration
  uint64_t messages_ = 0, messages_before_ = 0;                 // of this rank, in this iteration and the one before
  bool behind_ = false;                                         // is_behind() has said so

  // The posting thread's own.
  std::atomic<pthread_t> owner_{0};
  uint64_t iteration_ = 0;
  uint32_t wait_ = 0;
  std::optional<CudaStream> stream_;  // that waits in this iteration; another one that does is not held
  bool representative_ = true;        // of the schedule: no wait of this iteration is held only later

  std::array<Early, kPending> early_;
  uint64_t next_early_ = 0;
  std::atomic<uint32_t> early_broken_{0};  // times that early holds had to be ended
  RemoteHolds* remote_ = nullptr;
  std::atomic<RemoteHolds*> looked_for_{nullptr};  // the same, for the helper

  std::array<Pending, kPending> pending_;  // by a number that runs on through all iterations
  uint64_t next_pending_ = 0;
  std::array<std::atomic<uint8_t>, FREERIDE_MAX_WAITS> broken_{};  // times in a row, by wait - 1
  uint64_t left_word_ = 0;     // the newest wait that the GPU has left, by its word; the helper's
  uint64_t watched_word_ = 0;  // the helper's
  int64_t watched_since_ns_ = 0, early_since_ns_ = 0;
  bool watched_broken_ = false;
};

}  // namespace freeride::hooks
