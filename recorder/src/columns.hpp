// Many events of one topic as one message: a column for each field. README.md has the format.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace freeride::recorder {

/// What comes many times a second, and tells nothing of a later moment: this is kept in columns.
bool is_frequent(std::string_view topic);

constexpr std::string_view kColumnsSchema = "freeride.columns";
/// How such a message is read, for people: the schema's text.
extern const std::string_view kColumnsText;

/// Events of one topic and one shape: MessagePack maps with the same keys in the same order, integers at the same
/// ones. Fields named *_ns are kept to the microsecond, everything else as it is. One thread.
class Columns {
 public:
  static constexpr size_t kMaxRows = 4096, kMaxFields = 64;

  /// `wall_minus_monotonic_ns`: of the file's clocks.
  explicit Columns(int64_t wall_minus_monotonic_ns);
  /// Adds an event that is to be read at `log_ns` (since 1970), and not before `floor_ns`. Returns the time at which it
  /// will be read, up to 1 µs later; nothing: it is of another shape, or there are kMaxRows, and nothing has changed.
  std::optional<int64_t> add(std::string_view payload, int64_t log_ns, int64_t floor_ns);
  size_t rows() const { return late_us_.size(); }
  int64_t first_ns() const { return first_ns_; }  ///< of all rows
  int64_t last_ns() const { return last_ns_; }
  /// The message. Nothing is left.
  std::string take();
  void clear();

 private:
  struct Field {
    std::string name;
    bool is_integer = false, is_time = false;
    std::vector<int64_t> integers{};
    std::string first{};  // of no integers: the first row's value,
    bool same = true;     // which all rows have, or else
    std::string list{};   // all values
  };
  int64_t clock_us_;  // wall clock less monotonic clock, rounded up
  std::vector<Field> fields_;
  std::vector<std::string_view> values_;  // of one event
  std::vector<int64_t> late_us_;
  size_t time_ = 0;  // which field is t_ns
  int64_t first_ns_ = 0, last_ns_ = 0;
};

/// How many events a message has, by what it says itself; 0: it makes no sense.
size_t rows_of(std::string_view message);
/// Calls `each` with every event's time and bytes (MessagePack, valid during the call) until it returns false. False:
/// the message makes no sense; then `each` was not called. The bytes are untrusted.
bool expand(std::string_view message, int64_t wall_minus_monotonic_ns,
            const std::function<bool(int64_t log_ns, std::string_view payload)>& each);

/// Whether these are one MessagePack value, at most 24 deep: then it is safe to give it to a recursive reader.
bool is_shallow(std::string_view bytes);

}  // namespace freeride::recorder
