#include "idle_phases.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "freeride/base/names.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::hooks {

using pages::load_acquire;
using pages::load_relaxed;
using pages::store_relaxed;
using pages::store_release;

IdlePhases::IdlePhases(RankPage& page) : page_(page) {
  names_.reserve(FREERIDE_MAX_PHASES);
}

namespace {

bool is_name(std::string_view name) {
  return is_plain(name, sizeof(freeride_phase::name) - 1) && is_utf8(name);
}

}  // namespace

// Under mutex_. names_.size(): none has this name.
uint32_t IdlePhases::known_number_of(std::string_view name) const {
  const auto& phases = page_.page().phases;
  const auto known =
      std::find_if(phases, phases + names_.size(), [&](const auto& phase) { return phase.name == name; });
  return static_cast<uint32_t>(known - phases);
}

// Under mutex_.
Result<uint32_t> IdlePhases::number_of(std::string_view name) {
  auto& phases = page_.page().phases;
  const uint32_t number = known_number_of(name);
  if (number < names_.size()) return number;
  if (!is_name(name)) {
    return Error{Code::kInvalidArgument, "an idle phase's name is no text of 1 to 31 bytes", ""};
  }
  if (names_.size() == FREERIDE_MAX_PHASES) {
    return Error{Code::kInvalidArgument,
                 "the idle phase \"" + std::string(name) + "\" is left out: " + std::to_string(FREERIDE_MAX_PHASES) +
                     " other names are taken",
                 ""};
  }
  std::memcpy(phases[number].name, name.data(), name.size());
  names_.emplace_back();
  return number;
}

Result<uint64_t> IdlePhases::begin(const Wish& wish, int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  if (open_.load(std::memory_order_relaxed) != 0) {
    return Error{Code::kRejected,
                 "an idle phase begins within \"" +
                     std::string(page_.page().phases[FREERIDE_PHASE_NAME(open_.load())].name) +
                     "\", and is taken for part of it",
                 ""};
  }
  const auto number = number_of(wish.name);
  if (!number.ok()) return number.error();
  if (!wish.found) count_round(*number);
  wish_ = wish;
  wish_.name = {};
  const uint64_t word = FREERIDE_PHASE(++last_, *number);
  open_.store(word, std::memory_order_release);
  shown_ = false;
  if (wish.by_gpu) {
    awaits_gpu_.store(true, std::memory_order_release);
  } else {
    store_relaxed(page_.page().idle_marked, word);
    show(now_ns);
  }
  return word;
}

// Under mutex_. A name that came at a training's start only must not end its iterations.
void IdlePhases::count_round(uint32_t number) {
  if (!first_ || ++names_[number].rounds > kRounds) first_ = number;
  if (number != *first_) return;
  for (Name& name : names_) name.rounds = 0;
}

// Under mutex_: the phase has begun.
void IdlePhases::show(int64_t now_ns) {
  auto& page = page_.page();
  const uint64_t word = open_.load(std::memory_order_relaxed);
  const uint32_t number = FREERIDE_PHASE_NAME(word);
  Name& name = names_[number];
  if (name.ended_ns != 0) {
    name.apart[name.begun++ % kApart] = std::max<int64_t>(now_ns - name.ended_ns, 1);
    store_relaxed(page.phases[number].apart_ns,
                  static_cast<uint64_t>(*std::max_element(name.apart.begin(), name.apart.end())));
  }
  awaits_gpu_.store(false, std::memory_order_relaxed);
  shown_ = true;
  begin_ns_ = now_ns;
  promised_ns_ = wish_.open ? 0 : static_cast<uint64_t>(std::max<int64_t>(wish_.expected_ns, 0));
  if (promised_ns_ == 0 && !wish_.open) promised_ns_ = load_relaxed(page.phases[number].learned.low_ns);
  page_.note_usable();
  store_relaxed(page.idle_flags, wish_.open ? FREERIDE_PHASE_OPEN : 0U);
  store_relaxed(page.idle_begin_ns, static_cast<uint64_t>(now_ns));
  store_relaxed(page.idle_expected_ns, static_cast<uint64_t>(std::max<int64_t>(wish_.expected_ns, 0)));
  store_release(page.idle_begun, word);
  page_.changed();
}

void IdlePhases::observe(int64_t now_ns) {
  if (!awaits_gpu()) return;
  const std::lock_guard lock(mutex_);
  const uint64_t word = open_.load(std::memory_order_relaxed);
  if (word != 0 && !shown_ && load_acquire(page_.page().idle_marked) == word) show(now_ns);
}

bool IdlePhases::end(uint64_t number, int64_t now_ns) {
  if (number == 0 || under_way() != number) return false;
  const std::lock_guard lock(mutex_);
  const uint64_t word = open_.load(std::memory_order_relaxed);
  if (FREERIDE_PHASE_NUMBER(word) != number) return false;  // another thread was first
  // What takes leases back comes first. A GPU that has not come to the begin may write it later: it has ended by then.
  store_release(page_.page().idle_ended, number);
  page_.changed();
  awaits_gpu_.store(false, std::memory_order_relaxed);
  open_.store(0, std::memory_order_release);
  if (!shown_) return true;
  const uint32_t name = FREERIDE_PHASE_NAME(word);
  const int64_t length_ns = std::max<int64_t>(now_ns - begin_ns_, 0);
  names_[name].ended_ns = now_ns;
  auto& phase = page_.page().phases[name];
  store_relaxed(phase.count, load_relaxed(phase.count) + 1);
  store_relaxed(phase.total_ns, load_relaxed(phase.total_ns) + static_cast<uint64_t>(length_ns));
  if (!wish_.open) learn(name, length_ns);
  page_.record_phase(FREERIDE_PHASE_WAIT(name), begin_ns_, begin_ns_ + length_ns, promised_ns_);
  return true;
}

// Under mutex_.
void IdlePhases::learn(uint32_t number, int64_t length_ns) {
  auto& learner = names_[number].learner;
  learner.add_iteration({&length_ns, 1});
  const policy::WaitLength known = page_.for_leases(learner.length(1));
  auto& slot = page_.page().phases[number].learned;
  store_relaxed(slot.low_ns, static_cast<uint64_t>(known.low_ns));
  store_relaxed(slot.mid_ns, static_cast<uint64_t>(known.mid_ns));
  store_relaxed(slot.high_ns, static_cast<uint64_t>(known.high_ns));
  store_relaxed(slot.samples, known.samples);
}

bool IdlePhases::comes_round(const Wish& wish) const {
  const std::lock_guard lock(mutex_);
  if (wish.found || open_.load(std::memory_order_relaxed) != 0) return false;
  const uint32_t number = known_number_of(wish.name);
  if (first_) return number == *first_ || (number < names_.size() && names_[number].rounds == kRounds);
  return number < names_.size() || (is_name(wish.name) && names_.size() < FREERIDE_MAX_PHASES);
}

std::string IdlePhases::name() const {
  const std::lock_guard lock(mutex_);
  const uint64_t word = open_.load(std::memory_order_relaxed);
  return word == 0 ? "" : page_.page().phases[FREERIDE_PHASE_NAME(word)].name;
}

}  // namespace freeride::hooks
