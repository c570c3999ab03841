#include "columns.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace freeride::recorder {
namespace {

constexpr int kMaxDepth = 24;
constexpr uint64_t kUs = 1000;
constexpr size_t kMostSameBytes = size_t{256} << 20;  // of what all rows of a message share, written out for each
constexpr std::string_view kTime = "t_ns", kRows = "rows", kLate = "late_us", kFields = "fields", kDelta = "delta",
                           kList = "list";

// ---- MessagePack, as far as columns need it; the whole events are never built

uint64_t big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = (value << 8) | static_cast<uint8_t>(byte);
  return value;
}

// How long the head of a value is, how many bytes follow it, and how many values.
struct Head {
  uint64_t size = 1, bytes = 0, values = 0;
};

std::optional<Head> head_of(std::string_view rest) {
  if (rest.empty()) return std::nullopt;
  const auto first = static_cast<uint8_t>(rest[0]);
  const auto sized = [&](size_t width, uint64_t more, uint64_t times_bytes, uint64_t times_values) {
    if (rest.size() < 1 + width) return std::optional<Head>();
    const uint64_t size = big_endian(rest.substr(1, width));
    return std::optional<Head>({1 + width, times_bytes * size + more, times_values * size});
  };
  if (first <= 0x7f || first >= 0xe0 || first == 0xc0 || first == 0xc2 || first == 0xc3) return Head{};
  if (first <= 0x8f) return Head{1, 0, 2U * (first & 0x0f)};
  if (first <= 0x9f) return Head{1, 0, first & 0x0fU};
  if (first <= 0xbf) return Head{1, first & 0x1fU, 0};
  switch (first) {
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return sized(size_t{1} << (first - 0xc4), 0, 1, 0);  // bin
    case 0xc7:
    case 0xc8:
    case 0xc9:
      return sized(size_t{1} << (first - 0xc7), 1, 1, 0);  // ext
    case 0xca:
      return Head{1, 4, 0};
    case 0xcb:
      return Head{1, 8, 0};
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      return Head{1, uint64_t{1} << (first - 0xcc), 0};
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return Head{1, uint64_t{1} << (first - 0xd0), 0};
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      return Head{1, 1 + (uint64_t{1} << (first - 0xd4)), 0};
    case 0xd9:
    case 0xda:
    case 0xdb:
      return sized(size_t{1} << (first - 0xd9), 0, 1, 0);  // str
    case 0xdc:
    case 0xdd:
      return sized(size_t{2} << (first - 0xdc), 0, 0, 1);
    case 0xde:
    case 0xdf:
      return sized(size_t{2} << (first - 0xde), 0, 0, 2);
    default:
      return std::nullopt;
  }
}

bool skip(std::string_view& rest, int depth) {
  const auto head = head_of(rest);
  if (!head || head->size + head->bytes > rest.size() || (head->values > 0 && depth == 0)) return false;
  rest.remove_prefix(head->size + head->bytes);
  for (uint64_t i = 0; i < head->values; ++i) {
    if (!skip(rest, depth - 1)) return false;
  }
  return true;
}

std::optional<std::string_view> next_value(std::string_view& rest) {
  const std::string_view before = rest;
  if (!skip(rest, kMaxDepth)) return std::nullopt;
  return before.substr(0, before.size() - rest.size());
}

std::optional<uint64_t> open(std::string_view& rest, bool map) {
  const auto head = head_of(rest);
  if (!head) return std::nullopt;
  const auto first = static_cast<uint8_t>(rest[0]);
  const bool is_map = (first & 0xf0) == 0x80 || first == 0xde || first == 0xdf;
  const bool is_array = (first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd;
  if (map ? !is_map : !is_array) return std::nullopt;
  rest.remove_prefix(head->size);
  return map ? head->values / 2 : head->values;
}

// The bytes of a text or of a bin.
std::optional<std::string_view> next_bytes(std::string_view& rest, bool text) {
  const auto head = head_of(rest);
  if (!head || head->size + head->bytes > rest.size()) return std::nullopt;
  const auto first = static_cast<uint8_t>(rest[0]);
  const bool is_text = (first & 0xe0) == 0xa0 || (first >= 0xd9 && first <= 0xdb);
  const bool is_bin = first >= 0xc4 && first <= 0xc6;
  if (text ? !is_text : !is_bin) return std::nullopt;
  const auto bytes = rest.substr(head->size, head->bytes);
  rest.remove_prefix(head->size + head->bytes);
  return bytes;
}

// Of a whole value; nothing: no integer, or one that int64_t has no room for.
std::optional<int64_t> integer_of(std::string_view value) {
  if (value.empty()) return std::nullopt;
  const auto first = static_cast<uint8_t>(value[0]);
  if (first <= 0x7f || first >= 0xe0) return static_cast<int8_t>(first);
  if (first < 0xcc || first > 0xd3) return std::nullopt;
  const uint64_t bits = big_endian(value.substr(1));
  if (first <= 0xcf) {
    if (bits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(bits);
  }
  const int unused = 64 - (8 << (first - 0xd0));
  return static_cast<int64_t>(bits << unused) >> unused;
}

void put_sized(std::string& to, uint8_t type, uint64_t value, int width) {
  to.push_back(static_cast<char>(type));
  for (int i = width - 1; i >= 0; --i) to.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

// As short as it can be, as the bus's own encoder does.
void put_integer(std::string& to, int64_t value) {
  if (value >= 0) {
    const auto bits = static_cast<uint64_t>(value);
    if (bits <= 0x7f) return to.push_back(static_cast<char>(bits));
    if (bits <= 0xff) return put_sized(to, 0xcc, bits, 1);
    if (bits <= 0xffff) return put_sized(to, 0xcd, bits, 2);
    if (bits <= 0xffffffff) return put_sized(to, 0xce, bits, 4);
    return put_sized(to, 0xcf, bits, 8);
  }
  const auto bits = static_cast<uint64_t>(value);
  if (value >= -32) return to.push_back(static_cast<char>(value));
  if (value >= std::numeric_limits<int8_t>::min()) return put_sized(to, 0xd0, bits, 1);
  if (value >= std::numeric_limits<int16_t>::min()) return put_sized(to, 0xd1, bits, 2);
  if (value >= std::numeric_limits<int32_t>::min()) return put_sized(to, 0xd2, bits, 4);
  put_sized(to, 0xd3, bits, 8);
}

void put_text(std::string& to, std::string_view text) {
  if (text.size() < 32) {
    to.push_back(static_cast<char>(0xa0 | text.size()));
  } else {
    put_sized(to, 0xdb, text.size(), 4);
  }
  to += text;
}

void put_bin(std::string& to, std::string_view bytes) {
  put_sized(to, 0xc6, bytes.size(), 4);
  to += bytes;
}

void put_map(std::string& to, size_t size) {
  if (size < 16) return to.push_back(static_cast<char>(0x80 | size));
  put_sized(to, 0xde, size, 2);
}

// ---- integers that are near to each other. All arithmetic is modulo 2^64: no file can make it overflow.

uint64_t zigzag(uint64_t value) {
  return (value << 1) ^ (0 - (value >> 63));
}
uint64_t unzigzag(uint64_t value) {
  return (value >> 1) ^ (0 - (value & 1));
}

void put_varint(std::string& to, uint64_t value) {
  for (; value > 0x7f; value >>= 7) to.push_back(static_cast<char>(0x80 | (value & 0x7f)));
  to.push_back(static_cast<char>(value));
}

std::optional<uint64_t> next_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(rest[0]);
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte <= 0x7f) return value;
  }
  return std::nullopt;
}

uint64_t bits_of(int64_t value) {
  return static_cast<uint64_t>(value);
}

// What is left of `values` when the one before, or the one of `other` in the same row, is taken away.
std::vector<int64_t> distances(const std::vector<int64_t>& values, const std::vector<int64_t>* other) {
  std::vector<int64_t> left(values.size());
  uint64_t before = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    left[i] = static_cast<int64_t>(bits_of(values[i]) - (other != nullptr ? bits_of((*other)[i]) : before));
    before = bits_of(values[i]);
  }
  return left;
}

int64_t middle_of(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

uint64_t cost_of(const std::vector<int64_t>& left, int64_t base) {
  uint64_t bits = 0;
  for (const int64_t each : left) bits += static_cast<uint64_t>(std::bit_width(zigzag(bits_of(each) - bits_of(base))));
  return bits;
}

bool is_time_name(std::string_view name) {
  return name.ends_with("_ns");
}
// To the nearest microsecond.
int64_t to_us(int64_t ns) {
  const int64_t us = ns / 1000, rest = ns % 1000;
  return us + (rest >= 500 ? 1 : rest < -500 ? -1 : 0);
}
int64_t up_to_us(int64_t ns) {
  return ns / 1000 + (ns % 1000 > 0 ? 1 : 0);
}
int64_t from_us(uint64_t us) {
  return static_cast<int64_t>(us * kUs);
}

}  // namespace

const std::string_view kColumnsText =
    "Each message is a MessagePack map and holds many events of its topic, one a row:\n"
    "  rows     how many\n"
    "  late_us  column: log time less (t_ns + wall_ns - monotonic_ns of the file's metadata, rounded up to 1 us)\n"
    "  fields   a map from the name of each field to its column, in the events' own order\n"
    "A column is one of\n"
    "  any value but an array: all rows have it\n"
    "  [\"list\", BIN]: the rows' values, one behind the other, as MessagePack\n"
    "  [\"delta\", BASE, BIN]: integers; value = the row before's (of the first row: 0) + BASE + delta\n"
    "  [\"delta\", BASE, BIN, NAME]: integers; value = the same row's of the field NAME, which comes before, + BASE + "
    "delta\n"
    "BIN has a delta for each row: zigzag, then LEB128. In fields named *_ns the numbers of \"delta\" columns "
    "(values,\n"
    "bases, deltas) are microseconds. The message's log time is that of its last event, publish time that of its "
    "first.\n";

bool is_frequent(std::string_view topic) {
  return topic.starts_with("bubble.") || topic.starts_with("training.iteration/") ||
         topic.starts_with("task.progress/");
}

bool is_shallow(std::string_view bytes) {
  return next_value(bytes).has_value() && bytes.empty();
}

Columns::Columns(int64_t wall_minus_monotonic_ns) : clock_us_(up_to_us(wall_minus_monotonic_ns)) {}

std::optional<int64_t> Columns::add(std::string_view payload, int64_t log_ns, int64_t floor_ns) {
  std::string_view rest = payload;
  const auto size = open(rest, true);
  if (!size || *size == 0 || *size > kMaxFields || rows() == kMaxRows) return std::nullopt;
  const bool is_first = rows() == 0;
  if (is_first) {
    fields_.clear(), time_ = kMaxFields;
  } else if (fields_.size() != *size) {
    return std::nullopt;
  }
  // Nothing changes before all of it is known to fit.
  values_.clear();
  for (size_t i = 0; i < *size; ++i) {
    const auto name = next_bytes(rest, true);
    const auto value = name ? next_value(rest) : std::nullopt;
    if (!value) return std::nullopt;
    const bool is_integer = integer_of(*value).has_value();
    if (is_first) {
      if (*name == kTime && is_integer) time_ = i;
      fields_.push_back({std::string(*name), is_integer, is_integer && is_time_name(*name)});
    } else if (fields_[i].name != *name || fields_[i].is_integer != is_integer) {
      return std::nullopt;
    }
    values_.push_back(*value);
  }
  if (!rest.empty() || time_ == kMaxFields) return std::nullopt;

  for (size_t i = 0; i < *size; ++i) {
    Field& field = fields_[i];
    if (field.is_integer) {
      const int64_t value = *integer_of(values_[i]);
      field.integers.push_back(field.is_time ? to_us(value) : value);
    } else if (is_first) {
      field.first = values_[i];
    } else if (field.same && field.first != values_[i]) {
      field.same = false;
      for (size_t row = 0; row < rows(); ++row) field.list += field.first;
    }
    if (!field.is_integer && !field.same) field.list += values_[i];
  }
  // A time on this host's clock is told by t_ns alone.
  const uint64_t at_us = bits_of(fields_[time_].integers.back()) + bits_of(clock_us_);
  uint64_t late_us = bits_of(up_to_us(std::max(log_ns, floor_ns))) - at_us;
  if (late_us + 1 <= 2 && from_us(at_us) >= floor_ns) late_us = 0;
  late_us_.push_back(static_cast<int64_t>(late_us));
  const int64_t read_ns = from_us(at_us + late_us);
  first_ns_ = is_first ? read_ns : std::min(first_ns_, read_ns);
  last_ns_ = is_first ? read_ns : std::max(last_ns_, read_ns);
  return read_ns;
}

namespace {

void put_column(std::string& to, const std::vector<int64_t>& left, int64_t base, std::string_view other) {
  std::string bin;
  for (const int64_t each : left) put_varint(bin, zigzag(bits_of(each) - bits_of(base)));
  to.push_back(static_cast<char>(other.empty() ? 0x93 : 0x94));
  put_text(to, kDelta);
  put_integer(to, base);
  put_bin(to, bin);
  if (!other.empty()) put_text(to, other);
}

bool all_same(const std::vector<int64_t>& values) {
  return std::all_of(values.begin(), values.end(), [&](int64_t each) { return each == values.front(); });
}

}  // namespace

std::string Columns::take() {
  std::string message;
  put_map(message, 3);
  put_text(message, kRows);
  put_integer(message, static_cast<int64_t>(rows()));
  put_text(message, kLate);
  if (all_same(late_us_)) {
    put_integer(message, late_us_.front());
  } else {
    const auto left = distances(late_us_, nullptr);
    put_column(message, left, middle_of(left), "");
  }
  put_text(message, kFields);
  put_map(message, fields_.size());
  for (const Field& field : fields_) {
    put_text(message, field.name);
    if (!field.is_integer) {
      // An array would be taken for a column.
      const auto first = static_cast<uint8_t>(field.first[0]);
      const bool is_array = (first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd;
      if (field.same && !is_array) {
        message += field.first;
        continue;
      }
      message.push_back(static_cast<char>(0x92));
      put_text(message, kList);
      std::string list;
      for (size_t row = 0; field.same && row < rows(); ++row) list += field.first;
      put_bin(message, field.same ? list : field.list);
      continue;
    }
    if (all_same(field.integers)) {
      const int64_t value = field.integers.front();
      put_integer(message, field.is_time ? from_us(bits_of(value)) : value);
      continue;
    }
    auto left = distances(field.integers, nullptr);
    int64_t base = middle_of(left);
    uint64_t cost = cost_of(left, base);
    std::string_view other;
    for (const Field& before : fields_) {
      if (&before == &field) break;
      if (!field.is_time || !before.is_time || all_same(before.integers)) continue;
      auto apart = distances(field.integers, &before.integers);
      const int64_t middle = middle_of(apart);
      const uint64_t bits = cost_of(apart, middle);
      if (bits < cost) cost = bits, base = middle, other = before.name, left = std::move(apart);
    }
    put_column(message, left, base, other);
  }
  clear();
  return message;
}

void Columns::clear() {
  fields_.clear(), late_us_.clear();
  first_ns_ = last_ns_ = 0;
}

namespace {

struct ReadColumn {
  std::string key;  // as it is in each event
  std::string_view name, same;
  bool is_time = false, is_integer = false;
  std::vector<int64_t> integers;  // in microseconds where is_time
  std::vector<std::string_view> list;
};

using Read = std::vector<ReadColumn>;

const ReadColumn* column_of(const Read& columns, std::string_view name) {
  for (const ReadColumn& column : columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

bool read_deltas(std::string_view& rest, uint64_t parts, size_t rows, const Read& before, ReadColumn& column) {
  const auto base_value = next_value(rest);
  const auto base = base_value ? integer_of(*base_value) : std::nullopt;
  auto bin = next_bytes(rest, false);
  if (!base || !bin) return false;
  const ReadColumn* other = nullptr;
  if (parts == 4) {
    const auto name = next_bytes(rest, true);
    other = name ? column_of(before, *name) : nullptr;
    if (other == nullptr || other->integers.size() != rows) return false;
  }
  uint64_t value = 0;
  for (size_t row = 0; row < rows; ++row) {
    const auto delta = next_varint(*bin);
    if (!delta) return false;
    value = (other != nullptr ? bits_of(other->integers[row]) : value) + bits_of(*base) + unzigzag(*delta);
    column.integers.push_back(static_cast<int64_t>(value));
  }
  column.is_integer = true;
  return bin->empty();
}

bool read_column(std::string_view& rest, size_t rows, const Read& before, ReadColumn& column) {
  column.is_time = is_time_name(column.name);
  std::string_view array = rest;
  const auto parts = open(array, false);
  if (!parts) {
    const auto same = next_value(rest);
    if (!same) return false;
    column.same = *same;
    return true;
  }
  const auto kind = next_bytes(array, true);
  if (kind == kDelta && (*parts == 3 || *parts == 4)) {
    if (!read_deltas(array, *parts, rows, before, column)) return false;
  } else if (kind == kList && *parts == 2) {
    auto bin = next_bytes(array, false);
    for (size_t row = 0; bin && row < rows; ++row) {
      const auto value = next_value(*bin);
      if (!value) return false;
      column.list.push_back(*value);
    }
    if (!bin || !bin->empty()) return false;
  } else {
    return false;
  }
  rest = array;
  return true;
}

struct Message {
  size_t rows = 0;
  ReadColumn late;
  Read columns;
};

// `rows` comes first, as it is written: what follows is read by it.
std::optional<Message> read_message(std::string_view rest) {
  Message message;
  if (open(rest, true) != 3 || next_bytes(rest, true) != kRows) return std::nullopt;
  const auto value = next_value(rest);
  const auto rows = value ? integer_of(*value) : std::nullopt;
  if (!rows || *rows < 1 || *rows > static_cast<int64_t>(Columns::kMaxRows)) return std::nullopt;
  message.rows = static_cast<size_t>(*rows);
  if (next_bytes(rest, true) != kLate || !read_column(rest, message.rows, {}, message.late)) return std::nullopt;
  if (next_bytes(rest, true) != kFields) return std::nullopt;
  const auto fields = open(rest, true);
  if (!fields || *fields > Columns::kMaxFields) return std::nullopt;
  for (uint64_t i = 0; i < *fields; ++i) {
    const auto name = next_bytes(rest, true);
    if (!name) return std::nullopt;
    ReadColumn column;
    column.name = *name;
    put_text(column.key, *name);
    if (!read_column(rest, message.rows, message.columns, column)) return std::nullopt;
    message.columns.push_back(std::move(column));
  }
  if (!rest.empty()) return std::nullopt;
  return message;
}

// Of integers only: what they are in a row.
std::optional<uint64_t> us_at(const ReadColumn& column, size_t row) {
  if (column.is_integer) return bits_of(column.integers[row]);
  const auto same = integer_of(column.same);
  if (!same) return std::nullopt;
  return bits_of(column.is_time ? to_us(*same) : *same);
}

}  // namespace

size_t rows_of(std::string_view message) {
  const auto read = read_message(message);
  return read ? read->rows : 0;
}

bool expand(std::string_view message, int64_t wall_minus_monotonic_ns,
            const std::function<bool(int64_t log_ns, std::string_view payload)>& each) {
  const auto read = read_message(message);
  if (!read) return false;
  const ReadColumn* time = column_of(read->columns, kTime);
  if (time == nullptr || !us_at(*time, 0) || !us_at(read->late, 0)) return false;
  size_t same_bytes = 0;
  for (const ReadColumn& column : read->columns) same_bytes += column.same.size();
  if (same_bytes > kMostSameBytes / std::max<size_t>(1, read->rows)) return false;
  const uint64_t clock_us = bits_of(up_to_us(wall_minus_monotonic_ns));
  std::string event;
  for (size_t row = 0; row < read->rows; ++row) {
    event.clear();
    put_map(event, read->columns.size());
    for (const ReadColumn& column : read->columns) {
      event += column.key;
      if (column.is_integer) {
        const int64_t value = column.integers[row];
        put_integer(event, column.is_time ? from_us(bits_of(value)) : value);
      } else {
        event += column.list.empty() ? column.same : column.list[row];
      }
    }
    if (!each(from_us(*us_at(*time, row) + clock_us + *us_at(read->late, row)), event)) return true;
  }
  return true;
}

}  // namespace freeride::recorder
