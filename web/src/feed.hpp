// Reads the bus and asks the manager, for a Live.
#pragma once

#include <memory>
#include <string>
#include <zmq.hpp>

#include "freeride/base/result.hpp"
#include "freeride/bus/sockets.hpp"
#include "live.hpp"

namespace freeride::web {

/// A subscriber like any other, which also asks for what freeride-ctl shows. Bubbles are subscribed to only while a
/// page is open, so that nobody forwards them for nothing. Owned by one thread.
class Feed {
 public:
  /// A manager need not be there yet. Errors: kInvalidArgument (an endpoint).
  static Result<std::unique_ptr<Feed>> connect(zmq::context_t& context, std::string events_endpoint,
                                               const std::string& commands_endpoint, Live& live);

  /// Until `end_fd` is readable.
  void run(int end_fd);
  /// Nanoseconds since 1970 that never step: the clock of all frames. Any thread.
  static int64_t now_ns();

 private:
  Feed(zmq::context_t& context, std::string events_endpoint, Live& live)
      : context_(context), events_endpoint_(std::move(events_endpoint)), live_(live) {}
  void drain(bus::Subscriber& subscriber);
  void hear_answers();
  void ask(int64_t now);
  void follow_viewers();

  zmq::context_t& context_;
  const std::string events_endpoint_;
  Live& live_;
  std::unique_ptr<bus::Subscriber> states_, bubbles_;
  std::unique_ptr<bus::Requester> manager_;
  int64_t next_ask_ns_ = 0, answered_ns_ = 0, asked_ns_ = 0;
};

}  // namespace freeride::web
