#include "up_plan.hpp"

#include <catch2/catch.hpp>

using namespace freeride;       // NOLINT(google-build-using-namespace)
using namespace freeride::ctl;  // NOLINT(google-build-using-namespace)

namespace {

std::string planned(const WantedDevices& wanted, const std::vector<std::string>& gpus, const std::vector<int>& usable) {
  const auto workers = plan_workers(wanted, gpus, usable);
  if (!workers) return workers.error().text();
  std::string text;
  for (const PlannedWorker& worker : *workers)
    text += (text.empty() ? "" : " ") + worker.device + (worker.cores.empty() ? "" : "@" + worker.cores);
  return text;
}

}  // namespace

TEST_CASE("up: a worker for each GPU, and without GPUs for CPU devices with a core each") {
  CHECK(planned({}, {"GPU-a", "GPU-b"}, {0, 1}) == "GPU-a GPU-b");
  CHECK(planned({}, {}, {0, 1, 2}) == "cpu-0@0 cpu-1@1");
  CHECK(planned({}, {}, {5}) == "cpu-0@5 cpu-1@5");
  CHECK(planned({{}, {}, 3}, {"GPU-a"}, {4, 7}) == "cpu-0@4 cpu-1@7 cpu-2@4");
  CHECK(planned({{}, {"0-1", "2"}, 0}, {}, {0, 1, 2}) == "cpu-0@0-1 cpu-1@2");
  CHECK(planned({{"cpu-3", "GPU-b"}, {"1"}, 0}, {"GPU-a", "GPU-b"}, {0}) == "cpu-3@1 GPU-b");
}

TEST_CASE("up: devices that cannot be meant so") {
  CHECK(planned({{"cpu-0", "cpu-0"}, {}, 0}, {}, {0}).find("cpu-0 is named twice") == 11);
  CHECK(planned({{}, {"0", "1", "2"}, 0}, {}, {0}).find("--cores is given more often") == 0);
  CHECK(planned({{}, {"0"}, 0}, {"GPU-a"}, {0}).find("--cores is given more often") == 0);
}

TEST_CASE("up: the worker's list of GPUs, without what it says of them") {
  CHECK(listed_gpus("2026-11-30T06:36:21.258 warning [freeride-worker] slow driver\nGPU-a\nGPU-b\n") ==
        std::vector<std::string>{"GPU-a", "GPU-b"});
  CHECK(listed_gpus("").empty());
}

TEST_CASE("up: the last words of a log are its errors, else its end") {
  const std::string well =
      "2026-11-30T06:36:18.851 info [freeride-manager] ready: commands\n"
      "2026-11-30T06:36:19.522 warning [freeride-manager] worker x: lost\n";
  CHECK(last_words(well, 1) == std::vector<std::string>{"warning: worker x: lost"});
  CHECK(last_words(well + "2026-11-30T06:36:20.000 error [freeride-manager] no space; make some\n" + well, 3) ==
        std::vector<std::string>{"error: no space; make some"});
  CHECK(last_words("terminate called\nwithout a prefix\n", 2) ==
        std::vector<std::string>{"terminate called", "without a prefix"});
  CHECK(last_words("", 2).empty());
}

TEST_CASE("up: where the page is") {
  const std::string line = "2026-11-30T06:36:21.624 info [freeride-web] ready: http://127.0.0.1:39453/, for every user";
  CHECK(address_in(line + "\n") == "http://127.0.0.1:39453/");
  CHECK(address_in(line).empty());
  CHECK(address_in("").empty());
  CHECK(address_in("2026-11-30T06:36:21.624 info [freeride-web] ready: unix:/run/x\n") == "unix:/run/x");
}
