#include "freeride/base/process_stat.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

using namespace freeride;  // NOLINT(google-build-using-namespace)

TEST_CASE("a process's line is read whatever its name holds") {
  const std::string rest = " 7 7 0 -1 4194304 1 0 0 0 11 12 0 0 20 0 3 0 4711 1000 10 18446744073709551615 1 1 0\n";
  const auto stat = parse_process_stat("42 (a b) T 9) R 5" + rest);
  REQUIRE(stat);
  CHECK(stat->state == 'R');
  CHECK(stat->parent == 5);
  CHECK(stat->threads == 3);
  CHECK(stat->started == 4711);
  CHECK(stat->reaped_ticks == 0);
  CHECK_FALSE(parse_process_stat(""));
  CHECK_FALSE(parse_process_stat("42 (sh"));
  CHECK_FALSE(parse_process_stat("42 (sh) R 5"));
  CHECK_FALSE(parse_process_stat("42 (sh) R five" + rest));
}

TEST_CASE("a process is looked up by its number, and one that is gone is none") {
  const auto own = stat_of(getpid());
  REQUIRE(own);
  CHECK(own->state == 'R');
  CHECK(own->parent == getppid());
  CHECK(own->started > 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(stat_of(child));
}
