#include "sandbox/sandbox.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("options: sandbox", "[options]") {
  SandboxOptions sandbox;
  CHECK(sandbox.name == "bubblewrap");
  CHECK(check_options(sandbox).ok());
  sandbox.name = "jail";
  CHECK(check_options(sandbox).error().text().find("bubblewrap, none") != std::string::npos);
  sandbox = {};
  sandbox.pids = 0;
  CHECK(check_options(sandbox).error().text().find("--task-pids") != std::string::npos);
  sandbox = {};
  sandbox.scratch_bytes = -1;
  CHECK(check_options(sandbox).error().text().find("--scratch-bytes") != std::string::npos);
  sandbox = {};
  sandbox.cpus = std::nan("");
  CHECK(check_options(sandbox).error().text().find("--task-cpus") != std::string::npos);
  sandbox = {};
  sandbox.library_dirs = {"lib"};
  CHECK(check_options(sandbox).error().text().find("--library-dir") != std::string::npos);
  // Nothing falls back to `none`.
  sandbox = {};
  sandbox.bwrap = "/nowhere/bwrap";
  CHECK(make_sandbox(sandbox).error().text().find("install bubblewrap") != std::string::npos);
}
