// RemoteHolds: what a rank knows of ranks on other hosts: hints to and from them, and how long their messages may be
// waited for by the host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda_driver.hpp"
#include "followers.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/policy/hold_cost.hpp"
#include "freeride/policy/remote_wait.hpp"
#include "hint.hpp"
#include "hint_relay.hpp"
#include "rank_page.hpp"

namespace freeride::hooks {

/// A stream that is held for a rank on another host waits for a word of this process, which the helper thread stores:
/// when the sender's hint has come, or when the wait has lasted as long as its ceiling, which was learned in iterations
/// in which nothing was held (policy/remote_wait). So whatever becomes of hints, training is as without the hook but
/// for a receive that begins later, by a bounded time. A helper thread that ends, for whatever reason, lets all such
/// streams go first.
///
/// Held are batches that receive from one rank of another host where training's stream waits for them at once; if they
/// also send, only to the same rank, and only if a hint has shown that its batch receives just these messages: neither
/// batch can be over before the other is posted then. All others are posted as ever: receives posted ahead of their
/// need, batches between several ranks, collectives.
///
/// Threads: all functions are the posting thread's, but for tend() and socket(), the helper's, and those of anybody.
/// Nothing blocks: a lock is held for some lines. Memory is bounded by the constants below.
class RemoteHolds {
 public:
  static constexpr size_t kMostPeers = 64;       ///< on other hosts; messages with more are posted as ever
  static constexpr size_t kMostMeasured = 256;   ///< waits of an iteration that are measured
  static constexpr size_t kRemembered = 256;     ///< hints of each peer
  static constexpr size_t kMostDatagrams = 256;  ///< taken from the socket at one look: whoever floods it costs no more

  struct Peer {
    uint32_t rank = 0;  ///< in the world
    HintAddress hints;
  };
  /// One hold, for measurements.
  struct Hold {
    uint64_t iteration = 0, count = 0;
    uint32_t wait = 0, peer = 0;
    int64_t begin_ns = 0;    ///< the GPU's mark was seen; 0: it was not
    int64_t ceiling_ns = 0;  ///< from then on
    int64_t hint_ns = 0;     ///< the hint came; 0: it has not
    int64_t posted_ns = 0;   ///< the hold ended
  };
  struct Counters {
    std::atomic<uint64_t> measured{0}, held{0}, by_hint{0}, by_ceiling{0}, hints_sent{0}, hints_taken{0},
        hints_refused{0}, plain_iterations{0}, holdable_ns{0};
  };
  struct Arms {
    policy::ArmCost held, leased;
    bool off = false;  ///< holds cost too much, and are made no longer
  };
  /// For measurements: what hints are made of. Normally each counts when it comes.
  struct Faults {
    int64_t late_ns = 0;          ///< as if they came so much later
    uint32_t lose_per_mille = 0;  ///< as if so many had not come; 1000: none
    bool forge = false;           ///< as if another key had been used for all
    /// The own messages that the stream has come to are shown at `sent[r][r]` of the sent page, for an observer.
    bool show = false;
  };

  /// Opens the socket for hints, on `port` of all addresses, or on any. `rank`: this one's, in the world. `say`: one
  /// line for people. Errors: of the socket; kUnavailable (a driver without events).
  static Result<std::unique_ptr<RemoteHolds>> create(CudaDriver cuda, RankPage& page, uint32_t rank, uint16_t port,
                                                     void (*say)(const std::string& text));
  uint16_t port() const { return port_; }
  /// A rank of another host, whose hints' socket is there; `address` is a number of IPv4 or IPv6. One that is none gets
  /// no hints. Any thread.
  Peer peer_at(uint32_t rank, const std::string& address, uint16_t port) const;

  /// From the present iteration on: who is on other hosts, and the job's key. Without a key there are no hints, neither
  /// way. Only the first call counts. Errors: of CUDA.
  Status join(const Hint::Key* key, uint64_t epoch, std::span<const Peer> peers, uint64_t iteration);
  bool joined() const { return joined_; }
  bool is_peer(uint32_t rank) const { return peers_.count(rank) != 0; }

  /// Streams that wait for an event behind a hold. Before the first message; it must outlive this.
  void set_followers(Followers* followers) { relay_.set_followers(followers); }

  /// This iteration's arm; kLeased before join(), and once holds are off.
  policy::Arm arm() const { return arm_; }
  bool is_off() const { return off_.load(std::memory_order_relaxed); }

  /// Tells `to` when `stream` has come here: message `count` for it exists then. `receives`: see Hint. The stream has
  /// been told to write `word`, if tells().
  Status message(CudaStream stream, uint32_t to, uint64_t count, uint64_t receives, uint64_t iteration, uint32_t word);
  bool tells() const { return hints_; }
  /// The helper's: `word` is there now. Returns when to look again; INT64_MAX: when convenient.
  int64_t look_at_word(uint32_t word, int64_t now_ns) { return relay_.look(word, now_ns); }
  /// In a plain iteration, before the batch is posted: it is to be measured. `own`: the newest message that it sends to
  /// the same rank; 0: it sends nothing. True: received() is to be called where the stream has waited for it.
  Result<bool> measure(CudaStream stream, uint32_t wait, uint32_t peer, uint64_t bytes, uint64_t count, uint64_t own);
  Status received(CudaStream stream);
  /// Until how long after the GPU's mark the host may hold this wait; 0: not at all.
  int64_t ceiling_ns(uint32_t wait, uint32_t peer, uint64_t bytes, bool sends) const;
  /// Whether a hint has said that message `count` exists; looks at the socket first.
  bool exists(uint32_t peer, uint64_t count, int64_t now_ns);
  /// The stream is about to be held for `hold`, and marks the wait by `word`: what it is to wait for. Nothing: as many
  /// are held as can be, or nobody would end it.
  std::optional<Followers::Word> begin_hold(const Hold& hold, uint64_t word);
  /// The helper's, with what the state word is at `now_ns`: ends holds. Returns when to look again; INT64_MAX: when
  /// something comes at the socket.
  int64_t tend(uint64_t state_word, int64_t now_ns);
  int socket() const { return hints_.load(std::memory_order_acquire) ? socket_.get() : -1; }
  /// Ends all holds, and none is begun until hold_again(). Any thread.
  void let_go();
  void hold_again();
  /// Iteration `iteration` ends here in stream order; it had so many waits. Not `representative`: nothing is learned.
  /// Returns the next one's arm.
  Result<policy::Arm> end_iteration(CudaStream stream, uint64_t iteration, uint32_t waits, bool representative);

  const Counters& counters() const { return counters_; }
  Arms arms() const;
  /// Takes the noted holds, the oldest first. The posting thread's.
  size_t take_holds(std::span<Hold> into);
  /// From the next iteration's end on: one arm always, whatever the plan says; negative: the plan again. All ranks
  /// alike.
  void set_arm(int arm) { forced_arm_ = arm; }
  void set_faults(const Faults& faults) { faults_ = faults; }
  bool shows() const { return faults_.show; }
  /// Nothing is sent any more. Any thread. The descriptor stays: a function of the driver's may be about to use it.
  void stop() {
    let_go();
    relay_.stop();
  }
  /// Whether the driver calls nothing of this one's any more, once nothing is sent: only then may it be destroyed. Any
  /// thread.
  bool is_idle() const { return relay_.is_idle(); }
  /// In a forked child.
  void close_in_child() { socket_.reset(); }

 private:
  struct Heard {
    uint64_t newest = 0;                                        // message that exists
    int64_t newest_ns = 0;                                      // when that was heard
    std::array<Hint, kRemembered> of{};                         // by message % kRemembered
    uint64_t plain_in = UINT64_MAX, not_plain_in = UINT64_MAX;  // iterations in which its newest hint was so
  };
  struct PeerState {
    Peer peer;
    Heard heard;
    bool hinted = false;  // hints of it came in the last iteration
  };
  struct Measured {
    policy::RemoteSample sample;
    uint64_t count = 0, own = 0;
    CudaEvent begin = nullptr, end = nullptr;
    bool ended = false;
  };
  struct Iteration {
    uint64_t number = 0;
    uint32_t waits = 0;
    bool agreed = false;
    bool whole = true;  // all of its remote waits are measured
    std::vector<Measured> measured;
    std::vector<uint32_t> wait_of;  // of each measured one
    CudaEvent end = nullptr;
  };
  static constexpr size_t kInFlight = 4;  // plain iterations that the host is ahead of its GPU
  static constexpr size_t kEnds = 64;
  static constexpr size_t kNotes = 1024;
  static constexpr size_t kHolds = 64;
  static constexpr int64_t kLongestUnseen = 60 * kNsPerSec;  ///< a hold whose mark nobody has seen, and no other
  static constexpr uint32_t kLetGo = 0x7fffffff;             // from a word that begins at 0 on it satisfies all
  struct Held {
    Hold hold;
    uint64_t word = 0;
    uint32_t number = 0;
  };

  RemoteHolds(CudaDriver cuda, RankPage& page, uint32_t rank) : cuda_(cuda), page_(page), rank_(rank) {}
  // What follows is called with mutex_ held.
  void look(int64_t now_ns);
  bool has_come(uint32_t peer, uint64_t count, int64_t now_ns);
  void check_iteration(uint32_t peer, uint64_t count, uint64_t iteration);
  void note(const Hold& hold, bool by_hint);
  void take(const Hint& hint, int64_t now_ns);
  // And what follows without.
  Hint hint_of(uint32_t peer, uint64_t count) const;
  uint64_t plain_until() const;
  bool is_hinted(uint32_t peer) const;
  Result<CudaEvent> event();
  Status collect();
  void learn(const Iteration& done, CudaEvent end);
  Status time(CudaStream stream, uint64_t iteration);
  bool agreed(uint64_t iteration) const;
  void learn_anew(uint64_t from_iteration);
  void publish(uint32_t waits);
  void turn_off(const std::string& why);

  CudaDriver cuda_;
  RankPage& page_;
  const uint32_t rank_;
  mutable std::mutex mutex_;  // what the helper's thread shares: hints, holds, notes, plain_until_ and iteration_
  std::deque<Held> held_;     // in the order in which the stream comes to them
  uint32_t begun_ = 0;
  uint64_t seen_word_ = 0;  // the helper's, and since when
  int64_t seen_since_ns_ = 0;
  bool let_go_ = false;
  struct alignas(4096) EndPage {
    uint32_t ended = 0;  // the newest hold that is over
  };
  std::unique_ptr<EndPage> ends_page_ = std::make_unique<EndPage>();
  CudaAddress end_word_ = 0;
  void (*say_)(const std::string& text) = nullptr;
  Fd socket_;
  uint16_t port_ = 0;
  int family_ = AF_INET;
  std::atomic<bool> off_{false};
  bool joined_ = false;
  std::atomic<bool> hints_{false};  // taken from the socket, and sent
  Hint::Key key_{};
  uint64_t epoch_ = 0;
  std::map<uint32_t, PeerState> peers_;

  policy::Arm arm_ = policy::Arm::kLeased;
  int forced_arm_ = -1;
  bool forced_ = false;  // the present iteration's arm was
  uint64_t iteration_ = 0, plain_until_ = 0;
  uint32_t waits_before_ = 0;
  policy::RemoteWaits waits_{FREERIDE_MAX_WAITS};
  std::map<uint32_t, bool> mirrored_;  // by wait: what it sends is received by the batch that it receives from
  Iteration present_;
  std::deque<Iteration> in_flight_;
  std::vector<CudaEvent> free_events_;

  std::array<CudaEvent, kEnds> ends_{};
  std::array<uint64_t, kEnds> ends_of_{};  // iteration + 1
  std::array<bool, kEnds> forced_in_{};
  uint64_t next_timed_ = 0;
  mutable std::mutex costing_;  // held for some additions only
  policy::HoldCost cost_;

  Counters counters_;
  HintRelay relay_{cuda_, socket_, counters_.hints_sent};
  Faults faults_;
  std::deque<std::pair<int64_t, Hint>> late_;
  std::deque<Hold> notes_;
};

}  // namespace freeride::hooks
