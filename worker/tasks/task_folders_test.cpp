#include "tasks/task_folders.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loop/loop.hpp"
#include "loop/temp_folder_test_support.hpp"
#include "loop/turn_test_support.hpp"
#include "tasks/state_file.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::TempFolder;
using freeride::worker::testing::turn;
using freeride::worker::testing::write_file;

namespace fs = std::filesystem;

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

TEST_CASE("a folder says that its task has ended until it is used again, and whose copy was launched last",
          "[folders]") {
  Attic attic;
  attic.add("a", 1);
  CHECK_FALSE(is_marked_ended(attic.root / "a"));
  mark_ended(attic.root / "a");
  CHECK(is_marked_ended(attic.root / "a"));
  unmark_ended(attic.root / "a");
  CHECK_FALSE(is_marked_ended(attic.root / "a"));
  auto held = hold_task_folder(attic.root / "a");
  REQUIRE(held.ok());
  CHECK(noted_epoch(held->get()) == 0);
  note_epoch(held->get(), 1'700'000'000'123);
  CHECK(noted_epoch(held->get()) == 1'700'000'000'123);
  note_epoch(held->get(), 7);
  CHECK(noted_epoch(held->get()) == 7);
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

TEST_CASE("a task that saves no state and gives no reason is told of in words", "[state]") {
  const TempFolder temp;
  auto file = StateFile::create(temp.path(), "instance");
  REQUIRE(file.ok());
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const Fd reader(ends[0]), writer(ends[1]);
  freeride_saved_state header{};
  header.magic = FREERIDE_STATE_MAGIC;
  header.major = FREERIDE_PAGES_MAJOR;
  header.lease_id = 5;
  header.status = 6;
  REQUIRE(write(writer.get(), &header, sizeof(header)) == static_cast<ssize_t>(sizeof(header)));
  StateReceiver receiver;
  const auto received = receiver.receive(reader.get(), 5, **file);
  REQUIRE_FALSE(received.ok());
  CHECK(received.error().message == "the task gives no reason");
}
