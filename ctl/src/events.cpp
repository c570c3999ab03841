#include "events.hpp"

#include <cstdio>
#include <iostream>

#include "exit_code.hpp"
#include "format.hpp"
#include "interrupt.hpp"
#include "json.hpp"

namespace freeride::ctl {
namespace {

// A signal that arrives just before the wait is noticed after this long.
constexpr std::chrono::milliseconds kLook{500};

bool is_nothing(const nlohmann::json& value) {
  return (value.is_string() && value.get_ref<const std::string&>().empty()) || (value.is_number() && value == 0) ||
         (value.is_boolean() && !value.get<bool>()) || (value.is_structured() && value.empty()) || value.is_null();
}

void append_fields(const nlohmann::json& fields, const std::string& prefix, std::string& out) {
  for (const auto& [key, value] : fields.items()) {
    if (is_nothing(value)) continue;
    const std::string name = prefix + key;
    const bool is_time = name.size() > 3 && name.compare(name.size() - 3, 3, "_ns") == 0 && value.is_number_integer();
    if (value.is_object()) {
      append_fields(value, name + ".", out);
    } else if (is_time && name.find("begin") == std::string::npos && name.find("end_ns") == std::string::npos) {
      out += " " + name.substr(0, name.size() - 3) + "=" + human_ns(value.get<int64_t>());
    } else if (value.is_string()) {
      out +=
          " " + name + "=" +
          (value.get_ref<const std::string&>().find(' ') == std::string::npos ? value.get<std::string>() : dump(value));
    } else {
      out += " " + name + "=" + dump(value);
    }
  }
}

}  // namespace

nlohmann::json event_json(const bus::Event& event) {
  auto json = nlohmann::json::from_msgpack(event.payload, true, false);
  if (!json.is_object()) json = nlohmann::json::object();  // the envelope was readable, so this is nearly impossible
  json["topic"] = event.topic;
  return json;
}

std::string event_line(const bus::Event& event) {
  char time[32];
  std::snprintf(time, sizeof time, "%.6f", static_cast<double>(event.envelope.t_ns) / 1e9);
  return event_line(event, time);
}

std::string event_line(const bus::Event& event, const std::string& time) {
  auto json = event_json(event);
  for (const char* key : {"topic", "v", "source", "seq", "t_ns"}) json.erase(key);
  std::string fields;
  append_fields(json, "", fields);
  return printable(time + " " + event.topic + fields) + "\n";
}

Result<int> run_events(Session& session, const EventsArguments& arguments) {
  auto subscriber = session.subscribe({arguments.topic});
  if (!subscriber) return subscriber.error();
  catch_interrupts();
  for (uint64_t seen = 0; (arguments.count == 0 || seen < arguments.count) && !interrupted();) {
    const auto event = (*subscriber)->receive(kLook);
    if (!event) {
      if (auto still = (*subscriber)->reachable(); !still) return still.error();
      continue;
    }
    ++seen;
    // Flushed line by line: the reader may be a pipe that waits for the next event.
    session.out() << (session.json() ? dump(event_json(*event)) + "\n" : event_line(*event)) << std::flush;
    if (!session.out()) return Error{Code::kInternal, "cannot write to the standard output", ""};
  }
  if (arguments.topic.empty() && (*subscriber)->lost() > 0) {
    std::cerr << "freeride-ctl: " << (*subscriber)->lost() << " events were lost; this reader was too slow\n";
  }
  if ((*subscriber)->malformed() > 0) {
    std::cerr << "freeride-ctl: " << (*subscriber)->malformed()
              << " messages were no events of this version and left out\n";
  }
  return kExitOk;
}

}  // namespace freeride::ctl
