#include "exit_code.hpp"

namespace freeride::ctl {

int exit_code(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument:
      return kExitUsage;
    case Code::kNotFound:
      return kExitNotFound;
    case Code::kRejected:
      return kExitRejected;
    case Code::kUnavailable:
    case Code::kTimeout:
      return kExitUnreachable;
    case Code::kAlreadyExists:
    case Code::kVersion:
    case Code::kPermission:
    case Code::kExhausted:
    case Code::kInternal:
      return kExitFailed;
  }
  return kExitFailed;
}

}  // namespace freeride::ctl
