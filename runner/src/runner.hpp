// The runner proper: one side task's state machine, in a process of its own, driven by the lease page.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "confine.hpp"
#include "freeride/pages.h"
#include "freeride/pages/mapping.hpp"
#include "freeride/policy/piece_fit.hpp"
#include "freeride/policy/verdict.hpp"
#include "host.hpp"
#include "plugin.hpp"
#include "profile_recorder.hpp"
#include "workload.hpp"

namespace freeride::runner {

/// What the runner is to run.
struct Job {
  std::string plugin;   ///< path
  std::string task;     ///< name
  std::string device;   ///< "cpu-N" or a GPU's UUID
  std::string scratch;  ///< folder
  Params params;        ///< as given by the user
  uint64_t steps = 0;   ///< stop after so many; 0: until it finishes or is stopped; profile: as many as it takes
  int64_t predicted_step_ns = 0;             ///< from its profile; 0: not known
  std::vector<int64_t> predicted_pieces_ns;  ///< of a step with yield points, by place; empty: there are none
  bool profile = false;                      ///< ends once enough is known, and writes what it was into state_out_fd
  int state_in_fd = -1;   ///< file to go on from (saved_state.hpp), read when it is initialised; -1: none
  int state_out_fd = -1;  ///< pipe for what a save grant asks for, or for a profile's record; -1: for neither
  Confinement confinement;
};

/// What the plugin's process and its supervisor share beside the pages.
struct Thaw {
  uint32_t wanted = 0;  ///< futex word. 1: this process stops itself between leases, so wake it with SIGCONT
};

/// Runs one task to its end. All on the main thread; run() blocks until the task's end, sleeping on the lease page's
/// futex while there is no lease. Reads the lease page, writes the answer page; holds no other descriptor of the
/// worker.
class Runner {
 public:
  /// `thaw`: shared with the supervisor; nullptr: there is nobody who wakes a process that stops itself.
  Runner(Job job, const freeride_lease_page& lease, freeride_answer_page& answer, int last_words_fd, Thaw* thaw);

  /// Load, CreateSideTask, then whatever leases and orders say. Never throws: what the plugin throws becomes the
  /// outcome. The outcome has been written to the supervisor's pipe before the plugin's destroy() ran.
  void run();

 private:
  enum class Next { kGoOn, kEnded };

  // Transitions.
  void enter(uint32_t transition, int64_t now_ns);
  void leave();
  void set_state(uint32_t state);
  freeride_status call(uint32_t transition, freeride_status (*function)(void*), int64_t now_ns);

  Next create();
  Next loop();
  Next act(const pages::Lease& lease, uint32_t sequence);
  Next init();
  Next restore();
  Next save(const pages::Lease& lease);
  Next profile(const pages::Lease& lease, uint32_t sequence);
  Next run_lease(const pages::Lease& lease, uint32_t sequence);
  Next run_workload(const pages::Lease& lease, uint32_t sequence);
  Next profile_workload(int64_t until_ns);
  Next profiled();
  bool profiled_enough() const;
  void started(int64_t begin_ns);
  void seed();
  freeride_status prepare_workload();
  void open_workload();
  void ask_for_thaw();
  Next end_workload();
  void freeze();
  Next step(int64_t begin_ns);
  void first_of_lease(int64_t begin_ns);
  int64_t end_piece(int64_t end_ns);
  Next pause();
  void skip(const pages::Lease& lease);
  bool go_on();

  // Yield points.
  freeride_status yield_point();
  freeride_status yield_queued(const Host::Wait& wait);
  freeride_status end_of_piece(bool open);
  int64_t piece_ends();
  bool may_go_on();
  freeride_status wait_at_yield_point();
  bool resume(const pages::Lease& lease, uint32_t sequence);

  // Endings.
  Next stop(policy::VerdictKind kind, policy::Cause cause, const std::string& reason);
  Next failed(uint32_t transition, freeride_status status, std::string reason = {});
  Next threw(uint32_t transition, const char* what, bool out_of_memory);
  Next rejected(policy::Cause cause, const Error& error);
  void say(policy::VerdictKind kind, policy::Cause cause, uint32_t transition, const std::string& reason);
  void destroy();

  // A try costs training what one piece is longer than a lease, so it may come soon; each that does cost doubles the
  // distance to the next one.
  static constexpr policy::StepFit::Options kPauses = [] {
    policy::StepFit::Options options;
    options.patience = 1;
    options.keeps_trying = true;
    options.enough = policy::StepFit::kWindow / 2;  // a new thread's first pieces can take a second each
    return options;
  }();

  Job job_;
  const freeride_lease_page& lease_;
  freeride_answer_page& answer_;
  const int last_words_fd_;
  const bool by_cpu_clock_;
  Thaw* const thaw_;
  Host host_;
  freeride_plugin table_{};
  const freeride_plugin* plugin_ = nullptr;
  void* task_ = nullptr;
  policy::PieceFit fit_;
  std::unique_ptr<ProfileRecorder> record_;  ///< of a profile
  pages::Lease held_;                        ///< under which steps run
  uint32_t held_sequence_ = 0;               ///< of the page when it was read
  uint64_t steps_before_ = 0;                ///< of the task's earlier runs, by the state it went on from
  uint64_t last_run_lease_ = 0;              ///< lease of the last step
  uint64_t last_skipped_lease_ = 0;
  int64_t now_ns_ = 0;  ///< end of the last step: begin of the next, one clock call saved
  int64_t cpu_ns_ = 0;  ///< main thread's CPU clock at the same moment
  uint32_t threads_before_ = 0;
  uint32_t threads_left_ = 0, threads_awake_ = 0;
  int64_t piece_begin_ns_ = 0;
  bool in_step_ = false;
  bool ahead_ = false;   ///< the present piece is still on the GPU, and the one after it is being queued
  bool behind_ = false;  ///< the present piece was queued behind another one
  bool imperative_ = false;
  Workload workload_;
  policy::StepFit pauses_{kPauses};  ///< from the gate's closing to PauseSideTask's end, in the imperative interface
  bool tries_ = false;               ///< the gate lets one piece pass, though it should not fit
  bool stuck_ = false;               ///< it was stopped in the middle of a piece,
  uint32_t stuck_at_ = 0;            ///< the one after it had come to its gate so many times
  bool told_ = false;                ///< the worker, of the first step under the lease
  bool abandoned_ = false;           ///< the present step was told so
  bool finished_ = false;
  bool said_ = false;
};

/// Child process entry: sets up the process (session, signals, descriptors, confinement), runs the job, exits. Never
/// returns. `listener_socket` takes the listener of confine_plugin(); -1 where the job is not confined.
[[noreturn]] void run_child(Job job, const freeride_lease_page& lease, int answer_fd, int last_words_fd,
                            int listener_socket, Thaw* thaw);

}  // namespace freeride::runner
