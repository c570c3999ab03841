#include "daemon/drop_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/plugin_store.hpp"
#include "freeride/base/sha256.hpp"
#include "loop/loop.hpp"
#include "loop/temp_folder_test_support.hpp"
#include "loop/turn_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::slurp;
using freeride::worker::testing::TempFolder;
using freeride::worker::testing::turn;
using freeride::worker::testing::write_file;

namespace fs = std::filesystem;

namespace {

std::string good_plugin() {
  return slurp(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "counter.so");
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
