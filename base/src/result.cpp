#include "freeride/base/result.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace freeride {
namespace {
constexpr const char* kNames[] = {"invalid_argument", "not_found", "already_exists", "rejected",  "unavailable",
                                  "timeout",          "version",   "permission",     "exhausted", "internal"};
}  // namespace

const char* to_string(Code code) {
  return kNames[static_cast<int>(code)];
}

Code code_from_string(const std::string& name) {
  for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
    if (name == kNames[i]) return static_cast<Code>(i);
  }
  return Code::kInternal;
}

void detail::misused_result(const Error* error) {
  const std::string what = error == nullptr ? "a success was read as an error" : "an error was read: " + error->text();
  std::fprintf(stderr, "freeride: a bug of FreeRide's: %s\n", what.c_str());
  std::abort();
}

Error errno_error(const std::string& what, int err, std::string hint) {
  Code code = Code::kInternal;
  switch (err) {
    case EACCES:
    case EPERM:
    case EROFS:
      code = Code::kPermission;
      break;
    case ENOENT:
    case ESRCH:
      code = Code::kNotFound;
      break;
    case EEXIST:
      code = Code::kAlreadyExists;
      break;
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EDQUOT:
      code = Code::kExhausted;
      break;
    case EINVAL:
    case ENAMETOOLONG:
      code = Code::kInvalidArgument;
      break;
    case EAGAIN:
    case ECONNREFUSED:
    case EPIPE:
    case ECONNRESET:
      code = Code::kUnavailable;
      break;
    case ETIMEDOUT:
      code = Code::kTimeout;
      break;
    default:
      break;
  }
  return Error{code, what + ": " + std::generic_category().message(err), std::move(hint)};
}

}  // namespace freeride
