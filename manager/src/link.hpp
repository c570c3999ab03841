// Link: the core's Outside over the bus, and the way in: decodes what the command socket gives and calls the core.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core.hpp"
#include "freeride/bus/sockets.hpp"
#include "outside.hpp"

namespace freeride::manager {

/// One thread. Nothing here blocks.
class Link final : public Outside {
 public:
  Link(std::unique_ptr<bus::Server> server, std::unique_ptr<bus::Publisher> publisher)
      : server_(std::move(server)), publisher_(std::move(publisher)) {}

  /// Hands what has arrived to `core`, at most `limit` messages. True: there may be more.
  bool receive(Core& core, size_t limit);
  int fd() const { return server_->fd(); }  ///< readable when receive() has something to do

  void answer(Ticket ticket, const Result<Reply>& reply, const std::string& attachment) override;
  Result<std::string> send(const std::string& peer, const Order& order) override;
  void publish(const bus::TaskState& event) override { publisher_->publish(event); }
  void publish(const bus::WorkerState& event) override { publisher_->publish(event); }
  void publish(const bus::JobMeasures& event) override { publisher_->publish(event); }

 private:
  void request(Core& core, const bus::Server::Incoming& incoming);
  template <class C, class Call>
  void with(const bus::Server::Incoming& incoming, Call call);

  std::unique_ptr<bus::Server> server_;
  std::unique_ptr<bus::Publisher> publisher_;
  std::map<Ticket, bus::Server::Incoming> open_;  // requests that are not answered yet
  Ticket next_ticket_ = 1;
};

}  // namespace freeride::manager
