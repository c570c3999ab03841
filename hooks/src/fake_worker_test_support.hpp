// For tests: the worker's end of the handover.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "freeride/base/clock.hpp"
#include "freeride/pages/handover.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::hooks {

/// A folder of the test's own, removed with everything in it.
class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/freeride-hook-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr int kWatchdogMs = 30'000;

/// Whether `fd` becomes readable before the watchdog ends the test's patience.
inline bool readable(int fd, int timeout_ms = kWatchdogMs) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, timeout_ms) == 1;
}

class FakeWorker {
 public:
  explicit FakeWorker(const std::string& run_dir, const std::string& device = "cpu-0")
      : path_(run_dir + "/worker-" + device + ".sock") {
    auto listener = pages::listen_for_pages(path_);
    REQUIRE(listener.ok());
    listener_ = std::move(*listener);
  }
  ~FakeWorker() { unlink(path_.c_str()); }

  /// Waits for a trainer, takes its page and answers.
  void accept(const std::string& answer = "OK", int bell_fd = -1) {
    REQUIRE(readable(listener_.get()));
    connection_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(connection_.valid());
    REQUIRE(readable(connection_.get()));
    auto hello = pages::receive_hello(connection_.get());
    REQUIRE(hello.ok());
    peer = hello->pid;
    auto mapped = pages::map_page<freeride_bubble_page>(hello->page.get());
    REQUIRE(mapped.ok());
    page_ = std::move(*mapped);
    if (!answer.empty()) REQUIRE(pages::send_reply(connection_.get(), answer, bell_fd).ok());
  }
  /// Answers before it has read anything, and hangs up.
  void turn_away(const std::string& answer) {
    REQUIRE(readable(listener_.get()));
    connection_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(connection_.valid());
    say(answer);
    connection_.reset();
  }
  void say(const std::string& text) {
    if (!text.empty()) REQUIRE(send(connection_.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  }
  /// Whether the trainer's end is closed, now or before the watchdog.
  bool trainer_gone(int timeout_ms = kWatchdogMs) {
    char byte;
    return readable(connection_.get(), timeout_ms) && recv(connection_.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
  const freeride_bubble_page& page() const { return *page_; }
  int listener() const { return listener_.get(); }

  pid_t peer = 0;

 private:
  std::string path_;
  Fd listener_, connection_;
  pages::Mapped<const freeride_bubble_page> page_;
};

/// Sleeps on the page's futex word until `condition` holds; false when the watchdog fires first.
template <class Condition>
bool wait_for(const uint32_t& wake, Condition condition) {
  const int64_t deadline = SteadyClock::now() + kWatchdogMs * kNsPerMs;
  for (;;) {
    const uint32_t seen = pages::load_acquire(wake);
    if (condition()) return true;
    if (SteadyClock::now() > deadline) return false;
    pages::futex_wait(wake, seen, std::min(deadline, SteadyClock::now() + 50 * kNsPerMs));
  }
}

}  // namespace freeride::hooks
