#include "freeride/pages/shim_report.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "freeride/base/fd.hpp"

namespace freeride::pages {
namespace {

Fd file_of(const freeride_shim_page& page, size_t bytes = sizeof(freeride_shim_page)) {
  Fd fd(memfd_create("shim", 0));
  REQUIRE(pwrite(fd.get(), &page, bytes, 0) == static_cast<ssize_t>(bytes));
  return fd;
}

}  // namespace

TEST_CASE("a shim page that no process has been on is empty") {
  const Fd fd = file_of({});
  const auto report = read_shim_page(fd.get());
  REQUIRE(report.ok());
  CHECK(report->processes == 0);
  CHECK(report->unknown.empty());
}

TEST_CASE("a shim page is copied, and nothing on it is trusted") {
  freeride_shim_page page{};
  page.magic = FREERIDE_SHIM_MAGIC;
  page.version = FREERIDE_SHIM_VERSION;
  page.processes = 2;
  page.submissions = 7;
  page.held = 3;
  page.let_in = UINT64_MAX;
  std::memset(page.longest_name, 'x', sizeof(page.longest_name));
  std::strcpy(page.too_long_name, "a\nb\x80");
  page.names[1] = {FREERIDE_SHIM_NAME_WRITTEN, "cuNew", 3};
  page.names[2] = {FREERIDE_SHIM_NAME_TAKEN, "half", 1};
  page.names[3].state = FREERIDE_SHIM_NAME_WRITTEN;
  std::memset(page.names[3].name, 'y', sizeof(page.names[3].name));
  {
    const Fd fd = file_of(page);
    const auto report = read_shim_page(fd.get());
    REQUIRE(report.ok());
    CHECK(report->processes == 2);
    CHECK(report->submissions == 7);
    CHECK(report->held == 3);
    CHECK(report->let_in == 0);
    CHECK(report->longest_name == std::string(64, 'x'));
    CHECK(report->too_long_name == "a?b?");
    REQUIRE(report->unknown.size() == 2);
    CHECK(report->unknown[0].name == "cuNew");
    CHECK(report->unknown[0].calls == 3);
    CHECK(report->unknown[1].name == std::string(52, 'y'));
  }
  {
    const Fd fd = file_of(page, 20);  // a file that was cut
    const auto report = read_shim_page(fd.get());
    REQUIRE(report.ok());
    CHECK(report->processes == 2);
    CHECK(report->submissions == 7);
    CHECK(report->unknown.empty());
  }
  page.version = 2;
  CHECK_FALSE(read_shim_page(file_of(page).get()).ok());
  page.magic = 1;
  CHECK_FALSE(read_shim_page(file_of(page).get()).ok());
  CHECK_FALSE(read_shim_page(-1).ok());
}

}  // namespace freeride::pages
