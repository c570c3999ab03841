#include "freeride/policy/rank_why.hpp"

#include "freeride/policy/length_learner.hpp"

namespace freeride::policy {
namespace {

struct Row {
  RankWhy why;
  const char* name;
  bool in_the_way;  // what has been asked for, or said elsewhere, is not
  const char* text;
};

constexpr Row kRankWhys[] = {
    {RankWhy::kUsable, "usable", false, "its bubbles can be used"},
    {RankWhy::kHookOff, "hook_off", false, "FREERIDE_HOOK=0 keeps the hook off: unset it before the next start"},
    {RankWhy::kNotAsked, "not_asked", true,
     "nothing has asked for the hook: start the script with python -m freeride.run, or let it call freeride.attach()"},
    {RankWhy::kNoGroup, "no_group", true,
     "torch.distributed has no default group yet: the rank attaches at init_process_group(). What does not use "
     "torch.distributed, such as JAX, marks its waits by the C API"},
    {RankWhy::kFrameworkSilent, "framework_silent", true,
     "a pipeline framework was imported, and has told no pipeline of this rank: if the pipeline is the script's own, "
     "name its ranks in FREERIDE_GROUP"},
    {RankWhy::kFailed, "failed", false,
     "the hook met an error and is off: its line on standard error names it; mend it before the next start"},
    {RankWhy::kDisabled, "disabled", false, "the script has called freeride.disable(): freeride.enable() undoes it"},
    {RankWhy::kEnded, "ended", false, "the training has ended"},
    {RankWhy::kNoMessages, "no_messages", true,
     "no message of a pipeline was seen. If the training has stages, name their ranks in FREERIDE_GROUP; if it has "
     "none, mark where it leaves its device alone, by freeride.idle()"},
    {RankWhy::kOtherGroups, "other_groups", true,
     "the rank receives messages, but of groups or ranks that are taken for no pipeline's: if they are one, name its "
     "ranks in FREERIDE_GROUP"},
    {RankWhy::kPeersElsewhere, "peers_elsewhere", true,
     "the rank receives from other hosts only, and such receives are not held: put two stages on a host, or try "
     "FREERIDE_HOLD_HOSTS=1"},
    {RankWhy::kNeverWaits, "never_waits", true,
     "the pipeline's messages were there whenever the rank came to wait for them"},
    {RankWhy::kNoIterations, "no_iterations", true,
     "no iteration has ended, since no optimizer has made a step: call freeride.iteration_end() after each"},
    {RankWhy::kFewIterations, "few_iterations", true,
     "the optimizer makes many more steps than there are iterations with waits: messages of the pipeline are taken for "
     "another's; name its ranks in FREERIDE_GROUP"},
    {RankWhy::kLearning, "learning", true, "the bubbles' lengths are not learned yet: that takes ten iterations"},
    {RankWhy::kLengthsVary, "lengths_vary", true,
     "the number of waits changes from iteration to iteration, so no length is learned: let iterations have the same "
     "number of micro-batches"},
    {RankWhy::kTooShort, "too_short", true, "all bubbles are too short for a lease"},
    {RankWhy::kNoWorker, "no_worker", false,
     "its bubbles can be used, but no worker has the rank: start freeride-worker for its device"},
    {RankWhy::kHarvesting, "harvesting", false, "side tasks make steps in its bubbles"},
    {RankWhy::kDrained, "drained", false,
     "its device is drained, so it has no side tasks: freeride-ctl uncordon lets them return"},
    {RankWhy::kNoTask, "no_task", false,
     "its bubbles can be used, but no side task is on its device: load one with freeride-ctl load"},
    {RankWhy::kSharedDevice, "shared_device", false,
     "another rank is on its device, and side tasks run only while all of a device's ranks wait: give each rank a "
     "device of its own"},
    {RankWhy::kThrottled, "throttled", false,
     "the slowdown budget leaves side tasks few iterations: freeride-ctl report says what they cost training"},
    {RankWhy::kTasksWait, "tasks_wait", false,
     "side tasks are on its device, and none makes steps in its bubbles: freeride-ctl why TASK says why"},
    {RankWhy::kDied, "died", false, "its process has ended without a word: see its own output"},
    {RankWhy::kWorkerLost, "worker_lost", false,
     "its worker is gone or not heard, so nothing is known of the rank: see freeride-ctl workers, and start it again"},
    {RankWhy::kUntold, "unknown", false,
     "its worker or the manager is of an older version, which does not tell: update it"},
};

constexpr double kFullDutyPct = 100;

const Row* row_of(RankWhy why) {
  for (const Row& row : kRankWhys) {
    if (row.why == why) return &row;
  }
  return nullptr;
}

// What only the rank's process knows, and only while its page shows nothing better.
RankWhy unmarked(uint32_t noted) {
  switch (const auto why = static_cast<RankWhy>(noted)) {
    case RankWhy::kOtherGroups:
    case RankWhy::kPeersElsewhere:
    case RankWhy::kNeverWaits:
    case RankWhy::kFrameworkSilent:
      return why;
    default:
      return RankWhy::kNoMessages;
  }
}

RankWhy unlearned(const RankFacts& facts) {
  if (facts.bubbles == 0) return unmarked(facts.noted);
  if (facts.iterations == 0) return RankWhy::kNoIterations;
  if (facts.noted == static_cast<uint32_t>(RankWhy::kFewIterations)) return RankWhy::kFewIterations;
  if (facts.samples >= LengthLearner::kLeastSamples) return RankWhy::kTooShort;
  return facts.iterations < RankJudge::kLearnedBy ? RankWhy::kLearning : RankWhy::kLengthsVary;
}

}  // namespace

const char* rank_why_name(RankWhy why) {
  const Row* row = row_of(why);
  return row == nullptr ? "" : row->name;
}

RankWhy rank_why_of(std::string_view name) {
  for (const Row& row : kRankWhys) {
    if (name == row.name) return row.why;
  }
  return RankWhy::kNone;
}

const char* rank_why_text(RankWhy why) {
  const Row* row = row_of(why);
  return row == nullptr ? "" : row->text;
}

bool is_in_the_way(RankWhy why) {
  const Row* row = row_of(why);
  return row != nullptr && row->in_the_way;
}

RankWhy RankJudge::judge(const RankFacts& facts) {
  if (facts.hook == RankFacts::Hook::kGone) return RankWhy::kEnded;
  if (facts.hook == RankFacts::Hook::kOff) {
    return facts.noted == static_cast<uint32_t>(RankWhy::kFailed) ? RankWhy::kFailed : RankWhy::kDisabled;
  }
  if (facts.usable) usable_in_ = facts.iterations;
  if (!usable_in_ || facts.iterations - *usable_in_ > kLately) return unlearned(facts);
  return facts.has_worker ? RankWhy::kUsable : RankWhy::kNoWorker;
}

RankWhy with_device(RankWhy why, const DeviceFacts& facts) {
  if (why != RankWhy::kUsable) return why;
  if (facts.drained) return RankWhy::kDrained;
  if (facts.harvested) return RankWhy::kHarvesting;
  if (!facts.has_task) return RankWhy::kNoTask;
  if (facts.shares_device) return RankWhy::kSharedDevice;
  return facts.duty_pct < kFullDutyPct ? RankWhy::kThrottled : RankWhy::kTasksWait;
}

}  // namespace freeride::policy
