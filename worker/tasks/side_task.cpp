#include "tasks/side_task.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/python_env.hpp"
#include "freeride/pages/names.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "tasks/task_folders.hpp"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace freeride::worker {
namespace {

using nlohmann::json;
using pages::load_relaxed;

constexpr size_t kVerdictTailBytes = 4096;
constexpr int kSignalled = 128;  // bubblewrap exits with this and the signal that killed what it started
constexpr size_t kMaxReportBytes = 16384;
constexpr int64_t kLogPauseNs = 100 * kNsPerMs;
// What OpenMP's, Intel's and OpenBLAS's threads do between two pieces of work.
constexpr std::array<std::pair<const char*, const char*>, 3> kSleepingThreads{
    {{"OMP_WAIT_POLICY", "passive"}, {"KMP_BLOCKTIME", "0"}, {"OPENBLAS_THREAD_TIMEOUT", "4"}}};

std::string text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>().substr(0, 1024) : std::string();
}

int64_t number_of(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

// A line of /proc/<pid>/status such as "VmRSS:    1234 kB", in bytes; 0: not there.
int64_t status_bytes(const std::string& line, const char* key) {
  if (line.rfind(key, 0) != 0) return 0;
  return std::strtoll(line.c_str() + std::strlen(key), nullptr, 10) * 1024;
}

// One datagram with at most two descriptors; as recv().
ssize_t receive(int socket, std::array<char, kMaxReportBytes>& buffer, std::array<Fd, 2>& fds) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* head = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return got;
  const size_t count = std::min(fds.size(), (head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  for (size_t i = 0; i < count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
    fds[i].reset(fd);
  }
  return got;
}

// The number of a pidfd's process here; in a sandbox it is another one.
int pid_of(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("Pid:", 0) == 0) return std::atoi(line.c_str() + 4);
  }
  return -1;
}

uint32_t order_word(const std::string& order) {
  if (order == "stop") return FREERIDE_ORDER_STOP;
  return order == "pause" ? FREERIDE_ORDER_PAUSE : FREERIDE_ORDER_RUN;
}

}  // namespace

/// What is left when all of its processes are dead, and the thread that puts it away.
struct SideTask::Leftovers {
  Child child;
  Fd scratch, done;
  std::thread thread;
};

SideTask::SideTask(bus::CreateTask spec, uint64_t id, const SideTaskOptions& options, Sandbox& sandbox, Loop& loop,
                   ActingThread& acting, Changed changed)
    : spec_(std::move(spec)),
      id_(id),
      options_(options),
      sandbox_(sandbox),
      loop_(loop),
      acting_(acting),
      changed_(std::move(changed)),
      order_(spec_.start_paused ? "pause" : "run") {}

SideTask::~SideTask() {
  if (ended_) return;
  changed_ = nullptr;
  if (dead_) {
    on_gone();
  } else {
    kill_group();
    end({});
  }
}

void SideTask::start(const std::filesystem::path& plugin, const std::filesystem::path& folder, SandboxGrants grants) {
  if (dead_) return;
  // Threads of a math library that have done their part would look for more, without sleeping, long after a step's end:
  // OpenBLAS's for a tenth of a second. PAUSED executes nothing, so they sleep, unless the worker's operator knows
  // better.
  for (const auto& [name, value] : kSleepingThreads) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets any
    if (std::getenv(name) == nullptr) grants.env.emplace(name, value);
  }
  // Of a plugin in Python, and of one that uses an interpreter's packages: LibTorch.
  const auto named = spec_.params.find(kPythonParam);
  const std::string wanted = named != spec_.params.end() ? named->second : "";
  if (plugin.extension() == ".py" || !wanted.empty()) {
    // The user names the interpreter, this process only looks at it; the sandbox gets to see what belongs to it.
    auto python = find_python(wanted.empty() ? kDefaultPython : wanted);
    if (!python.ok()) return refuse("rejected", python.error().text());
    python_ = python->executable.string();
    for (const auto& path : python->paths) grants.files.push_back(path.string());
    if (plugin.extension() != ".py" && !python->torch.empty()) {
      std::string& folders = grants.env["LD_LIBRARY_PATH"];
      folders = python->torch.string() + (folders.empty() ? "" : ":" + folders);
    }
  }
  if (auto prepared = prepare(plugin, folder, std::move(grants)); !prepared.ok())
    refuse("lost", prepared.error().text());
}

Status SideTask::prepare(const std::filesystem::path& plugin, const std::filesystem::path& folder,
                         SandboxGrants grants) {
  const bool profile = spec_.purpose == "profile";
  std::error_code error;
  auto held = hold_task_folder(folder);
  if (!held.ok()) return held.error();
  folder_ = std::move(*held);
  const std::filesystem::path scratch = folder / (profile ? "profile" : "scratch");
  std::filesystem::create_directories(scratch, error);
  if (error)
    return errno_error("cannot make the task's folder " + scratch.string(), error.value(), "mend the state folder");
  if (profile) profile_scratch_ = scratch;

  auto lease = pages::create_page<freeride_lease_page>(true);
  if (!lease.ok()) return lease.error();
  auto answer = pages::create_page<freeride_answer_page>(false);
  if (!answer.ok()) return answer.error();
  auto answer_view = pages::map_page<freeride_answer_page>(answer->fd.get());
  if (!answer_view.ok()) return answer_view.error();
  pages_ = std::make_shared<TaskSource>();
  pages_->id = id_;
  pages_->lease = std::move(lease->page);
  pages_->answer = std::move(*answer_view);
  pages_->profile = profile;
  pages_->when_idle = spec_.when_idle || profile;  // begun beside a training that ends, it goes on
  pages_->priority = spec_.priority;
  pages_->predicted_ns = std::max<int64_t>(0, spec_.predicted_step_ns);
  pages::Lease first;
  first.order = held_ && order_ != "stop" ? static_cast<uint32_t>(FREERIDE_ORDER_PAUSE) : order_word(order_);
  first.grace_ns = static_cast<uint64_t>(options_.grace_ns);
  first.hang_ns = static_cast<uint64_t>(options_.hang_ns);
  pages::write_lease(*pages_->lease, first);

  std::array<int, 2> lifeline{}, output{}, report{};
  if (pipe2(lifeline.data(), O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  const Fd lifeline_read(lifeline[0]);
  lifeline_.reset(lifeline[1]);
  if (pipe2(output.data(), O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  Fd output_read(output[0]);
  const Fd output_write(output[1]);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, report.data()) != 0) {
    return errno_error("cannot make a socket", errno);
  }
  report_.reset(report[0]);
  const Fd report_child(report[1]);

  std::array<int, 2> state{};
  if (pipe2(state.data(), O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  state_pipe_.reset(state[0]);
  const Fd state_write(state[1]);
  fcntl(state_pipe_.get(), F_SETFL, O_NONBLOCK);  // this end only

  SandboxRequest request;
  const InsidePaths inside = sandbox_.inside(plugin.string(), scratch.string());
  request.args = {"supervise"};
  // One word each: a value that begins with a dash is no option.
  const auto add = [&](const std::string& key, const std::string& value) {
    std::string word = "--";
    request.args.push_back(word.append(key).append("=").append(value));
  };
  add("lease-fd", std::to_string(lease->fd.get()));
  add("answer-fd", std::to_string(answer->fd.get()));
  add("lifeline-fd", std::to_string(lifeline_read.get()));
  add("report-fd", std::to_string(report_child.get()));
  add("plugin", inside.plugin);
  add("name", spec_.task);
  add("device", options_.device);
  add("scratch", inside.scratch);
  add("purpose", profile ? "profile" : "run");
  if (!python_.empty()) add("param", std::string(kPythonParam).append("=").append(python_));
  for (const auto& [key, value] : spec_.params) {
    if (!python_.empty() && key == kPythonParam) continue;
    std::string pair = key;
    add("param", pair.append("=").append(value));
  }
  add("create-ms", std::to_string(options_.create_ns / kNsPerMs));
  if (spec_.steps != 0) add("steps", std::to_string(spec_.steps));
  if (spec_.predicted_step_ns > 0) add("predicted-step-ns", std::to_string(spec_.predicted_step_ns));
  std::string pieces;
  for (size_t i = 0; i < std::min(spec_.predicted_pieces_ns.size(), ProfileWatch::kMostPieces); ++i)
    pieces += (i == 0 ? "" : ",") + std::to_string(std::max<int64_t>(0, spec_.predicted_pieces_ns[i]));
  if (!pieces.empty()) add("predicted-pieces-ns", pieces);
  request.keep_fds = {lease->fd.get(), answer->fd.get(), lifeline_read.get(), report_child.get()};
  add("state-out-fd", std::to_string(state_write.get()));
  request.keep_fds.push_back(state_write.get());
  if (!profile && state_in_.valid()) {
    add("state-in-fd", std::to_string(state_in_.get()));
    request.keep_fds.push_back(state_in_.get());
  }
  request.output_fd = output_write.get();
  request.plugin = plugin.string();
  request.scratch = scratch.string();
  request.cores = options_.cores;
  request.lowest_priority = options_.cpu_device;
  // On a GPU the task's own limit is one of its memory, held by the task's MPS server.
  request.memory_limit_bytes =
      options_.cpu_device ? std::max<int64_t>(0, spec_.memory_limit_bytes) : options_.host_memory_bytes;
  request.task = id_;
  granted_limits_ = grants.limits;
  request.grants = std::move(grants);
  request.grants.network = spec_.network;

  log_ = std::make_unique<TaskLog>(std::move(output_read), folder / (profile ? "profile.log" : "log"));
  auto child = sandbox_.start(request);
  if (!child.ok()) return child.error();
  supervisor_ = std::move(*child);
  state_in_.reset();
  sandbox_text_ = supervisor_.hold->describe();
  acting_.add_task(pages_);

  if (auto s = loop_.watch(supervisor_.pidfd.get(), EPOLLIN, [this](uint32_t) { on_supervisor_exit(); }); !s.ok())
    return s;
  if (auto s = loop_.watch(report_.get(), EPOLLIN, [this](uint32_t) { on_report(); }); !s.ok()) return s;
  if (auto s = loop_.watch(log_->fd(), EPOLLIN, [this](uint32_t) { on_log(); }); !s.ok()) return s;
  if (!profile) return {};
  profile_ = std::make_unique<ProfileWatch>(SteadyClock::now());
  if (auto s = loop_.watch(state_pipe_.get(), EPOLLIN, [this](uint32_t) { on_profile(); }); !s.ok()) return s;
  look_at_profile();
  return {};
}

// ---- a profile

void SideTask::on_profile() {
  if (!profile_->receive(state_pipe_.get())) loop_.forget(state_pipe_.get());
}

// Its memory now and then, and whether it has had time enough: beside a training that gives it no bubbles it must not
// keep those waiting who want to load it.
void SideTask::look_at_profile() {
  const int64_t now_ns = SteadyClock::now();
  look_at_memory();
  if (host_resident_bytes_ > 0)
    profile_->look(now_ns, host_resident_bytes_, options_.cpu_device ? int64_t{-1} : resident_bytes_);
  const uint32_t state = answered_state();
  const bool initialised = state == FREERIDE_STATE_PAUSED || state == FREERIDE_STATE_RUNNING;
  if (initialised && initialised_ns_ == 0) initialised_ns_ = now_ns;
  if (initialised_ns_ != 0 &&
      now_ns - initialised_ns_ > policy::profile_patience_ns(spec_.steps, options_.profile_ns)) {
    if (auto s = order("stop"); !s.ok()) spdlog::warn("{}", s.error().text());
  }
  profile_timer_ = loop_.at(now_ns + profile_->pause_ns(), [this] {
    profile_timer_ = 0;
    look_at_profile();
  });
}

bus::Profile SideTask::profile() const {
  bus::Profile found;
  profile_->fill(found);
  found.conditions = pages_->in_bubbles.load(std::memory_order_relaxed) ? "bubbles" : "idle";
  found.create_ns = sane_ns(load_relaxed(pages_->answer->create_ns));
  found.init_ns = sane_ns(load_relaxed(pages_->answer->init_ns));
  found.peak_bytes["host"] = host_peak_bytes_;
  if (!options_.cpu_device) found.peak_bytes["gpu"] = peak_bytes_;
  found.wanted_steps = spec_.steps;
  if (verdict_.kind == "stopped") {
    found.ended = "the worker's time for a profile was over (--profile-ms)";
  } else {
    found.ended = verdict_.reason;
  }
  return found;
}

void SideTask::refuse(const std::string& kind, const std::string& reason, const std::string& limit) {
  bus::Verdict verdict;
  verdict.kind = kind;
  verdict.reason = reason;
  verdict.limit = limit;
  if (supervisor_.pid > 0) kill_group();
  end(std::move(verdict));
}

Status SideTask::order(const std::string& order) {
  if (order != "run" && order != "pause" && order != "stop") {
    return Error{Code::kInvalidArgument, "there is no order '" + order.substr(0, 40) + "'",
                 "orders are run, pause, stop"};
  }
  if (dead_ || stopping_) return {};
  order_ = order;
  if (held_ && order != "stop") return {};
  if (order == "stop") {
    stopping_ = true;
    if (supervisor_.pid == 0) {
      refuse("stopped", "stopped before it was created");
      return {};
    }
    stop_timer_ = loop_.at(SteadyClock::now() + options_.stop_ns, [this] {
      stop_timer_ = 0;
      const std::string patience = std::to_string(options_.stop_ns / kNsPerMs) + " ms";
      kill("overran", "had not stopped after " + patience, "stop " + patience);
    });
  }
  if (pages_ != nullptr) acting_.set_order(id_, order_word(order));
  return {};
}

void SideTask::go_on_from(Fd state, const bus::TaskCounters& earlier) {
  state_in_ = std::move(state);
  earlier_ = earlier;
}

void SideTask::hold() {
  held_ = true;
  if (!dead_ && !stopping_ && pages_ != nullptr) acting_.set_order(id_, FREERIDE_ORDER_PAUSE);
}

void SideTask::release() {
  held_ = false;
  if (!dead_ && !stopping_ && pages_ != nullptr) acting_.set_order(id_, order_word(order_));
}

void SideTask::save(StateFile& file, Saved saved) {
  saving_ = &file;
  saved_ = std::move(saved);
  if (auto s = loop_.watch(state_pipe_.get(), EPOLLIN, [this](uint32_t) { on_state(); }); !s.ok()) {
    saving_ = nullptr;
    std::exchange(saved_, nullptr)(s);
    return;
  }
  acting_.ask_to_save(id_, true);
}

void SideTask::stop_saving() {
  if (saving_ == nullptr) return;
  saving_ = nullptr;
  saved_ = nullptr;
  loop_.forget(state_pipe_.get());
  acting_.ask_to_save(id_, false);
}

void SideTask::on_state() {
  if (saving_ == nullptr) return;
  auto received = receiver_.receive(state_pipe_.get(), pages_->save_lease.load(), *saving_);
  if (received.ok() && *received == StateReceiver::Progress::kMore) return;
  saving_ = nullptr;
  loop_.forget(state_pipe_.get());
  acting_.ask_to_save(id_, false);
  std::exchange(saved_, nullptr)(received.ok() ? Status() : Status(received.error()));
}

uint32_t SideTask::answered_state() const {
  return pages_ == nullptr ? static_cast<uint32_t>(FREERIDE_STATE_SUBMITTED) : load_relaxed(pages_->answer->state);
}

uint32_t SideTask::answered_transition() const {
  return pages_ == nullptr ? static_cast<uint32_t>(FREERIDE_IN_NONE) : load_relaxed(pages_->answer->transition);
}

bool SideTask::restored() const {
  return pages_ != nullptr && load_relaxed(pages_->answer->restored) == 1;
}

void SideTask::kill(const std::string& kind, const std::string& reason, const std::string& limit) {
  if (dead_) return;
  if (own_verdict_.kind.empty()) {
    own_verdict_.kind = kind;
    own_verdict_.reason = reason;
    own_verdict_.limit = limit;
    if (pages_ != nullptr) own_verdict_.transition = pages::transition_name(load_relaxed(pages_->answer->transition));
  }
  kill_group();
}

void SideTask::killed(const Kill& kill) {
  if (dead_ || !own_verdict_.kind.empty()) return;
  own_verdict_.kind = policy::kind_name(kill.verdict.kind);
  own_verdict_.reason = kill.verdict.message;
  own_verdict_.limit = kill.verdict.limit;
  own_verdict_.transition = kill.verdict.transition;
}

void SideTask::kill_group() {
  if (supervisor_.pid == 0) return;
  SystemProcesses().freeze_and_kill(runner_pid_, runner_pidfd_.get());
  // The supervisor goes by its lifeline, after it has swept up what the plugin left behind; if it does not, by force.
  lifeline_.reset();
  if (stop_timer_ != 0) loop_.cancel(stop_timer_);
  stop_timer_ = loop_.at(SteadyClock::now() + 5 * kNsPerSec, [this] {
    stop_timer_ = 0;
    if (supervisor_.pidfd.valid()) syscall(SYS_pidfd_send_signal, supervisor_.pidfd.get(), SIGKILL, nullptr, 0);
  });
}

void SideTask::on_report() {
  std::array<char, kMaxReportBytes> buffer;
  while (report_.valid()) {
    std::array<Fd, 2> fds;
    const ssize_t got = receive(report_.get(), buffer, fds);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {  // the supervisor has closed it: its exit follows
      loop_.forget(report_.get());
      return;
    }
    const json message = json::parse(buffer.data(), buffer.data() + got, nullptr, false);
    if (!message.is_object()) continue;
    const std::string event = text_of(message, "event");
    if (event == "started") {
      on_started(std::move(fds[0]), std::move(fds[1]));
    } else if (event == "verdict" && verdict_.kind.empty()) {
      verdict_.kind = text_of(message, "kind");
      verdict_.reason = text_of(message, "reason");
      verdict_.transition = text_of(message, "transition");
      verdict_.signal = static_cast<int32_t>(number_of(message, "signal"));
      verdict_.limit = text_of(message, "limit");
      host_peak_bytes_ = std::max(host_peak_bytes_, number_of(message, "peak_resident_bytes"));
      if (options_.cpu_device) peak_bytes_ = std::max(peak_bytes_, host_peak_bytes_);
    }
  }
}

void SideTask::on_started(Fd process, Fd scratch) {
  if (runner_pid_ != 0) return;
  scratch_fd_ = std::move(scratch);
  const int pid = pid_of(process.get());
  if (pid <= 1) return;  // gone already; the supervisor says how
  runner_pidfd_ = std::move(process);
  runner_pid_ = pid;
  acting_.set_process(id_, pid, runner_pidfd_.get());
}

void SideTask::on_log() {
  const bool open = log_->read(SteadyClock::now());
  loop_.forget(log_->fd());
  if (!open) {
    log_->close();
    return;
  }
  // Looked at again in a while: a task that prints a lot must not keep this thread, and so its core, busy. A pipe holds
  // 64 KiB.
  log_timer_ = loop_.at(SteadyClock::now() + kLogPauseNs, [this] {
    log_timer_ = 0;
    if (log_->fd() < 0) return;
    if (auto s = loop_.watch(log_->fd(), EPOLLIN, [this](uint32_t) { on_log(); }); !s.ok())
      spdlog::warn("{}", s.error().text());
  });
}

void SideTask::on_supervisor_exit() {
  on_report();  // what it said last
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(supervisor_.pid), &info, WEXITED | WNOHANG);
  if (info.si_pid == 0) return;
  bus::Verdict verdict = own_verdict_.kind.empty() ? verdict_ : own_verdict_;
  if (verdict.kind.empty()) {
    verdict.kind = "lost";
    if (info.si_code == CLD_EXITED && info.si_status == kCannotStart) {
      verdict.reason = "the runner could not be started; the log says why";
    } else if (info.si_code == CLD_EXITED && info.si_status > kSignalled) {
      verdict.signal = info.si_status - kSignalled;
      verdict.reason = "its supervisor was killed by signal " + std::to_string(verdict.signal);
    } else if (info.si_code == CLD_EXITED) {
      verdict.reason = "its supervisor exited with code " + std::to_string(info.si_status) + " without a verdict";
    } else {
      verdict.reason = "its supervisor was killed by signal " + std::to_string(info.si_status);
      verdict.signal = info.si_status;
    }
  }
  SystemProcesses().freeze_and_kill(runner_pid_, runner_pidfd_.get());
  end(std::move(verdict));
}

void SideTask::end(bus::Verdict verdict) {
  if (dead_) return;
  look_at_memory();
  dead_ = true;
  if (log_ != nullptr) {
    if (log_->fd() >= 0) {
      loop_.forget(log_->fd());
      log_->read(SteadyClock::now());
      log_->close();
    }
    verdict.log_tail = log_->tail(kVerdictTailBytes);
  }
  stop_saving();
  if (profile_ != nullptr && state_pipe_.valid()) {
    profile_->receive(state_pipe_.get());
    loop_.forget(state_pipe_.get());
  }
  state_pipe_.reset();
  state_in_.reset();
  acting_.remove_task(id_);
  loop_.cancel(stop_timer_);
  loop_.cancel(log_timer_);
  loop_.cancel(profile_timer_);
  stop_timer_ = log_timer_ = profile_timer_ = 0;
  if (report_.valid()) loop_.forget(report_.get());
  if (supervisor_.pidfd.valid()) {
    loop_.forget(supervisor_.pidfd.get());
    // Reached by force only (this worker is ending, or could not watch it): it is not left behind as a zombie.
    syscall(SYS_pidfd_send_signal, supervisor_.pidfd.get(), SIGKILL, nullptr, 0);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(supervisor_.pid), &info, WEXITED | WNOHANG);
  }
  verdict_ = std::move(verdict);
  report_.reset();
  lifeline_.reset();
  runner_pidfd_.reset();
  if (!profile_scratch_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(profile_scratch_, ignored);
    const std::filesystem::path folder = profile_scratch_.parent_path();
    if (verdict_.kind == "finished") std::filesystem::remove(folder / "profile.log", ignored);
    std::filesystem::remove(folder, ignored);  // unless a log is left in it
  }
  let_go();
}

// All in the sandbox is dead: what it leaves is kept and taken down, on a thread apart. A scratch folder may hold a
// million files, and a GPU's memory and a trainer that attaches are looked after here.
void SideTask::let_go() {
  if (supervisor_.hold == nullptr) return on_gone();
  leftovers_ = std::make_unique<Leftovers>();
  Leftovers& left = *leftovers_;
  left.child = std::exchange(supervisor_, Child{});
  left.scratch = std::move(scratch_fd_);
  const auto put_away = [&left, name = spec_.task, keep = spec_.purpose != "profile"] {
    if (auto kept = left.child.hold->end_scratch(left.scratch.get(), keep); !kept.ok())
      spdlog::warn("task {}: its scratch folder was not kept: {}", name, kept.error().text());
    left.scratch.reset();  // the last of it: the kernel frees its files now
    const uint64_t one = 1;
    (void)!write(left.done.get(), &one, sizeof one);
  };
  left.done.reset(eventfd(0, EFD_CLOEXEC));
  if (changed_ != nullptr && left.done.valid() &&
      loop_.watch(left.done.get(), EPOLLIN, [this](uint32_t) { on_gone(); }).ok()) {
    try {
      left.thread = std::thread(put_away);
      return;
    } catch (const std::system_error&) {  // no thread to be had: here, then
      loop_.forget(left.done.get());
    }
  }
  left.done.reset();
  put_away();
  on_gone();
}

void SideTask::on_gone() {
  if (leftovers_ != nullptr) {
    if (leftovers_->done.valid()) loop_.forget(leftovers_->done.get());
    if (leftovers_->thread.joinable()) leftovers_->thread.join();
    leftovers_->child.hold->explain(verdict_, verdict_.log_tail);
    leftovers_.reset();
  }
  scratch_fd_.reset();
  supervisor_ = Child{};
  sandbox_.forget(id_);
  if (folder_.valid()) futimens(folder_.get(), nullptr);  // used until now
  folder_.reset();
  ended_ = true;
  ended_ns_ = SteadyClock::now();
  if (changed_) changed_(*this);
}

void SideTask::set_device_memory(int64_t bytes) {
  resident_bytes_ = bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes);
}

void SideTask::look_at_memory() {
  if ((!options_.cpu_device && profile_ == nullptr) || runner_pid_ == 0 || !runner_pidfd_.valid()) return;
  pollfd gone{runner_pidfd_.get(), POLLIN, 0};
  if (poll(&gone, 1, 0) != 0) return;
  std::ifstream status("/proc/" + std::to_string(runner_pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (const int64_t peak = status_bytes(line, "VmHWM:")) host_peak_bytes_ = std::max(host_peak_bytes_, peak);
    if (const int64_t now = status_bytes(line, "VmRSS:")) {
      host_resident_bytes_ = now;
      break;  // follows VmHWM
    }
  }
  if (!options_.cpu_device) return;
  resident_bytes_ = host_resident_bytes_;
  peak_bytes_ = std::max(peak_bytes_, host_peak_bytes_);
}

bus::TaskCounters SideTask::counters() {
  bus::TaskCounters counters = earlier_;
  counters.memory_bytes = dead_ ? 0 : resident_bytes_;
  counters.peak_memory_bytes = std::max(earlier_.peak_memory_bytes, peak_bytes_);
  counters.metrics.clear();
  counters.predicted_ns = 0;
  if (pages_ == nullptr) return counters;
  const freeride_answer_page& answer = *pages_->answer;
  counters.steps += load_relaxed(answer.steps);
  counters.step_ns += sane_ns(load_relaxed(answer.step_ns));
  counters.harvested_ns += pages_->harvested_ns.load(std::memory_order_relaxed);
  counters.overrun_ns += pages_->overrun_ns.load(std::memory_order_relaxed);
  counters.predicted_ns = sane_ns(load_relaxed(answer.predicted_ns));
  counters.leases += pages_->leases.load(std::memory_order_relaxed);
  counters.skipped += load_relaxed(answer.skipped);
  for (const freeride_metric& metric : answer.metrics) {
    freeride_metric copy;
    std::memcpy(&copy, &metric, sizeof(copy));
    const size_t length = strnlen(copy.name, sizeof(copy.name));
    if (length == 0 || length == sizeof(copy.name) || !std::isfinite(copy.value)) continue;
    const bool printable = std::all_of(copy.name, copy.name + length, [](char c) { return c > 0x20 && c < 0x7f; });
    if (printable) counters.metrics[std::string(copy.name, length)] = copy.value;
  }
  return counters;
}

bus::TaskCounters SideTask::counters_now() {
  if (!dead_) look_at_memory();
  return counters();
}

bus::TaskReport SideTask::report() {
  bus::TaskReport report;
  report.task = spec_.task;
  report.purpose = spec_.purpose;
  report.revision = spec_.revision;
  report.sandbox = sandbox_text_.empty() ? sandbox_.name() : sandbox_text_;
  if (!granted_limits_.empty()) report.sandbox += ", " + granted_limits_;
  report.counters = counters_now();
  if (pages_ == nullptr) {
    report.state = state_name(FREERIDE_STATE_SUBMITTED);
  } else {
    report.state = state_name(load_relaxed(pages_->answer->state));
    report.create_ns = sane_ns(load_relaxed(pages_->answer->create_ns));
    report.init_ns = sane_ns(load_relaxed(pages_->answer->init_ns));
  }
  if (ended_) {
    report.state = state_name(FREERIDE_STATE_STOPPED);
    report.verdict = verdict_;
    // One that was never initialised has been stopped before there was anything to measure.
    if (profile_ != nullptr && report.init_ns > 0 && (verdict_.kind == "finished" || verdict_.kind == "stopped"))
      report.profile.push_back(profile());
  } else if (report.state == "STOPPED") {
    report.state = "PAUSED";  // until its verdict is there
  }
  return report;
}

}  // namespace freeride::worker
