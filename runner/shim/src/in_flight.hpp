// InFlight: what has been submitted and is not known to be done.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "freeride/base/clock.hpp"
#include "learned.hpp"

namespace freeride::shim {

/// What the accounting needs of the driver's events. Handles are the driver's. Any thread; none blocks for the GPU. A
/// call in a thread or stream that captures neither ends nor enters the capture.
class Events {
 public:
  enum class State { kDone, kPending, kLost };

  virtual ~Events() = default;
  /// Of a stream that the program made; null: the driver refuses.
  virtual void* context_of(void* stream) = 0;
  /// An event of the context, which takes times only where it is to: that costs the GPU more. Null: the driver refuses.
  virtual void* make(void* context, bool takes_times) = 0;
  /// Behind all that is on the stream. False: the driver refuses, or the stream captures.
  virtual bool record(void* context, void* event, void* stream) = 0;
  /// kLost: the driver answers with an error, which the program finds by its own calls.
  virtual State query(void* event) = 0;
  /// Between two events that are done; -1: the driver does not say.
  virtual int64_t elapsed_ns(void* begin, void* end) = 0;
};

/// A stream that was submitted to. Never freed: a pointer stays good. Fields but `open_ns` are written under InFlight's
/// lock.
struct Stream {
  void* context = nullptr;
  void* handle = nullptr;
  bool own_thread = false;          ///< a thread's default stream: only that thread can record on it
  bool gone = false;                ///< destroyed by the program
  std::atomic<int64_t> open_ns{0};  ///< submitted since the last mark
  struct Mark {
    void* begin;  ///< null: not timed
    void* end;
    int64_t weight_ns;
    Cost* cost;            ///< of what was timed
    int64_t submitted_ns;  ///< of what was timed
    int64_t host_ns;       ///< from before the first event until after the second
    int64_t idle_ns;       ///< of what was timed: the GPU waited for the call
    bool counted;
  };
  std::deque<Mark> marks;  ///< in the stream's order
};

/// The queue of one process, over all its streams and contexts: weights of what is not done. A *mark* is an event
/// behind some submissions; when it is done so are they. Adding is lock-free; marks are under a lock, which is held
/// over queries of the driver. Recording can wait for the GPU where its channels are full, and is done without that
/// lock. Any thread.
class InFlight {
 public:
  explicit InFlight(Events& events) : events_(events) {}

  int64_t queued_ns() const { return queued_ns_.load(std::memory_order_relaxed); }
  /// Another one: a Stream of a handle may be another one, or capture.
  const std::atomic<uint64_t>& generation() const { return generation_; }
  /// Takes `weight_ns` into the queue if that still is `seen_ns`.
  bool reserve(int64_t seen_ns, int64_t weight_ns) {
    return queued_ns_.compare_exchange_strong(seen_ns, seen_ns + weight_ns, std::memory_order_acq_rel);
  }
  /// What was reserved has not been submitted.
  void cancel(int64_t weight_ns) { queued_ns_.fetch_sub(weight_ns, std::memory_order_acq_rel); }

  /// The stream of these handles. `context` null: it is one that the program made, and the driver says whose. `thread`:
  /// of a thread's default stream, which; else 0.
  Stream* stream(void* context, void* handle, uint64_t thread);
  /// Something of that weight has been submitted to the stream. Records a mark once `mark_ns` are behind the last, and
  /// always for a thread's default stream. True: it did.
  bool submitted(Stream* stream, int64_t weight_ns, int64_t mark_ns);
  /// What was reserved will be submitted to the stream soon. The next mark there is for it, too.
  static void will_submit(Stream* stream, int64_t weight_ns) {
    stream->open_ns.fetch_add(weight_ns, std::memory_order_acq_rel);
  }
  /// It will not be. Where a mark is for it already, that is left.
  void will_not_submit(Stream* stream, int64_t weight_ns) {
    int64_t open_ns = stream->open_ns.load(std::memory_order_acquire);
    while (open_ns >= weight_ns) {
      if (!stream->open_ns.compare_exchange_weak(open_ns, open_ns - weight_ns, std::memory_order_acq_rel)) continue;
      cancel(weight_ns);
      return;
    }
  }
  /// An event for timing(), recorded on the stream; null: no timing. Before the submission.
  void* begin_timing(Stream* stream);
  /// The GPU is at that event and has nothing else to do on that stream; false: not within some microseconds. What is
  /// submitted from here on, the GPU waits for.
  bool is_idle(void* begin);
  /// The submission between begin_timing(), which came after `begun_ns`, and this is timed. Where the host takes long
  /// from `begun_ns` until this has its event, it may have been stopped in between. `idle_ns`: of that, what the GPU
  /// waited for the driver's call. `begin` null: by `clock`, from `begun_ns` on.
  void timed(Stream* stream, void* begin, int64_t weight_ns, Cost* cost, const Clock& clock, int64_t begun_ns,
             int64_t idle_ns);
  void drop_timing(Stream* stream, void* begin);

  /// Looks which marks are done. `timed`: gets what was timed of them. True: some were.
  struct Timed {
    int64_t longest_ns = 0;
    const Cost* longest = nullptr;
    int64_t sum_ns = 0;
  };
  bool poll(int64_t now_ns, Timed& timed);
  /// Puts marks behind all that has none, so that poll() can find it done. True: it did.
  bool mark_all();
  /// What is queued is not counted any more; it is timed all the same.
  void stop_counting();

  /// A stream may begin to capture.
  void renew() { generation_.store(next_generation(), std::memory_order_release); }
  /// The program destroys the stream. Marks it first, if anything is open on it.
  void forget_stream(void* handle);
  /// The program destroys a context: nothing that was recorded is looked at again.
  void forget_all();

  /// Around a fork, so that the child has no lock that nobody gives back.
  void lock() {
    marking_.lock();
    mutex_.lock();
  }
  void unlock() {
    mutex_.unlock();
    marking_.unlock();
  }

 private:
  static uint64_t next_generation();
  void* take_event(void* context, bool takes_times);
  void push_mark(Stream* stream, Stream::Mark mark);
  bool mark(Stream* stream, int64_t weight_ns);

  Events& events_;
  std::atomic<int64_t> queued_ns_{0};
  std::atomic<uint64_t> generation_{next_generation()};
  std::mutex marking_;  ///< held while other threads' streams are marked, and so while one is forgotten; before mutex_
  std::mutex mutex_;
  std::map<std::tuple<void*, void*, uint64_t>, Stream*> streams_;
  std::vector<std::unique_ptr<Stream>> all_;
  std::map<std::pair<void*, bool>, std::vector<void*>> spare_;  ///< events, by context and whether they take times
};

}  // namespace freeride::shim
