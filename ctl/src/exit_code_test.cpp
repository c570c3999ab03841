#include "exit_code.hpp"

#include <catch2/catch.hpp>

using freeride::Code;
using freeride::Error;
namespace ctl = freeride::ctl;

TEST_CASE("every error code has the documented exit code") {
  CHECK(ctl::exit_code(Error{Code::kInvalidArgument, "", ""}) == 2);
  CHECK(ctl::exit_code(Error{Code::kNotFound, "", ""}) == 4);
  CHECK(ctl::exit_code(Error{Code::kAlreadyExists, "", ""}) == 1);
  CHECK(ctl::exit_code(Error{Code::kRejected, "", ""}) == 5);
  CHECK(ctl::exit_code(Error{Code::kUnavailable, "", ""}) == 3);
  CHECK(ctl::exit_code(Error{Code::kTimeout, "", ""}) == 3);
  CHECK(ctl::exit_code(Error{Code::kVersion, "", ""}) == 1);
  CHECK(ctl::exit_code(Error{Code::kPermission, "", ""}) == 1);
  CHECK(ctl::exit_code(Error{Code::kExhausted, "", ""}) == 1);
  CHECK(ctl::exit_code(Error{Code::kInternal, "", ""}) == 1);
}
