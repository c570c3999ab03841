// Figures and tables for people: units, alignment, bars. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

std::string human_ns(int64_t ns);        ///< "0", "850 ns", "12.3 µs", "4.56 ms", "12.3 s", "4 min 05 s", "3 h 02 min"
std::string human_bytes(int64_t bytes);  ///< "-" for 0 (not known), "512 B", "1.5 MiB", "24.0 GiB"
std::string human_pct(double pct);       ///< "27.1 %"
std::string human_signed_pct(double pct);  ///< "+0.12 %"
std::string human_set_pct(double pct);     ///< of what people set: "0.25 %", "1 %"
std::string human_count(uint64_t count);   ///< "1 234 567"
/// How long `items` take at this pace, "18.3 min"; empty where nobody can say, whatever has been said.
std::string human_left(uint64_t items, double per_s);
std::string or_dash(const std::string& text);
std::string stage_text(int32_t stage);  ///< "any" for -1

/// `text` without control characters, so that what a task or a file name says cannot move the user's cursor. Newlines
/// and tabs stay when `lines` is set. Bytes that are no UTF-8 become "?".
std::string printable(std::string_view text, bool lines = false);

/// Columns `text` takes on a terminal, counting every code point as one.
size_t display_width(std::string_view text);

/// `share` (0..1, clamped) of `width` columns filled; block characters, or # and . in `ascii`.
std::string bar(double share, size_t width, bool ascii);

/// What a cell says beside its text, where there are colours.
enum class Tone : uint8_t { kPlain, kGood, kBad, kFaint };

/// One value: as people read it, and as programs do (`raw`: base units, no grouping).
struct Cell {
  Cell(std::string text) : shown(text), raw(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  Cell(const char* text) : shown(text), raw(text) {}             // NOLINT(google-explicit-constructor)
  Cell(std::string as_shown, std::string as_raw, Tone how = Tone::kPlain)
      : shown(std::move(as_shown)), raw(std::move(as_raw)), tone(how) {}
  std::string shown, raw;
  Tone tone = Tone::kPlain;
};
Cell count_cell(uint64_t count);
Cell ns_cell(int64_t ns);
Cell bytes_cell(int64_t bytes);
Cell pct_cell(double pct);

/// A heading that begins with '>' makes its column right-aligned. `name`: in CSV and for --columns, with the unit;
/// without one it is made from the heading. `spare`: where a line is too narrow, the greatest goes first; 0: never.
struct Column {
  Column(const char* heading) : Column(heading, "") {}  // NOLINT(google-explicit-constructor)
  Column(const char* heading, std::string name, int spare = 0);
  std::string heading, name;
  bool right = false;
  int spare = 0;
};

/// A table with aligned columns. Cells are made printable as they are added.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<Cell> cells);
  bool empty() const { return rows_.empty(); }
  /// Keeps the columns that `list` names, by name or heading, in its order. Errors: kInvalidArgument (no such column:
  /// names all).
  Status choose(const std::string& list);
  /// Lines of at most `width` columns (0: any): spare columns are left out, then ends are cut with "…"; the last column
  /// is never padded.
  std::string text(size_t width = 0, bool colour = false) const;
  /// By RFC 4180, but for lines that end with a newline alone: names, then raw values. A cell that a spreadsheet would
  /// take for a formula gets a ' in front.
  std::string csv() const;

 private:
  std::vector<size_t> fitting(const std::vector<size_t>& widths, size_t width) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// What a verb lists: rows, or what is said where there are none, and a remark below them.
struct Listing {
  Table table;
  std::string none, note;
  std::string text(bool colour = false) const { return (table.empty() ? none : table.text(0, colour)) + note; }
};

/// The first `width` columns of `line`, with "…" as the last when something was cut.
std::string cut(const std::string& line, size_t width);

}  // namespace freeride::ctl
