// Verdict: how a side task ended. One kind, one cause, and what else was seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace freeride::policy {

/// How the task ended. The names on the bus are kind_name()'s.
enum class VerdictKind {
  kNone,         ///< the task has not ended
  kFinished,     ///< its plugin said that it is done, or it made the steps that were asked for
  kStopped,      ///< somebody stopped it
  kReplaced,     ///< of one content of a task: another content has taken over
  kEvicted,      ///< training needed what it held
  kOverran,      ///< it executed, or did not pause, without a lease
  kOutOfMemory,  ///< it needed more memory than it may have
  kCrashed,      ///< its process was killed by a signal
  kFailed,       ///< a transition failed, or its process ended by itself
  kRejected,     ///< it was never started: the plugin, a parameter or the request is wrong
  kLost,         ///< whoever ran it is gone; nothing is said against the task
};

/// What brought the end about. Closed: a new cause is added here, in cause_name(), and in bus/WIRE.md.
enum class Cause {
  kNone,            ///< no verdict, or one of an older version
  kDone,            ///< finished: the plugin said so
  kSteps,           ///< finished: it made the steps that were asked for
  kOrder,           ///< stopped: a user, or a worker that ends
  kReplacement,     ///< replaced: by another content
  kTrainingMemory,  ///< evicted: training needed the memory
  kTrainingCame,    ///< evicted: a training attached to a device that was given to a profile
  kLeaseEnd,        ///< overran: it executed past the end of its lease
  kNoPause,         ///< overran: it did not pause after the end of its lease
  kUnleased,        ///< overran: it executed while it said that it was paused
  kProbe,           ///< overran, lost: probes found the GPU busy while nobody had a lease
  kSlowTransition,  ///< overran: a transition that has a limit of its own took longer
  kNoMemory,        ///< out of memory: an allocation failed, and the plugin said so
  kMemoryLimit,     ///< out of memory: the kernel killed it at its limit
  kSignal,          ///< crashed
  kForbiddenCall,   ///< crashed: a system call of another architecture
  kGpuFault,        ///< crashed: what it had on the GPU faulted, as the driver or its MPS server says
  kTransition,      ///< failed: a transition returned an error, or threw
  kExit,            ///< failed: the process ended by itself
  kLimits,          ///< failed: it is where its limits do not hold (not a client of its MPS server)
  kSandbox,         ///< failed, lost: its sandbox or its processes could not be made
  kPlugin,          ///< rejected: the file is no plugin, or one for another version
  kProgram,         ///< rejected: there is no such program, or it cannot be executed
  kParameter,       ///< rejected: the plugin refused a parameter
  kNoRoom,          ///< rejected: no worker that matches could ever hold it
  kRefused,         ///< rejected: a worker refused it
  kSupervisor,      ///< lost: its supervisor ended
  kMpsServer,       ///< lost: its MPS server ended
  kDriver,          ///< lost: the GPU's driver does not answer
  kWorker,          ///< lost: its worker ended, restarted or fell silent
  kExpired,         ///< lost: its worker had not heard from the manager for too long
  kSuperseded,      ///< lost: the manager has placed it anew, under a newer epoch
};

/// What ended a task and what was seen with it. Whoever sees an end makes one of these; the first is the verdict, and
/// note_symptom() attaches the later ones.
struct Verdict {
  VerdictKind kind = VerdictKind::kNone;
  Cause cause = Cause::kNone;
  std::string message{};                ///< one sentence for people
  std::string transition{};             ///< the paper's name of where it happened; empty: in none
  int32_t signal = 0;                   ///< that ended the process; 0: none
  int32_t exit_code = -1;               ///< of the process; -1: it did not exit by itself
  std::string limit{};                  ///< that was passed, with its value and unit
  std::vector<std::string> evidence{};  ///< what else was seen, in order of time; at most kMostEvidence
  bool gpu_fault = false;               ///< the task has faulted its GPU; whoever sees it sets it, nobody takes it back
  static constexpr size_t kMostEvidence = 8;

  bool ended() const { return kind != VerdictKind::kNone; }
};

/// The first cause wins: takes `later` over whole while `first` is none; else keeps `first` and adds what `later` says
/// to its evidence, once. A signal but SIGKILL, an exit code or a limit that `first` lacks is taken over. Pure.
void note_symptom(Verdict& first, const Verdict& later);

/// A cause that was found out only after the end, but came before all that was seen of it. Examples are the kernel's
/// kill at a limit and a server's death. It becomes the verdict. If it names no transition, it takes the one of `seen`.
/// Pure.
void note_cause(Verdict& seen, Verdict before);

/// A task says that it was stopped, and nobody had ordered that: it has failed, whatever else it says. Pure.
void doubt_stop(Verdict& said);

/// Of one that was to end, and was killed for what it did meanwhile: it was stopped, if by force, and `said` tells what
/// for. A program that ends cannot be paused in it: while the kernel frees what a process has, no signal holds it.
/// Pure.
void excuse_end(Verdict& said);

/// Whether it tells against the plugin: nobody else stopped it, needed its room or lost it.
bool is_plugins_fault(VerdictKind kind);
/// Whether a profile that ended so tells nothing, and is taken again.
bool repeats_profile(VerdictKind kind);

/// For people, in one line.
std::string text_of(const Verdict& verdict);

/// The name on the bus, "" for kNone. Any thread.
const char* kind_name(VerdictKind kind);
const char* cause_name(Cause cause);
/// The value of a name from outside; nothing for one that is not known.
std::optional<VerdictKind> kind_of(std::string_view name);
std::optional<Cause> cause_of(std::string_view name);

}  // namespace freeride::policy
