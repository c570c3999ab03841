// The C API: one handle a process, the boundary at which every exception ends, and what happens around fork() and
// exit().
#include "freeride/hook.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/policy/rank_why.hpp"
#include "helper.hpp"
#include "idle_phases.hpp"
#include "rank_page.hpp"
#include "remote_holds.hpp"
#include "sent.hpp"
#include "stream_marks.hpp"

struct freeride_hook {
  std::atomic<bool> usable{true};  // false: detached, or a forked child's copy
  std::atomic<bool> failed{false};
  std::mutex switching;  // on and off; held for some stores only
  bool off = false;      // under it
  bool external_marks = false;
  std::unique_ptr<freeride::hooks::RankPage> page;
  std::unique_ptr<freeride::hooks::IdlePhases> phases;
  std::atomic<bool> counts_iterations{false};  // somebody ends them; else idle phases do
  std::unique_ptr<freeride::hooks::SentMember> sent;
  std::unique_ptr<freeride::hooks::StreamMarks> streams;
  std::unique_ptr<freeride::hooks::RemoteHolds> remote;
  std::atomic<bool> said_phase{false}, said_no_phase{false};
  uint32_t rank = 0;  // in the world
  std::unique_ptr<freeride::hooks::Helper> helper;
  freeride_hook* before = nullptr;  // the handle made before this one
};

namespace {

using freeride::SteadyClock;
using freeride::hooks::Helper;
using freeride::hooks::RankPage;
using freeride::hooks::RemoteHolds;
using freeride::hooks::SentMember;
using freeride::hooks::StreamMarks;

// Handles are never freed: a mark that comes after detach must find memory. Attaching is rare, so that is a few pages.
std::atomic<freeride_hook*> current{nullptr};
freeride_hook* newest = nullptr;  // the chain of all handles: what is kept on purpose is no leak
std::mutex control;               // attach and detach

void say(const std::string& text) {
  static std::atomic<int> left{16};  // a trainer's log is not ours to fill
  if (left.fetch_sub(1) <= 0) return;
  pollfd out{STDERR_FILENO, POLLOUT, 0};  // a pipe that nobody reads holds nothing up
  if (poll(&out, 1, 0) <= 0 || (out.revents & POLLOUT) == 0) return;
  const std::string line = "freeride: " + text + "\n";
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) {
    // Nobody to tell.
  }
}

bool usable(const freeride_hook* hook) {
  return hook != nullptr && hook->usable.load(std::memory_order_relaxed);
}

// Nobody else would end what training's streams wait for.
void let_go(freeride_hook* hook) {
  if (hook->remote) hook->remote->let_go();
  if (hook->streams) hook->streams->let_go();
}

// Not under `control`: the helper thread may be here while a detach, which holds that, joins it.
void switch_off(freeride_hook* hook, bool failed, const char* reason) {
  const std::lock_guard lock(hook->switching);
  hook->page->switch_off(FREERIDE_HOOK_DISABLED);
  let_go(hook);
  if (hook->sent) hook->sent->release(FREERIDE_RANK_DISABLED);
  if (failed) {
    hook->failed.store(true);
    hook->page->note(freeride::policy::RankWhy::kFailed);
  }
  if (hook->off) return;
  hook->off = true;
  std::string text = "the hook is switched off";
  if (reason != nullptr && *reason != 0) text += std::string(": ") + reason;
  say(text + "; training goes on without");
}

// Runs `body` and turns whatever it throws into a hook that is off.
template <class Body>
void guarded(freeride_hook* hook, Body body) noexcept {
  if (!usable(hook)) return;
  try {
    body();
  } catch (const std::exception& error) {
    try {
      switch_off(hook, true, error.what());
    } catch (...) {  // NOLINT(bugprone-empty-catch): even the message failed; the page is off already
    }
  } catch (...) {
    hook->page->switch_off(FREERIDE_HOOK_DISABLED);
    let_go(hook);
    if (hook->sent) hook->sent->release(FREERIDE_RANK_DISABLED);
  }
}

// Training uses its device again, and has not said so.
void end_phase(freeride_hook* hook, const char* what) {
  const uint64_t phase = hook->phases->under_way();
  if (phase == 0) return;
  const std::string name = hook->phases->name();
  if (!hook->phases->end(phase, SteadyClock::now())) return;
  if (!hook->said_phase.exchange(true))
    say("the idle phase \"" + name + "\" was still under way at " + what + ", which ends it: end it before");
}

// What `call` of the hook's streams returns; `otherwise` where there are none, or it fails: a mark or a wait may be
// missing in the stream then, and the hook is off.
template <class Value, class Call>
Value on_streams(freeride_hook* hook, Value otherwise, Call call) noexcept {
  guarded(hook, [&] {
    if (!hook->streams || hook->failed.load()) return;
    end_phase(hook, "a message of the pipeline's");
    const auto done = call(*hook->streams);
    if (done.ok()) {
      otherwise = static_cast<Value>(*done);
    } else {
      switch_off(hook, true, done.error().text().c_str());
    }
  });
  return otherwise;
}

void before_fork() {
  control.lock();
  if (freeride_hook* hook = current.load()) {
    if (hook->helper) hook->helper->lock_for_fork();
  }
}

void after_fork_in_parent() {
  if (freeride_hook* hook = current.load()) {
    if (hook->helper) hook->helper->unlock_after_fork();
  }
  control.unlock();
}

void after_fork_in_child() {
  if (freeride_hook* hook = current.exchange(nullptr)) {
    hook->usable.store(false);
    if (hook->helper) {
      hook->helper->drop_in_child();
      hook->helper->unlock_after_fork();
    }
    if (hook->remote) hook->remote->close_in_child();
    hook->page->close_fd();
    // The mappings stay: a stray pointer to the page must not crash. Nothing of ours writes to them from here on.
  }
  control.unlock();
}

void detach_locked(freeride_hook* hook) {
  if (!hook->usable.exchange(false)) return;
  {  // before the connection ends: the worker that sees its end looks at the page
    const std::lock_guard lock(hook->switching);
    hook->page->switch_off(FREERIDE_HOOK_GONE);
  }
  if (hook->remote) hook->remote->stop();
  if (hook->helper) hook->helper->stop();
  let_go(hook);  // the helper, which would have ended them, is gone
  if (hook->sent) hook->sent->leave();
  freeride_hook* self = hook;
  current.compare_exchange_strong(self, nullptr);
}

void at_exit() {
  if (freeride_hook* hook = current.load()) {
    try {
      const std::lock_guard lock(control);
      detach_locked(hook);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the process ends, which tells the worker as well
    }
  }
}

void register_once() {
  static const bool done = [] {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    std::atexit(at_exit);
    return true;
  }();
  (void)done;
}

std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

freeride::Result<freeride_hook*> attach(const freeride_hook_config& config) {
  using freeride::Code;
  using freeride::Error;
  freeride::hooks::RankIdentity identity;
  identity.job = text_of(config.job);
  const bool cuda = (config.flags & FREERIDE_HOOK_CUDA) != 0;
  std::optional<freeride::hooks::CudaDriver> driver;
  if (cuda) {
    auto loaded = freeride::hooks::CudaDriver::load();
    if (!loaded.ok()) return loaded.error();
    driver = *loaded;
  }
  if (cuda && config.device == nullptr) {
    auto uuid = driver->device_uuid();
    if (!uuid.ok()) return uuid.error();
    identity.device = *uuid;
  } else {
    identity.device = text_of(config.device);
  }
  identity.framework = text_of(config.framework);
  identity.rank = config.rank;
  identity.stage = config.stage;
  identity.stages = config.stages;
  identity.replica = config.replica;
  identity.replicas = config.replicas;
  // Not understood is not the same as none: the manager's own may be more than this training wants to lose.
  if (const char* budget = std::getenv("FREERIDE_JOB_BUDGET_PCT"); budget != nullptr && *budget != 0) {
    auto pct = freeride::hooks::parse_budget(budget);
    if (!pct.ok()) return pct.error();
    identity.budget_pct = *pct;
  }
  if (identity.device.size() >= FREERIDE_NAME_BYTES || identity.device.find('/') != std::string::npos) {
    return Error{Code::kInvalidArgument,
                 "device \"" + identity.device.substr(0, FREERIDE_NAME_BYTES) + "\" is no GPU UUID and no cpu-N", ""};
  }
  auto hook = std::make_unique<freeride_hook>();
  hook->rank = config.rank;
  if (auto s = take(hook->page, RankPage::create(identity)); !s.ok()) return s.error();
  hook->phases = std::make_unique<freeride::hooks::IdlePhases>(*hook->page);
  hook->external_marks = cuda || (config.flags & FREERIDE_HOOK_EXTERNAL_MARKS) != 0;
  if (cuda || (config.flags & FREERIDE_HOOK_SENT) != 0) {
    const char* folder = std::getenv("FREERIDE_SHM_DIR");
    auto sent =
        SentMember::join(folder != nullptr ? folder : "/dev/shm", identity.job, config.local_rank, config.rank,
                         cuda ? FREERIDE_SENT_FIRST : 0, cuda ? SentMember::Slot::kAny : SentMember::Slot::kLocalRank);
    if (sent.ok()) {
      hook->sent = std::move(*sent);
    } else {  // leases need no counters where the host marks; peers find none of ours and wait as without us
      say("no sent counters: " + sent.error().text());
    }
  }
  if (cuda) {
    if (!hook->sent) return Error{Code::kUnavailable, "on a GPU nothing can be marked without sent counters", ""};
    auto streams = StreamMarks::create(*driver, *hook->page, *hook->sent);
    if (!streams.ok()) {
      hook->sent->leave();
      return streams.error();
    }
    hook->streams = std::move(*streams);
    hook->page->set_leases(StreamMarks::shortest_lease_ns(), StreamMarks::kLeadNs);
  }
  Helper::Config helper;
  helper.run_dir = text_of(config.run_dir);
  helper.device = identity.device;
  helper.external_marks = hook->external_marks;
  helper.say = say;
  helper.context = hook.get();
  helper.failed = [](void* context, const char* reason) {
    switch_off(static_cast<freeride_hook*>(context), true, reason);
  };
  hook->helper = std::make_unique<Helper>(std::move(helper), *hook->page, hook->sent.get(), hook->streams.get(),
                                          hook->phases.get());
  auto started = hook->helper->start();
  if (!started.ok()) {
    if (hook->sent) hook->sent->leave();
    return started.error();
  }
  return hook.release();
}

}  // namespace

extern "C" {

freeride_hook* freeride_hook_attach(const freeride_hook_config* config) {
  try {
    const char* wanted = std::getenv("FREERIDE_HOOK");
    if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return nullptr;
    // The first version's struct: a caller may have a longer one, never a shorter one.
    if (config == nullptr || config->struct_size < offsetof(freeride_hook_config, local_rank) + sizeof(uint32_t)) {
      say("attach without a proper config; training goes on without");
      return nullptr;
    }
    const std::lock_guard lock(control);
    if (freeride_hook* first = current.load()) return first;
    register_once();
    auto made = attach(*config);
    if (!made.ok()) {
      say("cannot attach: " + made.error().text() + "; training goes on without");
      return nullptr;
    }
    (*made)->before = newest;
    newest = *made;
    current.store(*made);
    return *made;
  } catch (...) {
    return nullptr;
  }
}

void freeride_hook_mark_begin(freeride_hook* hook) {
  guarded(hook, [hook] {
    end_phase(hook, "a wait of the pipeline's");
    if (!hook->external_marks) hook->page->begin(SteadyClock::now());
  });
}

void freeride_hook_mark_end(freeride_hook* hook) {
  guarded(hook, [hook] {
    end_phase(hook, "the end of a wait of the pipeline's");
    if (!hook->external_marks) hook->page->end(SteadyClock::now());
  });
}

void freeride_hook_iteration_end(freeride_hook* hook) {
  guarded(hook, [hook] {
    end_phase(hook, "an iteration's end");
    hook->counts_iterations.store(true, std::memory_order_relaxed);
    if (!hook->external_marks) hook->page->finish_iteration(SteadyClock::now());
  });
}

void freeride_hook_disable(freeride_hook* hook, const char* reason) {
  guarded(hook, [=] { switch_off(hook, false, reason); });
}

void freeride_hook_fail(freeride_hook* hook, const char* reason) {
  guarded(hook, [=] { switch_off(hook, true, reason); });
}

int freeride_hook_enable(freeride_hook* hook) {
  int enabled = 0;
  guarded(hook, [&] {
    const std::lock_guard lock(hook->switching);
    if (hook->failed.load()) return;
    enabled = 1;
    if (!hook->off) return;
    hook->off = false;
    if (hook->remote) hook->remote->hold_again();
    if (hook->streams) hook->streams->rejoin();
    hook->page->switch_on();
  });
  return enabled;
}

void freeride_hook_detach(freeride_hook* hook) {
  guarded(hook, [hook] {
    const std::lock_guard lock(control);
    detach_locked(hook);
  });
}

uint32_t freeride_hook_state(const freeride_hook* hook) {
  return usable(hook) ? hook->page->state() : uint32_t{FREERIDE_HOOK_GONE};
}

void freeride_hook_note(freeride_hook* hook, uint32_t why) {
  guarded(hook, [=] {
    if (!hook->failed.load()) hook->page->note(static_cast<freeride::policy::RankWhy>(why));
  });
}

uint32_t freeride_hook_why(freeride_hook* hook) {
  using freeride::policy::RankFacts;
  using freeride::policy::RankJudge;
  using freeride::policy::RankWhy;
  auto why = RankWhy::kEnded;
  guarded(hook, [&] {
    const freeride_bubble_page& page = hook->page->page();
    const auto lengths = freeride::pages::learned_lengths(page);
    RankFacts facts;
    if (hook->page->state() == FREERIDE_HOOK_DISABLED) facts.hook = RankFacts::Hook::kOff;
    facts.iterations = freeride::pages::load_acquire(page.iteration);
    facts.bubbles = freeride::pages::load_acquire(page.bubbles);
    facts.samples = lengths.samples;
    facts.usable = hook->page->usable_lately(RankJudge::kLately);
    facts.noted = freeride::pages::load_relaxed(page.noted);
    facts.has_worker = hook->helper->connected();
    why = RankJudge().judge(facts);
  });
  return static_cast<uint32_t>(why);
}

int freeride_hook_explain(uint32_t why, const char** name, const char** text) {
  const auto known = static_cast<freeride::policy::RankWhy>(why);
  if (name != nullptr) *name = freeride::policy::rank_why_name(known);
  if (text != nullptr) *text = freeride::policy::rank_why_text(known);
  return freeride::policy::is_in_the_way(known) ? 1 : 0;
}

int freeride_hook_connected(const freeride_hook* hook) {
  return usable(hook) && hook->helper->connected() ? 1 : 0;
}

void freeride_hook_set_usable_bytes(freeride_hook* hook, uint64_t bytes) {
  guarded(hook, [=] { freeride::pages::store_relaxed(hook->page->page().usable_bytes, bytes); });
}

int freeride_hook_want_memory(freeride_hook* hook, uint64_t bytes) {
  guarded(hook, [=] { hook->page->want_memory(bytes); });
  return freeride_hook_connected(hook);
}

freeride_bubble_page* freeride_hook_page(freeride_hook* hook) {
  return hook == nullptr ? nullptr : &hook->page->page();
}

uint64_t freeride_hook_idle_begin(freeride_hook* hook, const char* name, int64_t expected_ns, uint32_t flags,
                                  void* stream) {
  uint64_t number = 0;
  guarded(hook, [&] {
    if (!hook->page->is_on() || (hook->external_marks && !hook->streams)) return;
    freeride::hooks::IdlePhases::Wish wish;
    wish.name = name == nullptr ? "" : name;
    wish.expected_ns = expected_ns;
    wish.open = (flags & FREERIDE_IDLE_OPEN) != 0;
    wish.found = (flags & FREERIDE_IDLE_FOUND) != 0;
    wish.by_gpu = hook->streams != nullptr;
    // Captured, its mark would be made whenever the graph is run.
    if (hook->streams && hook->streams->is_capturing(stream)) {
      if (!hook->said_no_phase.exchange(true))
        say("the idle phase \"" + std::string(wish.name) +
            "\" begins within the capture of a CUDA graph, and is left out");
      return;
    }
    // The iteration ends before it begins: it is of the next one.
    if (!hook->counts_iterations.load() && hook->phases->comes_round(wish)) {
      auto ended = freeride::Status();
      if (hook->streams) {
        ended = hook->streams->end_iteration_by_phase(stream);
      } else {
        hook->page->finish_iteration_by_phase(SteadyClock::now());
      }
      if (!ended.ok()) return switch_off(hook, true, ended.error().text().c_str());
    }
    const auto begun = hook->phases->begin(wish, SteadyClock::now());
    if (!begun.ok()) {
      if (!hook->said_no_phase.exchange(true)) say(begun.error().text());
      return;
    }
    number = FREERIDE_PHASE_NUMBER(*begun);
    if (!hook->streams) return;
    const auto marked = hook->streams->mark_phase(stream, *begun);
    if (!marked.ok()) return switch_off(hook, true, marked.error().text().c_str());
    hook->helper->look();
  });
  return number;
}

void freeride_hook_idle_end(freeride_hook* hook, uint64_t phase) {
  guarded(hook, [=] { hook->phases->end(phase, SteadyClock::now()); });
}

uint64_t freeride_hook_idle_phase(const freeride_hook* hook) {
  return usable(hook) ? hook->phases->under_way() : 0;
}

uint32_t freeride_hook_produce(freeride_hook* hook, uint32_t destination) {
  return usable(hook) && hook->sent ? hook->sent->produce(destination) : 0;
}

int freeride_hook_wait_sent(freeride_hook* hook, uint32_t source, uint32_t count, int64_t timeout_ns) {
  if (!usable(hook) || !hook->sent) return FREERIDE_SENT_NONE;
  switch (hook->sent->wait(source, count, SteadyClock::now() + (timeout_ns < 0 ? 0 : timeout_ns))) {
    case SentMember::Waited::kReached:
      return FREERIDE_SENT_REACHED;
    case SentMember::Waited::kReleased:
      return FREERIDE_SENT_RELEASED;
    default:
      return FREERIDE_SENT_TIMEOUT;
  }
}

int freeride_hook_stream_batch(freeride_hook* hook, void* stream, const uint32_t* destinations,
                               uint32_t destination_count, const uint32_t* sources, uint32_t source_count, int hold) {
  return on_streams(hook, int{FREERIDE_HELD_PLAIN}, [&](StreamMarks& marks) {
    return marks.batch(stream, {destinations, destination_count}, {sources, source_count},
                       static_cast<freeride::hooks::Hold>(hold));
  });
}

int freeride_hook_stream_exchange(freeride_hook* hook, void* stream, const uint32_t* destinations,
                                  uint32_t destination_count, const uint32_t* sources, uint32_t source_count, int hold,
                                  uint64_t receive_bytes) {
  return on_streams(hook, int{FREERIDE_HELD_PLAIN}, [&](StreamMarks& marks) {
    return marks.batch(stream, {destinations, destination_count}, {sources, source_count},
                       static_cast<freeride::hooks::Hold>(hold), receive_bytes);
  });
}

void freeride_hook_stream_received(freeride_hook* hook, void* stream) {
  on_streams(hook, 0, [&](StreamMarks& marks) -> freeride::Result<int> {
    const auto done = marks.received(stream);
    if (!done.ok()) return done.error();
    return 0;
  });
}

uint32_t freeride_hook_remote_open(freeride_hook* hook, uint32_t port) {
  uint32_t opened = 0;
  guarded(hook, [&] {
    if (!hook->streams || hook->remote || port > UINT16_MAX) return;
    auto driver = freeride::hooks::CudaDriver::load();
    if (!driver.ok()) return;
    auto made = RemoteHolds::create(*driver, *hook->page, hook->rank, static_cast<uint16_t>(port), say);
    if (!made.ok()) {
      say("receives from other hosts are not held: " + made.error().text());
      return;
    }
    hook->remote = std::move(*made);
    hook->streams->set_remote(hook->remote.get());
    opened = hook->remote->port();
  });
  return opened;
}

void freeride_hook_remote_join(freeride_hook* hook, const uint8_t* key, uint64_t epoch,
                               const freeride_remote_peer* peers, uint32_t count) {
  on_streams(hook, 0, [&](StreamMarks& marks) -> freeride::Result<int> {
    if (!hook->remote || (peers == nullptr && count > 0)) return 0;
    std::vector<RemoteHolds::Peer> known;
    for (uint32_t i = 0; i < count; ++i) {
      const auto port = static_cast<uint16_t>(peers[i].port > UINT16_MAX ? 0 : peers[i].port);
      known.push_back(hook->remote->peer_at(peers[i].rank, text_of(peers[i].address), port));
    }
    freeride::hooks::Hint::Key bytes{};
    if (key != nullptr) std::memcpy(bytes.data(), key, bytes.size());
    const auto joined = hook->remote->join(key == nullptr ? nullptr : &bytes, epoch, known, marks.iteration());
    if (!joined.ok()) return joined.error();
    return 0;
  });
}

void freeride_hook_remote_report(freeride_hook* hook, freeride_remote_report* report) {
  if (report == nullptr) return;
  freeride_remote_report now{};
  guarded(hook, [&] {
    if (!hook->remote) return;
    const auto& from = hook->remote->counters();
    now.measured = from.measured.load();
    now.held = from.held.load();
    now.by_hint = from.by_hint.load();
    now.by_ceiling = from.by_ceiling.load();
    now.hints_sent = from.hints_sent.load();
    now.hints_taken = from.hints_taken.load();
    now.hints_refused = from.hints_refused.load();
    now.plain_iterations = from.plain_iterations.load();
    now.holdable_ns = from.holdable_ns.load();
    const auto arms = hook->remote->arms();
    now.joined = hook->remote->joined() ? 1 : 0;
    now.off = arms.off ? 1 : 0;
    const auto put = [](const freeride::policy::ArmCost& cost, freeride_arm_cost& to) {
      to = {cost.periods, cost.measured ? 1u : 0u, 0, cost.increase_pct, cost.ci95_low_pct, cost.ci95_high_pct};
    };
    put(arms.held, now.held_cost);
    put(arms.leased, now.leased_cost);
  });
  *report = now;
}

uint32_t freeride_hook_remote_holds(freeride_hook* hook, freeride_remote_hold* holds, uint32_t most) {
  uint32_t count = 0;
  guarded(hook, [&] {
    if (!hook->remote || holds == nullptr) return;
    for (; count < most; ++count) {
      RemoteHolds::Hold one;
      if (hook->remote->take_holds({&one, 1}) == 0) break;
      holds[count] = {one.iteration, one.count,      one.wait,    one.peer,
                      one.begin_ns,  one.ceiling_ns, one.hint_ns, one.posted_ns};
    }
  });
  return count;
}

void freeride_hook_remote_arm(freeride_hook* hook, int arm) {
  guarded(hook, [=] {
    if (hook->remote) hook->remote->set_arm(arm);
  });
}

void freeride_hook_remote_faults(freeride_hook* hook, int64_t late_ns, uint32_t lose_per_mille, int forge, int show) {
  guarded(hook, [=] {
    if (hook->remote) hook->remote->set_faults({late_ns, lose_per_mille, forge != 0, show != 0});
  });
}

uint64_t freeride_hook_stream_post_early(freeride_hook* hook, void* apart, const uint32_t* sources,
                                         uint32_t source_count) {
  return on_streams(hook, uint64_t{0}, [&](StreamMarks& marks) {
    return marks.post_early(apart, {sources, source_count});
  });
}

int freeride_hook_stream_wait(freeride_hook* hook, void* stream, uint64_t early) {
  return on_streams(hook, int{FREERIDE_HELD_PLAIN}, [&](StreamMarks& marks) { return marks.wait(stream, early); });
}

int freeride_hook_stream_meet(freeride_hook* hook, void* stream, const uint32_t* members, uint32_t member_count,
                              const uint32_t* awaited, uint32_t awaited_count, int needed_at_once) {
  return on_streams(hook, int{FREERIDE_HELD_PLAIN}, [&](StreamMarks& marks) {
    return marks.meet(stream, {members, member_count}, {awaited, awaited_count}, needed_at_once != 0);
  });
}

void freeride_hook_stream_iteration_end(freeride_hook* hook, void* stream) {
  if (usable(hook)) hook->counts_iterations.store(true, std::memory_order_relaxed);
  on_streams(hook, 0, [&](StreamMarks& marks) -> freeride::Result<int> {
    const auto done = marks.end_iteration(stream);
    if (!done.ok()) return done.error();
    return 0;
  });
}

uint64_t freeride_hook_count_iterations(freeride_hook* hook, void* stream, uint64_t count) {
  uint64_t ended = 0;
  bool is_counted = true;
  guarded(hook, [&] {
    end_phase(hook, "an iteration's end");
    // A whole step that is captured, where there is no pipeline whose marks could be missing, was not made.
    is_counted = !hook->streams || hook->streams->has_posted() || !hook->streams->is_capturing(stream);
    if (!is_counted) return;
    hook->counts_iterations.store(true, std::memory_order_relaxed);
    if (!hook->external_marks) ended = hook->page->finish_iteration(SteadyClock::now(), count);
  });
  if (ended != 0 || !is_counted) return ended;
  return on_streams(hook, uint64_t{0}, [&](StreamMarks& marks) -> freeride::Result<uint64_t> {
    const auto done = marks.end_iteration(stream, count);
    if (!done.ok()) return done.error();
    return marks.iteration();
  });
}

int freeride_hook_stream_behind(freeride_hook* hook, const uint32_t* destinations, uint32_t destination_count,
                                const uint32_t* sources, uint32_t source_count) {
  int behind = 0;
  guarded(hook, [&] {
    if (hook->streams) behind = hook->streams->is_behind({destinations, destination_count}, {sources, source_count});
  });
  return behind;
}

void freeride_hook_event_recorded(freeride_hook* hook, void* event, void* stream) {
  guarded(hook, [=] {
    if (hook->streams) hook->streams->followers().recorded(event, stream);
  });
}

void freeride_hook_event_awaited(freeride_hook* hook, void* event, void* stream) {
  guarded(hook, [=] {
    // Nobody needs this wait: without it the stream waits for the event alone.
    if (hook->streams) static_cast<void>(hook->streams->followers().about_to_wait(stream, event));
  });
}

void freeride_hook_stream_counters(freeride_hook* hook, freeride_stream_counters* counters) {
  if (counters == nullptr) return;
  freeride_stream_counters now{};
  guarded(hook, [&] {
    if (!hook->streams) return;
    const auto& from = hook->streams->counters();
    now = {from.plain.load(), from.stream.load(), from.broken.load(), hook->streams->followers().count()};
  });
  *counters = now;
}

const char* freeride_hook_sent_path(const freeride_hook* hook) {
  return hook != nullptr && hook->sent ? hook->sent->path().c_str() : "";
}

}  // extern "C"
