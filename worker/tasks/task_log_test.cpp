#include "tasks/task_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "freeride/base/clock.hpp"
#include "loop/temp_folder_test_support.hpp"
#include "loop/turn_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::slurp;
using freeride::worker::testing::TempFolder;

namespace fs = std::filesystem;

TEST_CASE("a task's log keeps its tail, survives a flood and any bytes", "[log]") {
  const TempFolder temp;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  TaskLog log(Fd(ends[0]), temp.path() / "log");
  const auto say = [&](const std::string& text) {
    REQUIRE(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  int64_t now = kNsPerSec;
  say("hello\n\xff\xfe grüße\n");
  CHECK(log.read(now));
  CHECK(log.tail() == "hello\n?? grüße\n");
  CHECK(slurp(temp.path() / "log") == "hello\n\xff\xfe grüße\n");
  const std::string chunk(60'000, 'x');
  for (int i = 0; i < 100; ++i) {  // 6 MB in one second
    say(chunk);
    CHECK(log.read(now));
  }
  CHECK(fs::file_size(temp.path() / "log") <= TaskLog::kBytesPerSecond);
  now += 2 * kNsPerSec;
  say("after\n");
  CHECK(log.read(now));
  CHECK(log.tail().find("bytes of output dropped") != std::string::npos);
  CHECK(log.tail(20).find("after\n") != std::string::npos);
  CHECK(log.tail().size() <= 2 * TaskLog::kTailBytes);
  for (int i = 0; i < 100; ++i) {
    now += kNsPerSec;
    say(chunk);
    CHECK(log.read(now));
  }
  CHECK(fs::file_size(temp.path() / "log") <= TaskLog::kFileBytes);
  CHECK(fs::file_size(temp.path() / "log.1") <= TaskLog::kFileBytes);
  close(ends[1]);
  CHECK_FALSE(log.read(now));
}
