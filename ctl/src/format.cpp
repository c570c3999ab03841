#include "format.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "freeride/base/names.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::ctl {
namespace {

template <class... Args>
std::string print(const char* format, Args... args) {
  std::array<char, 96> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), format, args...);
  return std::string(buffer.data(), std::clamp<size_t>(length < 0 ? 0 : length, 0, buffer.size() - 1));
}

// Three significant digits, no exponent.
std::string short_number(double value) {
  const double size = std::fabs(value);
  return print(size >= 99.95 ? "%.0f" : size >= 9.995 ? "%.1f" : "%.2f", value);
}

}  // namespace

std::string human_ns(int64_t ns) {
  if (ns < 0) return "-" + human_ns(ns == INT64_MIN ? INT64_MAX : -ns);
  if (ns == 0) return "0";
  if (ns < 1'000) return print("%lld ns", static_cast<long long>(ns));
  const auto value = static_cast<double>(ns);
  if (value < 999.5e3) return short_number(value / 1e3) + " µs";
  if (value < 999.5e6) return short_number(value / 1e6) + " ms";
  if (value < 99.95e9) return short_number(value / 1e9) + " s";
  const long long seconds = ns / 1'000'000'000;
  if (seconds < 3600) return print("%lld min %02lld s", seconds / 60, seconds % 60);
  return print("%lld h %02lld min", seconds / 3600, seconds / 60 % 60);
}

std::string human_bytes(int64_t bytes) {
  if (bytes == 0) return "-";
  if (bytes < 0) return print("%lld B", static_cast<long long>(bytes));
  if (bytes < 1024) return print("%lld B", static_cast<long long>(bytes));
  auto value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1023.5) break;
    value /= 1024;
    unit = next;
  }
  return print("%.1f %s", value, unit);
}

std::string human_pct(double pct) {
  return print("%.1f %%", pct);
}
std::string human_signed_pct(double pct) {
  return print("%+.2f %%", pct);
}

std::string human_count(uint64_t count) {
  std::string digits = std::to_string(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), " ");
  return digits;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}
std::string stage_text(int32_t stage) {
  return stage < 0 ? "any" : std::to_string(stage);
}

std::string printable(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text.substr(at));
    const auto first = static_cast<unsigned char>(text[at]);
    // U+0080..U+009F are control characters too, and terminals obey them.
    const bool c1 = length == 2 && first == 0xC2 && static_cast<unsigned char>(text[at + 1]) < 0xA0;
    const bool wanted_space = lines && (first == '\n' || first == '\t');
    if (length == 0 || c1 || (is_control(text[at]) && !wanted_space)) {
      out += '?';
    } else {
      out += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return out;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_utf8_continuation(c); }));
}

std::string bar(double share, size_t width, bool ascii) {
  if (!std::isfinite(share)) share = 0;
  const auto filled = static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
  std::string out;
  for (size_t i = 0; i < width; ++i) {
    if (ascii) {
      out += i < filled ? "#" : ".";
    } else {
      out += i < filled ? "█" : "░";
    }
  }
  return out;
}

std::string cut(const std::string& line, size_t width) {
  if (width == 0 || display_width(line) <= width) return line;
  std::string out;
  size_t columns = 0;
  for (char c : line) {
    if (!is_utf8_continuation(c) && ++columns == width) break;
    out += c;
  }
  return out + "…";
}

Table::Table(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    const bool right = !heading.empty() && heading.front() == '>';
    right_.push_back(right);
    headings_.push_back(right ? heading.substr(1) : heading);
  }
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(headings_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(size_t width) const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < headings_.size(); ++column) {
    size_t widest = display_width(headings_[column]);
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[column]));
    widths.push_back(widest);
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t column = 0; column < cells.size(); ++column) {
      const std::string pad(widths[column] - display_width(cells[column]), ' ');
      line += right_[column] ? pad + cells[column] : cells[column] + pad;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += cut(line, width) + "\n";
  };
  add_line(headings_);
  for (const auto& row : rows_) add_line(row);
  return out;
}

}  // namespace freeride::ctl
