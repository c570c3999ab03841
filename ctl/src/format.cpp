#include "format.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <type_traits>

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

constexpr size_t kLeastLast = 24;  // columns that the last one keeps, before others are left out for it
constexpr const char* kHeading = "\x1b[1m";
constexpr const char* kNoTone = "\x1b[0m";

const char* escape_of(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return nullptr;
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kBad:
      return "\x1b[31m";
    case Tone::kFaint:
      return "\x1b[2m";
  }
  return nullptr;
}

// "FAULTS IN 1 h" is faults_in_1_h.
std::string slug(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.empty() && out.back() != '_') {
      out += '_';
    }
  }
  while (!out.empty() && out.back() == '_') out.pop_back();
  return out;
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
std::string human_set_pct(double pct) {
  return print("%g %%", std::round(pct * 1000) / 1000);
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

std::string human_left(uint64_t items, double per_s) {
  constexpr double kMostS = 1e8;  // three years; in nanoseconds it fits
  if (items == 0 || !std::isfinite(per_s) || per_s <= 0) return {};
  return human_ns(static_cast<int64_t>(std::min(static_cast<double>(items) / per_s, kMostS) * 1e9));
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

Cell count_cell(uint64_t count) {
  return {human_count(count), std::to_string(count)};
}
Cell ns_cell(int64_t ns) {
  return {human_ns(ns), std::to_string(ns)};
}
Cell bytes_cell(int64_t bytes) {
  return {human_bytes(bytes), std::to_string(bytes)};
}
Cell pct_cell(double pct) {
  return {human_pct(pct), print("%.4g", pct)};
}

Column::Column(const char* text, std::string its_name, int its_spare)
    : heading(text), name(std::move(its_name)), spare(its_spare) {
  right = !heading.empty() && heading.front() == '>';
  if (right) heading.erase(0, 1);
  if (name.empty()) name = slug(heading);
}

void Table::add(std::vector<Cell> cells) {
  cells.resize(columns_.size(), Cell(""));
  for (Cell& cell : cells) {
    cell.shown = printable(cell.shown);
    cell.raw = printable(cell.raw);
  }
  rows_.push_back(std::move(cells));
}

Status Table::choose(const std::string& list) {
  std::vector<size_t> chosen;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string wanted = slug(list.substr(at, end - at));
    at = end + 1;
    const auto found = std::find_if(columns_.begin(), columns_.end(), [&wanted](const Column& column) {
      return column.name == wanted || slug(column.heading) == wanted;
    });
    if (found != columns_.end()) {
      chosen.push_back(static_cast<size_t>(found - columns_.begin()));
      continue;
    }
    std::string all;
    for (const Column& column : columns_) all += (all.empty() ? "" : ", ") + column.name;
    return Error{Code::kInvalidArgument, "there is no column '" + wanted + "'", "there are " + all};
  }
  const auto pick = [&chosen](const auto& from) {
    std::decay_t<decltype(from)> kept;
    for (const size_t column : chosen) kept.push_back(from[column]);
    return kept;
  };
  columns_ = pick(columns_);
  for (auto& row : rows_) row = pick(row);
  return {};
}

std::vector<size_t> Table::fitting(const std::vector<size_t>& widths, size_t width) const {
  std::vector<size_t> kept;
  for (size_t column = 0; column < columns_.size(); ++column) kept.push_back(column);
  while (width != 0 && !kept.empty()) {
    size_t needed = 0;
    for (const size_t column : kept)
      needed += column == kept.back() ? std::min(widths[column], kLeastLast) : widths[column] + 2;
    if (needed <= width) break;
    const auto most = std::max_element(kept.begin(), kept.end(),
                                       [this](size_t a, size_t b) { return columns_[a].spare < columns_[b].spare; });
    if (columns_[*most].spare == 0) break;
    kept.erase(most);
  }
  return kept;
}

std::string Table::text(size_t width, bool colour) const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < columns_.size(); ++column) {
    size_t widest = display_width(columns_[column].heading);
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[column].shown));
    widths.push_back(widest);
  }
  const auto kept = fitting(widths, width);
  std::string out;
  // `cell_of` gives text and escape sequence of a column.
  const auto add_line = [&](const auto& cell_of) {
    size_t left = width == 0 ? SIZE_MAX : width;
    std::string line, gap;
    for (const size_t column : kept) {
      const auto& [text, escape] = cell_of(column);
      const std::string pad(widths[column] - display_width(text), ' ');
      std::string before = gap + (columns_[column].right ? pad : "");
      gap = (columns_[column].right ? "" : pad) + "  ";
      if (text.empty()) {
        gap = before + gap;
        continue;
      }
      const bool fits = before.size() + display_width(text) <= left;
      if (!fits && before.size() >= left) {
        line += before.substr(0, left == 0 ? 0 : left - 1) + (left == 0 ? "" : "…");
        left = 0;
        break;
      }
      const std::string shown = fits ? text : cut(text, left - before.size());
      line += before + (escape == nullptr || !colour ? shown : escape + shown + kNoTone);
      left -= before.size() + display_width(shown);
      if (!fits) break;
    }
    out += line + "\n";
  };
  using Shown = std::pair<const std::string&, const char*>;
  add_line([&](size_t column) { return Shown(columns_[column].heading, kHeading); });
  for (const auto& row : rows_)
    add_line([&](size_t column) { return Shown(row[column].shown, escape_of(row[column].tone)); });
  return out;
}

std::string Table::csv() const {
  std::string out;
  const auto add = [&out](const std::string& text, bool last) {
    // A number may begin with a sign; a formula may not.
    const bool formula = !text.empty() && std::string_view("=+-@").find(text.front()) != std::string_view::npos &&
                         text.find_first_not_of("+-0123456789.eE") != std::string::npos;
    const std::string safe = formula ? "'" + text : text;
    if (safe.find_first_of("\",\n\r") == std::string::npos) {
      out += safe;
    } else {
      out += '"';
      for (const char c : safe) out += c == '"' ? "\"\"" : std::string(1, c);
      out += '"';
    }
    out += last ? '\n' : ',';
  };
  for (size_t column = 0; column < columns_.size(); ++column) add(columns_[column].name, column + 1 == columns_.size());
  for (const auto& row : rows_) {
    for (size_t column = 0; column < row.size(); ++column) add(row[column].raw, column + 1 == row.size());
  }
  return out;
}

}  // namespace freeride::ctl
