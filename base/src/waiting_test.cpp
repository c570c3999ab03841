// What takes long says so, on a terminal.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "freeride/base/fd.hpp"
#include "freeride/base/waiting.hpp"

namespace freeride {

TEST_CASE("a wait shows how far it is, and leaves nothing behind") {
  const Fd terminal(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(terminal.valid());
  REQUIRE(grantpt(terminal.get()) == 0);
  REQUIRE(unlockpt(terminal.get()) == 0);
  const Fd slave(open(ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  REQUIRE(slave.valid());
  const Fd before(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  const char* name = getenv("TERM");
  const std::string old = name == nullptr ? "" : name;
  setenv("TERM", "xterm", 1);
  REQUIRE(dup2(slave.get(), STDERR_FILENO) == STDERR_FILENO);
  std::string shown;
  const auto hear = [&](const std::string& what) {
    pollfd one{terminal.get(), POLLIN, 0};
    char bytes[256];
    while (shown.find(what) == shown.npos && poll(&one, 1, 60'000) > 0) {
      const ssize_t got = read(terminal.get(), bytes, sizeof bytes);
      if (got <= 0) break;
      shown.append(bytes, static_cast<size_t>(got));
    }
    return shown.find(what) != shown.npos;
  };
  bool plain = false, with_bar = false, cleared = false;
  {
    Waiting waiting("writing x\ny", std::chrono::milliseconds(1));
    plain = hear("writing x?y, 0 s");
    waiting.at(0.5);
    with_bar = hear("writing x?y [############............] 50 %, ");
    shown.clear();
  }
  cleared = hear("\r\x1b[K");
  dup2(before.get(), STDERR_FILENO);
  setenv("TERM", old.c_str(), 1);
  CHECK(plain);
  CHECK(with_bar);
  CHECK(cleared);
}

}  // namespace freeride
