#include "gpu/gpu_guard.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// From a look that shows the growth to the freed memory it takes about 0.1 s (H200), and half of the reserve has to
// last for so long: 3.5 GiB of an H200, so for training that grows by some 30 GiB/s.
constexpr int64_t kLeastReserve = 2048 * kMiB;
constexpr int64_t kReserveShare = 20;  // one part in so many
// How long an MPS server is given to say that it was its client, and how long after a fault others still come of it.
constexpr int64_t kBlameNs = kNsPerSec, kAfterFaultNs = 2 * kNsPerSec;
// The driver tells no change, so it is looked at: often enough that a trainer which allocates 1 GiB every 20 ms is seen
// before half of the least reserve is gone, and cheap (about 20 µs).
constexpr int64_t kLookNs = 10 * kNsPerMs;
constexpr int64_t kIdleLookNs = kNsPerSec;  // no side task on the GPU
// A process is on the GPU before it is a client, and a client before its server names it: contexts take 90 to 360 ms to
// make.
constexpr int64_t kOutsideNs = 500 * kNsPerMs;
// Longer where a training keeps the GPU busy meanwhile and a context brings as many kernels as LibTorch's. What such a
// client holds counts all the while.
constexpr int64_t kStrangeNs = 3 * kNsPerSec;
constexpr int64_t kCheckNs = 100 * kNsPerMs;  // a question to the control daemon is a process
constexpr int64_t kForeignNs = 2 * kNsPerSec;
constexpr int kMostAncestors = 64;

std::string mib(int64_t bytes) {
  return std::to_string(bytes / kMiB) + " MiB";
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// 0: it has none, or is gone.
pid_t parent_of(pid_t pid) {
  const std::string stat = first_line("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(stat.substr(name_end + 1));
  std::string state;
  pid_t parent = 0;
  rest >> state >> parent;
  return parent;
}

// The control daemon that a program without a setting of its own would become a client of; 0: there is none.
pid_t default_control(std::string& folder) {
  const char* named =
      std::getenv("CUDA_MPS_PIPE_DIRECTORY");  // NOLINT(concurrency-mt-unsafe): before other threads start
  folder = named != nullptr && *named != '\0' ? named : "/tmp/nvidia-mps";
  const pid_t pid = std::atoi(first_line(folder + "/nvidia-cuda-mps-control.pid").c_str());
  if (pid <= 1) return 0;
  // The number may be somebody else's by now.
  return first_line("/proc/" + std::to_string(pid) + "/comm").rfind("nvidia-cuda-mps", 0) == 0 ? pid : 0;
}

}  // namespace

Result<std::unique_ptr<GpuGuard>> GpuGuard::open(const GpuGuardOptions& options, Loop& loop, Calls calls) {
  auto gpu = open_gpu(options.gpu);
  if (!gpu.ok()) return gpu.error();
  return open(options, loop, std::move(calls), std::move(*gpu));
}

Result<std::unique_ptr<GpuGuard>> GpuGuard::open(const GpuGuardOptions& options, Loop& loop, Calls calls,
                                                 std::unique_ptr<Gpu> gpu) {
  std::unique_ptr<GpuGuard> guard(new GpuGuard(options, loop, std::move(calls), std::move(gpu)));
  if (auto checked = guard->check(); !checked.ok()) return checked.error();
  guard->timer_started_ = true;
  guard->tick();
  return guard;
}

GpuGuard::GpuGuard(GpuGuardOptions options, Loop& loop, Calls calls, std::unique_ptr<Gpu> gpu)
    : options_(std::move(options)), loop_(loop), calls_(std::move(calls)), gpu_(std::move(gpu)) {
  // Short, since a socket's whole path has 107 bytes; the first part of a UUID tells the GPUs of a host apart.
  const size_t start = options_.gpu.find('-');
  prefix_ = options_.gpu.substr(start == std::string::npos ? 0 : start + 1, 13) + "-";
}

GpuGuard::~GpuGuard() {
  loop_.cancel(timer_);
  tenants_.clear();
  sweep_mps_folders(options_.mps_folder, prefix_);
}

Status GpuGuard::check_mode() {
  const auto mode = gpu_->compute_mode();
  if (!mode.ok()) return mode.error();
  if (*mode == ComputeMode::kDefault) return {};
  return Error{Code::kUnavailable,
               "GPU " + options_.gpu + " is in compute mode " +
                   (*mode == ComputeMode::kExclusive ? "EXCLUSIVE_PROCESS: training and side tasks cannot both be on it"
                                                     : "PROHIBITED"),
               "set it with: nvidia-smi -i " + options_.gpu + " -c DEFAULT"};
}

Status GpuGuard::check() {
  if (gpu_->mig()) {
    return Error{Code::kUnavailable, "GPU " + options_.gpu + " is split with MIG, which is not supported",
                 "switch it off with: nvidia-smi -i " + options_.gpu + " -mig 0"};
  }
  if (auto mode = check_mode(); !mode.ok()) return mode;
  const std::string named = options_.control;
  if (options_.control.empty()) options_.control = find_on_path("nvidia-cuda-mps-control").string();
  if (options_.control.empty() || access(options_.control.c_str(), X_OK) != 0) {
    return Error{
        Code::kUnavailable,
        "there is no MPS control program (" + (named.empty() ? "nvidia-cuda-mps-control on the PATH" : named) + ")",
        "install the driver's MPS, or name it with --mps-control"};
  }
  std::string folder;
  if (const pid_t pid = default_control(folder); pid != 0) {
    return Error{Code::kUnavailable,
                 "somebody else's MPS is running (pid " + std::to_string(pid) + ", " + folder +
                     "): training would become its client",
                 "stop it with: echo quit | CUDA_MPS_PIPE_DIRECTORY=" + folder + " nvidia-cuda-mps-control"};
  }
  sweep_mps_folders(options_.mps_folder, prefix_);
  if (auto looked = look(); !looked.ok()) return looked;
  if (foreign_ != 0) {
    return Error{Code::kUnavailable,
                 "somebody else's MPS is on GPU " + options_.gpu + " (pid " + std::to_string(foreign_) + ")",
                 "stop it first; training must not be a client of an MPS server"};
  }
  if (options_.reserve_bytes == 0) options_.reserve_bytes = std::max(kLeastReserve, total_bytes_ / kReserveShare);
  if (options_.reserve_bytes < 0 || options_.reserve_bytes >= total_bytes_) {
    return Error{Code::kInvalidArgument,
                 "a reserve of " + mib(options_.reserve_bytes) + " makes no sense: the GPU has " + mib(total_bytes_),
                 "correct --reserve-bytes"};
  }
  return {};
}

int64_t GpuGuard::capacity_bytes() const {
  const int64_t most = total_bytes_ - options_.reserve_bytes - kMpsContextBytes - kMpsServerBytes;
  return std::max<int64_t>(0, options_.memory_bytes > 0 ? std::min(most, options_.memory_bytes) : most);
}

policy::GpuMemorySnapshot GpuGuard::snapshot() const {
  policy::GpuMemorySnapshot snapshot;
  snapshot.total_bytes = total_bytes_;
  // Refused memory counts as if training had it: whoever stands in its way goes, and nobody comes.
  const int64_t wanted = calls_.wanted ? calls_.wanted() : 0;
  snapshot.training_bytes = training_.high_bytes() + own_bytes_ + std::clamp<int64_t>(wanted, 0, total_bytes_);
  snapshot.reserve_bytes = options_.reserve_bytes;
  for (const auto& [id, tenant] : tenants_) {
    if (!tenant.ending)
      snapshot.tasks.push_back({id, tenant.priority, tenant.limit_bytes + kMpsServerBytes, tenant.used_bytes});
  }
  return snapshot;
}

int64_t GpuGuard::usable_bytes() const {
  int64_t usable = policy::usable_bytes(snapshot());
  if (options_.memory_bytes > 0) {
    int64_t left = options_.memory_bytes + kMpsContextBytes + kMpsServerBytes;
    for (const auto& [id, tenant] : tenants_) left -= tenant.limit_bytes + kMpsServerBytes;
    usable = std::min(usable, left);
  }
  return std::max<int64_t>(0, usable - kMpsContextBytes - kMpsServerBytes);
}

Status GpuGuard::admit(uint64_t task, int32_t priority, int64_t memory_bytes) {
  if (memory_bytes <= 0 || memory_bytes > capacity_bytes()) {
    return Error{Code::kRejected,
                 "a memory limit of " + mib(memory_bytes) + " makes no sense on GPU " + options_.gpu +
                     ": side tasks can have up to " + mib(capacity_bytes()),
                 "declare another one with --memory"};
  }
  if (foreign_ != 0) {
    return Error{Code::kUnavailable,
                 "somebody else's MPS is on GPU " + options_.gpu + " (pid " + std::to_string(foreign_) + ")",
                 "stop it"};
  }
  if (auto mode = check_mode(); !mode.ok()) return mode;
  if (const int64_t usable = usable_bytes(); memory_bytes > usable) {
    return Error{Code::kExhausted,
                 "needs " + mib(memory_bytes) + " of GPU memory; training's " + mib(training_.high_bytes()) +
                     ", the reserve and live tasks leave " + mib(usable),
                 ""};
  }
  if (tenants_.empty()) {  // the next look is a long way off
    loop_.cancel(timer_);
    timer_ = loop_.at(SteadyClock::now() + kLookNs, [this] { tick(); });
  }
  Tenant& tenant = tenants_[task];
  tenant.priority = priority;
  tenant.limit_bytes = (memory_bytes + kMpsContextBytes + kMiB - 1) / kMiB * kMiB;
  return {};
}

void GpuGuard::prepare(uint64_t task, TaskIdentity identity, Ready ready) {
  const auto it = tenants_.find(task);
  if (it == tenants_.end()) return;
  MpsRequest request;
  request.control = options_.control;
  request.folder = options_.mps_folder / (prefix_ + std::to_string(task));
  request.gpu = options_.gpu;
  request.identity = identity;
  request.limit_bytes = it->second.limit_bytes;
  request.thread_pct = options_.thread_pct;
  auto server = MpsServer::start(
      request, loop_,
      [this, request, ready](Status status) {
        if (!status.ok()) return ready(status.error());
        SandboxGrants grants;
        grants.env = {{"CUDA_VISIBLE_DEVICES", request.gpu},
                      {"CUDA_MPS_PIPE_DIRECTORY", request.folder.string()},
                      {"CUDA_MPS_LOG_DIRECTORY", request.folder.string()}};
        std::error_code error;
        for (const auto& node : std::filesystem::directory_iterator("/dev", error)) {
          if (node.path().filename().string().rfind("nvidia", 0) == 0 && node.is_character_file(error))
            grants.devices.push_back(node.path().string());
        }
        grants.folders = {request.folder.string()};
        grants.limits = describe(request.limit_bytes);
        // A sandbox has the system's libraries; a driver that lies elsewhere has to be brought.
        const std::string& driver = gpu_->driver_folder();
        if (!driver.empty() && driver.rfind("/usr/lib", 0) != 0 && driver.rfind("/lib", 0) != 0) {
          grants.files.push_back(driver);
          const char* others = std::getenv("LD_LIBRARY_PATH");  // NOLINT(concurrency-mt-unsafe): nobody changes it
          grants.env["LD_LIBRARY_PATH"] =
              driver + (others != nullptr && *others != '\0' ? std::string(":") + others : "");
        }
        ready(grants);
      },
      [this, task](const std::string& how) {
        end(task, policy::VerdictKind::kLost, policy::Cause::kMpsServer, how, "MPS server");
      });
  if (server.ok()) {
    it->second.server = std::move(*server);
    return;
  }
  loop_.at(SteadyClock::now(), [this, task, ready, error = server.error()] {
    if (tenants_.count(task) != 0) ready(error);
  });
}

std::optional<GpuGuard::Fault> GpuGuard::fault_of(uint64_t task) {
  look_for_faults(SteadyClock::now());
  const auto it = tenants_.find(task);
  if (it == tenants_.end()) return std::nullopt;
  if (!it->second.fault && it->second.server != nullptr && it->second.server->saw_fault())
    blame(task, 0, SteadyClock::now());
  return it->second.fault;
}

void GpuGuard::blame(uint64_t task, uint32_t xid, int64_t now_ns) {
  if (const auto it = tenants_.find(task); it != tenants_.end() && (!it->second.fault || it->second.fault->xid == 0))
    it->second.fault = Fault{xid};
  if (task != 0) blamed_ = task, blamed_ns_ = now_ns;
  if (calls_.fault) calls_.fault(task, xid);
}

// The driver says that the GPU has faulted, and an MPS server whose client it was: together they name the task. One
// fault can bring several Xids, of clients that go down with it.
void GpuGuard::look_for_faults(int64_t now_ns) {
  for (const uint32_t xid : gpu_->take_xids()) xids_.emplace_back(xid, now_ns);
  for (auto it = xids_.begin(); it != xids_.end();) {
    const auto guilty = std::find_if(tenants_.begin(), tenants_.end(), [](const auto& entry) {
      return entry.second.server != nullptr && entry.second.server->saw_fault();
    });
    if (guilty != tenants_.end()) {
      blame(guilty->first, it->first, now_ns);
    } else if (blamed_ns_ != 0 && it->second - blamed_ns_ < kAfterFaultNs) {
      if (calls_.fault) calls_.fault(blamed_, it->first);
    } else if (now_ns - it->second < kBlameNs) {
      ++it;
      continue;
    } else {
      blame(0, it->first, now_ns);
    }
    it = xids_.erase(it);
  }
}

void GpuGuard::release(uint64_t task) {
  const auto it = tenants_.find(task);
  if (it == tenants_.end()) return;
  leaving_.insert(it->second.present.begin(), it->second.present.end());
  tenants_.erase(it);
}

std::string GpuGuard::describe(int64_t limit_bytes) const {
  return "MPS server of its own (" + mib(limit_bytes) + " of GPU memory, " + std::to_string(options_.thread_pct) +
         " % of threads)";
}

uint64_t GpuGuard::task_of(pid_t pid, bool& server) const {
  std::map<pid_t, std::pair<uint64_t, bool>> roots;
  for (const auto& [id, tenant] : tenants_) {
    if (const pid_t root = calls_.root(id); root > 1) roots[root] = {id, false};
    if (tenant.server != nullptr && tenant.server->control_pid() > 1) roots[tenant.server->control_pid()] = {id, true};
  }
  for (int i = 0; i < kMostAncestors && pid > 1; ++i) {
    if (const auto root = roots.find(pid); root != roots.end()) {
      server = root->second.second;
      return root->second.first;
    }
    pid = parent_of(pid);
  }
  return 0;
}

Status GpuGuard::check_training(pid_t pid) {
  const auto reading = gpu_->read();
  if (!reading.ok()) return reading.error();
  const bool listed = std::any_of(reading->processes.begin(), reading->processes.end(),
                                  [pid](const GpuProcess& process) { return process.pid == pid; });
  bool server = false;
  const bool ours = leaving_.count(pid) != 0 || (calls_.own && calls_.own() == pid) || task_of(pid, server) != 0;
  if (listed && !ours) return {};
  return Error{Code::kPermission, "the driver does not list process " + std::to_string(pid) + " on GPU " + options_.gpu,
               "attach when the training has used the GPU, or set FREERIDE_DEVICE"};
}

Status GpuGuard::check_empty() {
  if (auto looked = look(); !looked.ok()) return looked;
  const auto there = [](const std::string& what) { return Error{Code::kUnavailable, what, ""}; };
  if (!tenants_.empty()) return there("an MPS server of a side task's");
  if (!leaving_.empty())
    return there("process " + std::to_string(*leaving_.begin()) + " of a side task that has ended, on the GPU");
  if (own_bytes_ > 0) return there("the GPU probe, on the GPU");
  return {};
}

Status GpuGuard::look() {
  const auto reading = gpu_->read();
  if (!reading.ok()) return reading.error();
  const int64_t now_ns = SteadyClock::now();
  total_bytes_ = reading->total_bytes;
  std::map<uint64_t, std::vector<pid_t>> outside, clients;
  for (auto& [id, tenant] : tenants_) {
    // A server that has ended is nobody's child any more, and on the GPU for a moment.
    leaving_.insert(tenant.present.begin(), tenant.present.end());
    tenant.used_bytes = tenant.own_bytes = 0;
    tenant.present.clear();
  }
  int64_t side_bytes = 0;
  own_bytes_ = 0;
  others_.clear();
  const pid_t own = calls_.own ? calls_.own() : 0;
  if (own_ != 0 && own_ != own) leaving_.insert(own_);
  own_ = own;
  pid_t foreign = 0;
  std::set<pid_t> leaving;
  for (const GpuProcess& process : reading->processes) {
    if (own != 0 && process.pid == own) {
      side_bytes += own_bytes_ = process.bytes;
      continue;
    }
    bool server = false;
    const uint64_t id = task_of(process.pid, server);
    if (id == 0 && leaving_.count(process.pid) != 0) {
      leaving.insert(process.pid);
      side_bytes += process.bytes;
    } else if (id == 0) {
      others_.insert(process.pid);
      if (process.mps_client && process_exists(process.pid)) foreign = process.pid;
    } else {
      side_bytes += process.bytes;
      tenants_[id].used_bytes += process.bytes;
      tenants_[id].present.insert(process.pid);
      if (server) continue;
      tenants_[id].own_bytes += process.bytes;
      (process.mps_client ? clients : outside)[id].push_back(process.pid);
    }
  }
  leaving_ = std::move(leaving);
  see_foreign(foreign, now_ns);
  if (calls_.others) calls_.others(others_);
  training_.look(reading->used_bytes, side_bytes, calls_.training());
  std::vector<uint64_t> ids;
  for (const auto& [id, tenant] : tenants_) ids.push_back(id);
  for (const uint64_t id : ids) {
    if (tenants_.count(id) == 0) continue;  // an earlier one's end may have ended it
    calls_.memory(id, tenants_[id].own_bytes);
    judge(id, outside[id], clients[id], now_ns);
  }
  return {};
}

void GpuGuard::see_foreign(pid_t pid, int64_t now_ns) {
  if (pid == 0) {
    foreign_ = 0;
    foreign_since_ns_ = 0;
    return;
  }
  if (foreign_since_ns_ == 0) foreign_since_ns_ = now_ns;
  // A task of ours that has just ended looks the same for a moment.
  if (now_ns - foreign_since_ns_ < kForeignNs && timer_started_) return;
  if (foreign_ == 0)
    spdlog::warn("process {} on the GPU is a client of somebody else's MPS: no new side tasks while it is", pid);
  foreign_ = pid;
}

void GpuGuard::judge(uint64_t task, const std::vector<pid_t>& outside, const std::vector<pid_t>& clients,
                     int64_t now_ns) {
  Tenant& tenant = tenants_[task];
  if (tenant.ending) return;
  if (!(outside.empty() && clients.empty()) && calls_.leased && !calls_.leased(task)) {
    return end(task, policy::VerdictKind::kOverran, policy::Cause::kUnleased,
               "was on the GPU before its init lease; what needs the GPU belongs in InitSideTask", "init lease");
  }
  if (outside.empty()) {
    tenant.outside_since_ns = 0;
  } else if (tenant.outside_since_ns == 0) {
    tenant.outside_since_ns = now_ns;
  } else if (now_ns - tenant.outside_since_ns > kOutsideNs) {
    return end(
        task, policy::VerdictKind::kFailed, policy::Cause::kLimits,
        "process " + std::to_string(outside.front()) + " used the GPU without being a client of the task's MPS server",
        "member of its MPS server");
  }
  const bool strange =
      std::any_of(clients.begin(), clients.end(), [&](pid_t pid) { return tenant.members.count(pid) == 0; });
  if (!strange) {
    tenant.strange_since_ns = 0;
  } else if (!tenant.checking && now_ns - tenant.checked_ns > kCheckNs) {
    if (tenant.strange_since_ns == 0) tenant.strange_since_ns = now_ns;
    tenant.checked_ns = now_ns;
    check_members(task, clients);
  }
}

void GpuGuard::check_members(uint64_t task, const std::vector<pid_t>& clients) {
  Tenant& tenant = tenants_[task];
  if (tenant.server == nullptr || tenant.server->server_pid() == 0) return;
  tenant.checking = true;
  tenant.server->clients([this, task, clients](Result<std::vector<pid_t>> listed) {
    const auto it = tenants_.find(task);
    if (it == tenants_.end() || it->second.ending) return;
    Tenant& asked = it->second;
    asked.checking = false;
    if (!listed.ok()) {
      return end(task, policy::VerdictKind::kLost, policy::Cause::kMpsServer,
                 "its MPS server does not say who its clients are: " + listed.error().text(), "MPS server");
    }
    asked.members = std::set<pid_t>(listed->begin(), listed->end());
    for (const pid_t pid : clients) {
      if (asked.members.count(pid) != 0 || !process_exists(pid)) continue;
      if (asked.strange_since_ns == 0) return;  // gone from the driver's list since we asked
      if (SteadyClock::now() - asked.strange_since_ns <= kStrangeNs) return;  // asked again
      return end(task, policy::VerdictKind::kFailed, policy::Cause::kLimits,
                 "process " + std::to_string(pid) + " was a client of another MPS server than the task's own",
                 "member of its MPS server");
    }
  });
}

void GpuGuard::evict() {
  const auto before = snapshot();
  for (const uint64_t id : policy::choose_evicted(before)) {
    const auto it = tenants_.find(id);
    if (it == tenants_.end() || it->second.ending) continue;
    end(id, policy::VerdictKind::kEvicted, policy::Cause::kTrainingMemory,
        "training wants the GPU's memory: it has come to " + mib(before.training_bytes) + " of " +
            mib(before.total_bytes) + " and less than half of the reserve was left beside the side tasks' limits",
        "reserve " + mib(before.reserve_bytes));
  }
}

void GpuGuard::end(uint64_t task, policy::VerdictKind kind, policy::Cause cause, std::string message,
                   std::string limit) {
  const auto it = tenants_.find(task);
  if (it == tenants_.end() || it->second.ending) return;
  it->second.ending = true;
  policy::Verdict verdict{kind, cause, std::move(message)};
  verdict.limit = std::move(limit);
  calls_.end(task, std::move(verdict));
}

void GpuGuard::tick() {
  timer_ = 0;
  const auto looked = look();
  if (looked.ok()) {
    if (told_) spdlog::info("the NVIDIA driver answers again");
    told_ = false;
    quiet_since_ns_ = 0;
    look_for_faults(SteadyClock::now());
    evict();
  } else {
    if (!told_) spdlog::error("{}", looked.error().text());
    told_ = true;
    // A limit that nobody can look after is none.
    const int64_t now_ns = SteadyClock::now();
    if (quiet_since_ns_ == 0) quiet_since_ns_ = now_ns;
    if (now_ns - quiet_since_ns_ > kNsPerSec) {
      std::vector<uint64_t> ids;
      for (const auto& [id, tenant] : tenants_) ids.push_back(id);
      for (const uint64_t id : ids)
        end(id, policy::VerdictKind::kLost, policy::Cause::kDriver, looked.error().text(), "NVIDIA driver");
    }
  }
  loop_.cancel(timer_);
  timer_ = loop_.at(SteadyClock::now() + (tenants_.empty() ? kIdleLookNs : kLookNs), [this] { tick(); });
}

}  // namespace freeride::worker
