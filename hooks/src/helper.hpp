// Helper: the hook's one thread. It hands the page to the worker, again whenever a worker comes back; watches the other
// ranks of the sent page; and, with external marks, looks at the state word and ends holds that last too long.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "idle_phases.hpp"
#include "rank_page.hpp"
#include "sent.hpp"
#include "stream_marks.hpp"

namespace freeride::hooks {

/// Sleeps in one poll for all of it. While a worker is connected, no sent page is used and marks are the host's, it
/// does not wake at all; without a worker every few seconds.
class Helper {
 public:
  struct Config {
    std::string run_dir;  ///< empty: Paths::run_dirs()
    std::string device;
    bool external_marks = false;
    /// One line for people: why a worker that is there does not have the page. Once, until one has it.
    void (*say)(const std::string& text) = nullptr;
    /// Called once should the thread meet an exception of its own.
    void (*failed)(void* context, const char* reason) = nullptr;
    void* context = nullptr;
  };

  /// `sent`, `streams` and `phases` may be null.
  Helper(Config config, RankPage& page, SentMember* sent, StreamMarks* streams, IdlePhases* phases = nullptr)
      : config_(std::move(config)), page_(page), sent_(sent), streams_(streams), phases_(phases) {}
  ~Helper() { stop(); }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  Status start();
  /// Joins the thread. Any thread but the helper's own; safe to call twice.
  void stop();
  /// Wakes the thread: something is to be looked at soon. Any thread; one system call that does not block.
  void look();
  bool connected() const { return connected_.load(std::memory_order_acquire); }

  // Around fork(), so that no descriptor is made in between: the child must close the connection, or the worker would
  // take a forked data loader for a living trainer.
  void lock_for_fork() { descriptors_.lock(); }
  void unlock_after_fork() { descriptors_.unlock(); }
  void drop_in_child();

 private:
  static void* entry(void* self);
  void loop();
  void connect_now(int64_t now_ns);
  void say_unattached(const std::string& why);
  void read_reply(int64_t now_ns);
  void disconnect(int64_t now_ns, int64_t retry_ns);
  bool read_directory_events();
  void watch_directories();

  Config config_;
  RankPage& page_;
  SentMember* sent_;
  StreamMarks* streams_;
  IdlePhases* phases_;
  std::vector<std::string> run_dirs_;  // the first with a worker that takes the page
  std::string socket_name_;
  pthread_t thread_{};
  bool running_ = false;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> connected_{false};
  std::mutex descriptors_;  // held while any of the following changes
  Fd event_, inotify_, socket_;
  int64_t next_try_ns_ = 0;
  int64_t backoff_ns_ = 0;
  int64_t asked_ns_ = 0;  // when the page was handed over; 0: it has been taken, or it was not
  bool said_ = false;     // why the page is nowhere
};

}  // namespace freeride::hooks
