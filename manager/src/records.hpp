// What the core keeps in memory of tasks, workers and profile runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"
#include "state_store.hpp"

namespace freeride::manager {

/// A task. row.info.state.state tells users where it is; phase tells the manager what to do next.
struct Task {
  enum class Phase {
    kQueued,    ///< to be profiled or placed
    kCreating,  ///< its worker has been told to make it, and has not reported it yet
    kPlaced,    ///< its worker has reported it (or did so to the manager before a restart)
    kEnded,
  };
  TaskRow row;
  Phase phase = Phase::kQueued;
  std::string last_worker;   ///< where it was before it was queued again: may be adopted back from there
  std::string queued_since;  ///< why it was queued again; empty: it was not
  std::string create_id;     ///< request id of the CreateTask under way
  int64_t create_sent_ns = 0;
  uint32_t create_tries = 0;
  uint32_t profile_failures = 0;
  int64_t not_before_ns = 0;         ///< queued: not to be placed earlier, since a worker has just said no
  int64_t reported_ns = 0;           ///< placed: when its worker last named it
  bus::TaskCounters earlier_before;  ///< row.earlier as it was before it was queued again
  mutable std::map<std::string, std::string> profile_keys;  ///< by device model; hashing is not free
  std::vector<uint64_t> replace_waiting;                    ///< tickets of those who wait for the replacement under way
  int64_t replace_sent_ns = 0;
  bool unsaved = false;  ///< the disk has not taken the present state yet

  bus::TaskState& state() { return row.info.state; }
  const bus::TaskState& state() const { return row.info.state; }
  const std::string& name() const { return row.info.state.task; }
  bool replacing() const { return row.info.replacement.state == "pending"; }
  bool live() const { return phase != Phase::kEnded; }
  bool on_worker() const { return phase == Phase::kCreating || phase == Phase::kPlaced; }
  const char* order() const { return row.stopping ? "stop" : state().paused_by_user ? "pause" : "run"; }
};

struct Worker {
  enum class State { kUp, kDown, kLost };
  std::string name, incarnation, peer, host, device, model, sandbox;
  uint32_t pid = 0;
  int64_t memory_bytes = 0, usable_bytes = 0;
  int64_t context_bytes = 0;  ///< given to each task beside what it asks for
  State state = State::kUp;
  int64_t heard_ns = 0;
  std::map<std::string, bus::TaskReport> tasks;  ///< of its last report, by name
  std::vector<bus::TrainingState> ranks;
  std::map<std::string, bus::PluginState> plugins;  ///< by file name
  bool plan_due = false;                            ///< its plan has changed since it last took one
  std::string plan_id;                              ///< request id of the plan under way; empty: none
  bus::WorkerState published;

  bool up() const { return state == State::kUp; }
  bool on_gpu() const { return device.rfind("GPU-", 0) == 0; }
};

/// Someone who follows a profile run, and is answered when there is something new.
struct Follower {
  uint64_t ticket = 0;
  std::string state;  ///< as it knows it
  uint64_t steps = 0;
  int64_t since_ns = 0;
};

/// A profile being taken. It runs on its worker as a task of its own, under a name of its own.
struct ProfileRun {
  std::string name, key, worker, plugin, sha256;
  std::map<std::string, std::string> params;
  int64_t started_ns = 0, create_sent_ns = 0, memory_bytes = 0;
  int64_t seen_ns = 0;  ///< when the worker took it, or last reported it; 0: not yet
  bool lost = false, network = false;
  uint64_t wanted_steps = 0;
  bool asked = false;       ///< by a client, who follows it; else it is for tasks in the queue alone
  int64_t followed_ns = 0;  ///< when that client was last heard of
  std::vector<Follower> followers;
  std::string state = "starting";
  uint64_t steps = 0;
};

/// How a run ended, for a client that has not heard of it yet.
struct EndedRun {
  bus::ProfileReply reply;
  int64_t ended_ns = 0;
};

/// A command that a worker has not answered yet.
struct Pending {
  enum class Kind { kCreate, kOrder, kPlan, kLog, kReplace };
  Kind kind;
  std::string peer, worker;
  int64_t task = 0;     ///< kCreate, kOrder, kLog, kReplace
  std::string profile;  ///< kCreate of a profile run: its name
  uint64_t ticket = 0;  ///< kLog: who asked
  int64_t sent_ns = 0;
};

}  // namespace freeride::manager
