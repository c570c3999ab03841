// `events`: prints what is published, as it comes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "session.hpp"

namespace freeride::ctl {

struct EventsArguments {
  std::string topic;   ///< prefix; empty: all
  uint64_t count = 0;  ///< end after so many; 0: until interrupted
};

/// One event as {"topic": …, every field}. Also fields and topics of newer versions, since it reads the map as it is.
nlohmann::json event_json(const bus::Event& event);
/// One event as a line: time of the publisher's clock, topic, "field=value" of what is not empty or zero.
std::string event_line(const bus::Event& event);
/// The same with a time of another clock.
std::string event_line(const bus::Event& event, const std::string& time);

/// Blocks until `count` events came or SIGINT/SIGTERM. Says on stderr how many events were lost, when any were.
Result<int> run_events(Session& session, const EventsArguments& arguments);

}  // namespace freeride::ctl
