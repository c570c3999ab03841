#include "freeride/base/log.hpp"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <algorithm>

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

}  // namespace

void init_log(const std::string& program, const std::string& level) {
  auto logger = spdlog::stderr_color_mt(program);
  logger->set_formatter(std::make_unique<OneLine>());
  auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") parsed = spdlog::level::info;
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace freeride
