#include "moment.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "freeride/base/clock.hpp"

namespace freeride::ctl {
namespace {

constexpr int64_t kDay = 86'400;

// `format` as strptime has it, over all of `text`; the other fields stay.
bool reads(const std::string& text, const char* format, struct tm& into) {
  struct tm parts = into;
  const char* end = strptime(text.c_str(), format, &parts);
  if (end == nullptr || *end != '\0') return false;
  into = parts;
  return true;
}

int64_t local_seconds(struct tm parts) {
  parts.tm_isdst = -1;
  return mktime(&parts);
}

// The last time before now at which clocks here showed it.
std::optional<int64_t> time_of_day(const std::string& text, int64_t now_s) {
  const time_t now = now_s;
  struct tm parts {};
  localtime_r(&now, &parts);
  parts.tm_sec = 0;
  if (!reads(text, "%H:%M:%S", parts) && !reads(text, "%H:%M", parts)) return std::nullopt;
  if (local_seconds(parts) > now_s) --parts.tm_mday;
  return local_seconds(parts);
}

std::optional<int64_t> date_and_time(std::string text) {
  const bool utc = !text.empty() && text.back() == 'Z';
  if (utc) text.pop_back();
  const size_t space = text.find(' ');
  if (space != std::string::npos) text[space] = 'T';
  struct tm parts {};
  if (!reads(text, "%Y-%m-%dT%H:%M:%S", parts) && !reads(text, "%Y-%m-%dT%H:%M", parts)) return std::nullopt;
  return utc ? static_cast<int64_t>(timegm(&parts)) : local_seconds(parts);
}

}  // namespace

Result<int64_t> parse_moment(const std::string& text, int64_t now_ns) {
  constexpr std::string_view kAgo = " ago";
  if (text == "now") return now_ns;
  if (text.ends_with(kAgo)) {
    auto length = parse_length(text.substr(0, text.size() - kAgo.size()));
    if (!length) return length;
    return now_ns - *length;
  }
  auto seconds = time_of_day(text, now_ns / kNsPerSec);
  if (!seconds) seconds = date_and_time(text);
  if (seconds && *seconds > 0 && *seconds < INT64_MAX / kNsPerSec) return *seconds * kNsPerSec;
  return Error{Code::kInvalidArgument, "'" + text + "' is no moment",
               "write it as 03:14, 2026-11-23T03:14:05 or '10m ago'"};
}

Result<int64_t> parse_length(const std::string& text) {
  const Error wrong{Code::kInvalidArgument, "'" + text + "' is no length of time", "write it as 90s, 10m, 2h or 1d"};
  if (text.empty() || text.find_first_not_of("0123456789.smhd") != std::string::npos) return wrong;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  int64_t seconds = 0;
  if (unit.empty() || unit == "s") {
    seconds = 1;
  } else if (unit == "m") {
    seconds = 60;
  } else if (unit == "h") {
    seconds = 3600;
  } else if (unit == "d") {
    seconds = kDay;
  }
  const double length = number * static_cast<double>(seconds) * kNsPerSec;
  constexpr double kCentury = 100.0 * 366 * kDay * kNsPerSec;
  if (end == text.c_str() || seconds == 0 || !std::isfinite(length) || length <= 0 || length > kCentury) return wrong;
  return static_cast<int64_t>(length);
}

std::string moment_text(int64_t wall_ns) {
  const time_t seconds = wall_ns / kNsPerSec;
  struct tm parts {};
  if (localtime_r(&seconds, &parts) == nullptr) return std::to_string(wall_ns);
  char date[64], text[96];
  strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03d", date, static_cast<int>(wall_ns % kNsPerSec / kNsPerMs));
  return text;
}

}  // namespace freeride::ctl
