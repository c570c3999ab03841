// Cgroups on made-up hierarchies: which folder is taken, what is written, and why there is none.
#include "sandbox/cgroup.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>

#include "loop/temp_folder_test_support.hpp"

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
  Cgroups look(Cgroups::MakeGroup make_group = ::mkdir) {
    std::ofstream(root / "mountinfo") << mountinfo;
    std::ofstream(root / "self") << self;
    return Cgroups("cpu-0", root / "mountinfo", root / "self", make_group);
  }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
};

// A group of version 2 as the kernel makes it: with its files, which cannot be made otherwise.
template <bool kIdle>
int make_v2_group(const char* path, mode_t mode) {
  if (::mkdir(path, mode) != 0) return -1;
  for (const char* file : {"cgroup.procs", "memory.max", "memory.swap.max", "memory.peak", "memory.events", "pids.max",
                           "pids.events", "cpu.max", "cpu.weight", "cpuset.cpus"})
    std::ofstream(fs::path(path) / file) << "";
  if (kIdle) std::ofstream(fs::path(path) / "cpu.idle") << "0\n";
  return 0;
}

ino_t own_namespace() {
  struct stat about {};
  REQUIRE(stat("/proc/self/ns/pid", &about) == 0);
  return about.st_ino;
}

// The name of a worker's group.
std::string group_of(pid_t worker, ino_t pids, int number = 1) {
  return "freeride-cpu-0-" + std::to_string(worker) + "-" + std::to_string(number) + "." + std::to_string(pids);
}

pid_t ended_process() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
  return pid;
}

std::string text_in(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("cgroups: ceilings of version 2", "[cgroup]") {
  Host host;
  host.mount("cgroup", "cgroup2", "nsdelegate");
  host.self = "0::/mine\n";
  host.write("cgroup/mine/cgroup.controllers", "cpuset cpu io memory pids\n");
  host.write("cgroup/mine/cgroup.subtree_control", "");
  const fs::path folder = host.root / "cgroup/mine" / group_of(getpid(), own_namespace());
  const Ceilings ceilings{64 << 20, 32, 0.5, {0, 2}, CpuPriority::kIdle};

  SECTION("all of them are written, said, and read back") {
    Cgroups groups = host.look(make_v2_group<true>);
    REQUIRE(groups.version() == 2);
    auto made = groups.make(ceilings);
    REQUIRE(made.ok());
    TaskCgroup& group = **made;
    CHECK(group.text() == "cgroup v2: cores 0,2, memory 64 MiB, pids 32, CPU 0.5 cores, CPU when idle");
    CHECK(group.limits_memory());
    CHECK(group.limits_pids());
    CHECK(text_in(folder / "cpuset.cpus") == "0,2");
    CHECK(text_in(folder / "memory.max") == std::to_string((64 + 16) << 20));
    CHECK(text_in(folder / "memory.swap.max") == "0");
    CHECK(text_in(folder / "pids.max") == "38");
    CHECK(text_in(folder / "cpu.max") == "50000 100000");
    CHECK(text_in(folder / "cpu.idle").substr(0, 1) == "1");
    CHECK(text_in(folder / "cpu.weight").empty());
    CHECK(group.join_fds().size() == 1);  // one hierarchy
    CHECK(group.shown_at() == std::map<std::string, fs::path>{{"/sys/fs/cgroup", folder}});
    CHECK(group.oom_kills() == 0);  // before there are events
    host.write(fs::relative(folder / "memory.events", host.root), "low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\n");
    host.write(fs::relative(folder / "memory.peak", host.root), "1048576\n");
    host.write(fs::relative(folder / "pids.events", host.root), "max 7\n");
    CHECK(group.oom_kills() == 3);
    CHECK(group.peak_bytes() == 1 << 20);
    fs::remove(folder / "memory.peak");  // Linux before 5.19
    CHECK(group.peak_bytes() == 0);
    CHECK(group.pids_refused() == 7);
  }
  SECTION("before Linux 5.15 the least weight stands for idle") {
    Cgroups groups = host.look(make_v2_group<false>);
    REQUIRE(groups.make(ceilings).ok());
    CHECK(text_in(folder / "cpu.weight") == "1");
  }
  SECTION("a GPU's task weighs a tenth") {
    Cgroups groups = host.look(make_v2_group<true>);
    Ceilings tenth;
    tenth.priority = CpuPriority::kTenth;
    auto made = groups.make(tenth);
    REQUIRE(made.ok());
    CHECK((*made)->text() == "cgroup v2: CPU a tenth of the usual weight");
    CHECK(text_in(folder / "cpu.weight") == "10");
    CHECK(text_in(folder / "cpu.idle") == "0\n");
  }
  SECTION("what is not asked for is not written") {
    Cgroups groups = host.look(make_v2_group<true>);
    auto made = groups.make({});
    REQUIRE(made.ok());
    CHECK((*made)->text() == "cgroup v2: no ceilings");
    CHECK_FALSE((*made)->limits_memory());
    CHECK(text_in(folder / "memory.max").empty());
    CHECK(text_in(folder / "cpu.idle") == "0\n");
  }
  SECTION("a ceiling that cannot be set is an error, which names it") {
    Cgroups groups = host.look();  // groups without files
    const auto made = groups.make(ceilings);
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().message.find("cpuset.cpus") != std::string::npos);
  }
}

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

TEST_CASE("cgroups: in version 1 a sandbox has groups only where it has ceilings", "[cgroup]") {
  Host host;
  for (const char* controller : {"memory", "pids", "cpuset"}) host.mount(controller, "cgroup", controller);
  host.write("memory/tasks", "");
  host.write("pids/tasks", "");
  host.write("cpuset/tasks", "");
  host.self = "9:memory:/\n8:pids:/\n7:cpuset:/\n0::/\n";
  // What the kernel makes in each new group, as far as it is needed here.
  Cgroups groups = host.look([](const char* path, mode_t mode) {
    if (mkdir(path, mode) != 0) return -1;
    for (const char* file : {"cgroup.procs", "pids.max", "memory.limit_in_bytes"}) {
      std::ofstream(fs::path(path) / file) << "";
    }
    return 0;
  });
  REQUIRE(groups.version() == 1);
  Ceilings ceilings;
  ceilings.pids = 32;
  auto made = groups.make(ceilings);
  REQUIRE(made.ok());
  CHECK((*made)->join_fds().size() == 1);
  CHECK((*made)->text() == "cgroup v1: pids 32");
  REQUIRE((*made)->shown_at().size() == 1);
  CHECK((*made)->shown_at().begin()->first == "/sys/fs/cgroup/pids");
  made = groups.make({});  // who is in it has to be known all the same
  REQUIRE(made.ok());
  CHECK((*made)->join_fds().size() == 3);
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

TEST_CASE(
    "control groups of workers that are gone are removed, and those of workers that are not seen only if empty and "
    "old") {
  const testing::TempFolder temp;
  const fs::path base = temp.path() / "pids";
  const pid_t gone = ended_process();
  const auto there = [&](const std::string& name, bool old, bool used = false) {
    fs::create_directories(base / name);
    if (used) std::ofstream(base / name / "cgroup.procs") << "0\n";  // a process that this namespace has no number for
    if (old) fs::last_write_time(base / name, fs::file_time_type::clock::now() - std::chrono::minutes(1));
    return base / name;
  };
  const auto own = own_namespace(), other = own + 1;
  const auto mine_before = there(group_of(getpid(), own), true), dead = there(group_of(gone, own), false);
  const auto foreign_old = there(group_of(gone, other), true), foreign_young = there(group_of(gone, other, 2), false);
  const auto foreign_used = there(group_of(gone, other, 3), true, true), lives = there(group_of(getppid(), own), true);
  const auto earlier =
      there("freeride-cpu-0-" + std::to_string(gone) + "-1", true);  // a version that named no namespace
  const auto another = there("freeride-cpu-1-" + std::to_string(gone) + "-1", true);
  std::ofstream(temp.path() / "mountinfo") << "30 20 0:30 / " << base.string() << " rw - cgroup cgroup rw,pids\n";
  std::ofstream(temp.path() / "self") << "8:pids:/\n";
  const Cgroups cgroups("cpu-0", temp.path() / "mountinfo", temp.path() / "self");
  CHECK(cgroups.version() == 1);
  CHECK(cgroups.base("pids") == base);
  CHECK(cgroups.base("cpu").empty());
  for (const auto& folder : {mine_before, dead, foreign_old, earlier}) {
    INFO(folder.string());
    CHECK_FALSE(fs::exists(folder));
  }
  for (const auto& folder : {foreign_young, foreign_used, lives, another}) {
    INFO(folder.string());
    CHECK(fs::exists(folder));
  }
}

}  // namespace freeride::worker
