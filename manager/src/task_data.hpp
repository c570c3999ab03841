// TaskData: pieces of tasks' logs, scratch folders, saved states and dropped plugins, from the workers that have them.
#pragma once

#include <optional>
#include <string>

#include "orders.hpp"
#include "outside.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Passes what is asked on to the worker that has it (of a task that has ended its last one), and the answer back.
/// Keeps nothing. One thread; never blocks.
class TaskData {
 public:
  TaskData(Outside& outside, const TaskBook& tasks, Workers& workers, Orders& orders)
      : outside_(outside), tasks_(tasks), workers_(workers), orders_(orders) {}

  void read_log(Ticket ticket, const bus::ReadLog& wish);
  void read_file(Ticket ticket, const bus::ReadFile& wish);
  /// For the worker that the task was just placed on, from the one that had it before.
  void fetch_state(Ticket ticket, const bus::FetchState& wish);
  /// Of a content in the drop folder of a worker of that host.
  void read_plugin(Ticket ticket, const bus::ReadPlugin& wish);
  /// The worker's answer; `data` nullptr: it is none that can be read.
  void reply(const Pending& pending, const std::optional<Error>& error, const Reply* data, const std::string& bytes);
  void unanswered(const Pending& pending);

 private:
  void ask(Ticket ticket, const Task& task, const std::string& worker, const Order& order);
  void pass_on(Ticket ticket, const Worker& worker, int64_t task, const Order& order);
  const Task* find(Ticket ticket, const std::string& name);

  Outside& outside_;
  const TaskBook& tasks_;
  Workers& workers_;
  Orders& orders_;
};

}  // namespace freeride::manager
