// Link: the core's Outside over the bus, and the way in: decodes what the command socket gives and calls the core.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "accounts.hpp"
#include "audit_log.hpp"
#include "core.hpp"
#include "freeride/base/background.hpp"
#include "freeride/bus/sockets.hpp"
#include "identity.hpp"
#include "outside.hpp"

namespace freeride::manager {

/// One thread. Nothing here blocks.
class Link final : public Outside {
 public:
  /// Notes in `audit` who changes what, and what is refused; `unix_ms` is for its dates. `keys`: those of the network;
  /// nullptr: it has none. `accounts`: who may charge which, as the operator has it. `background` outlives the core.
  Link(std::unique_ptr<bus::Server> server, std::unique_ptr<bus::Publisher> publisher, Background& background,
       AuditLog& audit, std::function<int64_t()> unix_ms, KeyBook* keys = nullptr, const Limits& limits = {},
       Accounts::Lists accounts = {})
      : server_(std::move(server)),
        publisher_(std::move(publisher)),
        background_(background),
        audit_(audit),
        unix_ms_(std::move(unix_ms)),
        identities_(keys),
        accounts_(std::move(accounts)),
        most_open_(limits.open_requests()) {}

  /// Hands what has arrived to `core`, at most `limit` messages. True: there may be more.
  bool receive(Core& core, size_t limit);
  int fd() const { return server_->fd(); }  ///< readable when receive() has something to do
  void keep_listening() { server_->keep_listening(); }

  void answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment) override;
  Result<std::string> send(const std::string& peer, const Order& order) override;
  void in_background(std::function<void()> work, std::function<void()> then, bool soon) override {
    soon ? background_.run_soon(std::move(work), std::move(then)) : background_.run(std::move(work), std::move(then));
  }
  void publish(const bus::TaskState& event) override { publisher_->publish(event); }
  void publish(const bus::WorkerState& event) override { publisher_->publish(event); }
  void publish(const bus::JobMeasures& event) override { publisher_->publish(event); }
  void publish(const bus::TrainingPlan& event) override { publisher_->publish(event); }
  void publish(const bus::BatchState& event) override { publisher_->publish(event); }

 private:
  // A request that is not answered yet; with `audit`, one that changes something.
  struct Open {
    bus::Server::Incoming request;
    std::optional<AuditEntry> audit;
    std::string sender;   // whose share of open_ it is in
    bool serves = false;  // it is a worker's
  };

  bool receive_some(Core& core, size_t limit);
  void request(Core& core, bus::Server::Incoming& incoming);
  /// Calls with the load as it is to be taken, or answers why it may not be charged to its account.
  template <class Call>
  void charged(Ticket ticket, const bus::Load& load, const policy::Identity& by, Call call);
  /// Whether another request of `sender`, a worker's where it `serves`, may stay open. Error: kExhausted.
  Status room_for(const std::string& sender, bool serves) const;
  void note(AuditEntry entry);
  void refuse(const bus::Server::Incoming& request, const std::optional<AuditEntry>& audit, const Error& error);
  /// Calls with the command, where it is a C and its sender may; or answers why not. False: it is another command.
  template <class C, class Call>
  bool on(Core& core, const bus::Server::Incoming& incoming, const policy::Identity& by, Call call);

  std::unique_ptr<bus::Server> server_;
  std::unique_ptr<bus::Publisher> publisher_;
  Background& background_;
  AuditLog& audit_;
  std::function<int64_t()> unix_ms_;
  std::map<Ticket, Open> open_;
  std::map<std::string, size_t> open_of_;  // how many of them, by sender
  size_t open_of_clients_ = 0;
  Identities identities_;
  Accounts accounts_;
  Ticket next_ticket_ = 1;
  size_t most_open_;  // of clients: requests for a log stay open for two seconds, replacements until they are done
};

}  // namespace freeride::manager
