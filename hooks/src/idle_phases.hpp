// IdlePhases: stretches of any length in which training leaves its device alone, each with a name of training's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/policy/length_learner.hpp"
#include "rank_page.hpp"

namespace freeride::hooks {

/// Writes the idle phases of one bubble page, and learns their lengths by name. Any thread; no function blocks for
/// longer than another such call. Allocates only for a new name.
class IdlePhases {
 public:
  /// `page` must outlive this.
  explicit IdlePhases(RankPage& page);

  struct Wish {
    std::string_view name;
    int64_t expected_ns = 0;  ///< how long training says that it lasts; 0: it does not
    bool open = false;        ///< until training says so: its length is not learned
    bool found = false;       ///< training has not asked for it
    bool by_gpu = false;      ///< it begins once the caller's GPU has written the phase's word to `idle_marked`
  };
  /// Begins one; its word, FREERIDE_PHASE(). Errors: kRejected (one is under way), kInvalidArgument (the name is none,
  /// or there are too many).
  Result<uint64_t> begin(const Wish& wish, int64_t now_ns);
  /// Ends the phase of this number, and says whether it was under way.
  bool end(uint64_t number, int64_t now_ns);
  /// The number of the phase that is under way, or was begun and waits for the GPU; 0: none.
  uint64_t under_way() const { return FREERIDE_PHASE_NUMBER(open_.load(std::memory_order_acquire)); }
  /// Its name; "" where there is none.
  std::string name() const;
  /// Whether none is under way, and training asks for the name that comes once in an iteration: the one that it asked
  /// for first, as long as no other has come kRounds times in between, and then that one.
  bool comes_round(const Wish& wish) const;

  /// Whether a phase waits for the GPU to come to it: somebody is to call observe() soon.
  bool awaits_gpu() const { return awaits_gpu_.load(std::memory_order_acquire); }
  /// Looks whether it has come.
  void observe(int64_t now_ns);

 private:
  static constexpr size_t kApart = 8;
  static constexpr uint32_t kRounds = 3;
  struct Name {
    policy::LengthLearner learner{1};
    int64_t ended_ns = 0;                 // the newest one
    std::array<int64_t, kApart> apart{};  // the last times between two of them; 0: none yet
    uint64_t begun = 0;
    uint32_t rounds = 0;  // that training has asked for since it asked for the first name
  };

  uint32_t known_number_of(std::string_view name) const;
  Result<uint32_t> number_of(std::string_view name);
  void count_round(uint32_t number);
  void show(int64_t now_ns);
  void learn(uint32_t number, int64_t length_ns);

  RankPage& page_;
  mutable std::mutex mutex_;  // of all below but the atomics; held for some stores
  std::vector<Name> names_;
  std::optional<uint32_t> first_;  // the name that training asked for first
  uint64_t last_ = 0;              // number of the newest phase
  Wish wish_;                      // of the present one; its name is not kept
  bool shown_ = false;
  int64_t begin_ns_ = 0;
  uint64_t promised_ns_ = 0;
  std::atomic<uint64_t> open_{0};  // its word; 0: none. Changed under the mutex
  std::atomic<bool> awaits_gpu_{false};
};

}  // namespace freeride::hooks
