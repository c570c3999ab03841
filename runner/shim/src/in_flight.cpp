#include "in_flight.hpp"

#include <algorithm>
#include <utility>

namespace freeride::shim {
namespace {

// Some microseconds, as an event takes to come to a GPU that is idle, and to be seen by the host.
constexpr int kIdleQueries = 24;

}  // namespace

// Never the same twice in a process, whichever object asks.
uint64_t InFlight::next_generation() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Stream* InFlight::stream(void* context, void* handle, uint64_t thread) {
  struct Last {
    uint64_t generation = 0;
    void* context = nullptr;
    void* handle = nullptr;
    uint64_t thread = 0;
    Stream* stream = nullptr;
  };
  static thread_local Last last;
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (last.generation == generation && last.context == context && last.handle == handle && last.thread == thread) {
    return last.stream;
  }
  const std::lock_guard lock(mutex_);
  Stream*& place = streams_[{context, handle, thread}];
  if (place == nullptr) {
    auto unused =
        std::find_if(all_.begin(), all_.end(), [](const auto& one) { return one->gone && one->marks.empty(); });
    if (unused == all_.end()) unused = all_.insert(all_.end(), std::make_unique<Stream>());
    place = unused->get();
    place->gone = false;
    place->context = context == nullptr ? events_.context_of(handle) : context;
    place->handle = handle;
    place->own_thread = thread != 0;
  }
  last = {generation, context, handle, thread, place};
  return place;
}

void* InFlight::take_event(void* context, bool takes_times) {
  {
    const std::lock_guard lock(mutex_);
    auto& spare = spare_[{context, takes_times}];
    if (!spare.empty()) {
      void* event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  return events_.make(context, takes_times);
}

void InFlight::push_mark(Stream* stream, Stream::Mark mark) {
  const std::lock_guard lock(mutex_);
  stream->marks.push_back(mark);
}

bool InFlight::mark(Stream* stream, int64_t weight_ns) {
  void* event = take_event(stream->context, false);
  if (event == nullptr || !events_.record(stream->context, event, stream->handle)) {
    // Nothing will tell when it is done: it counts as done.
    cancel(weight_ns);
    if (event != nullptr) {
      const std::lock_guard lock(mutex_);
      spare_[{stream->context, false}].push_back(event);
    }
    return false;
  }
  push_mark(stream, {nullptr, event, weight_ns, nullptr, 0, 0, 0, true});
  return true;
}

bool InFlight::submitted(Stream* stream, int64_t weight_ns, int64_t mark_ns) {
  const int64_t open_ns = stream->open_ns.fetch_add(weight_ns, std::memory_order_acq_rel) + weight_ns;
  if (open_ns < mark_ns && !stream->own_thread) return false;
  const int64_t taken_ns = stream->open_ns.exchange(0, std::memory_order_acq_rel);
  return taken_ns > 0 && mark(stream, taken_ns);
}

void* InFlight::begin_timing(Stream* stream) {
  void* event = take_event(stream->context, true);
  if (event == nullptr) return nullptr;
  if (events_.record(stream->context, event, stream->handle)) return event;
  drop_timing(stream, event);
  return nullptr;
}

bool InFlight::is_idle(void* begin) {
  for (int i = 0; begin != nullptr && i < kIdleQueries; ++i) {
    const auto state = events_.query(begin);
    if (state != Events::State::kPending) return state == Events::State::kDone;
  }
  return false;
}

void InFlight::drop_timing(Stream* stream, void* begin) {
  if (begin == nullptr) return;
  const std::lock_guard lock(mutex_);
  spare_[{stream->context, true}].push_back(begin);
}

void InFlight::timed(Stream* stream, void* begin, int64_t weight_ns, Cost* cost, const Clock& clock, int64_t begun_ns,
                     int64_t idle_ns) {
  void* end = take_event(stream->context, true);
  const int64_t open_ns = stream->open_ns.exchange(0, std::memory_order_acq_rel);
  if (end == nullptr || !events_.record(stream->context, end, stream->handle)) {
    cancel(weight_ns + open_ns);
    drop_timing(stream, begin);
    drop_timing(stream, end);
    return;
  }
  push_mark(stream, {begin, end, weight_ns + open_ns, cost, begun_ns, clock.now_ns() - begun_ns, idle_ns, true});
}

bool InFlight::poll(int64_t now_ns, Timed& timed) {
  // Whoever is at it does it for all.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  bool some = false;
  for (const auto& stream : all_) {
    auto& marks = stream->marks;
    while (!marks.empty()) {
      const auto& mark = marks.front();
      const auto state = events_.query(mark.end);
      if (state == Events::State::kPending) break;
      if (state == Events::State::kDone && mark.cost != nullptr) {
        int64_t took_ns = mark.begin == nullptr ? -1 : events_.elapsed_ns(mark.begin, mark.end);
        if (took_ns < 0) took_ns = now_ns - mark.submitted_ns;
        const bool known = mark.cost->record(took_ns, mark.host_ns, mark.idle_ns);
        timed.sum_ns += took_ns;
        if (known && took_ns > timed.longest_ns) {
          timed.longest_ns = took_ns;
          timed.longest = mark.cost;
        }
      }
      if (mark.counted) cancel(mark.weight_ns);
      if (state == Events::State::kDone) {
        auto& spare = spare_[{stream->context, mark.cost != nullptr}];
        spare.push_back(mark.end);
        if (mark.begin != nullptr) spare.push_back(mark.begin);
      }
      marks.pop_front();
      some = true;
    }
  }
  return some;
}

bool InFlight::mark_all() {
  const std::lock_guard marking(marking_);
  std::vector<std::pair<Stream*, int64_t>> open;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : all_) {
      if (stream->gone || stream->own_thread) continue;
      if (const int64_t ns = stream->open_ns.exchange(0, std::memory_order_acq_rel); ns > 0)
        open.emplace_back(stream.get(), ns);
    }
  }
  bool some = false;
  for (const auto& [stream, ns] : open) some = mark(stream, ns) || some;
  return some;
}

void InFlight::stop_counting() {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : all_) {
    if (const int64_t ns = stream->open_ns.exchange(0, std::memory_order_acq_rel); ns > 0) cancel(ns);
    for (auto& mark : stream->marks) {
      if (std::exchange(mark.counted, false)) cancel(mark.weight_ns);
    }
  }
}

void InFlight::forget_stream(void* handle) {
  const std::lock_guard marking(marking_);
  std::vector<std::pair<Stream*, int64_t>> open;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = streams_.begin(); at != streams_.end();) {
      Stream* stream = at->second;
      if (stream->handle != handle) {
        ++at;
        continue;
      }
      stream->gone = true;
      if (const int64_t ns = stream->open_ns.exchange(0, std::memory_order_acq_rel); ns > 0)
        open.emplace_back(stream, ns);
      at = streams_.erase(at);
    }
    renew();
  }
  for (const auto& [stream, ns] : open) mark(stream, ns);
}

void InFlight::forget_all() {
  const std::lock_guard marking(marking_);
  const std::lock_guard lock(mutex_);
  streams_.clear();
  spare_.clear();
  renew();
  for (const auto& stream : all_) {
    stream->gone = true;
    if (const int64_t ns = stream->open_ns.exchange(0, std::memory_order_acq_rel); ns > 0) cancel(ns);
    for (const auto& mark : stream->marks) {
      if (mark.counted) cancel(mark.weight_ns);
    }
    stream->marks.clear();
  }
}

}  // namespace freeride::shim
