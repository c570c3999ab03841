// Result<T>: a value or an Error that a person can act on.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace freeride {

/// Why an operation failed, by what a caller can do about it. The names travel on the wire: append only.
enum class Code {
  kInvalidArgument,  ///< the input is wrong; the same call can never succeed
  kNotFound,         ///< no such task, worker, plugin, stage, file
  kAlreadyExists,    ///< the name is taken
  kRejected,         ///< well-formed, but policy says no (a task that fits no worker)
  kUnavailable,      ///< the other side is not there now; trying again later can succeed
  kTimeout,          ///< no answer in time; whether it took effect is unknown
  kVersion,          ///< the two sides speak different versions
  kPermission,       ///< the operating system refused
  kExhausted,        ///< disk full, too many, too large
  kInternal,         ///< our own fault
};

/// The code's name on the wire and in JSON, e.g. "invalid_argument".
const char* to_string(Code code);
/// The reverse; an unknown name (of a newer version) is kInternal.
Code code_from_string(const std::string& name);

/// What happened, to what (message), and what to do about it (hint; may be empty).
struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string hint;

  /// "message; hint" on one line.
  std::string text() const { return hint.empty() ? message : message + "; " + hint; }
};

/// Error for a failed system call: `what` plus errno's text, with a code that matches errno.
Error errno_error(const std::string& what, int err, std::string hint = {});

namespace detail {
/// Writes to stderr that a Result was misused, and `error` where there is one, and ends the program.
[[noreturn]] void misused_result(const Error* error);
}  // namespace detail

/// A T or an Error. Not thread-safe. Reading the wrong side is a bug of ours and ends the program, in every build.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    check();
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    check();
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    check();
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    if (ok()) detail::misused_result(nullptr);
    return *std::get_if<1>(&state_);
  }

 private:
  void check() const {
    if (!ok()) detail::misused_result(std::get_if<1>(&state_));
  }
  std::variant<T, Error> state_;
};

/// Success or an Error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    if (ok()) detail::misused_result(nullptr);
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

/// Moves the value into `into`; or passes the error on.
template <class T, class U>
Status take(T& into, Result<U>&& from) {
  if (!from.ok()) return from.error();
  into = std::move(*from);
  return {};
}

}  // namespace freeride
