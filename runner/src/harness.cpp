#include "harness.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

#include "freeride/base/clock.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/starvation.hpp"
#include "report.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace freeride::runner {
namespace {

// Where the child finds its descriptors; ours are moved out of the way first.
constexpr int kLeaseFd = 10, kAnswerFd = 11, kLifelineFd = 12, kReportFd = 13, kStateOutFd = 14, kStateInFd = 15,
              kProgramFd = 16, kShimFd = 17;
constexpr int kOutOfTheWay = 64;

Fd moved(Fd fd) {
  return Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, kOutOfTheWay));
}

std::vector<std::string> arguments(const Harness::Options& options, const std::string& program) {
  std::vector<std::string> arguments = {program,         "supervise",
                                        "--lease-fd",    std::to_string(kLeaseFd),
                                        "--answer-fd",   std::to_string(kAnswerFd),
                                        "--lifeline-fd", std::to_string(kLifelineFd),
                                        "--report-fd",   std::to_string(kReportFd),
                                        "--name",        "check",
                                        "--device",      options.device,
                                        "--scratch",     options.scratch,
                                        "--purpose",     options.purpose,
                                        "--steps",       std::to_string(options.steps),
                                        "--create-ms",   std::to_string(options.create_ms),
                                        "--stop-ms",     std::to_string(options.stop_ms)};
  arguments.insert(arguments.end(), {"--state-out-fd", std::to_string(kStateOutFd)});
  if (options.state_in_fd >= 0) arguments.insert(arguments.end(), {"--state-in-fd", std::to_string(kStateInFd)});
  if (options.shim_fd >= 0) arguments.insert(arguments.end(), {"--shim-fd", std::to_string(kShimFd)});
  if (!options.predicted_pieces_ns.empty())
    arguments.insert(arguments.end(), {"--predicted-pieces-ns", options.predicted_pieces_ns});
  if (options.program.empty()) {
    arguments.insert(arguments.end(), {"--plugin", options.plugin});
  } else {
    arguments.insert(arguments.end(), {"--program-fd", std::to_string(kProgramFd)});
  }
  for (const auto& [key, value] : options.params) {
    arguments.insert(arguments.end(), {"--param", key + "=" + value});
  }
  return arguments;
}

}  // namespace

Result<std::unique_ptr<Harness>> Harness::start(const Options& options) {
  std::unique_ptr<Harness> harness(new Harness());
  auto lease = pages::create_page<freeride_lease_page>(true);
  if (!lease.ok()) return lease.error();
  auto answer = pages::create_page<freeride_answer_page>(false);
  if (!answer.ok()) return answer.error();
  harness->lease_ = std::move(*lease);
  if (auto s = take(harness->answer_, pages::map_page<freeride_answer_page>(answer->fd.get())); !s.ok())
    return s.error();

  int lifeline[2];
  int report[2];
  if (pipe2(lifeline, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  const Fd lifeline_end = moved(Fd(lifeline[0]));
  harness->lifeline_.reset(lifeline[1]);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, report) != 0) {
    return errno_error("cannot make a socket pair", errno);
  }
  harness->report_.reset(report[0]);
  const Fd report_end = moved(Fd(report[1]));
  Fd log_end;
  if (options.deaf) {
    int log_pipe[2];
    if (pipe2(log_pipe, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
    harness->log_.reset(log_pipe[0]);
    log_end = moved(Fd(log_pipe[1]));
  } else {
    harness->log_.reset(memfd_create("task-log", MFD_CLOEXEC));
    log_end = moved(Fd(fcntl(harness->log_.get(), F_DUPFD_CLOEXEC, 0)));
    fcntl(log_end.get(), F_SETFL, O_APPEND);
  }
  harness->state_.reset(memfd_create("task-state", MFD_CLOEXEC));
  const Fd state_end = moved(Fd(fcntl(harness->state_.get(), F_DUPFD_CLOEXEC, 0)));
  const Fd state_in_end =
      options.state_in_fd < 0 ? Fd() : Fd(fcntl(options.state_in_fd, F_DUPFD_CLOEXEC, kOutOfTheWay));
  const Fd shim_end = options.shim_fd < 0 ? Fd() : Fd(fcntl(options.shim_fd, F_DUPFD_CLOEXEC, kOutOfTheWay));
  const Fd lease_end = moved(Fd(fcntl(harness->lease_.fd.get(), F_DUPFD_CLOEXEC, 0)));
  const Fd answer_end = moved(std::move(answer->fd));

  Fd program_end;
  if (!options.program.empty()) {
    std::string texts;
    for (const std::string& word : options.program) texts.append(word).push_back('\0');
    program_end = moved(Fd(memfd_create("program", MFD_CLOEXEC)));
    if (!program_end.valid() || !write_all(program_end.get(), texts) || lseek(program_end.get(), 0, SEEK_SET) != 0)
      return errno_error("cannot hand over the program", errno);
  }

  harness->now_.grace_ns = static_cast<uint64_t>(options.grace_ms * kNsPerMs);
  harness->now_.hang_ns = static_cast<uint64_t>(options.hang_ms * kNsPerMs);
  harness->publish();

  const std::string program = options.runner.empty() ? "/proc/self/exe" : options.runner;
  auto texts = arguments(options, program);
  std::vector<char*> argv;
  argv.reserve(texts.size() + 1);
  for (auto& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, lease_end.get(), kLeaseFd);
  posix_spawn_file_actions_adddup2(&actions, answer_end.get(), kAnswerFd);
  posix_spawn_file_actions_adddup2(&actions, lifeline_end.get(), kLifelineFd);
  posix_spawn_file_actions_adddup2(&actions, report_end.get(), kReportFd);
  posix_spawn_file_actions_adddup2(&actions, state_end.get(), kStateOutFd);
  if (state_in_end.valid()) posix_spawn_file_actions_adddup2(&actions, state_in_end.get(), kStateInFd);
  if (program_end.valid()) posix_spawn_file_actions_adddup2(&actions, program_end.get(), kProgramFd);
  if (shim_end.valid()) posix_spawn_file_actions_adddup2(&actions, shim_end.get(), kShimFd);
  posix_spawn_file_actions_adddup2(&actions, log_end.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log_end.get(), STDERR_FILENO);
  const int error = posix_spawn(&harness->supervisor_, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    harness->supervisor_ = kNoProcess;
    return errno_error("cannot start " + program, error);
  }
  return harness;
}

Harness::~Harness() {
  lifeline_.reset();
  if (supervisor_ > 1 && !wait_gone(kWatchdogMs)) {
    kill(supervisor_, SIGKILL);
    waitpid(supervisor_, nullptr, 0);
  }
}

void Harness::publish() {
  pages::write_lease(*lease_.page, now_);
  pages::futex_wake(lease_.page->sequence, FREERIDE_WAKE_RUNNER);
  pages::futex_wake(lease_.page->sequence, FREERIDE_WAKE_SUPERVISOR);
}

uint64_t Harness::open(uint32_t kind, int64_t length_ms, uint32_t order) {
  now_.order = order;
  now_.kind = kind;
  ++now_.lease_id;
  now_.opened_ns = static_cast<uint64_t>(SteadyClock::now());
  now_.begin_ns = now_.opened_ns;
  now_.deadline_ns = now_.opened_ns + static_cast<uint64_t>(length_ms * kNsPerMs);
  publish();
  return now_.lease_id;
}

void Harness::revoke(uint32_t order) {
  now_.order = order;
  now_.kind = FREERIDE_LEASE_NONE;
  now_.deadline_ns = 0;
  publish();
}

bool Harness::wait_until(const std::function<bool(const freeride_answer_page&)>& true_of, int64_t most_ms) {
  const int64_t until_ns = SteadyClock::now() + most_ms * kNsPerMs;
  for (;;) {
    const uint32_t sequence = pages::load_acquire(answer_->sequence);
    if (true_of(*answer_)) return true;
    // The report comes on a socket and steps wake nobody: look at both now and then.
    if (read_report(0) && verdict_) return true_of(*answer_);
    const int64_t now_ns = SteadyClock::now();
    if (now_ns >= until_ns) return false;
    pages::futex_wait(answer_->sequence, sequence, std::min(until_ns, now_ns + 5 * kNsPerMs));
  }
}

bool Harness::wait_state(uint32_t state, int64_t most_ms) {
  return wait_until([state](const auto& answer) { return pages::load_acquire(answer.state) == state; }, most_ms);
}

bool Harness::wait_paused(int64_t most_ms) {
  return wait_state(FREERIDE_STATE_PAUSED, most_ms);
}

bool Harness::read_report(int64_t most_ms) {
  pollfd readable{report_.get(), POLLIN, 0};
  if (!report_.valid() || poll(&readable, 1, static_cast<int>(most_ms)) != 1) return verdict_.has_value();
  char text[kMostReportBytes];
  const ssize_t length = recv(report_.get(), text, sizeof(text), 0);
  if (length <= 0) {
    report_.reset();
    return true;
  }
  const auto message = nlohmann::json::parse(text, text + length, nullptr, false);
  if (!message.is_object()) return false;
  if (message.value("event", "") == "started") task_ = message.value("pid", kNoProcess);
  if (message.value("event", "") == "verdict") {
    verdict_ = outcome_of(message);
  }
  return true;
}

std::optional<Outcome> Harness::verdict(int64_t most_ms) {
  const int64_t until_ns = SteadyClock::now() + most_ms * kNsPerMs;
  while (!verdict_ && report_.valid()) {
    const int64_t left_ms = (until_ns - SteadyClock::now()) / kNsPerMs;
    if (left_ms <= 0) break;
    read_report(left_ms);
  }
  return verdict_;
}

std::optional<int> Harness::wait_gone(int64_t most_ms) {
  const int64_t until_ns = SteadyClock::now() + most_ms * kNsPerMs;
  while (supervisor_ > 1) {
    int status = 0;
    const pid_t pid = waitpid(supervisor_, &status, WNOHANG);
    if (pid == supervisor_) {
      supervisor_ = kNoProcess;
      return status;
    }
    if (SteadyClock::now() > until_ns) break;
    const timespec moment{0, kNsPerMs};
    nanosleep(&moment, nullptr);
  }
  return std::nullopt;
}

bool Harness::signal_task(int signal) {
  return task() > 1 && kill(task_, signal) == 0;
}

bool Harness::signal_supervisor(int signal) const {
  return supervisor_ > 1 && kill(supervisor_, signal) == 0;
}

pid_t Harness::task() {
  while (task_ <= 1 && !verdict_ && report_.valid()) {
    if (!read_report(kWatchdogMs)) break;
  }
  return task_;
}

int64_t Harness::cpu_ns() {
  return task() <= 1 ? 0 : std::max<int64_t>(0, process_cpu_ns(task_));
}

std::string Harness::log() const {
  std::string text(1 << 20, '\0');
  const ssize_t length = pread(log_.get(), text.data(), text.size(), 0);
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

}  // namespace freeride::runner
