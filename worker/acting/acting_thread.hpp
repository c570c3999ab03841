// ActingThread: the one thread that acts on bubbles. It sleeps in one futex call over all pages (without futex_waitv:
// on one word, base/wait_set) and never touches a socket, a lock that is held for long, or the heap while bubbles come
// and go.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "acting/actor.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Of the acting thread, where it may: above everything that is not real-time, below what an administrator gives 50 and
/// more.
constexpr int kRealTimePriority = 10;

/// Owns the thread and its Actor. All members are for the main thread. What the orders hand over is dropped by the
/// acting thread.
class ActingThread {  // NOLINT(clang-analyzer-optin.performance.Padding): holds the ring
 public:
  /// Starts it, at a real-time priority where the system allows that. Errors: kExhausted.
  static Result<std::unique_ptr<ActingThread>> start(const ActorConfig& config);
  ~ActingThread();  ///< stops and joins; open leases are closed first

  void add_rank(std::shared_ptr<const RankSource> source);
  void remove_rank(uint64_t id);
  void add_task(std::shared_ptr<TaskSource> source);
  void remove_task(uint64_t id);
  void set_process(uint64_t id, int pid, std::shared_ptr<const Fd> pidfd);
  void set_order(uint64_t id, uint32_t order);
  void ask_to_save(uint64_t id, bool wanted);
  void initialise_paused(uint64_t id);
  void set_plans(std::shared_ptr<const PlanSet> plans);
  void set_probe(std::shared_ptr<ProbeMapping> mapping);
  void set_other_process(bool there);

  /// Without futex_waitv, the memory file of the bell that the thread sleeps on; else -1. This object's.
  int bell_fd() const { return bell_ == nullptr ? -1 : bell_->fd.get(); }
  /// Makes another bell: whoever has the present one may still ring it, but nobody listens. For another user's hooks,
  /// who must not be able to keep each other from being heard. Errors: kExhausted; the present one stays.
  Status renew_bell();

  /// Readable when there are events or kills to take. Events wait for a moment that does not cost training or the first
  /// step of a bubble anything: at most kPatienceNs.
  int event_fd() const { return event_fd_.get(); }
  /// Empties event_fd(); call before pop() and take_kills().
  void acknowledge();
  bool pop(ActEvent& event) { return events_.pop(event); }
  std::vector<Kill> take_kills();
  uint64_t dropped() const { return events_.dropped(); }
  /// "" or why the thread has no real-time priority.
  std::string priority_note() const;

  static constexpr int64_t kPatienceNs = 200'000'000;

 private:
  using Order = std::function<void(Actor&)>;
  explicit ActingThread(const ActorConfig& config);
  void post(Order order);
  void run();
  void raise_priority();
  void tell_main();

  const ActorConfig config_;
  std::shared_ptr<const Bell> bell_;  // the latest order about one
  SystemProcesses processes_;
  EventRing events_;
  Fd event_fd_;
  std::mutex orders_mutex_;
  std::vector<Order> orders_;
  std::atomic<uint32_t> orders_word_{0};  // futex; one more after every order
  std::atomic<bool> stopping_{false};
  std::mutex kills_mutex_;
  std::vector<Kill> kills_;
  mutable std::mutex note_mutex_;
  std::string priority_note_;
  std::thread thread_;
};

}  // namespace freeride::worker
