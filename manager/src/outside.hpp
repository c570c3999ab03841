// What the manager's core needs of the world: everything that goes out passes here, so that tests need no sockets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"

namespace freeride::manager {

/// Names a request until it is answered.
using Ticket = uint64_t;

using Reply = std::variant<bus::Ack, bus::TaskReply, bus::TasksReply, bus::WorkersReply, bus::RanksReply,
                           bus::PluginsReply, bus::StatusReply, bus::ReportReply, bus::UsageReply, bus::ProfileReply,
                           bus::ProfilesReply, bus::FaultsReply, bus::WorkerPlan, bus::LogReply, bus::FileReply,
                           bus::DrainReply, bus::LoadPlan, bus::BatchReply, bus::BatchesReply>;
using Order = std::variant<bus::CreateTask, bus::ReplaceTask, bus::TaskOrder, bus::WorkerPlan, bus::GetLog,
                           bus::GetFile, bus::GetState, bus::GetPlugin>;

/// Implemented over the bus by Link, and by a recorder in tests. All calls come on the core's thread and must not
/// block.
class Outside {
 public:
  virtual ~Outside() = default;
  /// Answers a request, once; `attachment` travels beside the reply.
  virtual void answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment = {}) = 0;
  /// Sends a command to a worker. Returns the id that its reply will carry; kUnavailable when the peer is gone.
  virtual Result<std::string> send(const std::string& peer, const Order& order) = 0;
  /// Does `work` apart from the core's thread, one after the other, and then `then` on that thread, or neither where
  /// the program ends. `work` does not throw, and touches nothing of the core's. `soon`: it is short, and waits
  /// for one of the others at most. Where nobody is kept waiting: at once.
  virtual void in_background(std::function<void()> work, std::function<void()> then, bool /*soon*/ = false) {
    work();
    then();
  }
  virtual void publish(const bus::TaskState& event) = 0;
  virtual void publish(const bus::WorkerState& event) = 0;
  virtual void publish(const bus::JobMeasures& event) = 0;
  virtual void publish(const bus::TrainingPlan& event) = 0;
  virtual void publish(const bus::BatchState& event) = 0;
};

}  // namespace freeride::manager
