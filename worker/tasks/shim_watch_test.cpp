#include "tasks/shim_watch.hpp"

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "freeride/base/time.hpp"
#include "freeride/pages.h"
#include "loop/temp_folder_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;

namespace {

struct Page {
  worker::testing::TempFolder folder;
  std::string path = (folder.path() / "task.shim").string();
  freeride_shim_page page{};

  Page() {
    page.magic = FREERIDE_SHIM_MAGIC;
    page.version = FREERIDE_SHIM_VERSION;
    page.processes = 1;
  }
  void write() const {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&page), sizeof(page));
  }
  void name(int at, const char* text, uint64_t calls) {
    page.names[at].state = FREERIDE_SHIM_NAME_WRITTEN;
    page.names[at].calls = calls;
    std::snprintf(page.names[at].name, sizeof(page.names[at].name), "%s", text);
  }
};

}  // namespace

TEST_CASE("shim: a task without a page, or whose processes have not loaded it, has nothing to tell", "[shim]") {
  ShimWatch watch;
  watch.look("", 1);
  CHECK(watch.counters().empty());
  watch.look("/nonexistent/page", 1);
  CHECK(watch.counters().empty());
  Page page;
  page.page.processes = 0;
  page.write();
  watch.look(page.path, 1);
  CHECK(watch.counters().empty());
  CHECK_FALSE(watch.work_too_long(1));
}

TEST_CASE("shim: what passed unknown is told by those that were called most", "[shim]") {
  Page page;
  page.page.submissions = 12;
  for (int at = 0; at < 12; ++at) page.name(at, ("cuStrange" + std::to_string(at)).c_str(), at + 1);
  page.write();
  ShimWatch watch;
  watch.look(page.path, 1);
  REQUIRE(watch.counters().size() == 1);
  const auto& seen = watch.counters().front();
  CHECK(seen.submissions == 12);
  CHECK(seen.unknown.size() == bus::ShimCounters::kMostNames);
  CHECK(seen.unknown.at("cuStrange11") == 12);
  CHECK(seen.unknown.count("cuStrange0") == 0);
}

TEST_CASE("shim: work is too long while it meets leases that are shorter, and for a minute after", "[shim]") {
  Page page;
  page.page.too_long = 3;
  page.page.too_long_ns = 80 * kNsPerMs;
  page.page.lease_longest_ns = 50 * kNsPerMs;
  std::strcpy(page.page.too_long_name, "gemm");
  page.write();
  ShimWatch watch;
  watch.look(page.path, kNsPerSec);
  CHECK(watch.work_too_long(kNsPerSec));
  CHECK(watch.counters().front().too_long_name == "gemm");
  watch.look(page.path, 61 * kNsPerSec);
  CHECK(watch.work_too_long(61 * kNsPerSec));
  CHECK_FALSE(watch.work_too_long(62 * kNsPerSec));  // none since
  page.page.too_long = 4;
  page.write();
  watch.look(page.path, 70 * kNsPerSec);
  CHECK(watch.work_too_long(70 * kNsPerSec));
  page.page.lease_longest_ns = 90 * kNsPerMs;  // longer bubbles have come
  page.write();
  watch.look(page.path, 71 * kNsPerSec);
  CHECK_FALSE(watch.work_too_long(71 * kNsPerSec));
}

TEST_CASE("shim: a page of garbage changes nothing", "[shim]") {
  Page page;
  page.page.submissions = 5;
  page.write();
  ShimWatch watch;
  watch.look(page.path, 1);
  page.page.magic = 77;
  page.page.submissions = 6;
  page.write();
  watch.look(page.path, 2);
  REQUIRE(watch.counters().size() == 1);
  CHECK(watch.counters().front().submissions == 5);
}
