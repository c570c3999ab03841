// HintRelay: sends each hint as soon as the sender's stream has come to its message.
#pragma once

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda_driver.hpp"
#include "followers.hpp"
#include "freeride/base/fd.hpp"
#include "hint.hpp"

namespace freeride::hooks {

/// Where a rank's hints go.
struct HintAddress {
  sockaddr_storage address{};
  socklen_t bytes = 0;  ///< 0: none is known; it gets no hints
};

/// A hint is sent in one of two ways, by whichever comes first. Behind an event on a stream of its own, the driver
/// calls a function: always, and 0.1 to 0.25 ms late. And the stream writes a word, at which the hook's helper thread
/// looks: only around the moment when that message of an iteration usually comes, for a look that finds nothing costs
/// as much as one that does. A function in training's own stream would hold that up until it has returned.
///
/// Threads: add() is the posting thread's, look() the helper's, the rest anybody's. Nothing blocks.
class HintRelay {
 public:
  static constexpr size_t kOutgoing = 1024;  ///< messages that the host is ahead of its GPU; more get no hints
  static constexpr size_t kPlaces = 256;     ///< messages of an iteration of which it is known when they come
  static constexpr size_t kSamples = 8;      ///< of each of those
  static constexpr size_t kLeastSamples = 4;
  static constexpr int64_t kBefore = 200'000;           ///< so long before the earliest it looks, and after the latest
  static constexpr int64_t kLongestWindow = 6'000'000;  ///< between the first and the last look for one message
  static constexpr int64_t kLook = 50'000;              ///< between two looks

  /// `socket` outlives it. `sent` counts.
  HintRelay(CudaDriver cuda, const Fd& socket, std::atomic<uint64_t>& sent)
      : cuda_(cuda), socket_(socket), sent_(sent), outgoing_(std::make_unique<std::array<Outgoing, kOutgoing>>()) {}
  /// Its stream waits for training's: as another's would (followers.hpp). It must outlive the relay.
  void set_followers(Followers* followers) { followers_ = followers; }
  /// Makes its stream. Errors: of CUDA.
  Status open();

  /// Sends `hint` to `to`, which outlives the relay, when `stream` comes here. Before it the stream writes `word` where
  /// the helper looks. A hint for which there is no room is a lost one. Errors: of CUDA.
  Status add(CudaStream stream, const HintAddress& to, const std::array<uint8_t, Hint::kBytes>& hint,
             uint64_t iteration, uint32_t word);
  /// `word` is there now: sends what that says. Returns when to look again; INT64_MAX: when convenient.
  int64_t look(uint32_t word, int64_t now_ns);

  /// Nothing is sent any more. The descriptor stays: a function of the driver's may be about to use it.
  void stop() { stopped_.store(true); }
  /// Whether the driver calls nothing of this one's any more, once it has stopped: only then may it be destroyed.
  bool is_idle() const;

 private:
  // What may become of a message: four states of its number, so that nobody takes another one in its slot for it.
  enum : uint64_t { kArmed = 0, kSending = 1, kTold = 2, kStates = 4 };
  struct Outgoing {
    std::atomic<uint64_t> state{kTold};
    std::atomic<bool> called_later{false};  // the driver's function is yet to come
    HintRelay* self = nullptr;
    const HintAddress* to = nullptr;
    uint64_t number = 0;
    size_t place = 0;
    uint32_t word = 0;
    int64_t told_ns = 0;
    std::array<uint8_t, Hint::kBytes> bytes{};
  };
  struct Place {
    std::array<int64_t, kSamples> after_ns{};  // the message before
    size_t seen = 0;
  };
  static void called(void* outgoing);
  void tell(Outgoing& out, uint64_t number, int64_t now_ns);
  void advance();

  CudaDriver cuda_;
  const Fd& socket_;
  std::atomic<uint64_t>& sent_;
  std::unique_ptr<std::array<Outgoing, kOutgoing>> outgoing_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> added_{0};   // messages
  std::atomic<uint64_t> passed_{0};  // of which the helper has seen that they are told

  Followers* followers_ = nullptr;
  CudaStream side_ = nullptr;  // the posting thread's, as what follows
  std::vector<CudaEvent> events_;
  uint64_t iteration_ = 0;
  size_t place_ = 0;

  std::array<Place, kPlaces> places_{};  // the helper's, as what follows
  int64_t before_ns_ = 0;                // when the message before was told
  uint32_t last_word_ = 0;
};

}  // namespace freeride::hooks
