// The small parts of the worker: drop folder, task log, plans, options, loop, sandbox names.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "acting/plans.hpp"
#include "daemon/drop_folder.hpp"
#include "daemon/measures.hpp"
#include "daemon/options.hpp"
#include "daemon/temp_folder_test_support.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/sha256.hpp"
#include "loop/loop.hpp"
#include "sandbox/cgroup.hpp"
#include "sandbox/sandbox.hpp"
#include "tasks/task_folders.hpp"
#include "tasks/task_log.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::TempFolder;

namespace fs = std::filesystem;

namespace {

std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out << bytes;
}

std::string good_plugin() {
  return slurp(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "counter.so");
}

// Runs the loop until `done` says so; the watchdog is CTest's.
template <class Done>
void turn(Loop& loop, Done done) {
  std::function<void()> look = [&] {
    if (done()) {
      loop.stop();
    } else {
      loop.at(SteadyClock::now() + 5 * kNsPerMs, look);
    }
  };
  loop.at(0, look);
  loop.run();
}

struct Drop {
  TempFolder temp;
  fs::path folder = temp.path() / "plugins";
  PluginStore store{temp.path() / "store"};
  std::vector<DroppedFile> seen;
};

}  // namespace

TEST_CASE("the drop folder: what is there, what comes, what is replaced, what goes", "[drop]") {
  Drop d;
  fs::create_directories(d.folder);
  write_file(d.folder / "first.so", good_plugin());
  write_file(d.folder / "notes.txt", "no plugin");
  auto loop = std::move(Loop::create().value());
  DropFolder drop(d.folder, d.store, *loop, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop.start();
  REQUIRE(d.seen.size() == 1);
  CHECK(d.seen[0].name == "first.so");
  CHECK(d.seen[0].state == DroppedFile::State::kAdded);
  CHECK(d.store.get(d.seen[0].sha256).ok());

  const std::string other = good_plugin() + "trailing bytes make other content";
  loop->at(0, [&] {
    write_file(d.temp.path() / "moved", other);
    fs::rename(d.temp.path() / "moved", d.folder / "first.so");  // whole at once
    write_file(d.folder / "bad.so", "not an ELF file");
  });
  turn(*loop, [&] { return d.seen.size() >= 3; });
  REQUIRE(d.seen.size() == 3);
  for (const DroppedFile& file : {d.seen[1], d.seen[2]}) {
    if (file.name == "first.so") {
      CHECK(file.state == DroppedFile::State::kReplaced);
      CHECK(file.sha256 == sha256_hex(other));
    } else {
      CHECK(file.state == DroppedFile::State::kRejected);
      CHECK(file.reason.find("bad.so") != std::string::npos);
    }
  }
  CHECK(d.store.get(d.seen[0].sha256).ok());  // a task that runs it is not touched

  auto again = std::move(Loop::create().value());
  DropFolder drop_again(d.folder, d.store, *again, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop_again.start();
  d.seen.clear();
  again->at(0, [&] { fs::remove(d.folder / "first.so"); });
  turn(*again, [&] { return !d.seen.empty(); });
  CHECK(d.seen[0].state == DroppedFile::State::kRemoved);
}

TEST_CASE("a file that is still being written is left alone until it is closed", "[drop]") {
  Drop d;
  fs::create_directories(d.folder);
  const std::string plugin = good_plugin();
  const int fd = open((d.folder / "slow.so").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  REQUIRE(fd >= 0);
  REQUIRE(write(fd, plugin.data(), 1000) == 1000);
  auto loop = std::move(Loop::create().value());
  DropFolder drop(d.folder, d.store, *loop, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop.start();
  CHECK(d.seen.empty());
  loop->at(0, [&] {
    REQUIRE(write(fd, plugin.data() + 1000, plugin.size() - 1000) == static_cast<ssize_t>(plugin.size() - 1000));
    close(fd);
  });
  turn(*loop, [&] { return !d.seen.empty(); });
  REQUIRE(d.seen.size() == 1);
  CHECK(d.seen[0].state == DroppedFile::State::kAdded);
  CHECK(d.seen[0].sha256 == sha256_hex(plugin));
}

TEST_CASE("a large plugin in the drop folder does not hold the loop up", "[drop]") {
  Drop d;
  fs::create_directories(d.folder);
  auto loop = std::move(Loop::create().value());
  DropFolder drop(d.folder, d.store, *loop, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop.start();
  write_file(d.temp.path() / "large", good_plugin());
  fs::resize_file(d.temp.path() / "large", 128u << 20);
  int turns = 0;
  std::function<void()> count = [&] {
    ++turns;
    loop->at(SteadyClock::now() + kNsPerMs, count);
  };
  loop->at(0, [&] {
    fs::rename(d.temp.path() / "large", d.folder / "large.so");
    count();
  });
  turn(*loop, [&] { return !d.seen.empty(); });
  REQUIRE(d.seen.size() == 1);
  CHECK(d.seen[0].state == DroppedFile::State::kAdded);
  CHECK(turns > 5);  // of a file that takes tenths of a second to hash and store
}

TEST_CASE("what is no plain file in the drop folder is rejected or left out, and blocks nothing", "[drop]") {
  Drop d;
  fs::create_directories(d.folder / "folder.so");
  REQUIRE(mkfifo((d.folder / "pipe.so").c_str(), 0600) == 0);
  fs::create_symlink("/nowhere", d.folder / "dangling.so");
  write_file(d.folder / "empty.so", "");
  write_file(d.folder / ".hidden.so", good_plugin());
  fs::create_symlink(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "counter.so", d.folder / "link.so");
  auto loop = std::move(Loop::create().value());
  DropFolder drop(d.folder, d.store, *loop, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop.start();
  REQUIRE(d.seen.size() == 4);
  for (const DroppedFile& file : d.seen) {
    CHECK((file.state == DroppedFile::State::kAdded) == (file.name == "link.so"));
    CHECK(file.name != "dangling.so");
  }
}

TEST_CASE("a drop folder that cannot be made is no error, and is found when it is there", "[drop]") {
  Drop d;
  write_file(d.temp.path() / "plugins", "a file in the way");
  auto loop = std::move(Loop::create().value());
  DropFolder drop(d.folder, d.store, *loop, [&](const DroppedFile& file) { d.seen.push_back(file); });
  drop.start();
  CHECK(drop.files().empty());
  fs::remove(d.folder);
  fs::create_directories(d.folder);
  write_file(d.folder / "late.so", good_plugin());
  turn(*loop, [&] { return !d.seen.empty(); });
  CHECK(d.seen[0].name == "late.so");
}

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

namespace {

/// Folders of ended tasks, and who still wants theirs.
struct Attic {
  TempFolder temp;
  fs::path root = temp.path() / "tasks";
  std::vector<std::string> wanted, asked;
  std::unique_ptr<Loop> loop = std::move(Loop::create().value());

  void add(const std::string& name, int days, size_t bytes = 1'000) {
    fs::create_directories(root / name / "scratch");
    write_file(root / name / "scratch" / "weights", std::string(bytes, 'w'));
    write_file(root / name / "log", "said\n");
    const timespec then{time(nullptr) - days * 86'400, 0};
    const timespec times[2] = {then, then};
    REQUIRE(utimensat(AT_FDCWD, (root / name).c_str(), times, 0) == 0);
  }
  bool there(const std::string& name) const { return fs::exists(root / name / "scratch" / "weights"); }
  void look(const policy::KeepLimits& limits, const std::function<bool()>& done) {
    auto folders = TaskFolders::create(root, limits, *loop, [&](const std::string& name, auto answer) {
      asked.push_back(name);
      answer(std::find(wanted.begin(), wanted.end(), name) == wanted.end());
    });
    REQUIRE(folders.ok());
    (*folders)->look_soon();
    turn(*loop, done);
  }
};

}  // namespace

TEST_CASE("what ended tasks have left goes by age, but for what is in use or wanted", "[folders]") {
  Attic attic;
  attic.add("new", 1);
  attic.add("older", 20);
  attic.add("oldest", 30);
  attic.add("running", 20);
  attic.add("queued", 20);
  attic.add(".removing-half", 0);
  attic.wanted = {"queued"};
  // Held by another worker of the host; that counts as use, so its time is set back again.
  auto held = hold_task_folder(attic.root / "running");
  REQUIRE(held.ok());
  attic.add("running", 20);
  const auto gone = [&] { return !fs::exists(attic.root / "older") && !fs::exists(attic.root / ".removing-older"); };
  attic.look({}, gone);
  CHECK(gone());
  CHECK_FALSE(fs::exists(attic.root / "oldest"));
  CHECK_FALSE(fs::exists(attic.root / ".removing-half"));
  CHECK(attic.there("new"));
  CHECK(attic.there("running"));
  CHECK(attic.there("queued"));
  CHECK(attic.asked == std::vector<std::string>{"oldest", "older", "queued"});
}

TEST_CASE("what ended tasks have left goes by size, oldest first", "[folders]") {
  Attic attic;
  attic.add("a", 3, 600'000);
  attic.add("b", 2, 600'000);
  attic.add("c", 1, 600'000);
  const auto gone = [&] { return !fs::exists(attic.root / "a") && !fs::exists(attic.root / ".removing-a"); };
  attic.look({7 * 86'400, 1'400'000}, gone);
  CHECK(gone());
  CHECK(attic.there("b"));
  CHECK(attic.there("c"));
}

TEST_CASE("a task that comes back while its folder is being removed gets a new one", "[folders]") {
  Attic attic;
  attic.add("t", 1);
  Fd remover(open((attic.root / "t").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(flock(remover.get(), LOCK_EX | LOCK_NB) == 0);
  CHECK(hold_task_folder(attic.root / "t").error().code == Code::kUnavailable);
  fs::rename(attic.root / "t", attic.root / ".removing-t");
  CHECK(hold_task_folder(attic.root / "t").ok());
  CHECK_FALSE(attic.there("t"));
}

TEST_CASE("plans: the newest that has begun counts, older ones before it", "[plans]") {
  PlanSet set;
  policy::HoldoutPlan plan;
  plan.job = "a";
  plan.share_pct = 10;
  set.merge({plan});
  plan.from_iteration = 100;
  plan.share_pct = 20;
  set.merge({plan});
  const auto* plans = set.of("a");
  CHECK(PlanSet::at(plans, 99)->share_pct == 10);
  CHECK(PlanSet::at(plans, 100)->share_pct == 20);
  CHECK(PlanSet::at(set.of("b"), 1) == nullptr);
  plan.from_iteration = 50;  // replaces what would have counted later
  plan.share_pct = 30;
  set.merge({plan});
  CHECK(PlanSet::at(set.of("a"), 100)->share_pct == 30);
  for (uint64_t i = 0; i < 50; ++i) {
    plan.from_iteration = 1000 + i;
    set.merge({plan});
  }
  CHECK(set.of("a")->size() <= 4);
}

TEST_CASE("a plan that makes no sense holds nothing out and gives no leases", "[plans]") {
  bus::HoldoutPlan plan;
  plan.share_pct = std::nan("");
  plan.duty_pct = std::nan("");
  CHECK(holdout_plan(plan).share_pct == 0);
  CHECK(holdout_plan(plan).duty_pct == 0);
  plan.share_pct = 300;
  plan.duty_pct = -4;
  CHECK(holdout_plan(plan).share_pct == 100);
  CHECK(holdout_plan(plan).duty_pct == 0);
}

TEST_CASE("options: cores, devices, runner, sandbox", "[options]") {
  CHECK(*parse_cores("0") == std::vector<int>{0});
  CHECK(*parse_cores("0,0-0") == std::vector<int>{0});
  for (const char* bad : {"x", "1-", "-1", "3-1", "0,,1", "9999999999"}) CHECK_FALSE(parse_cores(bad).ok());
  CHECK(parse_cores("1000").error().message.find("1000") != std::string::npos);
  CHECK(check_device("cpu-0").ok());
  CHECK(check_device("GPU-4c1f-aa").ok());
  for (const char* bad : {"", "../x", "a b", "x/y"}) CHECK_FALSE(check_device(bad).ok());
  CHECK_FALSE(check_device(std::string(64, 'a')).ok());
  CHECK(find_runner("/bin/sh").ok());
  CHECK(find_runner("/nowhere/freeride-runner").error().code == Code::kNotFound);
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

TEST_CASE("the loop: timers in order, handlers may forget themselves", "[loop]") {
  auto loop = std::move(Loop::create().value());
  std::vector<int> order;
  const int64_t now = SteadyClock::now();
  loop->at(now + 2 * kNsPerMs, [&] { order.push_back(2); });
  loop->at(now + 1 * kNsPerMs, [&] { order.push_back(1); });
  const auto cancelled = loop->at(now + kNsPerMs, [&] { order.push_back(9); });
  loop->cancel(cancelled);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(loop->watch(ends[0], 1 /* EPOLLIN */,
                      [&](uint32_t) {
                        order.push_back(3);
                        loop->forget(ends[0]);
                        close(ends[0]);
                        loop->stop();
                      })
              .ok());
  loop->at(now + 3 * kNsPerMs, [&] { REQUIRE(write(ends[1], "x", 1) == 1); });
  loop->run();
  CHECK(order == std::vector<int>{1, 2, 3});
  close(ends[1]);
}

TEST_CASE("control groups of a worker that had this pid, in a container before this one, are removed", "[cgroup]") {
  const TempFolder temp;
  const fs::path base = temp.path() / "pids", stale = base / ("freeride-cpu-0-" + std::to_string(getpid()) + "-1");
  const fs::path other = base / ("freeride-cpu-1-" + std::to_string(getpid()) + "-1");
  fs::create_directories(stale);
  fs::create_directories(other);
  std::ofstream(temp.path() / "mountinfo") << "30 20 0:30 / " << base.string() << " rw - cgroup cgroup rw,pids\n";
  std::ofstream(temp.path() / "self") << "8:pids:/\n";
  const Cgroups cgroups("cpu-0", temp.path() / "mountinfo", temp.path() / "self");
  CHECK(cgroups.version() == 1);
  CHECK(cgroups.base("pids") == base);
  CHECK(cgroups.base("cpu").empty());
  CHECK_FALSE(fs::exists(stale));
  CHECK(fs::exists(other));
}
