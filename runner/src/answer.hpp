// Answer: the runner's side of the answer page.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "freeride/pages.h"
#include "freeride/pages/mapping.hpp"

namespace freeride::runner {

/// Says on the answer page what the task does and has done; wakes the worker where it has to know at once. Every
/// function is a store or two, none blocks. The thread that executes the task's transitions: main. The page is the
/// caller's.
class Answer {
 public:
  explicit Answer(freeride_answer_page& page) : page_(page) {}
  freeride_answer_page& page() { return page_; }

  void enter(uint32_t transition, int64_t now_ns) {
    pages::store_relaxed(page_.transition_ns, static_cast<uint64_t>(now_ns));
    pages::store_release(page_.transition, transition);
  }
  void leave() { pages::store_release<uint32_t>(page_.transition, FREERIDE_IN_NONE); }
  /// The state, in no transition. Wakes the worker, but for RUNNING: the first step comes first, and tells by itself.
  void set_state(uint32_t state) {
    pages::store_release(page_.state, state);
    leave();
    if (state != FREERIDE_STATE_RUNNING) wake();
  }
  /// PAUSED → RUNNING in the middle of a step.
  void step_goes_on(int64_t now_ns) {
    enter(FREERIDE_IN_STEP, now_ns);
    pages::store_release<uint32_t>(page_.state, FREERIDE_STATE_RUNNING);
  }
  void wake() { pages::bump_and_wake(page_.sequence); }

  uint32_t state() const { return pages::load_relaxed(page_.state); }
  uint32_t transition() const { return pages::load_relaxed(page_.transition); }
  uint64_t steps() const { return pages::load_relaxed(page_.steps); }
  int64_t step_ns() const {
    return static_cast<int64_t>(std::min<uint64_t>(pages::load_relaxed(page_.step_ns), INT64_MAX));
  }
  uint64_t saved_lease() const { return pages::load_relaxed(page_.saved_lease); }

  void created(int64_t took_ns) { pages::store_relaxed(page_.create_ns, static_cast<uint64_t>(took_ns)); }
  void initialised(int64_t took_ns) { pages::store_relaxed(page_.init_ns, static_cast<uint64_t>(took_ns)); }
  void restored() { pages::store_relaxed<uint64_t>(page_.restored, 1); }
  void saved(uint64_t lease_id) { pages::store_relaxed(page_.saved_lease, lease_id); }
  void failed(int32_t status) { pages::store_relaxed(page_.result, static_cast<uint32_t>(status)); }
  void finished() { pages::store_relaxed<uint64_t>(page_.finished, 1); }

  void works_under(uint64_t lease_id) { pages::store_relaxed(page_.lease_id, lease_id); }
  void first_step(int64_t begin_ns) { pages::store_relaxed(page_.first_step_ns, static_cast<uint64_t>(begin_ns)); }
  void predicts(int64_t step_ns) { pages::store_relaxed(page_.predicted_ns, static_cast<uint64_t>(step_ns)); }
  void skipped() { pages::store_relaxed(page_.skipped, pages::load_relaxed(page_.skipped) + 1); }
  void sees_end(int64_t now_ns) { pages::store_relaxed(page_.pause_seen_ns, static_cast<uint64_t>(now_ns)); }
  void paused(int64_t now_ns) { pages::store_relaxed(page_.last_paused_ns, static_cast<uint64_t>(now_ns)); }
  void paused_cpu(int64_t cpu_ns) { pages::store_relaxed(page_.last_paused_cpu_ns, static_cast<uint64_t>(cpu_ns)); }

  /// A piece ends in the middle of a step. Before it is counted: a reader in between sees too little of it, never the
  /// piece twice.
  void next_piece(int64_t now_ns) { pages::store_release(page_.transition_ns, static_cast<uint64_t>(now_ns)); }
  void count_piece(int64_t took_ns, int64_t within_lease_ns) {
    pages::store_release(page_.step_ns, pages::load_relaxed(page_.step_ns) + static_cast<uint64_t>(took_ns));
    pages::store_relaxed(page_.lease_step_ns,
                         pages::load_relaxed(page_.lease_step_ns) + static_cast<uint64_t>(within_lease_ns));
  }
  void count_step() { pages::store_release(page_.steps, pages::load_relaxed(page_.steps) + 1); }

  void message(const std::string& text) {
    const size_t length = std::min(text.size(), sizeof(page_.message) - 1);
    std::memcpy(page_.message, text.c_str(), length);
    page_.message[length] = '\0';
  }

 private:
  freeride_answer_page& page_;
};

}  // namespace freeride::runner
