// An error as freeride-ctl says it on the standard error.
#pragma once

#include <string>

#include "format.hpp"
#include "freeride/base/result.hpp"
#include "json.hpp"

namespace freeride::ctl {

/// One line, without its end. For programs (--errors json) the parts are apart: `code` as on the wire, `message`,
/// `hint`.
inline std::string error_line(const Error& error, bool as_json) {
  if (!as_json) return "freeride-ctl: " + printable(error.text());
  return dump({{"code", to_string(error.code)}, {"message", error.message}, {"hint", error.hint}});
}

}  // namespace freeride::ctl
