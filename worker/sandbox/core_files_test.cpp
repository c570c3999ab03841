#include "sandbox/core_files.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "freeride/base/testing/temp_folder.hpp"

using namespace freeride::worker;
namespace fs = std::filesystem;

TEST_CASE("a task sees the cores that it has, and not the host's") {
  const freeride::testing::TempFolder folder;
  const fs::path system = folder.path();
  for (const char* other : {"cpu/cpufreq", "cpu/cpuidle", "node/power"}) fs::create_directories(system / other);
  for (int core = 0; core < 12; ++core) {
    const std::string name = "cpu" + std::to_string(core);
    fs::create_directories(system / "cpu" / name);
    fs::create_directories(system / "node" / ("node" + std::to_string(core / 4)) / name);
  }
  fs::create_directories(system / "node" / "node3");  // has memory only

  CoreFiles seen = core_files({4, 5, 6, 8, 10, 11}, system);
  const fs::path cpu = system / "cpu", node = system / "node";
  CHECK(seen.shown == std::vector<fs::path>{cpu / "cpu4", cpu / "cpu5", cpu / "cpu6", cpu / "cpu8", cpu / "cpu10",
                                            cpu / "cpu11", node / "node1", node / "node2"});
  for (const char* name : {"online", "possible", "present"}) CHECK(seen.made[cpu / name] == "4-6,8,10-11\n");
  for (const char* name : {"online", "possible", "has_cpu"}) CHECK(seen.made[node / name] == "1-2\n");

  seen = core_files({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, system);
  CHECK(seen.shown == std::vector<fs::path>{cpu, node});  // with all that is in them
  CHECK(seen.made.empty());

  CHECK(core_files({0, 1}, system / "nowhere").shown.empty());
}
