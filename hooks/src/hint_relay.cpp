#include "hint_relay.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"

namespace freeride::hooks {

Status HintRelay::open() {
  auto side = cuda_.new_stream();
  if (!side.ok()) return side.error();
  side_ = *side;
  return {};
}

Status HintRelay::add(CudaStream stream, const HintAddress& to, const std::array<uint8_t, Hint::kBytes>& hint,
                      uint64_t iteration, uint32_t word) {
  if (iteration != iteration_) place_ = 0;
  iteration_ = iteration;
  const size_t place = place_++;
  const uint64_t number = added_.load(std::memory_order_relaxed);
  Outgoing& out = (*outgoing_)[number % kOutgoing];
  const bool full = number - passed_.load(std::memory_order_acquire) >= kOutgoing;
  if (full || out.called_later.load(std::memory_order_acquire)) return {};
  out.self = this;
  out.to = &to;
  out.number = number;
  out.place = place;
  out.word = word;
  out.bytes = hint;
  if (events_.size() <= number % kOutgoing) {
    auto made = cuda_.new_event();
    if (!made.ok()) return made.error();
    events_.push_back(*made);
  }
  const CudaEvent event = events_[number % kOutgoing];
  if (followers_ != nullptr) followers_->recorded(event, stream);
  if (auto done = cuda_.record(event, stream); !done.ok()) return done;
  if (followers_ != nullptr) {
    if (auto done = followers_->about_to_wait(side_, event); !done.ok()) return done;
  }
  if (auto done = cuda_.wait_event(side_, event); !done.ok()) return done;
  out.state.store(kStates * number + kArmed, std::memory_order_release);
  out.called_later.store(true, std::memory_order_release);
  auto later = cuda_.call(side_, &HintRelay::called, &out);
  if (!later.ok()) {
    out.called_later.store(false);
    return later;
  }
  added_.store(number + 1, std::memory_order_release);
  return {};
}

// On a thread of the driver's.
void HintRelay::called(void* context) {
  auto* out = static_cast<Outgoing*>(context);
  out->self->tell(*out, out->number, SteadyClock::now());
  out->called_later.store(false, std::memory_order_release);
}

void HintRelay::tell(Outgoing& out, uint64_t number, int64_t now_ns) {
  uint64_t armed = kStates * number + kArmed;
  if (!out.state.compare_exchange_strong(armed, kStates * number + kSending, std::memory_order_acq_rel)) return;
  if (!stopped_.load()) {
    const auto sent = sendto(socket_.get(), out.bytes.data(), out.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&out.to->address), out.to->bytes);
    if (sent > 0) sent_.fetch_add(1, std::memory_order_relaxed);  // else it is a lost one
  }
  out.told_ns = now_ns;
  out.state.store(kStates * number + kTold, std::memory_order_release);
}

// Past the messages that are told. How long after the one before each came is what is learned.
void HintRelay::advance() {
  const uint64_t added = added_.load(std::memory_order_acquire);
  uint64_t number = passed_.load(std::memory_order_relaxed);
  for (; number < added; ++number) {
    const Outgoing& out = (*outgoing_)[number % kOutgoing];
    if (out.state.load(std::memory_order_acquire) != kStates * number + kTold) break;
    if (before_ns_ != 0 && out.place < kPlaces) {
      Place& place = places_[out.place];
      place.after_ns[place.seen++ % kSamples] = out.told_ns - before_ns_;
    }
    before_ns_ = out.told_ns;
    last_word_ = out.word;  // it stands there until the next one
  }
  passed_.store(number, std::memory_order_release);
}

int64_t HintRelay::look(uint32_t word, int64_t now_ns) {
  advance();
  const uint64_t added = added_.load(std::memory_order_acquire);
  uint64_t number = passed_.load(std::memory_order_relaxed);
  if (number < added && word != last_word_) {
    const auto is_there = [&](uint64_t other) { return (*outgoing_)[other % kOutgoing].word == word; };
    uint64_t reached = number;
    while (reached < added && !is_there(reached)) ++reached;
    // Of two messages with one word the later waits for the driver's function.
    for (; reached < added && number <= reached; ++number) tell((*outgoing_)[number % kOutgoing], number, now_ns);
    advance();
    number = passed_.load(std::memory_order_relaxed);
  }
  if (number >= added || before_ns_ == 0) return INT64_MAX;
  const size_t at = (*outgoing_)[number % kOutgoing].place;
  if (at >= kPlaces || places_[at].seen < kLeastSamples) return INT64_MAX;
  const auto& after_ns = places_[at].after_ns;
  const auto [least, most] = std::minmax_element(
      after_ns.begin(), after_ns.begin() + static_cast<ptrdiff_t>(std::min(places_[at].seen, kSamples)));
  const int64_t from_ns = before_ns_ + *least - kBefore;
  const int64_t to_ns = std::min(before_ns_ + *most + kBefore, from_ns + kLongestWindow);
  if (now_ns < from_ns) return from_ns;
  return now_ns < to_ns ? now_ns + kLook : INT64_MAX;
}

bool HintRelay::is_idle() const {
  return std::none_of(outgoing_->begin(), outgoing_->end(),
                      [](const Outgoing& one) { return one.called_later.load(std::memory_order_acquire); });
}

}  // namespace freeride::hooks
