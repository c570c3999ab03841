#include "task_commands.hpp"

#include <algorithm>
#include <utility>

#include "text.hpp"
#include "verdicts.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

using policy::Cause;
using policy::VerdictKind;

constexpr int64_t kSlice = 10 * kNsPerMs;  // for loads that come together

}  // namespace

TaskCommands::Made TaskCommands::make(const std::string& request_id, const bus::Load& wish) {
  const bus::Load asked = LoadCheck::named(wish);
  if (!is_plain(request_id, 256)) return {Error{Code::kInvalidArgument, "the request has no id", {}}};
  // The bus remembers answers for a minute; this remembers them over a restart, so that a repeated load never makes a
  // second task.
  auto repeated = the_.tasks.of_request(request_id);
  if (!repeated) return {repeated.error(), false, true};
  if (*repeated) {
    if (Task* task = the_.tasks.by_id(**repeated)) return {task};
    return {Error{Code::kNotFound, "the task of this request has ended and was forgotten", {}}};
  }
  if (auto checked = the_.check.check(asked); !checked) return {checked.error()};
  if (auto checked = the_.check.check_place(asked); !checked) return {checked.error()};
  auto name = the_.check.choose_name(asked);
  if (!name) return {name.error()};
  auto sha256 = the_.contents.resolve(asked);
  if (!sha256) return {sha256.error()};

  TaskRow row;
  row.info.load = asked;
  row.info.load.name = *name;
  row.info.load.sha256 = *sha256;
  row.info.submitted_unix_ms = the_.tasks.unix_ms();
  for (const std::string& after : asked.after) {
    const Task* other = the_.tasks.latest(*parse_after(after));
    if (other != nullptr && other->live()) row.info.waits_for.push_back(instance_of(other->row));
  }
  auto& state = row.info.state;
  state.task = *name;
  state.plugin = asked.plugin;
  state.sha256 = *sha256;
  state.job = asked.job;
  state.stage = asked.stage;
  state.replica = asked.replica;
  state.paused_by_user = asked.start_paused;
  auto task = the_.tasks.add(std::move(row), request_id);
  if (!task) the_.contents.release(*sha256);
  const bool made = task.ok();
  return {std::move(task), made, !made};
}

void TaskCommands::load(Ticket ticket, const std::string& request_id, const bus::Load& wish) {
  const Made made = make(request_id, wish);
  if (!made.task) return the_.outside.answer(ticket, made.task.error());
  if (made.fresh) {
    the_.due.raised = true;
    the_.scheduler.run();
  }
  the_.tasks.answer(ticket, **made.task);
}

void TaskCommands::load_later(Ticket ticket, const std::string& request_id, const bus::Load& load) {
  waiting_.push_back({ticket, request_id, load});
}

bool TaskCommands::load_waiting() {
  const auto waiting = std::exchange(waiting_, {});
  // Where the disk does not take all of them, each is told what becomes of it alone.
  if (waiting.size() < 2 || !load_together(waiting)) {
    for (const Waiting& one : waiting) load(one.ticket, one.request_id, one.load);
  }
  return !waiting.empty();
}

// Nobody is answered, and no worker hears of a task, before all are on the disk. False: nothing has been done.
bool TaskCommands::load_together(const std::vector<Waiting>& waiting) {
  const int64_t begin_ns = the_.clock.now_ns();
  std::vector<std::pair<Ticket, Made>> all;
  bool taken = true;
  TaskBook::Together together(the_.tasks);
  if (!together.open()) return false;
  for (const Waiting& one : waiting) {
    all.emplace_back(one.ticket, make(one.request_id, one.load));
    taken = taken && !all.back().second.disk_refuses;
    if (!taken) break;
  }
  if (!taken || !together.end()) {
    together.drop();
    for (const auto& [ticket, made] : all) {
      if (!made.fresh) continue;
      const Task& task = **made.task;
      the_.contents.release(task.state().sha256);
      the_.tasks.take_back(task.row.id);
    }
    return false;
  }
  const int64_t took_ns = std::max<int64_t>(1, the_.clock.now_ns() - begin_ns);
  const auto fit = static_cast<size_t>(kSlice * static_cast<int64_t>(waiting.size()) / took_ns);
  at_once_ = std::clamp(fit, kLeastAtOnce, std::max(2 * waiting.size(), kLeastAtOnce));
  the_.due.raised = true;
  the_.scheduler.run();
  for (const auto& [ticket, made] : all) {
    if (made.task) {
      the_.tasks.answer(ticket, **made.task);
    } else {
      the_.outside.answer(ticket, made.task.error());
    }
  }
  return true;
}

// A live task that is not being stopped.
Result<Task*> TaskCommands::running(const std::string& name, const char* verb) {
  auto found = the_.tasks.to_order(name, verb);
  if (const auto unknown = the_.copies.find_unknown(name); unknown && !found)
    return Error{
        Code::kInvalidArgument, "cannot " + std::string(verb) + " " + name + ": " + unknown->info().state.reason, {}};
  if (found && (*found)->row.stopping)
    return Error{Code::kInvalidArgument, "cannot " + std::string(verb) + " " + name + ": it is being stopped", {}};
  return found;
}

// Changes a task on disk first; where the disk refuses, the change is undone unless it is one that must not wait for a
// disk.
void TaskCommands::apply(Ticket ticket, Task& task, const char* doing, const std::function<void(Task&)>& change,
                         bool even_unsaved) {
  const Task before = task;
  change(task);
  const auto saved = the_.tasks.try_save(task);
  if (!saved && !even_unsaved) {
    task = before;
    return the_.outside.answer(ticket, saved.error());
  }
  send_order(task);
  the_.tasks.publish(task);
  if (saved) return the_.tasks.answer(ticket, task);
  Error error = saved.error();
  error.message = "task " + task.name() + " is being " + doing + ", but that could not be recorded: " + error.message;
  the_.outside.answer(ticket, error);
}

void TaskCommands::stop(Ticket ticket, const std::string& name) {
  auto found = the_.tasks.to_order(name, "stop");
  if (const auto unknown = the_.copies.find_unknown(name); unknown && the_.tasks.live(name) == nullptr)
    return stop_unknown(ticket, *unknown);
  if (!found) return the_.outside.answer(ticket, found.error());
  Task& task = **found;
  if (!task.on_worker() || the_.workers.find_up(task.state().worker) == nullptr) {
    the_.lifecycle.end(task, verdict_of(VerdictKind::kStopped, Cause::kOrder,
                                        task.on_worker() ? "stopped by the user while its worker was away"
                                                         : "stopped by the user before it ran"));
    if (!task.unsaved) return the_.tasks.answer(ticket, task);
    return the_.outside.answer(ticket,
                               Error{Code::kUnavailable, "task " + name + " is stopped, but that could not be recorded",
                                     "check the state folder's disk"});
  }
  const auto change = [](Task& t) {
    t.row.stopping = true;
    TaskBook::explain(t, policy::Why::kStopping);
  };
  apply(ticket, task, "stopped", change, true);
}

// It gets a record, and so a verdict: without one nobody would delete what it has left.
void TaskCommands::stop_unknown(Ticket ticket, const Copies::Unknown& unknown) {
  TaskRow row;
  row.info = unknown.info();
  row.info.submitted_unix_ms = the_.tasks.unix_ms();
  row.stopping = true;
  const std::string request = "stop of " + row.info.state.task + " " + row.info.instance;
  const bus::TaskState state = row.info.state;
  auto added = the_.tasks.add(std::move(row), request);
  if (!added) return the_.outside.answer(ticket, added.error());
  Task& task = **added;
  task.phase = Task::Phase::kPlaced;
  the_.tasks.moved(task);
  the_.tasks.set_state(task, state.state, policy::Why::kStopping);
  the_.tasks.save(task);
  send_order(task);
  the_.tasks.answer(ticket, task);
}

void TaskCommands::stop_over_time() {
  for (auto& [id, task] : the_.tasks.all()) {
    if (!task.live() || task.row.stopping || !is_over_time(task, the_.clock.now_ns())) continue;
    stop_for(task, "its time was over (--time)");
  }
}

void TaskCommands::stop_for(Task& task, const std::string& reason) {
  if (!task.on_worker()) return the_.lifecycle.end(task, verdict_of(VerdictKind::kStopped, Cause::kOrder, reason));
  task.row.stopping = true;
  TaskBook::explain(task, policy::Why::kStopping);
  the_.tasks.save(task);
  send_order(task);
  the_.tasks.publish(task);
}

void TaskCommands::pause(Ticket ticket, const std::string& name) {
  auto found = running(name, "pause");
  if (!found) return the_.outside.answer(ticket, found.error());
  const auto change = [](Task& t) {
    t.state().paused_by_user = true;
    if (t.on_worker()) TaskBook::explain(t, policy::Why::kPausedByUser);
  };
  apply(ticket, **found, "paused", change, true);
}

void TaskCommands::resume(Ticket ticket, const std::string& name) {
  auto found = running(name, "resume");
  if (!found) return the_.outside.answer(ticket, found.error());
  const auto change = [](Task& t) {
    t.state().paused_by_user = false;
    if (t.on_worker()) TaskBook::explain(t, policy::Why::kNone);
  };
  apply(ticket, **found, "resumed", change, false);
}

void TaskCommands::remove(Ticket ticket, const std::string& name) {
  const auto refuse = [&](Code code, const std::string& why, const std::string& hint) {
    the_.outside.answer(ticket, Error{code, "cannot remove " + name + ": " + why, hint});
  };
  const Task* task = the_.tasks.latest(name);
  if (the_.copies.find_unknown(name) || (task != nullptr && task->live()))
    return refuse(Code::kInvalidArgument, "it has not ended", "freeride-ctl stop " + name);
  if (task == nullptr) {
    return the_.outside.answer(
        ticket, Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks --all"});
  }
  if (const Worker* worker = the_.workers.find(task->state().worker)) {
    if (!worker->up())
      return refuse(Code::kUnavailable, "worker " + worker->name + " is away, and may still have something of it",
                    "try again when the worker is back; old records go by themselves");
    const auto reported = worker->tasks.find(name);
    if (reported != worker->tasks.end() && the_.tasks.of_report(reported->second) == task)
      return refuse(Code::kUnavailable, "worker " + worker->name + " is about to clear up after it", "try again");
  }
  for (auto& [id, other] : the_.tasks.all()) {
    const auto& waits_for = other.row.info.waits_for;
    if (other.live() && std::find(waits_for.begin(), waits_for.end(), instance_of(task->row)) != waits_for.end())
      return refuse(Code::kUnavailable, "task " + other.name() + " waits for it", "try again");
  }
  bus::TaskReply reply;
  reply.task = task->row.info;
  if (auto removed = the_.tasks.remove(*task); !removed) return the_.outside.answer(ticket, removed.error());
  the_.outside.answer(ticket, Reply(std::move(reply)));
}

void TaskCommands::send_order(const Task& task) {
  if (!task.on_worker()) return;
  Worker* worker = the_.workers.find_up(task.state().worker);
  if (worker == nullptr) return;  // it gets the order with the plan when it registers
  bus::TaskOrder order;
  order.task = task.name();
  order.order = task.order();
  order.epoch = task.row.info.epoch;
  if (!the_.orders.send(*worker, order, {Pending::Kind::kOrder, task.row.id})) worker->plan_due = true;
}

void TaskCommands::show(Ticket ticket, const std::string& name) {
  const Task* task = the_.tasks.latest(name);
  if (const auto unknown = the_.copies.find_unknown(name); unknown && (task == nullptr || !task->live())) {
    bus::TaskReply reply;
    reply.task = unknown->info();
    return the_.outside.answer(ticket, Reply(std::move(reply)));
  }
  if (task == nullptr) {
    return the_.outside.answer(ticket,
                               Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks"});
  }
  const Worker* worker = task->on_worker() ? the_.workers.find_up(task->state().worker) : nullptr;
  if (worker == nullptr) return the_.tasks.answer(ticket, *task, task->state().verdict.log_tail);
  bus::GetLog order;
  order.task = name;
  if (!the_.orders.send(*worker, order, {Pending::Kind::kLog, task->row.id, {}, ticket}))
    the_.tasks.answer(ticket, *task);
}

void TaskCommands::log_reply(const Pending& pending, const std::optional<Error>& error, const std::string& log) {
  answer_log(pending, error ? "(" + error->text() + ")\n" : tail(log, kMaxLog));
}

void TaskCommands::unanswered(const Pending& pending) {
  if (pending.kind == Pending::Kind::kLog)
    return answer_log(pending, "(worker " + pending.worker + " did not answer)\n");
  the_.workers.plan_is_due(pending.worker);  // the plan holds the order as well; a plan is sent until one is taken
}

void TaskCommands::answer_log(const Pending& pending, const std::string& log) {
  if (const Task* task = the_.tasks.by_id(pending.task)) return the_.tasks.answer(pending.ticket, *task, log);
  the_.outside.answer(pending.ticket, Error{Code::kNotFound, "the task has been removed", {}});
}

}  // namespace freeride::manager
