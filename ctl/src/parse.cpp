#include "parse.hpp"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace freeride::ctl {
namespace {

struct Unit {
  const char* name;  // lower case
  double bytes;
};
constexpr double kKi = 1024;
constexpr std::array kUnits{Unit{"", 1},
                            Unit{"b", 1},
                            Unit{"k", kKi},
                            Unit{"kib", kKi},
                            Unit{"kb", 1e3},
                            Unit{"m", kKi* kKi},
                            Unit{"mib", kKi* kKi},
                            Unit{"mb", 1e6},
                            Unit{"g", kKi* kKi* kKi},
                            Unit{"gib", kKi* kKi* kKi},
                            Unit{"gb", 1e9},
                            Unit{"t", kKi* kKi* kKi* kKi},
                            Unit{"tib", kKi* kKi* kKi* kKi},
                            Unit{"tb", 1e12}};

}  // namespace

Result<int64_t> parse_size(const std::string& text) {
  const Error wrong{Code::kInvalidArgument, "'" + text + "' is not a size", "write it like 512MiB, 2GiB or 1.5G"};
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0) return wrong;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit;
  for (; *end != '\0'; ++end) {
    const auto c = static_cast<unsigned char>(*end);
    if (c == ' ' && unit.empty()) continue;
    unit += static_cast<char>(std::tolower(c));
  }
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = number * known.bytes;
    if (!std::isfinite(bytes) || bytes >= 9.2e18) return wrong;
    return static_cast<int64_t>(std::llround(bytes));
  }
  return wrong;
}

Result<int64_t> parse_span_ms(const std::string& text) {
  const Error wrong{Code::kInvalidArgument, "'" + text + "' is no span of time", "write it like 90s, 30m, 1h or 2d"};
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) == 0) return wrong;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit(end);
  for (const auto& [name, ms] : {std::pair<const char*, double>{"", 1e3},
                                 {"s", 1e3},
                                 {"m", 60e3},
                                 {"min", 60e3},
                                 {"h", 3600e3},
                                 {"d", 86400e3}}) {
    if (unit != name) continue;
    if (!std::isfinite(number * ms) || number * ms > 1e15) return wrong;
    return static_cast<int64_t>(number * ms);
  }
  return wrong;
}

Result<std::map<std::string, std::string>> parse_params(const std::vector<std::string>& texts) {
  std::map<std::string, std::string> params;
  for (const std::string& text : texts) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error{Code::kInvalidArgument, "parameter '" + text + "' is not of the form key=value",
                   "write --param scale=14"};
    }
    const std::string key = text.substr(0, equals);
    if (!params.emplace(key, text.substr(equals + 1)).second) {
      return Error{Code::kInvalidArgument, "parameter '" + key + "' is given twice", "give every parameter once"};
    }
  }
  return params;
}

Result<std::string> parse_python(const std::string& text) {
  if (text.find('/') == std::string::npos)
    return Error{Code::kInvalidArgument, "--python " + text + " is not a path",
                 "write --python \"$(which " + text + ")\""};
  return std::filesystem::absolute(text).lexically_normal().string();
}

}  // namespace freeride::ctl
