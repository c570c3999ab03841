#include "freeride/base/log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "freeride/base/about.hpp"
#include "freeride/base/names.hpp"

namespace freeride {
namespace {

/// One message is one line, and moves no cursor: names of files, tasks and jobs are other people's.
class OneLine : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    line_.format(message, line);
    if (line.size() > 0) std::replace_if(line.begin(), line.end() - 1, is_control, '?');  // but for its end
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<OneLine>(); }

 private:
  spdlog::pattern_formatter line_{"%Y-%m-%dT%H:%M:%S.%e %^%l%$ [%n] %v"};
};

struct Subject {
  const char* kind = "";
  std::string name;  ///< empty: the line is about none
};
thread_local Subject subject_of_line;

/// An object a line, fields in the order of init_log()'s comment.
class JsonLine : public spdlog::formatter {
 public:
  JsonLine(std::string component, std::string device) : component_(std::move(component)), device_(std::move(device)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const std::string text(message.payload.data(), message.payload.size());
    const auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json object{{"time", std::string(time.data(), time.size())},
                                  {"level", std::string(level.data(), level.size())},
                                  {"component", component_},
                                  {"message", text}};
    if (!device_.empty()) object["device"] = device_;
    if (const Subject subject = std::exchange(subject_of_line, {}); !subject.name.empty())
      object[subject.kind] = subject.name;
    const std::string dumped = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    line.append(dumped.data(), dumped.data() + dumped.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLine>(component_, device_); }

 private:
  std::string component_, device_;
  spdlog::pattern_formatter time_{"%Y-%m-%dT%H:%M:%S.%eZ", spdlog::pattern_time_type::utc, ""};
};

}  // namespace

void detail::note_subject(const About& about) {
  subject_of_line = {about.kind, std::string(about.name)};
}

void add_log_options(CLI::App& app, LogOptions& options) {
  app.add_option("--log-level", options.level, "trace, debug, info, warn or error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", options.format, "text, or json: one object on each line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void init_log(const std::string& program, const LogOptions& options, const std::string& device) {
  auto logger = spdlog::stderr_color_mt(program);
  if (options.format == "json") {
    logger->set_formatter(std::make_unique<JsonLine>(program, device));
  } else {
    logger->set_formatter(std::make_unique<OneLine>());
  }
  auto parsed = spdlog::level::from_str(options.level);
  if (parsed == spdlog::level::off && options.level != "off") parsed = spdlog::level::info;
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace freeride
