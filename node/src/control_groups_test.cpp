#include "control_groups.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

using namespace freeride;
using namespace freeride::node;

namespace {

namespace fs = std::filesystem;

// A group as the kernel shows it, of plain files.
struct Group {
  Group() {
    char name[] = "/tmp/freeride-node-XXXXXX";
    root = ::mkdtemp(name);
    for (const char* below : {"freeride-node", "worker-cpu-0"}) {
      fs::create_directories(root / "s" / below);
      put(root / "s" / below / "cgroup.procs", "");
    }
    put(root / "self", "0::/s\n");
    put(root / "s/cgroup.controllers", "cpu memory\n");
    put(root / "s/cgroup.subtree_control", "");
    put(root / "s/cgroup.procs", std::to_string(::getpid()) + "\n");
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    std::error_code ignored;
    fs::remove_all(root, ignored);
  }
  static void put(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }
  std::string text(const char* file) const {
    std::ostringstream all;
    all << std::ifstream(root / "s" / file).rdbuf();
    return all.str();
  }
  ControlGroups prepare() const { return ControlGroups::prepare(root / "self", root); }
  fs::path root;
};

}  // namespace

TEST_CASE("groups: the node makes room for its workers' groups", "[node]") {
  const Group group;
  const ControlGroups groups = group.prepare();
  CHECK(group.text("freeride-node/cgroup.procs") == "0");
  CHECK(group.text("cgroup.subtree_control").find("+memory") != std::string::npos);
  CHECK(groups.join("cpu-0").valid());
}

TEST_CASE("groups: with others in its group, of version 1, or without rights, all stays as it is", "[node]") {
  const Group group;
  SECTION("others") {
    Group::put(group.root / "s/cgroup.procs", std::to_string(::getpid()) + "\n1\n");
  }
  SECTION("version 1") {
    Group::put(group.root / "self", "12:memory:/s\n0::/s\n");
  }
  SECTION("nothing at all") {
    Group::put(group.root / "self", "");
  }
  SECTION("no group can be joined") {
    fs::remove(group.root / "s/freeride-node/cgroup.procs");
  }
  const ControlGroups groups = group.prepare();
  CHECK_FALSE(groups.join("cpu-0").valid());
  CHECK(group.text("freeride-node/cgroup.procs").empty());
  CHECK(group.text("cgroup.subtree_control").empty());
  CHECK_FALSE(ControlGroups().join("cpu-0").valid());
}
