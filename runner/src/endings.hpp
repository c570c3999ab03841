// Endings: what the runner says when a task ends.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "admission.hpp"
#include "answer.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/verdict.hpp"
#include "plugin_task.hpp"

namespace freeride::runner {

/// What a part of the task's life leaves to do.
enum class Next {
  kGoOn,   ///< its next lease
  kDone,   ///< its work is done: StopSideTask (Progress says why)
  kEnded,  ///< nothing: last words have been said
};

/// Turns what a transition returned or threw into last words, once: what is said first counts. Main thread. May call
/// destroy(), and so block; the words have been written by then. Everything given is the caller's.
class Endings {
 public:
  Endings(Answer& answer, PluginTask& task, const Admission& admission, int last_words_fd)
      : answer_(answer), task_(task), admission_(admission), last_words_fd_(last_words_fd) {}

  /// All return kEnded. `reason`: empty for what the plugin said, or what the status means.
  Next failed(uint32_t transition, freeride_status status, std::string reason = {});
  Next threw(const char* what, bool out_of_memory);
  Next rejected(policy::Cause cause, const Error& error);
  /// StopSideTask has returned; `threads_before` there were when nothing of the plugin had been loaded.
  Next in_order(policy::VerdictKind kind, policy::Cause cause, const std::string& reason, uint32_t threads_before);

  /// Runs a phase of the task's life; what it throws is thrown in the transition that the answer page says.
  template <class Phase>
  Next guarded(Phase phase) {
    try {
      return phase();
    } catch (const std::bad_alloc& error) {
      return threw(error.what(), true);
    } catch (const std::exception& error) {
      return threw(error.what(), false);
    } catch (...) {
      return threw("something that is no std::exception", false);
    }
  }

 private:
  void say(policy::VerdictKind kind, policy::Cause cause, uint32_t transition, const std::string& reason);

  Answer& answer_;
  PluginTask& task_;
  const Admission& admission_;
  const int last_words_fd_;
  uint32_t threads_left_ = 0, threads_awake_ = 0;
  bool said_ = false;
};

/// What a status that is no success means, for people.
std::string status_text(freeride_status status);

}  // namespace freeride::runner
