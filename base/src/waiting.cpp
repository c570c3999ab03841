#include "freeride/base/waiting.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "freeride/base/names.hpp"

namespace freeride {
namespace {

constexpr std::string_view kClear = "\r\x1b[K";

void show(std::string_view text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

std::string bar_of(double share) {
  constexpr int kWidth = 24;
  if (!(share >= 0)) return "";
  const int done = static_cast<int>(std::min(share, 1.0) * kWidth);
  const auto percent = static_cast<int>(std::min(share, 1.0) * 100);
  return " [" + std::string(static_cast<size_t>(done), '#') + std::string(static_cast<size_t>(kWidth - done), '.') +
         "] " + std::to_string(percent) + " %";
}

bool on_terminal() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

}  // namespace

Waiting::Waiting(std::string what, std::chrono::milliseconds patience) : what_(std::move(what)) {
  if (!on_terminal()) return;
  std::replace_if(what_.begin(), what_.end(), is_control, '?');
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this, patience] { tell(patience); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Waiting::tell(std::chrono::milliseconds patience) {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto next = patience; !changed_.wait_until(lock, begin + next, [this] { return over_; });
       next += std::chrono::seconds(1)) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(next).count();
    show(std::string(kClear) + what_ + bar_of(share_) + ", " + std::to_string(seconds) + " s");
    shown_ = true;
  }
  if (shown_) show(kClear);
}

}  // namespace freeride
