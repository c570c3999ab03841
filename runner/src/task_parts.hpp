// TaskParts: what one running task consists of.
#pragma once

#include <unistd.h>

#include <memory>

#include "admission.hpp"
#include "answer.hpp"
#include "endings.hpp"
#include "held_lease.hpp"
#include "job.hpp"
#include "piece_clock.hpp"
#include "plugin_task.hpp"
#include "profile_recorder.hpp"
#include "progress.hpp"

namespace freeride::runner {

/// Made once for a task, before its plugin is loaded; the two interfaces and the state machine share it. No rules of
/// its own: each part has its own. Main thread. The pages and the descriptor are the caller's.
struct TaskParts {
  TaskParts(Job what, const freeride_lease_page& lease_page, freeride_answer_page& answer_page, int last_words_fd)
      : job(std::move(what)),
        answer(answer_page),
        task(answer, STDERR_FILENO),
        lease(lease_page, answer),
        clock(answer, lease, job.by_cpu_clock()),
        admission(job),
        progress(job, answer),
        record(job.profile ? std::make_unique<ProfileRecorder>() : nullptr),
        endings(answer, task, admission, last_words_fd) {}
  TaskParts(const TaskParts&) = delete;
  TaskParts& operator=(const TaskParts&) = delete;

  Job job;
  Answer answer;
  PluginTask task;
  HeldLease lease;
  PieceClock clock;
  Admission admission;
  Progress progress;
  std::unique_ptr<ProfileRecorder> record;  ///< of a profile
  Endings endings;
};

}  // namespace freeride::runner
