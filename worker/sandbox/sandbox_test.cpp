#include "sandbox/sandbox.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "freeride/base/testing/temp_folder.hpp"
#include "sandbox/task_uid.hpp"

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

TEST_CASE("a sandbox is started by no thread that may end: bubblewrap ends with it") {
  SandboxOptions options;
  options.bwrap = "/bin/true";
  auto sandbox = make_sandbox(options);
  REQUIRE(sandbox.ok());
  std::string said;
  std::thread([&] {
    const auto started = (*sandbox)->start({});
    if (!started.ok()) said = started.error().text();
  }).join();
  CHECK(said.find("main thread") != std::string::npos);
}

TEST_CASE("a task's user number is taken in a folder that is ours, not under a name that all of the host may take") {
  const freeride::testing::TempFolder folder;
  const auto uids = folder.path() / "task-uids";
  // What anybody could do to the earlier version: take the abstract names of all numbers.
  const Fd squatter(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "freeride-uid-3000000";
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  REQUIRE(bind(squatter.get(), reinterpret_cast<sockaddr*>(&address),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0);
  auto first = TaskUid::take(uids, 3'000'000);
  REQUIRE(first.ok());
  CHECK(first->get() == 3'000'000);
  auto second = TaskUid::take(uids, 3'000'000);
  REQUIRE(second.ok());
  CHECK(second->get() == 3'000'001);
  first = Error{Code::kInternal, "given back", ""};
  CHECK(TaskUid::take(uids, 3'000'000)->get() == 3'000'000);
  REQUIRE(chmod(uids.c_str(), 0777) == 0);
  const auto refused = TaskUid::take(uids, 3'000'000);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kPermission);
}
