// The canary through its ABI.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "plugin_driver.hpp"

using freeride::testing::Driver;
using freeride::testing::TempDir;

namespace {

const freeride_plugin* plugin() {
  static const freeride_plugin* const table = freeride::testing::open_plugin(FREERIDE_BUILD_DIR "/plugins/canary.so");
  return table;
}

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("rounds without a finding: no alarm, and figures of the device") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"rounds", "80"}, {"memory_mib", "1"}});
  REQUIRE(task.run(1'000'000) == FREERIDE_FINISHED);
  CHECK(task.stop() == FREERIDE_OK);
  CHECK(task.metrics.at("rounds") == 80);
  CHECK(task.metrics.at("alarm.wrong") == 0);
  CHECK(task.metrics.at("gb_s") > 0);
  CHECK(task.metrics.at("gflop_s") > 0);
  CHECK(task.metrics.count("sm_mhz") == 0);  // a CPU's canary knows none
  CHECK_FALSE(std::filesystem::exists(dir / "findings.txt"));
  CHECK(task.metrics.size() <= 8);
}

TEST_CASE("of 1000 bits that it flips itself it finds at least 99 %, and says where") {
  TempDir dir;
  Driver task(plugin(), dir.path(), {{"inject", "1000"}, {"memory_mib", "1"}});
  REQUIRE(task.run(1'000'000) == FREERIDE_FINISHED);
  CHECK(task.metrics.at("injected") == 1000);
  CHECK(task.metrics.at("alarm.wrong") >= 990);
  CHECK(task.logged("WRONG: cpu-0: memory read: 1 wrong, word "));
  CHECK(task.logged("WRONG: cpu-0: float product: "));
  CHECK(content(dir / "findings.txt").find("WRONG cpu-0: integer product: ") != std::string::npos);
}

TEST_CASE("its history goes over to whoever goes on, but not to another device") {
  TempDir dir;
  std::string state;
  {
    Driver task(plugin(), dir.path(), {{"rounds", "30"}, {"memory_mib", "1"}});
    REQUIRE(task.run(1'000'000) == FREERIDE_FINISHED);
    REQUIRE(task.save(state) == FREERIDE_OK);
  }
  Driver same(plugin(), dir.path(), {{"rounds", "31"}, {"memory_mib", "1"}});
  REQUIRE(same.create() == FREERIDE_OK);
  REQUIRE(same.init() == FREERIDE_OK);
  REQUIRE(same.restore(state) == FREERIDE_OK);
  CHECK_FALSE(same.logged("begins anew"));
  REQUIRE(same.start() == FREERIDE_OK);
  freeride_status status = FREERIDE_OK;
  while (status == FREERIDE_OK) status = same.step();
  CHECK(status == FREERIDE_FINISHED);
  CHECK(same.metrics.at("rounds") == 31);
  std::string again;
  REQUIRE(same.save(again) == FREERIDE_OK);

  Driver other(plugin(), dir.path(), {{"memory_mib", "1"}});
  other.device = "cpu-1";
  REQUIRE(other.create() == FREERIDE_OK);
  REQUIRE(other.init() == FREERIDE_OK);
  REQUIRE(other.restore(state) == FREERIDE_OK);
  CHECK(other.logged("another device"));
  CHECK(other.restore("nonsense") == FREERIDE_ERROR);
  CHECK(other.restore(state, 2) == FREERIDE_ERROR);
}
