// GpuGuard: a GPU's limits: who may come, how much each may have, who has to go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/policy/gpu_memory.hpp"
#include "freeride/policy/verdict.hpp"
#include "gpu/gpu.hpp"
#include "gpu/mps_server.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

struct GpuGuardOptions {
  std::string gpu;                   ///< UUID
  std::string control;               ///< path of nvidia-cuda-mps-control; empty: found on the PATH
  std::filesystem::path mps_folder;  ///< pipe folders are made in here
  int64_t reserve_bytes = 0;         ///< kept free for training; 0: 5 % of the GPU, at least 2 GiB
  int64_t memory_bytes = 0;          ///< the most for all side tasks; 0: what training leaves
  int thread_pct = 100;
};

/// What a client's context takes of its limit before its first allocation, added to what a task asked for or was
/// profiled with. Measured (H200, driver 580, small modules): 517 MiB with all threads, 272 MiB with half of them.
constexpr int64_t kMpsContextBytes = 640ll << 20;
/// What a server takes beside its client's limit. Measured: 66 MiB.
constexpr int64_t kMpsServerBytes = 96ll << 20;

/// One per worker on a GPU. Main thread; nothing here blocks for longer than the driver's answer to a look.
class GpuGuard {
 public:
  struct Calls {
    std::function<bool()> training;            ///< whether trainers' ranks are attached
    std::function<pid_t(uint64_t task)> root;  ///< the process that all of a task's come from; 0: it has none yet
    /// The task is to be killed at once, with this verdict.
    std::function<void(uint64_t task, policy::Verdict verdict)> end;
    /// Its own memory on the GPU (its MPS server's is not), at every look.
    std::function<void(uint64_t task, int64_t bytes)> memory;
    /// Who is on the GPU, and neither a side task's nor ours: at every look. May be missing.
    std::function<void(const std::set<pid_t>& pids)> others{};
    /// What training was refused just now, bytes; 0: nothing. May be missing.
    std::function<int64_t()> wanted{};
    /// Whether it has had a lease yet, if only to initialise: before it nobody may be on the GPU. May be missing.
    std::function<bool(uint64_t task)> leased{};
    /// The worker's own process on the GPU; 0: there is none. May be missing.
    std::function<pid_t()> own{};
    /// The GPU has faulted: this task's work, as its MPS server says; 0: training, or whoever else is on it. `xid`: the
    /// driver's number; 0: it has said none. May be missing.
    std::function<void(uint64_t task, uint32_t xid)> fault{};
  };
  using Ready = std::function<void(Result<SandboxGrants>)>;

  /// Opens the GPU and looks whether side tasks can be held there. Errors, each one line: no driver, no such GPU, MIG,
  /// another compute mode than DEFAULT, no MPS control program, somebody else's MPS.
  static Result<std::unique_ptr<GpuGuard>> open(const GpuGuardOptions& options, Loop& loop, Calls calls);
  /// The same with a GPU that is open already.
  static Result<std::unique_ptr<GpuGuard>> open(const GpuGuardOptions& options, Loop& loop, Calls calls,
                                                std::unique_ptr<Gpu> gpu);
  ~GpuGuard();
  GpuGuard(const GpuGuard&) = delete;
  GpuGuard& operator=(const GpuGuard&) = delete;

  const std::string& model() const { return gpu_->model(); }
  const std::string& serial() const { return gpu_->serial(); }
  /// The most that side tasks could have with no trainer here.
  int64_t capacity_bytes() const;
  /// What one more task may ask for now: its context's and server's own memory is taken off already.
  int64_t usable_bytes() const;
  /// Takes a task of this many bytes in. Its room is held from now until release(). Errors: kRejected (a limit that
  /// makes no sense), kExhausted (no room now), kUnavailable (somebody else's MPS, the compute mode).
  Status admit(uint64_t task, int32_t priority, int64_t memory_bytes);
  bool has(uint64_t task) const { return tenants_.count(task) != 0; }
  /// Starts the MPS server of an admitted task. `ready` is called later, once, unless the task is released before.
  void prepare(uint64_t task, TaskIdentity identity, Ready ready);
  /// A fault of the GPU that its MPS server says to be the task's work. Nothing once it has been released.
  struct Fault {
    uint32_t xid = 0;  ///< 0: the driver has said none
  };
  std::optional<Fault> fault_of(uint64_t task);
  /// The task has ended: its server goes, its room is free.
  void release(uint64_t task);
  /// Whether nothing of side tasks or this worker is on the GPU: asked now. Errors: kUnavailable (something is, which
  /// the message names, or the driver does not answer).
  Status check_empty();
  /// Whether the driver lists `pid`, and not as a side task or this worker's own: asked now. Errors: kPermission (it
  /// does not), kUnavailable (the driver does not answer).
  Status check_training(pid_t pid);
  /// The same as of the last look.
  bool on_gpu(pid_t pid) const { return others_.count(pid) != 0; }

 private:
  struct Tenant {
    int32_t priority = 0;
    int64_t limit_bytes = 0;  // at the server
    int64_t used_bytes = 0;   // its server's included
    int64_t own_bytes = 0;
    std::unique_ptr<MpsServer> server;
    std::set<pid_t> present;       // its processes on the GPU, the server's included, in the last look
    std::set<pid_t> members;       // known to be its own server's clients
    int64_t outside_since_ns = 0;  // a process of it is on the GPU and no client
    int64_t strange_since_ns = 0;  // one is a client, but its own server does not name it
    int64_t checked_ns = 0;
    bool checking = false, ending = false;
    std::optional<Fault> fault;
  };
  GpuGuard(GpuGuardOptions options, Loop& loop, Calls calls, std::unique_ptr<Gpu> gpu);
  Status check();
  Status check_mode();
  Status look();
  void tick();
  void evict();
  void look_for_faults(int64_t now_ns);
  void blame(uint64_t task, uint32_t xid, int64_t now_ns);
  void judge(uint64_t task, const std::vector<pid_t>& outside, const std::vector<pid_t>& clients, int64_t now_ns);
  void check_members(uint64_t task, const std::vector<pid_t>& clients);
  void end(uint64_t task, policy::VerdictKind kind, policy::Cause cause, std::string message, std::string limit);
  uint64_t task_of(pid_t pid, bool& server) const;
  std::string describe(int64_t limit_bytes) const;
  void see_foreign(pid_t pid, int64_t now_ns);
  policy::GpuMemorySnapshot snapshot() const;

  GpuGuardOptions options_;
  Loop& loop_;
  Calls calls_;
  std::unique_ptr<Gpu> gpu_;
  std::string prefix_;
  int64_t total_bytes_ = 0;
  policy::TrainingMemory training_;
  int64_t own_bytes_ = 0;  // of the worker's own process
  std::map<uint64_t, Tenant> tenants_;
  std::set<pid_t> leaving_;  // of tasks that have ended, and probes: side tasks' until they are off the GPU
  pid_t own_ = 0;            // the worker's own process at the last look
  std::set<pid_t> others_;   // on the GPU in the last look, and neither side tasks' nor ours
  pid_t foreign_ = 0;        // a client of an MPS server that is not ours
  int64_t foreign_since_ns_ = 0;
  int64_t quiet_since_ns_ = 0;
  bool told_ = false, timer_started_ = false;
  Loop::Timer timer_ = 0;
  // Xids that nobody has been blamed for yet, and when they were heard; and who was blamed last.
  std::vector<std::pair<uint32_t, int64_t>> xids_;
  uint64_t blamed_ = 0;
  int64_t blamed_ns_ = 0;
};

}  // namespace freeride::worker
