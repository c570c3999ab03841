#include "host.hpp"

#include <catch2/catch.hpp>

using namespace freeride;       // NOLINT(google-build-using-namespace)
using namespace freeride::ctl;  // NOLINT(google-build-using-namespace)

TEST_CASE("host join: the manager's host is named as people do") {
  CHECK(manager_endpoint("head").value() == "tcp://head:7420");
  CHECK(manager_endpoint("head.example:7500").value() == "tcp://head.example:7500");
  CHECK(manager_endpoint("10.0.0.1").value() == "tcp://10.0.0.1:7420");
  CHECK(manager_endpoint("tcp://head").value() == "tcp://head:7420");
  CHECK(manager_endpoint("tcp://head:1").value() == "tcp://head:1");
  CHECK(manager_endpoint("fd00::1").value() == "tcp://[fd00::1]:7420");
  CHECK(manager_endpoint("[fd00::1]").value() == "tcp://[fd00::1]:7420");
  CHECK(manager_endpoint("tcp://[fd00::1]:7500").value() == "tcp://[fd00::1]:7500");
  for (const char* wrong :
       {"", "*", "tcp://", "ipc:///run/x", "head:", "head:x", "head:65534", "head:0", "a b", "a\nb"}) {
    CAPTURE(wrong);
    const auto endpoint = manager_endpoint(wrong);
    REQUIRE_FALSE(endpoint.ok());
    CHECK(endpoint.error().code == Code::kInvalidArgument);
  }
}

TEST_CASE("host add: what is typed on the other host follows from where the manager listens") {
  CHECK(head_of("tcp://*:7420", "head") == "head");
  CHECK(head_of("tcp://0.0.0.0:7420", "head") == "head");
  CHECK(head_of("tcp://[::]:7500", "head") == "tcp://head:7500");
  CHECK(head_of("tcp://10.0.0.1:7420", "head") == "10.0.0.1");
  CHECK(head_of("tcp://[fd00::1]:7420", "head") == "[fd00::1]");
  for (const char* listen : {"tcp://*:7420", "tcp://*:7500", "tcp://[fd00::1]:7420", "tcp://10.0.0.1:7500"})
    CHECK(manager_endpoint(head_of(listen, "head")).ok());
}
