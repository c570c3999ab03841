#include "daemon/options.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("options: cores, devices, runner", "[options]") {
  CHECK(*parse_cores("0") == std::vector<int>{0});
  CHECK(*parse_cores("0,0-0") == std::vector<int>{0});
  for (const char* bad : {"x", "1-", "-1", "3-1", "0,,1", "9999999999"}) CHECK_FALSE(parse_cores(bad).ok());
  CHECK(parse_cores("1000").error().message.find("1000") != std::string::npos);
  CHECK(check_device("cpu-0").ok());
  CHECK(check_device("GPU-4c1f-aa").ok());
  for (const char* bad : {"", "../x", "a b", "x/y"}) CHECK_FALSE(check_device(bad).ok());
  CHECK_FALSE(check_device(std::string(64, 'a')).ok());
  CHECK(find_runner("/bin/sh").ok());
  CHECK(find_runner("/nowhere/freeride-runner").error().code == Code::kNotFound);
}
