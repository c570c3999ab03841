#include "gpu/gpu_probe.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/end_signals.hpp"
#include "freeride/base/log.hpp"
#include "gpu/end_child.hpp"

namespace freeride::worker {
namespace {

// Long enough for a grid of one warp to be stopped by a time slice in the middle, short beside a bubble.
constexpr int64_t kLookNs = 300 * kNsPerUs;
constexpr int64_t kFirstPauseNs = 10 * kNsPerSec, kLastPauseNs = 600 * kNsPerSec;
constexpr int64_t kRoomPauseNs = 60 * kNsPerSec;

// This program's environment, but on this GPU alone and a client of nobody's MPS.
std::vector<std::string> environment_for(const std::string& gpu) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("CUDA_", 0) != 0) all.push_back(text);
  }
  all.emplace_back("CUDA_VISIBLE_DEVICES=" + gpu);
  all.emplace_back("CUDA_MPS_PIPE_DIRECTORY=/dev/null");
  return all;
}

}  // namespace

GpuProbe::GpuProbe(std::string gpu, Loop& loop, Changed changed)
    : gpu_(std::move(gpu)), loop_(loop), changed_(std::move(changed)) {}

GpuProbe::~GpuProbe() {
  end();
}

void GpuProbe::want(bool wanted) {
  if (!wanted) {
    if (child_.pid != 0) changed_(nullptr);
    end();
  } else if (child_.pid == 0 && SteadyClock::now() >= not_before_ns_) {
    start();
  }
}

void GpuProbe::make_room() {
  if (child_.pid == 0) return;
  spdlog::info("the GPU probe ends: training wants its memory");
  not_before_ns_ = SteadyClock::now() + kRoomPauseNs;
  want(false);
}

void GpuProbe::start() {
  not_before_ns_ = SteadyClock::now() + (pause_ns_ = std::clamp(pause_ns_ * 2, kFirstPauseNs, kLastPauseNs));
  auto mapping = ProbeMapping::create(kLookNs);
  output_.reset(memfd_create("probe-output", MFD_CLOEXEC));
  if (!mapping.ok() || !output_.valid()) {
    spdlog::warn("the GPU probe cannot start: {}", mapping.ok() ? "no descriptor is left" : mapping.error().text());
    return;
  }
  const std::string number = std::to_string((*mapping)->fd());
  const std::vector<std::string> environment = environment_for(gpu_);
  std::vector<char*> entries;
  for (const std::string& entry : environment) entries.push_back(const_cast<char*>(entry.c_str()));
  entries.push_back(nullptr);
  const char* arguments[] = {"freeride-worker", "--probe", number.c_str(), nullptr};
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    spdlog::warn("{}", errno_error("the GPU probe cannot start: cannot fork", errno).text());
    return;
  }
  if (pid == 0) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(EXIT_FAILURE);
    const sigset_t stray = stray_signals();
    sigprocmask(SIG_SETMASK, &stray, nullptr);
    fcntl((*mapping)->fd(), F_SETFD, 0);
    dup2(output_.get(), STDOUT_FILENO);
    dup2(output_.get(), STDERR_FILENO);
    execve("/proc/self/exe", const_cast<char**>(arguments), entries.data());
    _exit(EXIT_FAILURE);
  }
  child_.pid = pid;
  child_.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child_.pidfd.valid() || !loop_.watch(child_.pidfd.get(), EPOLLIN, [this](uint32_t) { ended(); }).ok()) {
    spdlog::warn("the GPU probe cannot be watched");
    return end();
  }
  changed_(std::shared_ptr<ProbeMapping>(std::move(*mapping)));
}

void GpuProbe::end() {
  if (child_.pid == 0) return;
  if (child_.pidfd.valid()) loop_.forget(child_.pidfd.get());
  end_child(std::exchange(child_, Child{}), loop_, nullptr);
}

void GpuProbe::ended() {
  std::string said(300, '\0');
  const ssize_t got = pread(output_.get(), said.data(), said.size(), 0);
  said.resize(got > 0 ? static_cast<size_t>(got) : 0);
  said = said.substr(0, said.find('\n'));
  if (!told_) {
    spdlog::warn("the GPU probe has ended{}{}: what side tasks leave on the GPU is not looked at until it works again",
                 said.empty() ? "" : ": ", said);
  }
  told_ = true;
  changed_(nullptr);
  end();
}

}  // namespace freeride::worker
