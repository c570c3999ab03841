// Steps of several pieces with a yield point after each but the last. A piece is busy for piece_us and appends "piece N
// begin_ns end_ns" to <scratch>/pieces. Keeps the number of whole steps as its state. With `queued` a thread takes the
// part of a GPU: pieces are queued ("queued N now now") and done there, in order.

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "freeride/plugin.hpp"

/// Does what it is given in a thread, one after the other.
class Worker {
 public:
  ~Worker() {
    if (!thread_.joinable()) return;
    push(nullptr);
    thread_.join();
  }
  void push(std::function<void()> work) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    ++pushed_;
    changed_.notify_all();
  }
  void mark() {
    before_ = last_;
    last_ = pushed_;
  }
  void wait(bool all) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= (all ? last_ : before_); });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  long pushed_ = 0, done_ = 0, last_ = 0, before_ = 0;
  std::thread thread_;
};

class Yielding : public freeride::SideTask, public freeride::KeepsState {
  freeride::Param<int> pieces_{this, "pieces", 6, "of a step"};
  freeride::Param<int> piece_us_{this, "piece_us", 10000, "busy for so long"};
  freeride::Param<bool> queued_{this, "queued", false, "pieces are done in another thread"};
  freeride::Param<int> leave_us_{this, "leave_us", 0, "a step that is given up is busy for so long"};
  freeride::Param<int> first_pause_us_{this, "first_pause_us", 0, "the first pause is busy for so long"};
  std::mutex trace_mutex_;
  std::ofstream trace_;
  std::unique_ptr<Worker> worker_;
  long steps_ = 0;
  int first_us_ = 0;
  int abandoned_ = 0;

  static long long now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void trace(const char* what, long number, long long begin_ns) {
    const std::lock_guard lock(trace_mutex_);
    trace_ << what << " " << number << " " << begin_ns << " " << now_ns() << std::endl;
  }
  void piece(int number) {
    const auto begin_ns = now_ns();
    for (freeride::StepTimer timer(piece_us_ / 1000.0); !timer.over();) {
    }
    trace("piece", number, begin_ns);
  }

  void CreateSideTask() override {
    first_us_ = first_pause_us_;
    trace_.open(scratch_path("pieces"));
    worker_ = std::make_unique<Worker>();
  }
  void PrepareGpuWorkload() override {
    yield_point();  // nothing to wait for here
    pass_gate();
    metric("prepared_in", static_cast<double>(gettid()));
  }
  void PauseSideTask() override {
    for (freeride::StepTimer timer(std::exchange(first_us_, 0) / 1000.0); !timer.over();) {
    }
    trace("pause", steps_, now_ns());
  }
  void StopSideTask() override { worker_.reset(); }

  freeride::Step RunNextStep() override {
    try {
      for (int i = 0; i < pieces_; ++i) {
        if (queued_) {
          if (i > 0) yield_point(*worker_);
          trace("queued", i, now_ns());
          worker_->push([this, i] { piece(i); });
        } else {
          if (i > 0) yield_point();
          piece(i);
        }
      }
      worker_->mark();
      worker_->wait(true);
    } catch (const freeride::StepAbandoned&) {
      metric("abandoned", ++abandoned_);
      for (freeride::StepTimer timer(leave_us_ / 1000.0); !timer.over();) {
      }
      throw;
    }
    metric("steps", static_cast<double>(++steps_));
    metric("works_in", static_cast<double>(gettid()));
    return freeride::Step::kMore;
  }

  std::string SaveState() override { return std::to_string(steps_); }
  void RestoreState(std::uint32_t, const std::string& state) override { steps_ = std::stol(state); }
};
FREERIDE_PLUGIN(Yielding)
