#include "model.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <unordered_set>

namespace freeride::hooks::model {

namespace {

constexpr size_t kRanks = 4;
constexpr uint8_t kNever = 255;

// What a stream has to do for one call.
struct Operation {
  enum Kind : uint8_t { kWrite, kHold, kHoldRemote, kStart, kStartApart, kAwait } kind;
  uint32_t peer = 0;   // kWrite, kHold; kHoldRemote is for all that its batch receives
  uint32_t value = 0;  // of the counter; kAwait: the batch
};

struct State {
  std::array<uint8_t, kRanks> host{};                      // calls the host has made
  std::array<uint8_t, kRanks> call{}, step{};              // where the stream is: call, operation within it
  std::array<uint8_t, kRanks> off{};                       // the call from which on the hook was off, or kNever
  std::array<std::array<uint8_t, kRanks>, kRanks> seen{};  // [r][s]: the call from which on r saw s off, or kNever
  std::array<std::array<uint8_t, kRanks>, kRanks> poisoned{};
  std::array<uint8_t, kRanks> killed{}, released{};
  std::array<std::array<uint8_t, kRanks>, kRanks> counter{};  // [from][to]
  std::array<uint8_t, kRanks> started{}, passed{};            // batches
  std::array<uint64_t, kRanks> apart{};  // bit i: batch passed + i was started, and is held on a stream of its own

  bool operator==(const State& other) const { return std::memcmp(this, &other, sizeof(State)) == 0; }
};
static_assert(std::has_unique_object_representations_v<State>);

struct Hash {
  size_t operator()(const State& state) const {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
    for (size_t i = 0; i < sizeof(State); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
  }
};

class Search {
 public:
  Search(const Schedule& schedule, const Options& options) : schedule_(schedule), options_(options) {
    ranks_ = schedule.ranks.size();
    if (ranks_ > kRanks) throw std::runtime_error("more ranks than the model holds");
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const auto& calls = schedule.ranks[rank];
      if (calls.size() >= kNever) throw std::runtime_error("more calls than the model holds");
      std::array<uint32_t, kRanks> sent{}, received{};
      for (size_t i = 0; i < calls.size(); ++i) {
        Known known;
        if (!calls[i].waits) {
          for (const uint32_t peer : calls[i].sends) known.sends.push_back({Operation::kWrite, peer, ++sent.at(peer)});
          for (const uint32_t peer : calls[i].receives) {
            known.receives.push_back({Operation::kHold, peer, ++received.at(peer)});
            known.may_hold = known.may_hold && options.ring.may_hold(options.counted + received.at(peer));
          }
          const auto* next = i + 1 < calls.size() ? &calls[i + 1] : nullptr;
          known.needed_at_once = next != nullptr && next->waits && next->batch == calls[i].batch;
          const auto& from = calls[i].receives;
          known.one_source = std::all_of(from.begin(), from.end(), [&](uint32_t peer) { return peer == from[0]; });
          if (!known.receives.empty()) {
            known.apart = options.apart_for_all ? known.receives.back() : known.receives.front();
          }
          batches_[rank].push_back(&calls[i]);
          for (const bool sends : {false, true}) {
            for (size_t peer = 0; peer < ranks_; ++peer) {
              const auto& peers = sends ? calls[i].sends : calls[i].receives;
              auto& before = messages_[sends ? 1 : 0][rank][peer];
              if (before.empty()) before.push_back(0);
              before.push_back(before.back() + static_cast<size_t>(std::count(peers.begin(), peers.end(), peer)));
            }
          }
        } else {  // the hook knows by the batch what it waits for
          const auto posted = std::find_if(calls.begin(), calls.end(), [&](const Call& call) {
            return !call.waits && call.batch == calls[i].batch;
          });
          known = known_[rank][static_cast<size_t>(posted - calls.begin())];
        }
        known_[rank].push_back(known);
      }
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].waits) known_batches_[rank].push_back(&known_[rank][i]);
      }
    }
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const auto& calls = schedule.ranks[rank];
      for (size_t i = 0; i < calls.size(); ++i) {
        known_[rank][i].held_remotely = held_remotely(rank, i);
        for (const bool on : {false, true}) {
          for (const bool hooked : {false, true}) {
            known_[rank][i].operations[(on ? 1 : 0) + (hooked ? 2 : 0)] = operations(rank, i, on, hooked);
          }
        }
      }
    }
  }

  Outcome run() {
    State first;
    first.off.fill(kNever);
    for (auto& row : first.seen) row.fill(kNever);
    visit(settled(first));
    while (!open_.empty() && outcome_.fault.empty()) {
      const State state = open_.back();
      open_.pop_back();
      if (seen_.size() > options_.most_states) break;
      expand(state);
    }
    outcome_.states = seen_.size();
    outcome_.complete = open_.empty() || !outcome_.fault.empty();
    return outcome_;
  }

 private:
  struct Known {
    std::vector<Operation> sends, receives;
    Operation apart{};  // what it is held apart for
    bool needed_at_once = false, one_source = false, may_hold = true;
    bool held_remotely = false;                        // while the hook is on
    std::array<std::vector<Operation>, 4> operations;  // by what the host saw: see operations()
  };

  void visit(const State& state) {
    if (seen_.insert(state).second) open_.push_back(state);
  }

  bool is_elsewhere(size_t rank, uint32_t peer) const {
    return !options_.host_of.empty() && options_.host_of.at(rank) != options_.host_of.at(peer);
  }

  bool held_remotely(size_t rank, size_t index) const {
    const Call& call = schedule_.ranks[rank][index];
    if (call.waits || call.receives.empty()) return false;
    for (const uint32_t peer : call.receives) {
      if (!is_elsewhere(rank, peer)) return false;
    }
    policy::RemoteBatch batch{call.receives.size(), call.sends.size()};
    const auto same = [&](uint32_t peer) { return peer == call.receives[0]; };
    batch.one_rank = std::all_of(call.receives.begin(), call.receives.end(), same) &&
                     std::all_of(call.sends.begin(), call.sends.end(), same);
    batch.needed_at_once = known_[rank][index].needed_at_once;
    batch.mirrored = batch.one_rank && !call.sends.empty() && is_mirrored(rank, index);
    return options_.holds_elsewhere(batch);
  }

  // What the hint of the batch's last message says: its batch receives up to the last that this one sends.
  bool is_mirrored(size_t rank, size_t index) const {
    const Known& known = known_[rank][index];
    const auto last = [](const std::vector<Operation>& of, size_t peer) {
      uint32_t value = 0;
      for (const Operation& one : of) value = one.peer == peer ? one.value : value;
      return value;
    };
    const uint32_t peer = known.receives.back().peer;
    for (const Known* theirs : known_batches_[peer]) {
      if (last(theirs->sends, rank) != known.receives.back().value) continue;
      return last(theirs->receives, rank) == known.sends.back().value;
    }
    return false;
  }

  // May the helper thread end the remote hold that the stream is in? At a hint for all that the batch receives, at the
  // ceiling, or since the hook is off and lets all of them go.
  bool may_let_go(const State& state, size_t rank) const {
    const auto& awaited = known_[rank][state.call[rank]].receives;
    const auto hinted = [&](const Operation& one) { return goes_on(state, rank, one); };
    return options_.ceilings || state.off[rank] != kNever ||
           (options_.hints && std::all_of(awaited.begin(), awaited.end(), hinted));
  }

  // What the stream has to do for a call, by the hook's plan for what the host could see.
  std::vector<Operation> operations(size_t rank, size_t index, bool on, bool sources_hooked) const {
    const Call& call = schedule_.ranks[rank][index];
    const Known& known = known_[rank][index];
    policy::Batch batch;
    batch.hook_on = on;
    batch.sends = !known.sends.empty();
    batch.receives = !known.receives.empty();
    batch.needed_at_once = known.needed_at_once;
    batch.sources_hooked = sources_hooked && known.may_hold;
    for (const auto& receive : known.receives) {
      batch.sources_hooked = batch.sources_hooked && !is_elsewhere(rank, receive.peer);
    }
    batch.posted_early = !known.needed_at_once;
    batch.one_source = known.one_source;
    std::vector<Operation> made;
    if (call.waits) {
      if (options_.plan(batch).holds_apart()) made = known.receives;  // as policy::holds_at_wait()
      made.push_back({Operation::kAwait, 0, call.batch});
      return made;
    }
    if (on && known.held_remotely) {
      made = known.sends;
      made.insert(options_.hint_first ? made.end() : made.begin(), Operation{Operation::kHoldRemote});
      made.push_back({Operation::kStart});
      return made;
    }
    bool apart = false;
    for (const auto step : options_.plan(batch)) {
      if (step == policy::BatchStep::kProduce) made.insert(made.end(), known.sends.begin(), known.sends.end());
      if (step == policy::BatchStep::kHold) made.insert(made.end(), known.receives.begin(), known.receives.end());
      if (step == policy::BatchStep::kHoldApart) apart = true;
      if (step == policy::BatchStep::kPost) made.push_back({apart ? Operation::kStartApart : Operation::kStart});
    }
    return made;
  }

  const std::vector<Operation>& operations(const State& state, size_t rank) const {
    const size_t index = state.call[rank];
    const Known& known = known_[rank][index];
    const bool on = index < state.off[rank];
    bool sources_hooked = true;
    for (const auto& receive : known.receives)
      sources_hooked = sources_hooked && index < state.seen[rank][receive.peer];
    return known.operations[(on ? 1 : 0) + (sources_hooked ? 2 : 0)];
  }

  // The stream's next operation; false if it has nothing to do.
  bool next(const State& state, size_t rank, Operation& operation, size_t& left) const {
    if (state.call[rank] >= state.host[rank]) return false;
    const auto& made = operations(state, rank);
    operation = made[state.step[rank]];
    left = made.size() - state.step[rank];
    return true;
  }

  // What a GPU that waits for a counter sees of it.
  bool goes_on(const State& state, size_t rank, const Operation& wanted) const {
    if (state.poisoned[wanted.peer][rank] != 0) return true;
    const uint32_t counter = options_.ring.value(options_.counted + state.counter[wanted.peer][rank]);
    return static_cast<int32_t>(counter - options_.ring.value(options_.counted + wanted.value)) >= 0;
  }

  bool ready(const State& state, size_t rank, const Operation& operation) const {
    if (operation.kind == Operation::kHold) {
      return goes_on(state, rank, operation);
    }
    if (operation.kind == Operation::kHoldRemote) return may_let_go(state, rank);
    if (operation.kind != Operation::kAwait) return true;
    return options_.one_queue ? state.passed[rank] > operation.value : all_pass(state, rank, operation.value);
  }

  // Executes the stream's next operation if it can be. `lets_go`: the helper thread ends a remote hold now.
  bool step(State& state, size_t rank, bool lets_go = false) const {
    Operation operation{};
    size_t left = 0;
    if (state.killed[rank] != 0 || !next(state, rank, operation, left)) return false;
    if ((operation.kind == Operation::kHoldRemote) != lets_go || !ready(state, rank, operation)) return false;
    if (operation.kind == Operation::kWrite) {
      state.counter[rank][operation.peer] = static_cast<uint8_t>(operation.value);
      state.poisoned[rank][operation.peer] = 0;  // a GPU's write asks nobody
    }
    if (operation.kind == Operation::kStartApart) {
      const size_t ahead = state.started[rank] - state.passed[rank];
      if (ahead >= 64) throw std::runtime_error("more batches under way than the model holds");
      state.apart[rank] |= uint64_t{1} << ahead;
    }
    if (operation.kind == Operation::kStart || operation.kind == Operation::kStartApart) ++state.started[rank];
    if (left == 1) {
      ++state.call[rank];
      state.step[rank] = 0;
    } else {
      ++state.step[rank];
    }
    return true;
  }

  // Passes every message whose two batches are at the head of their queues. Nothing can prevent or undo that, so doing
  // it at once hides no order of events.
  void pass_messages(State& state) const {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_; ++rank) {
        while (state.passed[rank] < state.started[rank] && all_pass(state, rank, state.passed[rank])) {
          ++state.passed[rank];
          state.apart[rank] >>= 1;
          moved = true;
        }
      }
    }
  }

  // Is this batch, which was started, held apart?
  bool held_apart(const State& state, size_t rank, size_t batch) const {
    if (batch < state.passed[rank] || (state.apart[rank] >> (batch - state.passed[rank]) & 1) == 0) return false;
    return !goes_on(state, rank, known_batches_[rank][batch]->apart);
  }

  // How many of a rank's batches can send to `peer`, or receive from it, now: those in front of the first that is held
  // apart. Where not all go through one queue, that is one of receives from the same rank.
  size_t open_batches(const State& state, size_t rank, size_t peer, bool sends, size_t most) const {
    if (sends && !options_.one_queue) return most;
    for (size_t batch = state.passed[rank]; batch < most; ++batch) {
      const auto& from = batches_[rank][batch]->receives;
      const bool theirs = options_.one_queue || std::find(from.begin(), from.end(), peer) != from.end();
      if (theirs && held_apart(state, rank, batch)) return batch;
    }
    return most;
  }

  // Does everything in `batch` of `rank`, which was started, pass?
  bool all_pass(const State& state, size_t rank, size_t batch) const {
    const Call& call = *batches_[rank][batch];
    const auto meets = [&](uint32_t peer, bool sends) {
      if (open_batches(state, rank, peer, sends, batch + 1) <= batch) return false;
      const size_t wanted = count(rank, peer, sends, batch + 1);
      const size_t at_head = state.passed[peer] + (state.passed[peer] < state.started[peer] ? size_t{1} : size_t{0});
      const size_t open = open_batches(state, peer, rank, !sends, options_.one_queue ? at_head : state.started[peer]);
      return count(peer, static_cast<uint32_t>(rank), !sends, open) >= wanted;
    };
    return std::all_of(call.sends.begin(), call.sends.end(), [&](uint32_t peer) { return meets(peer, true); }) &&
           std::all_of(call.receives.begin(), call.receives.end(), [&](uint32_t peer) { return meets(peer, false); });
  }

  // Messages to (or from) `peer` in the first `batches` batches of `rank`.
  size_t count(size_t rank, uint32_t peer, bool sends, size_t batches) const {
    return messages_[sends ? 1 : 0][rank][peer][batches];
  }

  // Forgets what can no longer make a difference, so that states that differ in nothing else are one.
  State forgetful(State state) const {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (state.off[rank] <= state.call[rank]) state.off[rank] = 0;
      for (size_t other = 0; other < ranks_; ++other) {
        if (state.seen[rank][other] <= state.call[rank]) state.seen[rank][other] = 0;
        if (state.poisoned[rank][other] != 0) state.counter[rank][other] = 0;
      }
      if (state.killed[rank] != 0) state.host[rank] = state.step[rank] = state.off[rank] = 0;
    }
    return state;
  }

  State settled(State state) const {
    pass_messages(state);
    if (!options_.eager) return forgetful(state);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_; ++rank) {
        while (step(state, rank)) {
          pass_messages(state);
          moved = true;
        }
      }
    }
    return forgetful(state);
  }

  void release(State& state, size_t rank) const {
    for (size_t to = 0; to < ranks_; ++to) state.poisoned[rank][to] = 1;
    state.released[rank] = 1;
  }

  bool anything_to_release(const State& state, size_t rank) const {
    if (state.released[rank] == 0) return state.killed[rank] != 0;
    if (!options_.release_again) return false;
    return std::any_of(state.poisoned[rank].begin(), state.poisoned[rank].begin() + static_cast<ptrdiff_t>(ranks_),
                       [](uint8_t poisoned) { return poisoned == 0; });
  }

  // Nothing can fail any more, everything released stays released, and what hosts see is settled: then what can happen
  // stays possible until it does and prevents nothing else, so every order ends in the same state and one is enough.
  bool one_order_is_enough(const State& state, uint32_t offs, uint32_t kills) const {
    if (!options_.eager || offs < options_.switch_offs || kills < options_.kills) return false;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (anything_to_release(state, rank)) return false;
      if (state.off[rank] != kNever && state.off[rank] != 0) return false;  // its stream may still write
    }
    return true;
  }

  void expand(const State& state) {
    bool moved = false, one_order = false;
    const auto go = [&](State next) {
      if (moved && one_order) return;
      moved = true;
      visit(settled(next));
    };
    uint32_t offs = 0, kills = 0;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      offs += state.off[rank] != kNever ? 1 : 0;
      kills += state.killed[rank];
    }
    one_order = one_order_is_enough(state, offs, kills);
    for (size_t rank = 0; rank < ranks_; ++rank) {
      State next = state;
      if (step(next, rank) || step(next, rank, true)) go(next);
      next = state;
      if (anything_to_release(state, rank)) {
        release(next, rank);
        go(next);
      }
      const bool host_left = state.killed[rank] == 0 && state.host[rank] < schedule_.ranks[rank].size();
      if (host_left && state.host[rank] < state.call[rank] + options_.lead) {
        next = state;
        for (size_t other = 0; other < ranks_; ++other) {
          if (state.released[other] != 0 && next.seen[rank][other] == kNever) next.seen[rank][other] = state.host[rank];
        }
        ++next.host[rank];
        go(next);
      }
      if (host_left && state.off[rank] == kNever && offs < options_.switch_offs) {
        next = state;
        next.off[rank] = state.host[rank];
        release(next, rank);
        visit(settled(next));
      }
      if (state.killed[rank] == 0 && kills < options_.kills) {
        next = state;
        next.killed[rank] = 1;
        visit(settled(next));
      }
    }
    if (!moved) judge(state, kills != 0);
  }

  void judge(const State& state, bool killed) {
    static constexpr const char* kNames[] = {"writes a counter",         "is held",
                                             "is held for another host", "starts a batch",
                                             "starts a batch apart",     "waits for a batch"};
    for (size_t rank = 0; rank < ranks_; ++rank) {
      Operation operation{};
      size_t left = 0;
      for (size_t batch = state.passed[rank]; killed && state.killed[rank] == 0 && batch < state.started[rank];
           ++batch) {
        if (!held_apart(state, rank, batch) || state.killed[known_batches_[rank][batch]->apart.peer] == 0) continue;
        outcome_.fault += schedule_.name + ": rank " + std::to_string(rank) + " holds a batch apart for ever\n";
      }
      if (state.killed[rank] != 0 || !next(state, rank, operation, left)) continue;
      const bool held = operation.kind == Operation::kHold && state.killed[operation.peer] != 0;
      if (killed && !held && operation.kind != Operation::kHoldRemote) continue;
      outcome_.fault += schedule_.name + ": rank " + std::to_string(rank) + " " + kNames[operation.kind] +
                        " for ever at call " + std::to_string(state.call[rank]) + "\n";
    }
  }

  const Schedule& schedule_;
  const Options& options_;
  size_t ranks_ = 0;
  std::array<std::vector<Known>, kRanks> known_;
  std::array<std::vector<const Call*>, kRanks> batches_;
  std::array<std::vector<const Known*>, kRanks> known_batches_;
  std::array<std::array<std::array<std::vector<size_t>, kRanks>, kRanks>, 2> messages_;  // [sends][rank][peer]
  std::unordered_set<State, Hash> seen_;
  std::vector<State> open_;
  Outcome outcome_;
};

}  // namespace

std::vector<Schedule> parse_schedules(const std::string& text) {
  std::vector<Schedule> schedules;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "schedule") {
      std::string name;
      std::getline(words >> std::ws, name);
      schedules.push_back({name, {}});
      continue;
    }
    if (schedules.empty()) throw std::runtime_error("calls before any schedule: " + line);
    auto& calls = schedules.back().ranks.emplace_back();
    uint32_t batches = 0;
    do {
      Call call;
      if (word[0] == 'W') {
        call.waits = true;
        call.batch = static_cast<uint32_t>(std::stoul(word.substr(1)));
        if (call.batch >= batches) throw std::runtime_error("a wait for what was not posted: " + word + " in " + line);
      } else if (word.rfind("P:", 0) == 0) {
        call.batch = batches++;
        std::istringstream messages(word.substr(2));
        for (std::string message; std::getline(messages, message, ',');) {
          (message[0] == 's' ? call.sends : call.receives)
              .push_back(static_cast<uint32_t>(std::stoul(message.substr(1))));
        }
      } else {
        throw std::runtime_error("no call: " + word + " in " + line);
      }
      calls.push_back(std::move(call));
    } while (words >> word);
  }
  return schedules;
}

std::vector<Schedule> read_schedules(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return parse_schedules(text.str());
}

Outcome explore(const Schedule& schedule, const Options& options) {
  return Search(schedule, options).run();
}

}  // namespace freeride::hooks::model
