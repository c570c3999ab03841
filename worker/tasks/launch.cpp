#include "tasks/launch.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/python_env.hpp"
#include "freeride/base/task_env.hpp"
#include "tasks/profile_watch.hpp"
#include "tasks/task_folders.hpp"

namespace freeride::worker {
namespace {

// The supervisor's side of what joins it to this worker; this process's copies go with it.
struct FarEnds {
  Fd lease, answer, lifeline, report, output, state, params, program, shim;
};

constexpr off_t kShimPageBytes = 4096;

bool is_profile(const bus::CreateTask& spec) {
  return spec.purpose == "profile";
}

// On a GPU, what the shim of libcuda keeps within its leases: programs, and workloads in Python, which come to their
// gate after a step at best. Work that they have queued there would outlast a lease by as much as a step.
bool is_gated(const LaunchRequest& request) {
  if (request.options.cpu_device() || request.options.shim.empty() || request.options.drivers.empty()) return false;
  const auto interface = request.spec.params.find("interface");
  const bool workload = interface != request.spec.params.end() && interface->second == "imperative";
  return !request.spec.program.empty() || (workload && request.plugin.extension() == ".py");
}

Status make_pages(const LaunchRequest& request, Launched& launched, FarEnds& far) {
  const bool named = is_gated(request);
  if (named) {
    if (auto s = launched.files.name(request.options.pages_dir, request.options.device, request.id); !s.ok()) return s;
    // Counters for people, and the word that ends a program's init lease early: whoever the task's user is may write
    // it.
    far.shim.reset(open(launched.files.shim.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!far.shim.valid() || ftruncate(far.shim.get(), kShimPageBytes) != 0 || fchmod(far.shim.get(), 0666) != 0)
      return errno_error("cannot make " + launched.files.shim, errno);
  }
  auto lease = named ? pages::create_lease_file(launched.files.lease) : pages::create_page<freeride_lease_page>(true);
  if (!lease.ok()) return lease.error();
  auto answer = pages::create_page<freeride_answer_page>(false);
  if (!answer.ok()) return answer.error();
  auto answer_view = pages::map_page<freeride_answer_page>(answer->fd.get());
  if (!answer_view.ok()) return answer_view.error();
  const bus::CreateTask& spec = request.spec;
  auto source = std::make_shared<TaskSource>();
  source->id = request.id;
  source->content = std::strtoull(spec.sha256.substr(0, 16).c_str(), nullptr, 16);
  source->lease = std::move(lease->page);
  source->answer = std::move(*answer_view);
  source->profile = is_profile(spec);
  source->program = !spec.program.empty();
  source->when_idle = spec.when_idle || is_profile(spec);  // begun beside a training that ends, it goes on
  source->priority = spec.priority;
  source->predicted_ns = std::max<int64_t>(0, spec.predicted_step_ns);
  pages::Lease first;
  first.order = request.order;
  first.grace_ns = static_cast<uint64_t>(request.options.grace_ms * kNsPerMs);
  first.hang_ns = static_cast<uint64_t>(request.options.hang_ms * kNsPerMs);
  pages::write_lease(*source->lease, first);
  launched.pages = std::move(source);
  far.lease = std::move(lease->fd);
  far.answer = std::move(answer->fd);
  return {};
}

Status make_pipe(Fd& read_end, Fd& write_end) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
  return {};
}

Status make_channels(Launched& launched, FarEnds& far) {
  if (auto s = make_pipe(far.lifeline, launched.lifeline); !s.ok()) return s;
  if (auto s = make_pipe(launched.output, far.output); !s.ok()) return s;
  if (auto s = make_pipe(launched.state_pipe, far.state); !s.ok()) return s;
  fcntl(launched.state_pipe.get(), F_SETFL, O_NONBLOCK);  // this end only
  std::array<int, 2> report{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, report.data()) != 0)
    return errno_error("cannot make a socket", errno);
  launched.report.reset(report[0]);
  far.report.reset(report[1]);
  return {};
}

// Parameters may be secret, and everybody can read a process's command line.
Status make_params(const LaunchRequest& request, Fd& file) {
  std::string texts;
  const auto add = [&](const std::string& key, const std::string& value) {
    texts.append(key).append("=").append(value).push_back('\0');
  };
  if (!request.python.empty()) add(kPythonParam, request.python);
  for (const auto& [key, value] : request.spec.params) {
    if (request.python.empty() || key != kPythonParam) add(key, value);
  }
  if (texts.empty()) return {};
  file.reset(memfd_create("freeride-params", MFD_CLOEXEC));
  if (!file.valid() || !write_all(file.get(), texts) || lseek(file.get(), 0, SEEK_SET) != 0)
    return errno_error("cannot hand over the task's parameters", errno);
  return {};
}

// So are arguments, until the program itself shows them.
Status make_program(const LaunchRequest& request, Fd& file) {
  if (request.spec.program.empty()) return {};
  std::string words;
  for (const std::string& word : request.spec.program) words.append(word).push_back('\0');
  file.reset(memfd_create("freeride-program", MFD_CLOEXEC));
  if (!file.valid() || !write_all(file.get(), words) || lseek(file.get(), 0, SEEK_SET) != 0)
    return errno_error("cannot hand over the program's arguments", errno);
  return {};
}

// The command line of the supervisor, and which descriptors it inherits.
void add_arguments(const LaunchRequest& request, const InsidePaths& inside, const FarEnds& far, SandboxRequest& start) {
  const bus::CreateTask& spec = request.spec;
  start.args = {"supervise"};
  // One word each: a value that begins with a dash is no option.
  const auto add = [&](const std::string& key, const std::string& value) {
    std::string word = "--";
    start.args.push_back(word.append(key).append("=").append(value));
  };
  const auto hand_over = [&](const std::string& key, const Fd& fd) {
    add(key, std::to_string(fd.get()));
    start.keep_fds.push_back(fd.get());
  };
  hand_over("lease-fd", far.lease);
  hand_over("answer-fd", far.answer);
  hand_over("lifeline-fd", far.lifeline);
  hand_over("report-fd", far.report);
  hand_over("state-out-fd", far.state);
  if (!is_profile(spec) && request.state_in.valid()) hand_over("state-in-fd", request.state_in);
  if (far.program.valid()) {
    hand_over("program-fd", far.program);
    if (far.shim.valid()) hand_over("shim-fd", far.shim);
  } else {
    add("plugin", inside.plugin);
    if (is_gated(request)) start.args.emplace_back("--gated");
  }
  add("name", spec.task);
  add("device", request.options.device);
  add("scratch", inside.scratch);
  add("purpose", is_profile(spec) ? "profile" : "run");
  if (far.params.valid()) hand_over("params-fd", far.params);
  add("create-ms", std::to_string(request.options.create_ms));
  if (spec.steps != 0) add("steps", std::to_string(spec.steps));
  if (spec.predicted_step_ns > 0) add("predicted-step-ns", std::to_string(spec.predicted_step_ns));
  std::string pieces;
  for (size_t i = 0; i < std::min(spec.predicted_pieces_ns.size(), ProfileWatch::kMostPieces); ++i)
    pieces += (i == 0 ? "" : ",") + std::to_string(std::max<int64_t>(0, spec.predicted_pieces_ns[i]));
  if (!pieces.empty()) add("predicted-pieces-ns", pieces);
}

}  // namespace

Result<std::string> add_environment(const std::filesystem::path& plugin, const bus::CreateTask& spec,
                                    SandboxGrants& grants) {
  for (const auto& [name, value] : sleeping_threads()) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets any
    if (std::getenv(name.c_str()) == nullptr) grants.env.emplace(name, value);
  }
  const bool in_python = plugin.extension() == ".py";
  const auto named = spec.params.find(kPythonParam);
  const std::string wanted = named != spec.params.end() ? named->second : "";
  if (!in_python && wanted.empty()) return std::string();
  // The user names the interpreter, this process only looks at it; the sandbox gets to see what belongs to it.
  auto python = find_python(wanted.empty() ? kDefaultPython : wanted);
  if (!python.ok()) return python.error();
  for (const auto& path : python->paths) grants.files.push_back(path.string());
  if (!in_python && !python->torch.empty()) {  // LibTorch
    std::string& folders = grants.env["LD_LIBRARY_PATH"];
    folders = python->torch.string() + (folders.empty() ? "" : ":" + folders);
  }
  return python->executable.string();
}

void PageFiles::remove() {
  if (lease.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(lease, ignored);
  std::filesystem::remove(shim, ignored);
  std::filesystem::remove_all(shim + ".lib", ignored);
  lease.clear();
  shim.clear();
}

Status PageFiles::name(const std::filesystem::path& folder, const std::string& device, uint64_t task) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return errno_error("cannot make " + folder.string(), error.value());
  const std::string stem = (folder / (device + "-" + std::to_string(task))).string();
  lease = stem + ".lease";
  shim = stem + ".shim";
  std::filesystem::remove(shim, error);  // of a worker that was killed
  return {};
}

Status launch_task(LaunchRequest request, Sandbox& sandbox, Launched& launched) {
  const bool profile = is_profile(request.spec);
  if (!profile) {
    if (auto s = claim_folder(request.folder, request.spec.instance); !s.ok()) return s;
  }
  if (auto s = take(launched.folder, hold_task_folder(request.folder)); !s.ok()) return s;
  unmark_ended(request.folder);
  // Another content of a placement goes on in the log of the one that it takes the place of.
  const uint64_t epoch = request.spec.epoch;
  if (!profile && (epoch == 0 || noted_epoch(launched.folder.get()) != epoch)) begin_log(request.folder);
  if (!profile) note_epoch(launched.folder.get(), epoch);
  const std::filesystem::path scratch = request.folder / (profile ? "profile" : "scratch");
  std::error_code error;
  std::filesystem::create_directories(scratch, error);
  if (error)
    return errno_error("cannot make the task's folder " + scratch.string(), error.value(), "repair the state folder");
  if (profile) launched.profile_scratch = scratch;

  FarEnds far;
  if (auto s = make_pages(request, launched, far); !s.ok()) return s;
  if (auto s = make_channels(launched, far); !s.ok()) return s;
  if (auto s = make_params(request, far.params); !s.ok()) return s;
  if (auto s = make_program(request, far.program); !s.ok()) return s;

  SandboxRequest start;
  add_arguments(request, sandbox.inside(request.plugin.string(), scratch.string()), far, start);
  start.output_fd = far.output.get();
  start.plugin = request.plugin.string();
  start.program = !request.spec.program.empty();
  start.scratch = scratch.string();
  start.cores = request.options.cores;
  start.priority = request.options.cpu_device() ? CpuPriority::kIdle : CpuPriority::kTenth;
  // On a GPU the task's own limit is one of its memory, held by the task's MPS server.
  start.memory_limit_bytes = request.options.cpu_device() ? std::max<int64_t>(0, request.spec.memory_limit_bytes)
                                                          : request.options.host_memory_bytes;
  start.task = request.id;
  const std::string granted = request.grants.limits;
  start.grants = std::move(request.grants);
  start.grants.network = request.spec.network;
  if (!launched.files.lease.empty()) {
    start.grants.shim = {request.options.shim, request.options.drivers, launched.files.lease, launched.files.shim};
    if (request.spec.memory_limit_bytes > 0)
      start.grants.env["FREERIDE_MEMORY_BYTES"] = std::to_string(request.spec.memory_limit_bytes);
    if (!start.program) start.grants.env["FREERIDE_SHIM_PLUGIN"] = "1";
  }
  start.grants.env.merge(
      library_caches(sandbox.inside(request.plugin.string(), scratch.string()).scratch, request.spec.network));
  if (auto s = take(launched.supervisor, sandbox.start(start)); !s.ok()) return s;
  launched.limits = launched.supervisor.hold->describe() + (granted.empty() ? "" : ", " + granted);
  if (!profile) {
    launched.limits +=
        "; what is in scratch is kept for " + std::to_string(request.options.keep_days) + " days after the end";
  }
  request.state_in.reset();
  return {};
}

}  // namespace freeride::worker
