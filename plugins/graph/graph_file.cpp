// The file formats of read_graph(). Files are outside input: every line is checked, and a bad one is named.
#include <strings.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "freeride/plugin.hpp"
#include "graph.hpp"

namespace graph {
namespace {

constexpr size_t kLineBytes = 4096;
constexpr uint32_t kMaxVertices = std::numeric_limits<uint32_t>::max() - 1;

/// Lines of a file, without an unbounded one taking all memory, and the words of the present line.
class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), in_(path) {
    if (!in_) throw freeride::Unavailable("cannot open graph file " + path + "; check the path as the worker sees it");
  }

  /// The next line; false at the end of the file.
  bool next() {
    in_.getline(buffer_, sizeof buffer_);
    if (in_.bad()) throw freeride::Unavailable("cannot read graph file " + path_);
    if (in_.fail() && in_.gcount() + 1 == static_cast<std::streamsize>(sizeof buffer_)) {
      ++number_;
      fail("the line is longer than 4095 bytes; is this a text file?");
    }
    if (in_.fail()) return false;
    ++number_;
    rest_ = buffer_;
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.back())) != 0) rest_.remove_suffix(1);
    return true;
  }

  std::string_view line() const { return rest_; }

  std::string_view word() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t' || rest_.front() == ','))
      rest_.remove_prefix(1);
    size_t end = 0;
    while (end < rest_.size() && rest_[end] != ' ' && rest_[end] != '\t' && rest_[end] != ',') ++end;
    const auto word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return word;
  }

  uint64_t number(const char* what) {
    const auto text = word();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail(std::string("expected ") + what);
    return value;
  }

  bool has_word() const { return rest_.find_first_not_of(" \t,") != std::string_view::npos; }

  float value(const char* what) {
    const auto text = word();
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
      fail(std::string("expected ") + what);
    return value;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw freeride::TaskError(path_ + ":" + std::to_string(number_) + ": " + what);
  }

 private:
  std::string path_;
  std::ifstream in_;
  char buffer_[kLineBytes] = {};
  std::string_view rest_;
  uint64_t number_ = 0;
};

EdgeList read_snap(Lines& lines, bool have_line, Values values) {
  EdgeList graph;
  std::unordered_map<uint64_t, uint32_t> index;
  const auto vertex = [&](uint64_t label) {
    const auto [it, is_new] = index.emplace(label, graph.vertices);
    if (is_new) {
      if (graph.vertices == kMaxVertices) lines.fail("more vertices than fit in 32 bits");
      graph.labels.push_back(label);
      ++graph.vertices;
    }
    return it->second;
  };
  while (have_line || lines.next()) {
    have_line = false;
    const auto line = lines.line();
    if (line.empty() || line.front() == '#' || line.front() == '%') continue;
    const auto from = lines.number("two vertex numbers, 'from to'");
    const auto to = lines.number("two vertex numbers, 'from to'");
    const auto from_vertex = vertex(from);
    graph.edges.push_back({from_vertex, vertex(to)});
    if (values == Values::kRead && graph.edges.size() == 1 && !lines.has_word()) values = Values::kIgnore;
    if (values == Values::kRead) graph.values.push_back(lines.value("a number after 'from to', as in the first edge"));
  }
  return graph;
}

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

EdgeList read_matrix_market(Lines& lines, Values values) {
  if (lines.word() != "%%MatrixMarket" || !same_word(lines.word(), "matrix")) {
    lines.fail("no Matrix Market banner; expected '%%MatrixMarket matrix coordinate ...'");
  }
  if (!same_word(lines.word(), "coordinate")) lines.fail("only the coordinate format holds a graph");
  const auto field = lines.word();
  const bool has_values = same_word(field, "real") || same_word(field, "integer") || same_word(field, "double");
  const bool with_values = values == Values::kRead && has_values;  // not of complex, and pattern has none
  const auto symmetry = lines.word();
  const bool both_ways = !same_word(symmetry, "general");
  if (both_ways && !same_word(symmetry, "symmetric") && !same_word(symmetry, "skew-symmetric") &&
      !same_word(symmetry, "hermitian")) {
    lines.fail("unknown symmetry; expected general, symmetric, skew-symmetric or hermitian");
  }
  do {
    if (!lines.next()) lines.fail("the file ends before the size line");
  } while (lines.line().empty() || lines.line().front() == '%');
  const auto rows = lines.number("the size line, 'rows columns entries'");
  const auto columns = lines.number("the size line, 'rows columns entries'");
  const auto entries = lines.number("the size line, 'rows columns entries'");
  if (rows != columns && values == Values::kIgnore) lines.fail("the matrix is not square, so it is no graph");
  if (std::max(rows, columns) > kMaxVertices) lines.fail("more vertices than fit in 32 bits");
  EdgeList graph;
  graph.vertices = static_cast<uint32_t>(std::max(rows, columns));
  for (uint64_t i = 0; i < entries;) {
    if (!lines.next())
      lines.fail("the file ends after " + std::to_string(i) + " of " + std::to_string(entries) + " entries");
    if (lines.line().empty() || lines.line().front() == '%') continue;
    const auto from = lines.number("'row column'");
    const auto to = lines.number("'row column'");
    if (from < 1 || to < 1 || from > rows || to > columns) lines.fail("the entry lies outside the matrix");
    graph.edges.push_back({static_cast<uint32_t>(from - 1), static_cast<uint32_t>(to - 1)});
    if (with_values) graph.values.push_back(lines.value("'row column value'"));
    if (both_ways && from != to) {
      if (with_values) graph.values.push_back(graph.values.back());
      graph.edges.push_back({static_cast<uint32_t>(to - 1), static_cast<uint32_t>(from - 1)});
    }
    ++i;
  }
  // Matrix Market numbers from 1, and so does the result.
  graph.labels.resize(graph.vertices);
  for (uint32_t v = 0; v < graph.vertices; ++v) graph.labels[v] = uint64_t{v} + 1;
  return graph;
}

}  // namespace

EdgeList read_graph(const std::string& path, const std::string& format, Values values) {
  Lines lines(path);
  const bool have_line = lines.next();
  const bool banner = have_line && lines.line().substr(0, 14) == "%%MatrixMarket";
  const bool is_mm = format == "mm" || (format == "auto" && banner);
  auto graph = is_mm ? read_matrix_market(lines, values) : read_snap(lines, have_line, values);
  if (graph.edges.empty()) throw freeride::TaskError("graph file " + path + " has no edges");
  return graph;
}

}  // namespace graph
