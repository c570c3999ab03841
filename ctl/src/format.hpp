// Figures and tables for people: units, alignment, bars. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace freeride::ctl {

std::string human_ns(int64_t ns);        ///< "0", "850 ns", "12.3 µs", "4.56 ms", "12.3 s", "4 min 05 s", "3 h 02 min"
std::string human_bytes(int64_t bytes);  ///< "-" for 0 (not known), "512 B", "1.5 MiB", "24.0 GiB"
std::string human_pct(double pct);       ///< "27.1 %"
std::string human_signed_pct(double pct);  ///< "+0.12 %"
std::string human_count(uint64_t count);   ///< "1 234 567"
std::string or_dash(const std::string& text);
std::string stage_text(int32_t stage);  ///< "any" for -1

/// `text` without control characters, so that what a task or a file name says cannot move the user's cursor. Newlines
/// and tabs stay when `lines` is set. Bytes that are no UTF-8 become "?".
std::string printable(std::string_view text, bool lines = false);

/// Columns `text` takes on a terminal, counting every code point as one.
size_t display_width(std::string_view text);

/// `share` (0..1, clamped) of `width` columns filled; block characters, or # and . in `ascii`.
std::string bar(double share, size_t width, bool ascii);

/// A table with aligned columns. Cells are made printable as they are added.
class Table {
 public:
  /// A heading that begins with '>' makes its column right-aligned.
  explicit Table(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  /// Lines of at most `width` columns (0: any), cut at the end with "…"; the last column is never padded.
  std::string text(size_t width = 0) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::string> headings_;
};

/// The first `width` columns of `line`, with "…" as the last when something was cut.
std::string cut(const std::string& line, size_t width);

}  // namespace freeride::ctl
