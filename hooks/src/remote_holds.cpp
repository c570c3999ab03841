#include "remote_holds.hpp"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "freeride/base/clock.hpp"

namespace freeride::hooks {

using policy::Arm;

Result<std::unique_ptr<RemoteHolds>> RemoteHolds::create(CudaDriver cuda, RankPage& page, uint32_t rank, uint16_t port,
                                                         void (*say)(const std::string& text)) {
  if (!cuda.can_time()) return Error{Code::kUnavailable, "the CUDA driver has no events", ""};
  std::unique_ptr<RemoteHolds> made(new RemoteHolds(cuda, page, rank));
  made->say_ = say;
  // Both families where the kernel has both.
  for (const int family : {AF_INET6, AF_INET}) {
    Fd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) continue;
    sockaddr_storage address{};
    socklen_t bytes = 0;
    if (family == AF_INET6) {
      const int no = 0;
      setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
      auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
      v6.sin6_family = AF_INET6;
      v6.sin6_addr = in6addr_any;
      v6.sin6_port = htons(port);
      bytes = sizeof(v6);
    } else {
      auto& v4 = reinterpret_cast<sockaddr_in&>(address);
      v4.sin_family = AF_INET;
      v4.sin_addr.s_addr = htonl(INADDR_ANY);
      v4.sin_port = htons(port);
      bytes = sizeof(v4);
    }
    if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) continue;
    if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) continue;
    made->port_ = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(address).sin_port);
    made->socket_ = std::move(socket);
    made->family_ = family;
    return made;
  }
  return errno_error("cannot open a socket for hints", errno);
}

RemoteHolds::Peer RemoteHolds::peer_at(uint32_t rank, const std::string& address, uint16_t port) const {
  Peer peer;
  peer.rank = rank;
  if (port == 0) return peer;
  const bool v4 = address.find(':') == std::string::npos;
  if (family_ == AF_INET6) {
    auto& to = reinterpret_cast<sockaddr_in6&>(peer.hints.address);
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(port);
    if (inet_pton(AF_INET6, (v4 ? "::ffff:" + address : address).c_str(), &to.sin6_addr) == 1) {
      peer.hints.bytes = sizeof(to);
    }
  } else if (v4) {
    auto& to = reinterpret_cast<sockaddr_in&>(peer.hints.address);
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) == 1) peer.hints.bytes = sizeof(to);
  }
  return peer;
}

Status RemoteHolds::join(const Hint::Key* key, uint64_t epoch, std::span<const Peer> peers, uint64_t iteration) {
  if (joined_ || peers.empty()) return {};
  // Before the lock: the driver may have to wait for a stream that the helper is to let go.
  auto shared = cuda_.share(ends_page_.get(), sizeof(EndPage));
  if (!shared.ok()) return shared.error();
  if (key != nullptr) {
    if (auto opened = relay_.open(); !opened.ok()) return opened;
  }
  const std::lock_guard lock(mutex_);
  end_word_ = *shared;
  if (key != nullptr) {
    key_ = *key;
    epoch_ = epoch;
    hints_ = true;
  }
  for (const Peer& peer : peers) {
    if (peers_.size() < kMostPeers) peers_[peer.rank].peer = peer;
  }
  joined_ = true;
  iteration_ = iteration;
  arm_ = Arm::kPlain;  // whatever the plan says of this one: it may have begun
  plain_until_ = iteration < policy::ArmPlan::kFirstPlain / 2 ? 0 : iteration + policy::ArmPlan::kFirstPlain;
  next_timed_ = iteration + 1;
  return {};
}

// ---- hints ----

Status RemoteHolds::message(CudaStream stream, uint32_t to, uint64_t count, uint64_t receives, uint64_t iteration,
                            uint32_t word) {
  const auto peer = peers_.find(to);
  if (!hints_ || peer == peers_.end() || peer->second.peer.hints.bytes == 0) return {};
  Hint hint;
  hint.epoch = epoch_;
  hint.sender = rank_;
  hint.receiver = to;
  hint.count = count;
  hint.receives = receives;
  hint.iteration = iteration;
  {
    const std::lock_guard lock(mutex_);  // not while posting: a stream whose queue is full takes it after its hold
    hint.plain_until = plain_until_;
  }
  hint.plain = arm_ == Arm::kPlain;
  hint.off = is_off();
  return relay_.add(stream, peer->second.peer.hints, encode(hint, key_), iteration, word);
}

void RemoteHolds::look(int64_t now_ns) {
  if (!hints_) return;
  std::array<uint8_t, Hint::kBytes + 1> bytes;
  for (size_t taken = 0; taken < kMostDatagrams; ++taken) {
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != ECONNREFUSED) break;  // that: a peer has ended
    if (got < 0) continue;
    if (faults_.forge) bytes[Hint::kBytes - 1] ^= 1;
    const auto hint = decode_hint({bytes.data(), static_cast<size_t>(got)}, key_);
    if (!hint || hint->epoch != epoch_ || hint->receiver != rank_ || !is_peer(hint->sender)) {
      counters_.hints_refused.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (faults_.lose_per_mille > 0 && hint->count * 2654435761u % 1000 < faults_.lose_per_mille) continue;
    if (faults_.late_ns > 0) {
      if (late_.size() < kNotes) late_.emplace_back(now_ns + faults_.late_ns, *hint);
    } else {
      take(*hint, now_ns);
    }
  }
  while (!late_.empty() && late_.front().first <= now_ns) {
    take(late_.front().second, now_ns);
    late_.pop_front();
  }
}

void RemoteHolds::take(const Hint& hint, int64_t now_ns) {
  counters_.hints_taken.fetch_add(1, std::memory_order_relaxed);
  Heard& heard = peers_[hint.sender].heard;
  heard.of[hint.count % kRemembered] = hint;
  if (hint.count > heard.newest) {
    heard.newest = hint.count;
    heard.newest_ns = now_ns;
    (hint.plain ? heard.plain_in : heard.not_plain_in) = hint.iteration;
  }
  // All that a peer can ask for is that less is held.
  if (hint.off && !is_off()) turn_off("a rank of the job has found that they cost training too much");
  const uint64_t most = iteration_ + policy::ArmPlan::kFirstPlain;
  plain_until_ = std::max(plain_until_, std::min(hint.plain_until, most));
}

bool RemoteHolds::exists(uint32_t peer, uint64_t count, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (!has_come(peer, count, now_ns)) return false;
  check_iteration(peer, count, iteration_);
  return true;
}

void RemoteHolds::check_iteration(uint32_t peer, uint64_t count, uint64_t iteration) {
  const Hint& hint = peers_[peer].heard.of[count % kRemembered];
  if (hint.count == count && hint.iteration != iteration && !is_off()) turn_off("ranks count iterations differently");
}

bool RemoteHolds::has_come(uint32_t peer, uint64_t count, int64_t now_ns) {
  look(now_ns);
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second.heard.newest < count) return false;
  return true;
}

bool RemoteHolds::is_hinted(uint32_t peer) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.hinted;
}

// ---- holds ----

std::optional<Followers::Word> RemoteHolds::begin_hold(const Hold& hold, uint64_t word) {
  const std::lock_guard lock(mutex_);
  if (let_go_ || end_word_ == 0 || held_.size() >= kHolds || begun_ + 1 >= kLetGo) return std::nullopt;
  held_.push_back({hold, word, ++begun_});
  return Followers::Word{end_word_, &ends_page_->ended, begun_};
}

int64_t RemoteHolds::tend(uint64_t state_word, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  look(now_ns);
  if (state_word != seen_word_ || held_.empty()) {
    seen_word_ = state_word;
    seen_since_ns_ = now_ns;
  }
  while (!held_.empty()) {
    Held& first = held_.front();
    if (first.hold.begin_ns == 0 && state_word == first.word) first.hold.begin_ns = now_ns;
    const int64_t end_ns =
        first.hold.begin_ns == 0 ? seen_since_ns_ + kLongestUnseen : first.hold.begin_ns + first.hold.ceiling_ns;
    const bool by_hint = has_come(first.hold.peer, first.hold.count, now_ns);
    if (by_hint) {
      check_iteration(first.hold.peer, first.hold.count, first.hold.iteration);
    } else if (now_ns < end_ns && page_.is_on() && !is_off()) {
      return end_ns;
    }
    // The lease ends before the receive begins.
    if (state_word == first.word) page_.close_early(now_ns, FREERIDE_STATE(first.hold.iteration, 0));
    pages::store_release(ends_page_->ended, first.number);
    first.hold.posted_ns = now_ns;
    note(first.hold, by_hint);
    held_.pop_front();
  }
  return late_.empty() ? INT64_MAX : late_.front().first;
}

void RemoteHolds::let_go() {
  const std::lock_guard lock(mutex_);
  let_go_ = true;
  held_.clear();
  pages::store_release(ends_page_->ended, kLetGo);
}

void RemoteHolds::hold_again() {
  const std::lock_guard lock(mutex_);
  if (!let_go_) return;
  // A stream may still be before one of the old: the next are counted from the newest.
  pages::store_release(ends_page_->ended, begun_);
  let_go_ = false;
}

// ---- what is learned, in plain iterations ----

Result<CudaEvent> RemoteHolds::event() {
  if (free_events_.empty()) return cuda_.new_event();
  const CudaEvent event = free_events_.back();
  free_events_.pop_back();
  return event;
}

Result<bool> RemoteHolds::measure(CudaStream stream, uint32_t wait, uint32_t peer, uint64_t bytes, uint64_t count,
                                  uint64_t own) {
  if (present_.measured.size() >= kMostMeasured || in_flight_.size() >= kInFlight) {
    present_.whole = false;
    return false;
  }
  auto begin = event();
  if (!begin.ok()) return begin.error();
  auto end = event();
  if (!end.ok()) return end.error();
  auto recorded = cuda_.record(*begin, stream);
  if (!recorded.ok()) return recorded.error();
  present_.measured.push_back({{true, peer, bytes, own != 0, 0}, count, own, *begin, *end, false});
  present_.wait_of.push_back(wait);
  counters_.measured.fetch_add(1, std::memory_order_relaxed);
  return true;
}

Status RemoteHolds::received(CudaStream stream) {
  if (present_.measured.empty()) return {};
  Measured& last = present_.measured.back();
  last.ended = true;
  return cuda_.record(last.end, stream);
}

// Do all ranks hold nothing in this iteration? That follows from its number, or their hints have said so.
bool RemoteHolds::agreed(uint64_t iteration) const {
  const std::lock_guard lock(mutex_);
  if (forced_ || policy::arm_of(iteration, 0) == Arm::kPlain) return true;
  return std::all_of(peers_.begin(), peers_.end(),
                     [&](const auto& peer) {
                       const Heard& heard = peer.second.heard;
                       return heard.newest == 0 || (heard.plain_in == iteration && heard.not_plain_in != iteration);
                     }) &&
         std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.heard.newest > 0; });
}

Hint RemoteHolds::hint_of(uint32_t peer, uint64_t count) const {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? Hint() : found->second.heard.of[count % kRemembered];
}

uint64_t RemoteHolds::plain_until() const {
  const std::lock_guard lock(mutex_);
  return plain_until_;
}

Status RemoteHolds::collect() {
  while (!in_flight_.empty()) {
    Iteration& oldest = in_flight_.front();
    auto over = cuda_.is_over(oldest.end);
    if (!over.ok()) return over.error();
    if (!*over) return {};
    for (Measured& one : oldest.measured) {
      if (one.ended) {
        auto ns = cuda_.between_ns(one.begin, one.end);
        if (!ns.ok()) return ns.error();
        one.sample.elapsed_ns = *ns;
      }
      free_events_.push_back(one.begin);
      free_events_.push_back(one.end);
    }
    free_events_.push_back(oldest.end);
    if (oldest.agreed) {
      std::vector<policy::RemoteSample> samples(oldest.waits);
      for (size_t i = 0; i < oldest.measured.size(); ++i) {
        const Measured& one = oldest.measured[i];
        const uint32_t wait = oldest.wait_of[i];
        if (wait == 0 || wait > samples.size()) continue;
        samples[wait - 1] = one.sample;
        if (!one.sample.sends) continue;
        const Hint hint = hint_of(one.sample.peer, one.count);
        if (hint.count != one.count) continue;  // it was lost, or has not come yet
        const bool same = hint.receives == one.own;
        const auto [known, first] = mirrored_.emplace(wait, same);
        if (!first && !same) known->second = false;  // once is enough
      }
      if (waits_.add_iteration(samples)) learn_anew(iteration_);
      counters_.plain_iterations.store(waits_.iterations(), std::memory_order_relaxed);
      counters_.holdable_ns.store(static_cast<uint64_t>(waits_.holdable_ns()), std::memory_order_relaxed);
    }
    in_flight_.pop_front();
  }
  return {};
}

int64_t RemoteHolds::ceiling_ns(uint32_t wait, uint32_t peer, uint64_t bytes, bool sends) const {
  if (!joined_ || is_off() || arm_ == Arm::kPlain) return 0;
  if (sends) {
    const auto known = mirrored_.find(wait);
    if (known == mirrored_.end() || !known->second) return 0;
  }
  return waits_.ceiling_ns(wait, peer, bytes, sends, is_hinted(peer));
}

void RemoteHolds::learn_anew(uint64_t from_iteration) {
  mirrored_.clear();
  {
    const std::lock_guard lock(mutex_);
    plain_until_ = std::max(plain_until_, from_iteration + 1 + policy::ArmPlan::kFirstPlain);
  }
  const std::lock_guard lock(costing_);
  cost_.forget();
}

// ---- iterations ----

Status RemoteHolds::time(CudaStream stream, uint64_t iteration) {
  const size_t at = iteration % kEnds;
  if (ends_[at] == nullptr) {
    auto made = cuda_.new_event();
    if (!made.ok()) return made.error();
    ends_[at] = *made;
  }
  auto recorded = cuda_.record(ends_[at], stream);
  if (!recorded.ok()) return recorded.error();
  ends_of_[at] = iteration + 1;
  forced_in_[at] = forced_;
  const uint64_t plain_until = this->plain_until();
  next_timed_ = std::max(next_timed_, iteration + 2 > kEnds ? iteration + 2 - kEnds : 0);
  for (; next_timed_ <= iteration; ++next_timed_) {
    const size_t end = next_timed_ % kEnds, begin = (next_timed_ + kEnds - 1) % kEnds;
    if (ends_of_[end] != next_timed_ + 1 || ends_of_[begin] != next_timed_) continue;
    auto over = cuda_.is_over(ends_[end]);
    if (!over.ok()) return over.error();
    if (!*over) break;
    if (forced_in_[end] || forced_in_[begin] || !policy::is_timed(next_timed_, plain_until)) continue;
    auto ns = cuda_.between_ns(ends_[begin], ends_[end]);
    if (!ns.ok()) return ns.error();
    const std::lock_guard lock(costing_);
    cost_.add(next_timed_ / policy::ArmPlan::kPeriod, policy::arm_of(next_timed_, plain_until),
              static_cast<double>(*ns));
  }
  return {};
}

Result<Arm> RemoteHolds::end_iteration(CudaStream stream, uint64_t iteration, uint32_t waits, bool representative) {
  if (!joined_) return arm_;
  if (auto timed = time(stream, iteration); !timed.ok()) return timed.error();
  if (!present_.measured.empty()) {
    if (representative && present_.whole && waits <= FREERIDE_MAX_WAITS) {
      auto end = event();
      if (!end.ok()) return end.error();
      auto recorded = cuda_.record(*end, stream);
      if (!recorded.ok()) return recorded.error();
      present_.number = iteration;
      present_.waits = waits;
      present_.end = *end;
      present_.agreed = agreed(iteration);
      in_flight_.push_back(std::move(present_));
    } else {
      for (const Measured& one : present_.measured) {
        free_events_.push_back(one.begin);
        free_events_.push_back(one.end);
      }
    }
  }
  present_ = Iteration();
  if (auto collected = collect(); !collected.ok()) return collected.error();
  if (waits_before_ != 0 && waits != waits_before_ && waits != 0) {
    waits_.forget();
    learn_anew(iteration);
  }
  if (waits != 0) waits_before_ = waits;
  if (iteration % policy::ArmPlan::kPeriod == 0) {
    const Arms known = arms();
    page_.set_hold_costs(known.held, known.leased);
  }
  if (!is_off()) {
    std::optional<policy::ArmCost> cost;
    {
      const std::lock_guard lock(costing_);
      if (cost_.hurts()) cost = cost_.held();
    }
    if (cost) {
      char text[160];
      std::snprintf(text, sizeof(text), "they made iterations %.2f %% longer (95 %% interval from %.2f to %.2f)",
                    cost->increase_pct, cost->ci95_low_pct, cost->ci95_high_pct);
      turn_off(text);
    }
  }
  const std::unique_lock lock(mutex_);
  look(SteadyClock::now());
  for (auto& [rank, peer] : peers_) {
    const Heard& heard = peer.heard;
    peer.hinted = heard.newest > 0 && heard.of[heard.newest % kRemembered].iteration >= iteration;
  }
  iteration_ = iteration + 1;
  forced_ = forced_arm_ >= 0 && forced_arm_ <= static_cast<int>(Arm::kLeased);
  arm_ = is_off() ? Arm::kLeased : forced_ ? static_cast<Arm>(forced_arm_) : policy::arm_of(iteration_, plain_until_);
  publish(waits);
  return arm_;
}

void RemoteHolds::publish(uint32_t waits) {
  // The kinds of waits do not change between plain iterations, so what is known of each is its own.
  const Arm before = std::exchange(arm_, arm_ == Arm::kPlain ? Arm::kHeld : arm_);
  for (uint32_t wait = 1; wait <= std::min(waits, FREERIDE_MAX_WAITS); ++wait) {
    const auto* known = waits_.known(wait);
    page_.set_remote_length(wait, known == nullptr || !known->remote
                                      ? RankPage::kNotRemote
                                      : ceiling_ns(wait, known->peer, known->bytes, known->sends));
  }
  arm_ = before;
}

void RemoteHolds::note(const Hold& hold, bool by_hint) {
  counters_.held.fetch_add(1, std::memory_order_relaxed);
  (by_hint ? counters_.by_hint : counters_.by_ceiling).fetch_add(1, std::memory_order_relaxed);
  Hold noted = hold;
  const auto peer = peers_.find(hold.peer);
  if (peer != peers_.end() && peer->second.heard.newest >= hold.count) noted.hint_ns = peer->second.heard.newest_ns;
  if (notes_.size() >= kNotes) notes_.pop_front();
  notes_.push_back(noted);
}

size_t RemoteHolds::take_holds(std::span<Hold> into) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (; count < into.size() && !notes_.empty(); ++count) {
    into[count] = notes_.front();
    notes_.pop_front();
  }
  return count;
}

RemoteHolds::Arms RemoteHolds::arms() const {
  const std::lock_guard lock(costing_);
  return {cost_.held(), cost_.leased(), is_off()};
}

void RemoteHolds::turn_off(const std::string& why) {
  if (off_.exchange(true) || say_ == nullptr) return;
  say_("receives from other hosts are not held any more: " + why);
}

}  // namespace freeride::hooks
