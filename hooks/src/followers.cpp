#include "followers.hpp"

#include <algorithm>

#include "freeride/pages/mapping.hpp"

namespace freeride::hooks {

template <size_t N>
Followers::Behind& Followers::at(std::array<Behind, N>& all, const void* handle) {
  // Handles are addresses of objects of some size: their low bits say little.
  const auto bits = reinterpret_cast<uintptr_t>(handle);
  return all[((bits >> 4) ^ (bits >> 12) ^ (bits >> 20)) % N];
}

template <size_t N>
uint64_t Followers::hold_of(std::array<Behind, N>& all, const void* handle) {
  const Behind& found = at(all, handle);
  return found.handle == handle ? found.hold : 0;
}

// Null: it is over, and stays so, or too old to be known.
const Followers::Hold* Followers::pending(uint64_t number) {
  Hold& hold = holds_[number % kHolds];
  if (number == 0 || hold.number != number) return nullptr;
  const bool over =
      std::all_of(hold.words.begin(), hold.words.begin() + static_cast<ptrdiff_t>(hold.count), [](const Word& word) {
        // As the GPU compares; a released counter holds nobody.
        const uint32_t now = pages::load_acquire(*word.counter);
        return static_cast<int32_t>(now - word.value) >= 0;
      });
  if (over) hold.number = 0;
  return over ? nullptr : &hold;
}

// Handles are a context's: stream 0 is another one in each, and the stream of a thread in each thread.
bool Followers::concerns(CudaStream stream) const {
  constexpr uintptr_t kStreamOfThread = 2;
  return any_.load(std::memory_order_acquire) && reinterpret_cast<uintptr_t>(stream) != kStreamOfThread &&
         cuda_.context() == context_;
}

void Followers::forget_over() {
  const std::lock_guard lock(mutex_);
  for (const Hold& hold : holds_) pending(hold.number);
}

void Followers::held(CudaStream stream, std::span<const Word> words) {
  if (words.empty() || words.size() > kMostWords) return;
  const std::lock_guard lock(mutex_);
  Hold& hold = holds_[++newest_ % kHolds];
  hold.number = newest_;
  hold.count = words.size();
  std::copy(words.begin(), words.end(), hold.words.begin());
  at(streams_, stream) = {stream, newest_};
  any_.store(true, std::memory_order_release);
}

void Followers::recorded(CudaEvent event, CudaStream stream) {
  if (!concerns(stream)) return;
  const std::lock_guard lock(mutex_);
  const uint64_t hold = hold_of(streams_, stream);
  if (pending(hold) != nullptr) {
    at(events_, event) = {event, hold};
  } else if (Behind& before = at(events_, event); before.handle == event) {
    before = {};
  }
}

Status Followers::about_to_wait(CudaStream stream, CudaEvent event) {
  if (!concerns(stream)) return {};
  Hold first;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t number = hold_of(events_, event);
    const Hold* hold = pending(number);
    if (hold == nullptr || hold_of(streams_, stream) == number) return {};
    first = *hold;
  }
  // Not under the lock: a stream whose queue is full answers when the hold is over.
  if (cuda_.is_capturing(stream)) return {};
  for (size_t i = 0; i < first.count; ++i) {
    auto posted = cuda_.wait_32(stream, first.words[i].address, first.words[i].value);
    if (!posted.ok()) return posted;
  }
  count_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  at(streams_, stream) = {stream, first.number};
  return {};
}

}  // namespace freeride::hooks
