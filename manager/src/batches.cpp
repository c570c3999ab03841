#include "batches.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "freeride/base/names.hpp"
#include "freeride/policy/verdict.hpp"
#include "member.hpp"
#include "text.hpp"
#include "verdicts.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMostBatches = 256, kMostMembers = 256, kMostRanges = 16;
constexpr uint64_t kMostItems = 1'000'000'000, kMostAtOnce = 50'000;
constexpr uint64_t kMostWanted = 4096;  // by a member's own word
constexpr size_t kMostFailures = 4096;  // they travel with the order to put the output together
constexpr size_t kMostReason = 120;
constexpr uint32_t kTries = 3, kMostTries = 100, kAssemblyTries = 3;
constexpr uint32_t kPluginEnds = 4, kBarrenEnds = 100;  // without an item done, until the batch is given up
constexpr int64_t kRests = 9, kRestsAfterEnd = 1, kIdleNs = 30 * kNsPerSec, kTellNs = kNsPerSec,
                  kTellSlowNs = 5 * kNsPerSec;
// Members are heard of each second. What one had before falls by a tenth then, where it does less: a held-out iteration
// or a long item says little of what comes.
constexpr double kSecondsAhead = 4, kKeptAhead = 0.9;
constexpr uint64_t kPlenty = 4;  // times what all members have
constexpr uint64_t kCountBits = 26, kDoingBits = 16;

constexpr const char* kRunning = "running";
constexpr const char* kAssembling = "assembling";
constexpr const char* kClearing = "clearing";

// What a member says of itself, as figures (docs/internals/batches.md). 0: it has not said it, or nothing that could
// be.
uint64_t figure(const Task& task, const char* name) {
  const auto& metrics = task.state().counters.metrics;
  const auto found = metrics.find(name);
  if (found == metrics.end() || !(found->second >= 0) || found->second >= 9007199254740992.0) return 0;
  return static_cast<uint64_t>(found->second);
}

// It can work now, or waits for its init lease at most: what it gets is there before its first step.
bool is_there(const Task& task) {
  const std::string& state = task.state().state;
  return task.phase == Task::Phase::kPlaced && (state == "CREATED" || state == "PAUSED" || state == "RUNNING");
}

// It is being created, which may take a minute.
bool is_coming(const Task& task) {
  return task.phase == Task::Phase::kPlaced && task.state().state == "SUBMITTED";
}

std::string sentence(const bus::Verdict& verdict) {
  std::string text = bounded(verdict.kind + (verdict.reason.empty() ? "" : ": " + verdict.reason), kMostReason);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

Status Batches::restore() {
  auto rows = the_.store.batches();
  if (!rows) return rows.error();
  for (BatchRow& row : *rows) {
    auto ledger = BatchLedger::decode(row.ledger);
    Batch batch;
    batch.info = std::move(row.info);
    if (ledger) {
      batch.ledger = std::move(*ledger);
    } else if (batch.live()) {
      end(batch, "failed", ledger.error().message);
    }
    const std::string group = members_group(batch.info.asked.id);
    for (const auto& [id, task] : the_.tasks.all()) {
      if (task.load().group != group || task.load().user != batch.info.asked.load.user) continue;
      const auto holders = batch.ledger.holders();
      if (task.live() || std::binary_search(holders.begin(), holders.end(), id))
        batch.members[id].failed = figure(task, "batch.failed");  // those are counted
    }
    for (const int64_t holder : batch.ledger.holders()) {
      if (batch.members.count(holder) == 0) batch.ledger.lose(holder);
    }
    if (batch.live()) the_.contents.keep(batch.info.asked.load.sha256);
    const std::string name = batch.info.name;
    batches_.emplace(name, std::move(batch));
  }
  return {};
}

void Batches::submit(Ticket ticket, const bus::SubmitBatch& wish) {
  const auto refuse = [&](const Error& error) { the_.outside.answer(ticket, error); };
  const auto invalid = [&](const std::string& what) { refuse({Code::kInvalidArgument, what, {}}); };
  const std::string& name = wish.load.name;
  if (!is_task_name(name) || name.size() > kMaxTaskName - 5)
    return refuse({Code::kInvalidArgument, "the name " + in_quotes(name) + " will not do", kTaskNameRule});
  if (!is_plain(wish.id, 64)) return invalid("the batch has no id");
  if (const auto there = batches_.find(name); there != batches_.end()) {
    bus::BatchReply reply;
    reply.batch = info_of(there->second);
    if (reply.batch.asked.id == wish.id && reply.batch.asked.load.user == wish.load.user)
      return the_.outside.answer(ticket, Reply(std::move(reply)));
    return refuse({Code::kAlreadyExists, "there is a batch " + name + " already, " + reply.batch.state,
                   "choose another --name, or freeride-ctl batch rm " + name});
  }
  if (wish.items == 0 || wish.items > kMostItems) return invalid("a batch has between 1 and 1000000000 items");
  if (wish.tries > kMostTries) return invalid("an item is tried 100 times at most");
  if (wish.input.size() > kMaxReason * 4 || wish.output.size() > kMaxReason * 4)
    return invalid("the names of input and output are too long");
  if (wish.load.steps != 0 || wish.load.start_paused || !wish.load.after.empty())
    return invalid("members of a batch take no number of steps, are not started paused and follow no task");
  if (!wish.load.program.empty()) return invalid("a batch runs a function over items, not a program");
  forget_old();
  if (batches_.size() >= kMostBatches) return refuse({Code::kExhausted, "256 batches are running", "try later"});
  Batch batch;
  batch.info.name = name;
  batch.info.state = kRunning;
  batch.info.asked = wish;
  if (batch.info.asked.tries == 0) batch.info.asked.tries = kTries;
  bus::Load& load = batch.info.asked.load;
  load.group = members_group(batch.info.asked.id);
  load.parallel = 0;
  load.no_profile = true;  // a profile has no items
  load.restart.clear();    // a member that has failed is replaced by another
  if (auto checked = the_.check.check(load); !checked) return refuse(checked.error());
  if (auto checked = the_.check.check_place(load); !checked) return refuse(checked.error());
  auto sha256 = the_.contents.resolve(load);
  if (!sha256) return refuse(sha256.error());
  load.sha256 = *sha256;
  batch.info.submitted_unix_ms = the_.tasks.unix_ms();
  batch.ledger = BatchLedger(wish.items, batch.info.asked.tries);
  if (auto saved = save(batch); !saved) {
    the_.contents.release(*sha256);
    return refuse(saved.error());
  }
  spdlog::info("batch {}: {} items", name, wish.items);
  the_.contents.keep(*sha256);
  Batch& kept = batches_.emplace(name, std::move(batch)).first->second;
  look_at(kept);
  bus::BatchReply reply;
  reply.batch = info_of(kept);
  the_.outside.answer(ticket, Reply(std::move(reply)));
}

void Batches::show(Ticket ticket, const std::string& name) const {
  const auto found = batches_.find(name);
  if (found == batches_.end()) {
    return the_.outside.answer(
        ticket, Error{Code::kNotFound, "there is no batch " + in_quotes(name), "see freeride-ctl batch ls"});
  }
  bus::BatchReply reply;
  reply.batch = info_of(found->second);
  the_.outside.answer(ticket, Reply(std::move(reply)));
}

void Batches::list(Ticket ticket) const {
  bus::BatchesReply reply;
  for (const auto& [name, batch] : batches_) reply.batches.push_back(info_of(batch));
  std::stable_sort(reply.batches.begin(), reply.batches.end(),
                   [](const auto& a, const auto& b) { return a.submitted_unix_ms < b.submitted_unix_ms; });
  the_.outside.answer(ticket, Reply(std::move(reply)));
}

void Batches::remove(Ticket ticket, const std::string& name) {
  const auto found = batches_.find(name);
  if (found == batches_.end()) {
    return the_.outside.answer(
        ticket, Error{Code::kNotFound, "there is no batch " + in_quotes(name), "see freeride-ctl batch ls"});
  }
  if (auto removed = the_.store.remove_batch(name); !removed) return the_.outside.answer(ticket, removed.error());
  stop_members(found->second, 0);
  if (found->second.live()) the_.contents.let_go(found->second.info.asked.load.sha256);
  tell_removed(found->second);
  bus::BatchReply reply;
  reply.batch = info_of(found->second);
  batches_.erase(found);
  the_.outside.answer(ticket, Reply(std::move(reply)));
}

std::optional<std::string> Batches::user_of(const std::string& name) const {
  const auto found = batches_.find(name);
  if (found == batches_.end()) return std::nullopt;
  return found->second.info.asked.load.user;
}

bus::BatchInfo Batches::info_of(const Batch& batch) const {
  bus::BatchInfo info = batch.info;
  if (info.state == kRunning) {
    info.failed = std::min(info.failed, batch.ledger.done());
    info.done = batch.ledger.done() - info.failed;
    info.failed += batch.ledger.failures().size();
  }
  info.crashes = batch.ledger.crashes();
  info.members = live_members(batch);
  info.items_per_s = batch.live() ? batch.pace.per_s(info.done + info.failed, the_.clock.now_ns()) : 0;
  return info;
}

uint32_t Batches::live_members(const Batch& batch) const {
  uint32_t live = 0;
  for (const auto& [id, member] : batch.members) {
    const Task* task = the_.tasks.by_id(id);
    if (task != nullptr && task->live()) ++live;
  }
  return live;
}

// At once where it is another state, else in intervals while something changes.
void Batches::tell(Batch& batch) {
  if (!batch.live() && batch.told.state == batch.info.state && batch.told.members == 0) return;
  const bus::BatchInfo info = info_of(batch);
  const bus::BatchState& told = batch.told;
  const int64_t now = the_.clock.now_ns();
  batch.pace.note(info.done + info.failed, now);
  const bool slows = told.items_per_s > 0 && now - batch.told_ns >= kTellSlowNs;
  const bool changed = slows || told.done != info.done || told.failed != info.failed || told.members != info.members ||
                       told.crashes != info.crashes;
  if (told.state == info.state && (!changed || now - batch.told_ns < kTellNs)) return;
  batch.told = {info.name,   info.state,   info.reason,  info.asked.load.user,   info.asked.items,   info.done,
                info.failed, info.members, info.crashes, info.submitted_unix_ms, info.ended_unix_ms, info.items_per_s};
  batch.told_ns = now;
  the_.outside.publish(batch.told);
}

void Batches::tell_removed(const Batch& batch) {
  bus::BatchState state;
  state.batch = batch.info.name, state.state = bus::BatchState::kRemoved;
  the_.outside.publish(state);
}

Status Batches::save(Batch& batch) {
  auto saved = the_.store.save_batch({batch.info, batch.ledger.encode()});
  if (!saved) the_.trouble.say(saved.error());
  batch.unsaved = !saved;
  return saved;
}

void Batches::save_progress() {
  for (auto& [name, batch] : batches_) {
    if (batch.unsaved) (void)save(batch);
  }
}

// ---- what has become of members

void Batches::look(bool ended) {
  const int64_t begin_ns = the_.clock.now_ns();
  ended_ = ended_ || ended;
  if (begin_ns < looked_ns_ + (ended_ ? kRestsAfterEnd : kRests) * took_ns_) return;
  ended_ = false;
  for (auto& [name, batch] : batches_) look_at(batch);
  looked_ns_ = the_.clock.now_ns();
  took_ns_ = looked_ns_ - begin_ns;
}

void Batches::look_at(Batch& batch) {
  std::vector<int64_t> ids;
  for (const auto& [id, member] : batch.members) ids.push_back(id);
  for (const int64_t id : ids) look_at_member(batch, id, batch.members.at(id));
  if (batch.live()) {
    carry_on(batch);
  } else {
    stop_members(batch, 0);
  }
  tell(batch);
}

void Batches::carry_on(Batch& batch) {
  if (batch.info.state == kRunning) {
    if (batch.ledger.complete()) {
      batch.info = info_of(batch);
      batch.info.state = kAssembling;
      (void)save(batch);
    } else {
      hand_out(batch);
    }
  }
  if (batch.info.state != kRunning) stop_members(batch, 1);
  add_members(batch);
}

bool Batches::feed_new(int64_t id) {
  for (auto& [name, batch] : batches_) {
    if (!batch.members.contains(id)) continue;
    if (batch.live() && batch.info.state == kRunning && batch.ledger.given_to(id).empty()) hand_out(batch);
    return !fed_.empty();
  }
  return false;
}

void Batches::look_at_member(Batch& batch, int64_t id, Member& member) {
  const Task* task = the_.tasks.by_id(id);
  if (task != nullptr) take_progress(batch, *task, member);
  if (task != nullptr && task->live()) {
    if (task->on_worker()) return;
    leave_queued(batch, id);
    task = the_.tasks.by_id(id);
    if (task != nullptr && task->live()) return;
  }
  if (batch.live() && task != nullptr) note_end(batch, *task);
  batch.ledger.lose(id);
  batch.members.erase(id);
  batch.unsaved = true;
}

// One that has left its worker would wait until no copy of it can be left. Another member need not wait for that: what
// the copy still does is done twice at worst.
void Batches::leave_queued(Batch& batch, int64_t id) {
  if (!batch.ledger.given_to(id).empty()) {
    batch.ledger.lose(id);
    batch.unsaved = true;
  }
  Task* task = the_.tasks.by_id(id);
  if (!task->row.info.last_worker.empty())
    the_.commands.stop_for(*task, "another member takes its place: " + task->queued_since);
}

void Batches::take_progress(Batch& batch, const Task& task, Member& member) {
  if (!batch.live()) return;
  const uint64_t figures = figure(task, "batch.done");
  const uint64_t number = figures >> kCountBits, done = figures & ((uint64_t{1} << kCountBits) - 1);
  if (batch.info.state == kRunning) {
    const uint64_t failed = figure(task, "batch.failed");
    if (failed > member.failed) batch.info.failed += failed - member.failed;
    member.failed = failed;
    const uint64_t more = batch.ledger.report(task.row.id, number, done);
    const int64_t now = the_.clock.now_ns();
    if (more == 0) return note_idle(batch, task, member, now);
    batch.unsaved = true;
    batch.barren_on.clear();
    batch.plugin_ends = 0;
    member.progress_ns = now;
    member.idle_at.reset();
    member.done += more;
    const double seconds = static_cast<double>(now - member.since_ns) / kNsPerSec;
    if (batch.ledger.given_to(task.row.id).empty()) {
      member.most = std::min(member.most * 4, kMostAtOnce);  // it has waited for more
    } else if (seconds > 1) {
      const double ahead = std::max(static_cast<double>(member.done) / seconds * kSecondsAhead,
                                    static_cast<double>(member.most) * kKeptAhead);
      member.most = std::clamp<uint64_t>(static_cast<uint64_t>(ahead), 1, kMostAtOnce);
      member.measured = true;
    }
    if (seconds > 1) member.since_ns = now, member.done = 0;
    return;
  }
  const uint64_t phase = figure(task, "batch.phase");
  if (batch.info.state == kAssembling && phase >= 1) {
    batch.info.failed = std::min(figure(task, "batch.failed"), batch.ledger.items());
    batch.info.done = batch.ledger.items() - batch.info.failed;
    batch.info.state = kClearing;
    (void)save(batch);
  }
  if (batch.info.state == kClearing && phase >= 2) end(batch, "finished", "");
}

// Where others have nothing left, one that makes no step would hold the batch up: its training has ended, or somebody
// has paused it. What it does after all is done twice.
void Batches::note_idle(Batch& batch, const Task& task, Member& member, int64_t now) {
  if (member.idle_at) {
    if (task.state().counters.steps != *member.idle_at) member.idle_at.reset(), member.progress_ns = now;
    return;
  }
  if (batch.ledger.given_to(task.row.id).empty() || batch.ledger.not_given() > 0 || batch.members.size() < 2) return;
  if (member.progress_ns == 0 || now - member.progress_ns < kIdleNs) return;
  member.idle_at = task.state().counters.steps;
  batch.ledger.lose(task.row.id);
  batch.unsaved = true;
  spdlog::info("batch {}: {} has done nothing for {} s; others get what it has", batch.info.name, task.name(),
               kIdleNs / kNsPerSec);
}

void Batches::note_end(Batch& batch, const Task& task) {
  const bus::Verdict& verdict = task.state().verdict;
  const policy::VerdictKind kind = kind_of(verdict);
  if (!policy::is_plugins_fault(kind) && kind != policy::VerdictKind::kFinished) return;
  const std::string reason = sentence(verdict);
  if (batch.info.state != kRunning) {
    batch.not_before_ns = the_.clock.now_ns() + kNsPerSec;
    if (++batch.assembly_ends >= kAssemblyTries) end(batch, "failed", "the output cannot be written: " + reason);
    return;
  }
  const uint64_t doing = figure(task, "batch.doing");
  const BatchLedger::Doing begun{figure(task, "batch.range"), doing >> kDoingBits,
                                 doing & ((uint64_t{1} << kDoingBits) - 1)};
  const auto blame = batch.ledger.fail(task.row.id, begun, reason);
  if (blame == BatchLedger::Blame::kPlugin) {
    batch.not_before_ns = the_.clock.now_ns() + batch.plugin_ends * kNsPerSec;  // one is soon replaced
    ++batch.plugin_ends;
    // One host alone may be the one that lacks something, as long as there are others.
    batch.barren_on.insert(task.state().worker);
  }
  const bool plugin = batch.plugin_ends >= kPluginEnds && (batch.barren_on.size() >= 2 || wanted_members(batch) < 2);
  if (plugin || batch.ledger.barren_ends() >= kBarrenEnds) {
    end(batch, "failed",
        "its members end, and nothing is done: " + reason + " (freeride-ctl logs " + task.name() + ")");
  } else if (batch.ledger.failures().size() > kMostFailures) {
    end(batch, "failed", "more than 4096 items have ended their process, the last time so: " + reason);
  }
}

void Batches::end(Batch& batch, const std::string& state, const std::string& reason) {
  batch.info = info_of(batch);
  batch.info.state = state;
  batch.info.reason = bounded(reason, kMaxReason);
  batch.info.ended_unix_ms = std::max<int64_t>(1, the_.tasks.unix_ms());
  the_.contents.let_go(batch.info.asked.load.sha256);
  spdlog::info("batch {}: {}{}", batch.info.name, state, reason.empty() ? "" : ": " + reason);
  (void)save(batch);
}

void Batches::forget_old() {
  constexpr size_t kKept = 100;
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const auto& [name, batch] : batches_) {
    if (!batch.live() && batch.members.empty()) ended.emplace_back(batch.info.ended_unix_ms, name);
  }
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i + kKept < ended.size(); ++i) {
    if (auto removed = the_.store.remove_batch(ended[i].second); !removed) return the_.trouble.say(removed.error());
    tell_removed(batches_.at(ended[i].second));
    batches_.erase(ended[i].second);
  }
}

// ---- what members are to do

// Towards the end each has little, so that none is waited for long.
void Batches::hand_out(Batch& batch) {
  const BatchLedger before = batch.ledger;
  bool given = false;
  std::set<std::string> fed;
  for (auto& [id, member] : batch.members) {
    const Task* task = the_.tasks.by_id(id);
    if (task == nullptr || !task->live() || task->row.stopping || member.idle_at) continue;
    // Near the end nobody is to wait for what such a one has.
    const bool coming = is_coming(*task) && batch.ledger.not_given() > kPlenty * batch.members.size() * member.most;
    if (!coming && !is_there(*task)) continue;
    // But never so little that it waits for the next report.
    // A plugin whose items are under way side by side says how many it wants of them.
    const uint64_t wants = std::max(member.most, std::min(figure(*task, "batch.wants"), kMostWanted));
    const uint64_t share = std::max({uint64_t{1}, wants / 5, batch.ledger.left() / (2 * batch.members.size())});
    const uint64_t most = std::min(wants, share);
    auto has = batch.ledger.given_to(id);
    uint64_t items = 0;
    for (const auto& one : has) items += one.count - one.done;
    if (has.empty() && member.since_ns == 0) member.since_ns = the_.clock.now_ns();
    // Half of what it may have at once, so that it has another range while it works on one.
    for (size_t ranges = has.size(); items < most && ranges < kMostRanges; ++ranges) {
      const auto one = batch.ledger.hand_out(id, std::max<uint64_t>(1, std::min(most - items, (most + 1) / 2)));
      if (!one) break;
      items += one->count;
      given = true;
      fed.insert(task->state().worker);
      if (has.empty()) member.progress_ns = the_.clock.now_ns();
    }
  }
  if (!given) return;
  if (save(batch)) {
    fed_.merge(fed);
  } else {
    batch.ledger = before;
  }
}

size_t Batches::wanted_members(const Batch& batch) const {
  if (batch.info.state != kRunning) return 1;
  const bus::Load& load = batch.info.asked.load;
  size_t fitting = 0;
  for (const auto& [name, worker] : the_.workers.all()) {
    const bool fits = (load.when_idle && load.job.empty() && load.stage < 0 && load.replica < 0) ||
                      std::any_of(worker.ranks.begin(), worker.ranks.end(), [&](const bus::TrainingState& rank) {
                        return (load.job.empty() || means_job(rank.job, load.job)) &&
                               (load.stage < 0 || rank.stage == static_cast<uint32_t>(load.stage)) &&
                               (load.replica < 0 || rank.replica == static_cast<uint32_t>(load.replica));
                      });
    if (worker.up() && worker.drain == 0 && fits) ++fitting;
  }
  const uint64_t items = std::min<uint64_t>(batch.ledger.left(), kMostMembers);
  return std::clamp<size_t>(fitting, 1, std::max<size_t>(1, items));
}

void Batches::add_members(Batch& batch) {
  if (!batch.live() || the_.clock.now_ns() < batch.not_before_ns) return;
  for (size_t live = batch.members.size(); live < wanted_members(batch); ++live) {
    if (!add_member(batch)) return;
  }
}

// What those have at once who have done something: another one is to do as much, and need not find it out.
uint64_t Batches::most_of_slowest(const Batch& batch) {
  uint64_t most = kMostAtOnce;
  for (const auto& [id, member] : batch.members) {
    if (member.measured) most = std::min(most, member.most);
  }
  return most == kMostAtOnce ? 0 : most;
}

bool Batches::add_member(Batch& batch) {
  if (!the_.check.check_count()) return false;  // tried again with every look
  TaskRow row;
  row.info.load = batch.info.asked.load;
  std::string name;
  for (size_t number = 1; name.empty(); ++number) {
    const std::string free = batch.info.name + "-" + std::to_string(number);
    if (the_.tasks.live(free) == nullptr) name = free;
  }
  row.info.load.name = name;
  row.info.submitted_unix_ms = the_.tasks.unix_ms();
  bus::TaskState& state = row.info.state;
  state.task = name;
  state.plugin = row.info.load.plugin;
  state.sha256 = row.info.load.sha256;
  state.job = row.info.load.job;
  state.stage = row.info.load.stage;
  state.replica = row.info.load.replica;
  const uint64_t epoch = the_.tasks.next_epoch();
  auto task = the_.tasks.add(std::move(row), "member of " + batch.info.asked.id + " " + std::to_string(epoch));
  if (!task) {
    the_.trouble.say(task.error());
    batch.not_before_ns = the_.clock.now_ns() + kNsPerSec;
    return false;
  }
  Member& member = batch.members[(*task)->row.id];
  member.most = std::max(member.most, most_of_slowest(batch));
  the_.due.raised = true;
  return true;
}

// Those that have done something last are kept: they have bubbles.
void Batches::stop_members(Batch& batch, size_t keep) {
  std::vector<std::pair<int64_t, Task*>> live;
  for (const auto& [id, member] : batch.members) {
    Task* task = the_.tasks.by_id(id);
    if (task != nullptr && task->live() && !task->row.stopping) live.emplace_back(member.progress_ns, task);
  }
  std::stable_sort(live.begin(), live.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = keep; i < live.size(); ++i) the_.commands.stop_for(*live[i].second, "its batch needs it no more");
}

std::string Batches::text_for(const Batch& batch, const Task& task) const {
  std::string text = "batch " + batch.info.asked.id + "\n";
  if (batch.info.state == kClearing) return text + "clear\n";
  if (batch.info.state == kRunning) {
    for (const auto& given : batch.ledger.given_to(task.row.id)) {
      text += "range " + std::to_string(given.number) + ' ' + std::to_string(given.first) + ' ' +
              std::to_string(given.count) + '\n';
    }
    return text;
  }
  for (const auto& [item, failure] : batch.ledger.failures())
    text += "failed " + std::to_string(item) + ' ' + std::to_string(failure.tries) + ' ' + failure.reason + '\n';
  return text + "assemble\n";
}

std::vector<bus::TaskWork> Batches::work_of(const Worker& worker) const {
  std::vector<bus::TaskWork> work;
  for (const auto& [name, batch] : batches_) {
    if (!batch.live()) continue;
    for (const auto& [id, member] : batch.members) {
      const Task* task = the_.tasks.by_id(id);
      if (task == nullptr || !task->live() || !task->on(worker.name) || task->row.stopping) continue;
      work.push_back({task->name(), text_for(batch, *task), task->row.info.epoch});
    }
  }
  return work;
}

}  // namespace freeride::manager
