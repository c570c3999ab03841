// Cgroups on made-up hierarchies: which folder is taken, what is written, and why there is none.
#include "cgroup.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "temp_folder_test_support.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

struct Host {
  testing::TempFolder temp;
  fs::path root = temp.path();
  std::string mountinfo, self;

  void mount(const std::string& point, const std::string& type, const std::string& options,
             const std::string& of = "/") {
    fs::create_directories(root / point);
    mountinfo += "30 20 0:26 " + of + " " + (root / point).string() + " rw,relatime shared:1 - " + type +
                 " cgroup rw," + options + "\n";
  }
  Cgroups look() {
    std::ofstream(root / "mountinfo") << mountinfo;
    std::ofstream(root / "self") << self;
    return Cgroups("cpu-0", root / "mountinfo", root / "self");
  }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
};

}  // namespace

TEST_CASE("cgroups: version 1, each controller where this process is in it", "[cgroup]") {
  Host host;
  host.mount("memory", "cgroup", "memory");
  host.mount("cpu", "cgroup", "cpu,cpuacct");
  host.mount("unified", "cgroup2", "nsdelegate");
  host.write("memory/here/there/tasks", "");
  host.self = "9:memory:/here/there\n2:cpu,cpuacct:/\n0::/\n";
  const Cgroups found = host.look();
  CHECK(found.version() == 1);
  CHECK(found.has("memory"));
  CHECK(found.has("cpu"));
  CHECK_FALSE(found.has("pids"));
  CHECK(fs::is_empty(host.root / "cpu"));  // the trial is gone
}

TEST_CASE("cgroups: a container's mount shows a part of the hierarchy", "[cgroup]") {
  Host host;
  host.mount("memory", "cgroup", "memory", "/docker/abc");
  host.self = "9:memory:/docker/abc\n";
  CHECK(host.look().version() == 1);
}

TEST_CASE("cgroups: version 2 wants its controllers delegated", "[cgroup]") {
  Host host;
  host.mount("cgroup", "cgroup2", "nsdelegate");
  host.self = "0::/mine\n";
  host.write("cgroup/mine/cgroup.controllers", "cpu io memory pids\n");
  host.write("cgroup/mine/cgroup.subtree_control", "");
  SECTION("they are") {
    const Cgroups found = host.look();
    CHECK(found.version() == 2);
    CHECK(found.has("memory"));
    CHECK_FALSE(found.has("cpuset"));
    std::string text;
    std::getline(std::ifstream(host.root / "cgroup/mine/cgroup.subtree_control"), text);
    CHECK(text == "+memory +pids +cpu");
  }
  SECTION("none is there") {
    host.write("cgroup/mine/cgroup.controllers", "\n");
    const Cgroups found = host.look();
    CHECK(found.version() == 0);
    CHECK(found.why_not().find("no controllers are delegated") != std::string::npos);
  }
  SECTION("the group cannot be written, as where others live in it") {
    fs::remove(host.root / "cgroup/mine/cgroup.subtree_control");
    const Cgroups found = host.look();
    CHECK(found.version() == 0);
    CHECK(found.why_not().find("subtree_control") != std::string::npos);
  }
}

TEST_CASE("cgroups: none at all is said", "[cgroup]") {
  Host host;
  const Cgroups found = host.look();
  CHECK(found.version() == 0);
  CHECK(found.why_not() == "no control groups are mounted");
}

}  // namespace freeride::worker
