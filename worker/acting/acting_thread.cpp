#include "acting/acting_thread.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <thread>
#include <utility>

#include "acting/awake_budget.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/daemon_thread.hpp"

namespace freeride::worker {
namespace {

constexpr int kNiceInstead = -15;

// After a bubble's begin its first step comes first; the main thread hears of it this much later.
constexpr int64_t kHeadStartNs = kNsPerMs;

// A page whose futex word is bumped without end must not turn a real-time thread into a spinning one.
constexpr int64_t kFloodWindowNs = 100 * kNsPerMs;
constexpr int kFloodTurns = 5000;
constexpr auto kFloodNap = std::chrono::milliseconds(2);

const uint32_t& as_word(const std::atomic<uint32_t>& word) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  return reinterpret_cast<const uint32_t&>(word);
}

}  // namespace

ActingThread::ActingThread(const ActorConfig& config) : config_(config) {}

Result<std::unique_ptr<ActingThread>> ActingThread::start(const ActorConfig& config) {
  std::unique_ptr<ActingThread> self(new ActingThread(config));
  self->event_fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!self->event_fd_.valid()) return errno_error("cannot make an event descriptor", errno);
  if (!has_futex_waitv()) {
    if (auto made = self->renew_bell(); !made.ok()) return made.error();
  }
  try {
    self->thread_ = std::thread([raw = self.get()] { run_or_end("the acting thread", [raw] { raw->run(); }); });
  } catch (const std::system_error& error) {
    return Error{Code::kExhausted, std::string("cannot start the acting thread: ") + error.what(), ""};
  }
  return self;
}

ActingThread::~ActingThread() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  post([](Actor&) {});
  thread_.join();
}

void ActingThread::post(Order order) {
  {
    const std::lock_guard lock(orders_mutex_);
    orders_.push_back(std::move(order));
  }
  orders_word_.fetch_add(1, std::memory_order_release);
  if (bell_ == nullptr) return wake_private(as_word(orders_word_));
  pages::bump_and_wake(bell_->page->rings);
}

Status ActingThread::renew_bell() {
  auto made = pages::create_page<freeride_bell_page>(false);
  if (!made.ok()) return made.error();
  auto bell = std::make_shared<const Bell>(std::move(*made));
  post([bell](Actor& actor) { actor.set_bell(bell); });  // rings the one that the thread sleeps on
  bell_ = std::move(bell);
  return {};
}

void ActingThread::add_rank(std::shared_ptr<const RankSource> source) {
  post([source = std::move(source)](Actor& actor) { actor.add_rank(source); });
}
void ActingThread::remove_rank(uint64_t id) {
  post([id](Actor& actor) { actor.remove_rank(id, SteadyClock::now()); });
}
void ActingThread::add_task(std::shared_ptr<TaskSource> source) {
  post([source = std::move(source)](Actor& actor) { actor.add_task(source); });
}
void ActingThread::remove_task(uint64_t id) {
  post([id](Actor& actor) { actor.remove_task(id, SteadyClock::now()); });
}
void ActingThread::set_process(uint64_t id, int pid, std::shared_ptr<const Fd> pidfd) {
  post([id, pid, pidfd = std::move(pidfd)](Actor& actor) { actor.set_process(id, pid, pidfd); });
}
void ActingThread::set_order(uint64_t id, uint32_t order) {
  post([id, order](Actor& actor) { actor.set_order(id, order, SteadyClock::now()); });
}
void ActingThread::ask_to_save(uint64_t id, bool wanted) {
  post([id, wanted](Actor& actor) { actor.ask_to_save(id, wanted); });
}
void ActingThread::initialise_paused(uint64_t id) {
  post([id](Actor& actor) { actor.initialise_paused(id); });
}
void ActingThread::set_plans(std::shared_ptr<const PlanSet> plans) {
  post([plans = std::move(plans)](Actor& actor) { actor.set_plans(plans); });
}

void ActingThread::set_probe(std::shared_ptr<ProbeMapping> mapping) {
  post([mapping = std::move(mapping)](Actor& actor) { actor.set_probe(mapping); });
}

void ActingThread::set_other_process(bool there) {
  post([there](Actor& actor) { actor.set_other_process(there); });
}

void ActingThread::acknowledge() {
  uint64_t count = 0;
  while (read(event_fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

void ActingThread::tell_main() {
  const uint64_t one = 1;
  if (write(event_fd_.get(), &one, sizeof(one)) < 0) return;  // EAGAIN: it has not taken the last 2^64 yet
}

std::vector<Kill> ActingThread::take_kills() {
  const std::lock_guard lock(kills_mutex_);
  return std::exchange(kills_, {});
}

std::string ActingThread::priority_note() const {
  const std::lock_guard lock(note_mutex_);
  return priority_note_;
}

void ActingThread::raise_priority() {
  pthread_setname_np(pthread_self(), "freeride-act");
  sched_param param{};
  param.sched_priority = kRealTimePriority;
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param) == 0) return;  // of this thread only
  const bool nicer = setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceInstead) == 0;
  const std::lock_guard lock(note_mutex_);
  priority_note_ = std::string("the acting thread runs ") + (nicer ? "at a raised" : "at a normal") +
                   " priority only: real-time scheduling needs CAP_SYS_NICE or RLIMIT_RTPRIO >= " +
                   std::to_string(kRealTimePriority);
}

void ActingThread::run() {
  raise_priority();
  Actor actor(config_, processes_, events_);
  WaitSet waits;
  AwakeBudget budget;
  std::vector<Order> orders;
  int64_t tell_at_ns = 0;  // 0: nothing to tell
  bool was_in_window = false;
  int64_t flood_begin_ns = 0;
  int turns = 0;

  while (true) {
    waits.clear();
    const uint32_t orders_seen = orders_word_.load(std::memory_order_acquire);
    {
      const std::lock_guard lock(orders_mutex_);
      orders.swap(orders_);
    }
    for (const Order& order : orders) order(actor);
    orders.clear();
    if (stopping_.load()) break;

    const int64_t now_ns = SteadyClock::now();
    waits.add_private(as_word(orders_word_), orders_seen, true);
    const Actor::Next next = actor.step(now_ns, waits, boottime_now() - now_ns);
    if (actor.has_kills()) {
      const std::lock_guard lock(kills_mutex_);
      std::vector<Kill> kills = actor.take_kills();
      kills_.insert(kills_.end(), std::make_move_iterator(kills.begin()), std::make_move_iterator(kills.end()));
    }

    // The main thread shares the core with training on a CPU device, so it is told of events while a bubble is open,
    // and of those that find no bubble soon enough.
    if (tell_at_ns == 0 && !events_.empty()) tell_at_ns = now_ns + kPatienceNs;
    if (tell_at_ns != 0 && next.in_window && !was_in_window) tell_at_ns = std::min(tell_at_ns, now_ns + kHeadStartNs);
    was_in_window = next.in_window;
    if (next.tell_now || (tell_at_ns != 0 && tell_at_ns <= now_ns)) {
      tell_main();
      tell_at_ns = 0;
    }

    if (now_ns - flood_begin_ns > kFloodWindowNs) {
      flood_begin_ns = now_ns;
      turns = 0;
    }
    if (++turns > kFloodTurns) std::this_thread::sleep_for(kFloodNap);

    int64_t until_ns = next.look_ns;
    if (tell_at_ns != 0) {
      const int64_t when_ns = actor.after_start(tell_at_ns, now_ns);
      until_ns = until_ns == 0 ? when_ns : std::min(until_ns, when_ns);
    }
    if (next.awake_ns != 0) {
      const int64_t awake_ns = budget.allow(now_ns, until_ns == 0 ? next.awake_ns : std::min(next.awake_ns, until_ns));
      int64_t looked_ns = now_ns;
      bool changed = false;
      while (looked_ns < awake_ns && !(changed = waits.changed())) looked_ns = SteadyClock::now();
      budget.spend(looked_ns - now_ns);
      if (changed) continue;
    }
    waits.wait(until_ns, actor.bell() == nullptr ? nullptr : &actor.bell()->page->rings);
  }
  actor.stop(SteadyClock::now());
}

}  // namespace freeride::worker
