#include "task_data.hpp"

#include "freeride/policy/permission.hpp"
#include "text.hpp"

namespace freeride::manager {

const Task* TaskData::find(Ticket ticket, const std::string& name) {
  const Task* task = tasks_.latest(name);
  if (task == nullptr)
    outside_.answer(ticket, Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks"});
  return task;
}

namespace {
// What it has left is there.
const std::string& has_it(const Task& task) {
  return task.state().worker.empty() ? task.row.info.last_worker : task.state().worker;
}
}  // namespace

void TaskData::ask(Ticket ticket, const Task& task, const std::string& name, const Order& order) {
  if (name.empty()) {
    return outside_.answer(
        ticket, Error{Code::kNotFound, "task " + task.name() + " has not been on a worker yet", task.state().reason});
  }
  const Worker* worker = workers_.find_up(name);
  if (worker == nullptr) {
    return outside_.answer(ticket, Error{Code::kUnavailable, "worker " + name + ", which has it, is away",
                                         "start it again; what the task has left is kept there"});
  }
  pass_on(ticket, *worker, task.row.id, order);
}

void TaskData::pass_on(Ticket ticket, const Worker& worker, int64_t task, const Order& order) {
  auto sent = orders_.send(worker, order, {Pending::Kind::kData, task, {}, ticket});
  if (!sent) outside_.answer(ticket, sent.error());
}

void TaskData::read_log(Ticket ticket, const bus::ReadLog& wish) {
  const Task* task = find(ticket, wish.task);
  if (task == nullptr) return;
  bus::GetLog order;
  order.task = wish.task;
  order.instance = instance_of(task->row);
  order.previous = wish.previous;
  order.offset = wish.offset;
  ask(ticket, *task, has_it(*task), order);
}

void TaskData::read_file(Ticket ticket, const bus::ReadFile& wish) {
  const Task* task = find(ticket, wish.task);
  if (task == nullptr) return;
  bus::GetFile order;
  order.task = wish.task;
  order.instance = instance_of(task->row);
  order.path = wish.path;
  order.offset = wish.offset;
  ask(ticket, *task, has_it(*task), order);
}

void TaskData::fetch_state(Ticket ticket, const bus::FetchState& wish) {
  const Task* task = tasks_.latest(wish.task);
  if (task == nullptr || !task->live() || task->state().worker != wish.worker || task->row.info.epoch != wish.epoch) {
    return outside_.answer(
        ticket, Error{Code::kPermission,
                      "task " + in_quotes(wish.task) + " is not on worker " + in_quotes(wish.worker) + " now", ""});
  }
  bus::GetState order;
  order.task = wish.task;
  order.instance = instance_of(task->row);
  order.offset = wish.offset;
  ask(ticket, *task, task->row.info.last_worker, order);
}

void TaskData::read_plugin(Ticket ticket, const bus::ReadPlugin& wish) {
  for (const auto& [name, worker] : workers_.all()) {
    if (worker.up() && policy::host_of_worker(name) == wish.host && worker.has_content(wish.sha256))
      return pass_on(ticket, worker, 0, bus::GetPlugin{wish.sha256, wish.offset});
  }
  outside_.answer(ticket, Error{Code::kNotFound,
                                "no worker of host " + in_quotes(wish.host) +
                                    " that is up has that plugin in its drop "
                                    "folder",
                                "see freeride-ctl plugins"});
}

void TaskData::reply(const Pending& pending, const std::optional<Error>& error, const Reply* data,
                     const std::string& bytes) {
  if (error) return outside_.answer(pending.ticket, *error);
  if (data == nullptr) {
    return outside_.answer(pending.ticket,
                           Error{Code::kVersion, "the answer of worker " + pending.worker + " cannot be read",
                                 "use programs of one version"});
  }
  Reply answer = *data;
  // This manager knows whether there is another start to come; the worker knows its own.
  if (auto* log = std::get_if<bus::LogReply>(&answer)) {
    const auto& all = tasks_.all();
    const auto task = all.find(pending.task);
    if (task != all.end() && !task->second.live()) log->ended = true;
  }
  outside_.answer(pending.ticket, answer, bytes);
}

void TaskData::unanswered(const Pending& pending) {
  outside_.answer(pending.ticket, Error{Code::kTimeout, "worker " + pending.worker + " did not answer", "try again"});
}

}  // namespace freeride::manager
