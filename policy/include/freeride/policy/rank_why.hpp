// RankWhy: the one reason for which the bubbles of a training rank cannot be used now, or that they can.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace freeride::policy {

/// Closed: a new reason is added here, in the table of rank_why.cpp and in docs/trainers/not-hooked.md. The values are
/// those of a bubble page's `noted` and of hook.h: they never change their meaning. In the order in which a rank meets
/// them, from its process's start to a lease.
enum class RankWhy : uint32_t {
  kNone = 0,    ///< nothing is told
  kUsable = 1,  ///< nothing is in the way
  // Not attached. Known in the rank's process only.
  kHookOff = 2,          ///< FREERIDE_HOOK=0
  kNotAsked = 3,         ///< nobody has asked for the hook
  kNoGroup = 4,          ///< there is no default group yet
  kFrameworkSilent = 5,  ///< a framework was imported, and has told no pipeline
  // Off.
  kFailed = 6,    ///< an error of the hook
  kDisabled = 7,  ///< as asked
  kEnded = 8,     ///< in good order
  // Attached: nothing is marked.
  kNoMessages = 10,      ///< no receive was seen
  kOtherGroups = 11,     ///< receives, all of them taken for no pipeline's
  kPeersElsewhere = 12,  ///< a GPU's receives are all from other hosts
  kNeverWaits = 13,      ///< the pipeline's receives were never waited for
  // Marked, but not learned.
  kNoIterations = 14,   ///< none has ended
  kFewIterations = 15,  ///< far fewer have ended than the optimizer has made steps
  kLearning = 16,       ///< too few so far
  kLengthsVary = 17,    ///< enough, and yet no length is known
  kTooShort = 18,       ///< no length is long enough for a lease
  // Usable, and yet there is no lease.
  kNoWorker = 19,  ///< no worker has the rank
  // What only its worker, or the manager, knows. Of these, the last four are of a rank that may be gone.
  kHarvesting = 20,    ///< side tasks have made steps in its bubbles lately
  kDrained = 21,       ///< its device is drained
  kNoTask = 22,        ///< no side task is on its device
  kSharedDevice = 23,  ///< another rank is on its device
  kThrottled = 24,     ///< the slowdown budget gives its bubbles to side tasks in some iterations only
  kTasksWait = 25,     ///< side tasks are on its device, and none has made a step lately
  kDied = 26,          ///< its process has ended without a word
  kWorkerLost = 27,    ///< its worker is gone, or not heard any more
  kUntold = 28,        ///< its worker or the manager is of a version that does not tell
};

/// The name, on the bus and for people; "" for kNone and for values that are not known. Any thread.
const char* rank_why_name(RankWhy why);
/// The value of a name from outside; kNone for one that is not known.
RankWhy rank_why_of(std::string_view name);
/// One sentence, without a full stop: what it is and, where somebody can do something about it, what. "" as above.
const char* rank_why_text(RankWhy why);
/// Whether it means that the rank has no bubble that could be used, and somebody may have to do something about it.
bool is_in_the_way(RankWhy why);

/// What is known of an attached rank. The defaults are in nobody's way.
struct RankFacts {
  enum class Hook : uint8_t { kOn, kOff, kGone } hook = Hook::kOn;
  uint64_t iterations = 0;  ///< ended
  uint64_t bubbles = 0;     ///< ended
  uint32_t samples = 0;     ///< the most that a wait's length was learned from
  bool usable = false;      ///< some wait's length is long enough for a lease
  uint32_t noted = 0;       ///< a RankWhy: what the page cannot show, as the rank's process has told. Any number
  bool has_worker = true;
};

/// Judges one rank. It remembers when the rank's bubbles could last be used: lengths that are learned anew now and then
/// are no reason. Not thread-safe.
class RankJudge {
 public:
  static constexpr uint64_t kLately = 64;     ///< iterations: what could be used within the last ones can be
  static constexpr uint64_t kLearnedBy = 10;  ///< iterations after which lengths are known, if they do not vary

  RankWhy judge(const RankFacts& facts);

 private:
  std::optional<uint64_t> usable_in_;  // iteration
};

/// What the worker of a rank knows beside the rank's page.
struct DeviceFacts {
  bool drained = false;
  bool harvested = false;      ///< side tasks have made steps in the rank's bubbles lately
  bool has_task = false;       ///< a side task that has not ended is on the device
  bool shares_device = false;  ///< other ranks are on it: leases need all of them to wait at once
  double duty_pct = 100;       ///< of the slowdown budget
};
/// Why a rank whose bubbles can be used gets nothing, or that it gets something; other reasons stay as they are. Pure;
/// any thread.
RankWhy with_device(RankWhy why, const DeviceFacts& facts);

}  // namespace freeride::policy
