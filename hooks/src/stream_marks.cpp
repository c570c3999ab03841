#include "stream_marks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "freeride/policy/batch_plan.hpp"
#include "freeride/policy/remote_wait.hpp"

namespace freeride::hooks {

using pages::load_acquire;

namespace {

// All that a GPU writes of the bubble page lies on its first 4 KiB.
constexpr size_t kSharedOfBubblePage = 4096;
static_assert(offsetof(freeride_bubble_page, state_word) + sizeof(uint64_t) <= kSharedOfBubblePage);
static_assert(offsetof(freeride_bubble_page, idle_marked) + sizeof(uint64_t) <= kSharedOfBubblePage);

constexpr uint8_t kBrokenForGood = 2;

}  // namespace

int64_t StreamMarks::shortest_lease_ns() {
  const char* text = std::getenv("FREERIDE_HOOK_SHORTEST_MS");
  if (text == nullptr) return kShortestLeaseNs;
  char* end = nullptr;
  const double ms = std::strtod(text, &end);
  return end != text && *end == 0 && ms >= 0 && ms < 1e6 ? static_cast<int64_t>(ms * 1e6) : kShortestLeaseNs;
}

Result<std::unique_ptr<StreamMarks>> StreamMarks::create(CudaDriver cuda, RankPage& page, SentMember& sent,
                                                         uint64_t counted) {
  if (!cuda.can_write_64()) {
    return Error{Code::kUnavailable, "this GPU's streams cannot write 64-bit values", "use one of Volta or later"};
  }
  std::unique_ptr<StreamMarks> marks(new StreamMarks(cuda, page, sent, counted));
  auto bubble_page = cuda.share(&page.page(), kSharedOfBubblePage);
  if (!bubble_page.ok()) return bubble_page.error();
  marks->state_word_ = *bubble_page + offsetof(freeride_bubble_page, state_word);
  marks->idle_marked_ = *bubble_page + offsetof(freeride_bubble_page, idle_marked);
  auto sent_page = cuda.share(&sent.page(), sent.shared_bytes());
  if (!sent_page.ok()) return sent_page.error();
  marks->sent_page_ = *sent_page;
  return marks;
}

Status StreamMarks::mark_phase(CudaStream stream, uint64_t word) {
  if (cuda_.is_capturing(stream)) {
    return Error{Code::kUnavailable, "an idle phase is captured into a CUDA graph", ""};
  }
  return cuda_.write_64(stream, idle_marked_, word);
}

bool StreamMarks::all_there(const Wants& wants) const {
  const auto of = wants.span();
  return std::all_of(of.begin(), of.end(),
                     [&](const Want& want) { return sent_.counter_from(want.slot, wants.row) >= want.value; });
}

CudaAddress StreamMarks::counter(SentMember::Row row, uint32_t from, uint32_t to) const {
  const size_t matrix =
      row == SentMember::Row::kSent ? offsetof(freeride_sent_page, sent) : offsetof(freeride_sent_page, met);
  return sent_page_ + matrix + (size_t{from} * FREERIDE_MAX_RANKS + to) * sizeof(uint32_t);
}

// Nothing where nobody relies on it: on another host, not hooked, or released.
Status StreamMarks::count_for(CudaStream stream, uint32_t rank, uint32_t value, SentMember::Row row) {
  const auto slot = sent_.slot_of(rank, row);
  if (!slot || sent_.released()) return {};
  return cuda_.write_32(stream, counter(row, sent_.local_rank(), *slot), value);
}

bool StreamMarks::ours() {
  const pthread_t self = pthread_self();
  pthread_t owner = owner_.load(std::memory_order_relaxed);
  return owner == self || (owner == 0 && owner_.compare_exchange_strong(owner, self));
}

StreamMarks::Wants StreamMarks::expect(std::span<const uint32_t> sources, bool ours) {
  Wants wants;
  wants.known = ours && sources.size() <= kMostSources;
  for (const uint32_t rank : sources) {
    // Counted in any case: the sender counts whatever we do.
    const uint64_t count = counted_ + ++expected_[rank];
    wants.known = wants.known && kRing.may_hold(count);
    if (!wants.known) continue;
    const auto slot = sent_.slot_of(rank);
    // At FREERIDE_SENT_FIRST or below it has not counted anything for us: perhaps it never will.
    wants.known = slot && sent_.is_hooked(*slot) && sent_.counter_from(*slot) > FREERIDE_SENT_FIRST;
    if (wants.known) wants.of[wants.count++] = {*slot, kRing.value(count)};
  }
  return wants;
}

bool StreamMarks::is_elsewhere(uint32_t rank) const {
  return remote_ != nullptr && remote_->joined() && remote_->is_peer(rank) && !sent_.slot_of(rank);
}

// In a plain iteration nothing is, here neither: it tells what holds cost.
bool StreamMarks::holds_nothing() const {
  return remote_ != nullptr && remote_->joined() && remote_->arm() == policy::Arm::kPlain;
}

// Under counting_, with the batch's messages counted. A hint for each rank elsewhere that gets some, of the last.
Status StreamMarks::tell_elsewhere(CudaStream stream, std::span<const uint32_t> destinations,
                                   std::span<const uint32_t> sources) {
  for (auto at = destinations.begin(); at != destinations.end(); ++at) {
    if (!is_elsewhere(*at) || std::find(at + 1, destinations.end(), *at) != destinations.end()) continue;
    const auto word = static_cast<uint32_t>(counted_ + produced_[*at]);
    if (remote_->tells() || remote_->shows()) {
      auto written =
          cuda_.write_32(stream, counter(SentMember::Row::kSent, sent_.local_rank(), sent_.local_rank()), word);
      if (!written.ok()) return written;
    }
    const bool both = std::find(sources.begin(), sources.end(), *at) != sources.end();
    auto told = remote_->message(stream, *at, counted_ + produced_[*at], both ? counted_ + expected_[*at] : 0,
                                 iteration_, word);
    if (!told.ok()) return told;
  }
  return {};
}

Result<Held> StreamMarks::receive_elsewhere(CudaStream stream, uint32_t source, bool sends, Hold hold, uint64_t bytes,
                                            uint64_t count, uint64_t own) {
  const uint32_t wait = ++wait_;
  if (hold == Hold::kLater) representative_ = false;
  const auto plain = [&](Held held) {
    counters_.plain.fetch_add(1, std::memory_order_relaxed);
    return held;
  };
  // What is posted ahead of its need has no end that training's stream would wait for at once.
  if (!page_.is_on() || hold != Hold::kNow || wait > FREERIDE_MAX_WAITS) return plain(Held::kPlain);
  if (holds_nothing()) {
    auto measured = remote_->measure(stream, wait, source, bytes, count, own);
    if (!measured.ok()) return measured.error();
    return plain(*measured ? Held::kMeasured : Held::kPlain);
  }
  // What hints say comes first: that there is nothing to wait for, or that nothing is to be held any more.
  if (remote_->exists(source, count, SteadyClock::now())) return plain(Held::kPlain);
  const int64_t ceiling_ns = remote_->ceiling_ns(wait, source, bytes, sends);
  if (ceiling_ns <= 0 || ceiling_ns < shortest_lease_ns_) return plain(Held::kPlain);
  RemoteHolds::Hold noted;
  noted.iteration = iteration_;
  noted.wait = wait;
  noted.peer = source;
  noted.count = count;
  noted.ceiling_ns = ceiling_ns;
  const uint64_t word = FREERIDE_STATE(iteration_, wait);
  if (!stream_) stream_ = stream;
  const auto end = stream == *stream_ ? remote_->begin_hold(noted, word) : std::nullopt;
  if (!end) return plain(Held::kPlain);
  auto posted = cuda_.write_64(stream, state_word_, word);
  if (!posted.ok()) return posted.error();
  counters_.stream.fetch_add(1, std::memory_order_relaxed);
  posted = cuda_.wait_32(stream, end->address, end->value);
  if (!posted.ok()) return posted.error();
  followers_.held(stream, {&*end, 1});
  posted = cuda_.write_64(stream, state_word_, FREERIDE_STATE(iteration_, 0));
  if (!posted.ok()) return posted.error();
  return Held::kStream;
}

Status StreamMarks::received(CudaStream stream) {
  if (remote_ == nullptr || !ours() || cuda_.is_capturing(stream)) return {};
  return remote_->received(stream);
}

Result<Held> StreamMarks::batch(CudaStream stream, std::span<const uint32_t> destinations,
                                std::span<const uint32_t> sources, Hold hold, uint64_t receive_bytes) {
  if (cuda_.is_capturing(stream)) {
    // A graph's replays would send without our counting: nobody could tell any more which message a counter means.
    return Error{Code::kUnavailable, "messages are captured into a CUDA graph", ""};
  }
  std::unique_lock counting(counting_);
  const bool ours = this->ours();
  for (const uint32_t rank : destinations) {
    auto written = count_for(stream, rank, kRing.value(counted_ + ++produced_[rank]), SentMember::Row::kSent);
    if (!written.ok()) return written.error();
  }
  if (ours) messages_ += destinations.size() + sources.size();
  const Wants wants = expect(sources, ours);
  const auto same = [&](uint32_t rank) { return rank == sources[0]; };
  policy::RemoteBatch remote{sources.size(), destinations.size()};
  remote.one_rank = !sources.empty() && std::all_of(sources.begin(), sources.end(), same) &&
                    std::all_of(destinations.begin(), destinations.end(), same);
  remote.needed_at_once = true;  // else receive_elsewhere() lets it be
  remote.mirrored = true;        // if its ceiling is learned at all, it is
  const bool elsewhere = ours && policy::may_hold_remotely(remote) && is_elsewhere(sources[0]);
  uint64_t count = 0, own = 0;
  if (elsewhere) {
    count = counted_ + expected_[sources[0]];
    own = destinations.empty() ? 0 : counted_ + produced_[sources[0]];
  }
  if (ours) {
    auto told = tell_elsewhere(stream, destinations, sources);  // before anything is held
    if (!told.ok()) return told.error();
  }
  counting.unlock();  // not while waiting
  if (sources.empty() || !ours) return Held::kPlain;
  if (elsewhere) {
    return receive_elsewhere(stream, sources[0], !destinations.empty(), hold, receive_bytes, count, own);
  }
  policy::Batch batch;
  batch.hook_on = page_.is_on() && !holds_nothing();
  batch.sends = !destinations.empty();
  batch.receives = true;
  batch.needed_at_once = hold == Hold::kNow;
  batch.sources_hooked = wants.known;
  ++wait_;
  if (hold == Hold::kLater) representative_ = false;
  if (!policy::plan_batch(batch).holds()) {
    counters_.plain.fetch_add(1, std::memory_order_relaxed);
    return Held::kPlain;
  }
  return this->hold(stream, wants);
}

Result<Held> StreamMarks::meet(CudaStream stream, std::span<const uint32_t> members, std::span<const uint32_t> awaited,
                               bool needed_at_once) {
  // In a graph all ranks count none of it, and nobody waits.
  if (cuda_.is_capturing(stream)) return Held::kPlain;
  std::unique_lock counting(counting_);
  const bool ours = this->ours();
  Wants wants;
  wants.row = SentMember::Row::kMet;
  wants.known = ours && awaited.size() <= kMostSources;
  for (const uint32_t rank : members) {
    uint32_t& number = met_[rank];
    number = std::min(number + 1, kMostMeetings);
    if (number == kMostMeetings) wants.known = false;
    if (number == kMostMeetings) continue;
    auto written = count_for(stream, rank, kRing.value(met_base_ + number), SentMember::Row::kMet);
    if (!written.ok()) return written.error();
  }
  for (const uint32_t rank : awaited) {
    if (!wants.known) break;
    const auto slot = sent_.slot_of(rank, wants.row);
    const uint64_t count = met_base_ + met_[rank];
    // At FREERIDE_SENT_FIRST or below it counts none, or has not yet.
    wants.known = slot && kRing.may_hold(count) && sent_.is_hooked(*slot) &&
                  sent_.counter_from(*slot, wants.row) > FREERIDE_SENT_FIRST;
    if (wants.known) wants.of[wants.count++] = {*slot, kRing.value(count)};
  }
  counting.unlock();  // not while waiting
  if (!ours || awaited.empty() || !needed_at_once) return Held::kPlain;
  policy::Batch batch;
  batch.hook_on = page_.is_on() && !holds_nothing();
  batch.sends = batch.receives = batch.needed_at_once = true;
  batch.sources_hooked = wants.known;
  ++wait_;
  if (!policy::plan_batch(batch).holds()) {
    counters_.plain.fetch_add(1, std::memory_order_relaxed);
    return Held::kPlain;
  }
  return hold(stream, wants);
}

Result<uint64_t> StreamMarks::post_early(CudaStream apart, std::span<const uint32_t> sources) {
  if (cuda_.is_capturing(apart)) {
    return Error{Code::kUnavailable, "messages are captured into a CUDA graph", ""};
  }
  std::unique_lock counting(counting_);
  const bool ours = this->ours();
  if (ours) messages_ += sources.size();
  const Wants wants = expect(sources, ours);
  counting.unlock();
  if (!ours || sources.empty()) return uint64_t{0};
  Early& early = early_[++next_early_ % kPending];
  const bool taken =
      is_held(early.held.load(std::memory_order_relaxed));  // by one that the helper may still have to end
  early.number = next_early_;
  early.wants = wants;
  early.one_source = std::all_of(sources.begin(), sources.end(), [&](uint32_t rank) { return rank == sources[0]; });
  if (taken) {
    early.wants.known = false;
    return early.number;
  }
  policy::Batch batch;
  batch.hook_on = page_.is_on() && !holds_nothing();
  batch.receives = batch.posted_early = true;
  batch.one_source = early.one_source;
  batch.sources_hooked = wants.known;
  if (!policy::plan_batch(batch).holds_apart() || early_broken_.load(std::memory_order_relaxed) >= kBrokenForGood) {
    early.wants.known = false;
    return early.number;
  }
  early.held.store(wants.of[0], std::memory_order_release);
  auto posted = wait_for(apart, wants.of[0]);
  if (!posted.ok()) return posted.error();
  follow(apart, wants.span().first(1), wants.row);
  return early.number;
}

Result<Held> StreamMarks::wait(CudaStream stream, uint64_t number) {
  const Early& early = early_[number % kPending];
  if (number == 0 || !ours() || cuda_.is_capturing(stream)) return Held::kPlain;
  ++wait_;
  bool hooked =
      early.number == number && early.wants.known;  // a later batch may have its place: it waits as without us
  if (hooked) {
    for (const Want& want : early.wants.span()) hooked = hooked && sent_.is_hooked(want.slot);
  }
  policy::Batch batch;
  batch.hook_on = page_.is_on();
  batch.receives = batch.posted_early = true;
  batch.one_source = early.one_source;
  batch.sources_hooked = hooked;
  if (!policy::holds_at_wait(batch)) {
    counters_.plain.fetch_add(1, std::memory_order_relaxed);
    return Held::kPlain;
  }
  return hold(stream, early.wants);
}

Status StreamMarks::wait_for(CudaStream stream, const Want& want, SentMember::Row row) {
  return cuda_.wait_32(stream, counter(row, want.slot, sent_.local_rank()), want.value);
}

// The wait numbered wait_, unless its data is there.
Result<Held> StreamMarks::hold(CudaStream stream, const Wants& wants) {
  const uint32_t wait = wait_;
  Pending& pending = pending_[next_pending_ % kPending];
  // Until the GPU has left that iteration, the helper may have to end the hold that is there.
  const uint64_t there_now = pending.word.load(std::memory_order_relaxed);
  const bool taken = there_now != 0 && FREERIDE_STATE_ITERATION(load_acquire(page_.page().state_word)) <=
                                           FREERIDE_STATE_ITERATION(there_now);
  if (!stream_) stream_ = stream;
  if (taken || stream != *stream_ || wait > FREERIDE_MAX_WAITS ||
      broken_[wait - 1].load(std::memory_order_relaxed) >= kBrokenForGood || all_there(wants)) {
    counters_.plain.fetch_add(1, std::memory_order_relaxed);
    return Held::kPlain;
  }
  ++next_pending_;
  const uint64_t word = FREERIDE_STATE(iteration_, wait);
  pending.word.store(0, std::memory_order_release);
  pending.count.store(static_cast<uint32_t>(wants.count), std::memory_order_relaxed);
  pending.row.store(wants.row, std::memory_order_relaxed);
  for (size_t i = 0; i < wants.count; ++i) pending.of[i].store(wants.of[i], std::memory_order_relaxed);
  pending.word.store(word, std::memory_order_release);

  auto posted = cuda_.write_64(stream, state_word_, word);
  if (!posted.ok()) return posted.error();
  counters_.stream.fetch_add(1, std::memory_order_relaxed);
  for (const Want& want : wants.span()) {
    posted = wait_for(stream, want, wants.row);
    if (!posted.ok()) return posted.error();
  }
  follow(stream, wants.span(), wants.row);
  posted = cuda_.write_64(stream, state_word_, FREERIDE_STATE(iteration_, 0));
  if (!posted.ok()) return posted.error();
  return Held::kStream;
}

void StreamMarks::follow(CudaStream stream, std::span<const Want> wants, SentMember::Row row) {
  std::array<Followers::Word, kMostSources> words;
  for (size_t i = 0; i < wants.size(); ++i) {
    words[i] = {counter(row, wants[i].slot, sent_.local_rank()), &sent_.word_from(wants[i].slot, row), wants[i].value};
  }
  followers_.held(stream, {words.data(), wants.size()});
}

// Iterations that `rank` has ended, if we have not, and have exchanged all that it had with us by then; else 0.
uint64_t StreamMarks::ended_by(uint32_t rank) {
  const auto slot = sent_.slot_of(rank);
  const uint64_t word = slot ? sent_.ended_by(*slot) : 0;
  if (word == 0) return 0;
  const auto ahead = static_cast<int32_t>(FREERIDE_ENDED_ITERATIONS(word) - static_cast<uint32_t>(iteration_));
  const auto past =
      static_cast<int32_t>(static_cast<uint32_t>(produced_[rank] + expected_[rank]) - FREERIDE_ENDED_MESSAGES(word));
  return ahead > 0 && past >= 0 ? iteration_ + static_cast<uint32_t>(ahead) : 0;
}

void StreamMarks::tell_ended() {
  for (const auto& [rank, count] : expected_) {
    if (const auto slot = sent_.slot_of(rank)) {
      sent_.tell_ended(*slot, FREERIDE_ENDED(iteration_, produced_[rank] + count));
    }
  }
}

bool StreamMarks::is_behind(std::span<const uint32_t> destinations, std::span<const uint32_t> sources) {
  // It never waits: another thread may be held up by the driver with the lock, and later is soon enough.
  const std::unique_lock lock(counting_, std::try_to_lock);
  if (!lock.owns_lock() || !ours() || messages_ < messages_before_) return false;
  const auto has_ended = [&](uint32_t rank) { return ended_by(rank) != 0; };
  behind_ = std::any_of(destinations.begin(), destinations.end(), has_ended) ||
            std::any_of(sources.begin(), sources.end(), has_ended);
  return behind_;
}

void StreamMarks::rejoin() {
  const std::lock_guard lock(counting_);
  sent_.rejoin(
      [this](uint32_t rank) {
        const auto found = produced_.find(rank);
        return kRing.value(found == produced_.end() ? 0 : counted_ + found->second);
      },
      kRing.value(met_base_));
}

Status StreamMarks::end_iteration(CudaStream stream, uint64_t count) {
  if (cuda_.is_capturing(stream))
    return Error{Code::kUnavailable, "an iteration's end is captured into a CUDA graph", ""};
  followers_.forget_over();
  uint64_t next = std::max(iteration_ + 1, count);
  bool alone = false;
  {
    const std::lock_guard lock(counting_);
    for (const auto& [rank, count] : produced_) expected_.try_emplace(rank, 0);
    for (const auto& [rank, count] : expected_) next = std::max(next, ended_by(rank));
    alone = next == iteration_ + 1;
    // What ends by others' word may be longer than its schedule, with an evaluation in it.
    messages_before_ = behind_ && messages_before_ > 0 ? std::min(messages_before_, messages_) : messages_;
    messages_ = 0;
    behind_ = false;
    note_sources();
  }
  RankPage::Told told;
  told.representative = representative_ && alone;
  if (remote_ != nullptr && remote_->joined()) {
    told.held = remote_->arm() != policy::Arm::kPlain;
    auto arm = remote_->end_iteration(stream, next - 1, wait_, told.representative);
    if (!arm.ok()) return arm.error();
    told.leases_next = *arm == policy::Arm::kLeased;
  }
  const uint32_t waits = std::min<uint32_t>(wait_, FREERIDE_MAX_WAITS);
  page_.expect_waits(iteration_, waits, told);
  if (!alone) page_.expect_waits(next - 1, waits, told);
  {
    const std::lock_guard lock(counting_);
    met_.clear();
    met_base_ += kMostMeetings * (next - iteration_);
    iteration_ = next;
    tell_ended();
  }
  wait_ = 0;
  stream_.reset();
  representative_ = true;
  return cuda_.write_64(stream, state_word_, FREERIDE_STATE(iteration_, 0));
}

Status StreamMarks::end_iteration_by_phase(CudaStream stream) {
  const pthread_t self = pthread_self();
  pthread_t owner = 0;
  const bool taken = owner_.compare_exchange_strong(owner, self);
  if (!taken && owner != self) return {};
  auto done = end_iteration(stream);
  if (taken) owner_.store(0);
  return done;
}

// Under counting_. Why nothing was marked so far, if nothing was.
void StreamMarks::note_sources() {
  if (pages::load_relaxed(page_.page().bubbles) > 0) return;
  bool any = false, here = false;
  for (const auto& [rank, count] : expected_) {
    any = any || count > 0;
    here = here || (count > 0 && sent_.slot_of(rank));
  }
  if (any) page_.note(here ? policy::RankWhy::kNeverWaits : policy::RankWhy::kPeersElsewhere);
}

int64_t StreamMarks::longest_hold(uint32_t wait) const {
  const int64_t high_ns = page_.high_ns(wait);
  return std::clamp<int64_t>(8 * high_ns, kNsPerSec, 60 * kNsPerSec);
}

bool StreamMarks::is_held(const Want& want) const {
  // What is from before the ring's beginning was reached, and is not to be set back to.
  return want.value != 0 && !kRing.reached(sent_.counter_from(want.slot), want.value);
}

// All of them: which one it is that blocks cannot be seen, and NCCL then waits as it does without us.
bool StreamMarks::end_early_holds() {
  bool any = false;
  for (const Early& early : early_) {
    const Want held = early.held.load(std::memory_order_acquire);
    if (!is_held(held)) continue;
    sent_.advance_from(held.slot, held.value);
    any = true;
  }
  return any;
}

int64_t StreamMarks::tend_remote(int64_t now_ns) {
  RemoteHolds* remote = looked_for_.load(std::memory_order_acquire);
  if (remote == nullptr) return INT64_MAX;
  return std::min(remote->look_at_word(sent_.counter_from(sent_.local_rank()), now_ns),
                  remote->tend(load_acquire(page_.page().state_word), now_ns));
}

int StreamMarks::remote_socket() const {
  const RemoteHolds* remote = looked_for_.load(std::memory_order_acquire);
  return remote == nullptr ? -1 : remote->socket();
}

void StreamMarks::end(const Pending& pending) {
  const uint32_t count = std::min<uint32_t>(pending.count.load(std::memory_order_relaxed), kMostSources);
  const auto row = pending.row.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    const Want want = pending.of[i].load(std::memory_order_relaxed);
    if (!kRing.reached(sent_.counter_from(want.slot, row), want.value)) sent_.advance_from(want.slot, want.value, row);
  }
}

void StreamMarks::let_go() {
  for (const Pending& pending : pending_) {
    if (pending.word.load(std::memory_order_acquire) != 0) end(pending);
  }
  end_early_holds();
}

bool StreamMarks::watch(int64_t now_ns) {
  const uint64_t word = load_acquire(page_.page().state_word);
  if (word != watched_word_) {
    const uint32_t before = FREERIDE_STATE_WAIT(watched_word_);
    if (before != 0 && before <= FREERIDE_MAX_WAITS && !watched_broken_) {
      broken_[before - 1].store(0, std::memory_order_relaxed);
    }
    if (before != 0) left_word_ = watched_word_;
    watched_word_ = word;
    watched_since_ns_ = early_since_ns_ = now_ns;
    watched_broken_ = false;
    return false;
  }
  // Again and again: training may stand still for long before it posts the one that blocks it.
  if (now_ns - early_since_ns_ > kLongestEarlyNs) {
    early_since_ns_ = now_ns;
    // A stream that waits for an event behind a hold comes to its own wait for it later, and may find the counter set
    // back.
    for (const Pending& pending : pending_) {
      const uint64_t of = pending.word.load(std::memory_order_acquire);
      if (of != 0 && of <= left_word_) end(pending);
    }
    if (end_early_holds()) {
      early_broken_.fetch_add(1, std::memory_order_relaxed);
      counters_.broken.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
  }
  const uint32_t wait = FREERIDE_STATE_WAIT(word);
  if (wait == 0 || wait > FREERIDE_MAX_WAITS || now_ns - watched_since_ns_ < longest_hold(wait)) return false;
  const auto pending = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& one) {
    return one.word.load(std::memory_order_acquire) == word;
  });
  if (pending == pending_.end()) return false;
  end(*pending);  // at each look: what the sender's GPU had been told before may have set the counter back
  if (watched_broken_) return false;
  watched_broken_ = true;
  counters_.broken.fetch_add(1, std::memory_order_relaxed);
  auto& broken = broken_[wait - 1];
  broken.store(static_cast<uint8_t>(std::min<int>(broken.load(std::memory_order_relaxed) + 1, kBrokenForGood)),
               std::memory_order_relaxed);
  return true;
}

}  // namespace freeride::hooks
