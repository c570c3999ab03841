#include "tasks/state_fetch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loop/temp_folder_test_support.hpp"
#include "loop/turn_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::slurp;
using freeride::worker::testing::TempFolder;
using freeride::worker::testing::turn;

namespace fs = std::filesystem;

namespace {

/// Two hosts' folders of one task, and what was asked of the first.
struct TwoHosts {
  TempFolder temp;
  fs::path there = temp.path() / "there", here = temp.path() / "here";
  std::unique_ptr<Loop> loop = std::move(Loop::create().value());
  std::vector<uint64_t> asked;  // offsets
  std::optional<Status> done;
  bool wanted = true;
  std::function<Result<FilePiece>(const bus::FetchState&)> answer = [this](const bus::FetchState& wish) {
    return piece(wish.offset);
  };
  StateFetch fetch{*loop, [this](const bus::FetchState& wish, auto answered) {
                     asked.push_back(wish.offset);
                     answered(answer(wish));
                   }};

  Result<FilePiece> piece(uint64_t offset) const {
    const Fd folder(::open(there.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    return read_piece(folder.get(), "state", offset);
  }
  static void save(const fs::path& folder, const std::string& bytes, uint64_t steps,
                   const std::string& instance = "one") {
    auto file = StateFile::create(folder, instance);
    REQUIRE(file.ok());
    freeride_saved_state header{};
    header.magic = FREERIDE_STATE_MAGIC;
    header.major = FREERIDE_PAGES_MAJOR;
    header.steps = steps;
    header.size = bytes.size();
    header.present = 1;
    REQUIRE((*file)->begin(header).ok());
    REQUIRE((*file)->append(bytes.data(), bytes.size()).ok());
    REQUIRE((*file)->keep().ok());
  }
  Status get(const std::string& instance = "one") {
    done.reset();
    fetch.get(
        {{"b:cpu-0", "t", 7, 0}, instance, here, [this] { return wanted; }, [this](Status s, bool) { done = s; }});
    turn(*loop, [this] { return done.has_value() || !wanted; });
    return done.value_or(Status());
  }
};

std::string many_bytes() {
  std::string bytes(5u << 19, 'x');  // two pieces and a half
  for (size_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<char>('a' + i / 4096 % 26);
  return bytes;
}

}  // namespace

TEST_CASE("a state of several pieces is fetched whole") {
  TwoHosts hosts;
  TwoHosts::save(hosts.there, many_bytes(), 100);
  CHECK(hosts.get().ok());
  CHECK(slurp(hosts.here / "state") == slurp(hosts.there / "state"));
  CHECK(hosts.asked.size() == 3);
  CHECK(open_state(hosts.here, "one").valid());
  CHECK_FALSE(fs::exists(hosts.here / "state.next"));
}

TEST_CASE("what has come of a state stays while nobody answers") {
  TwoHosts hosts;
  TwoHosts::save(hosts.there, many_bytes(), 100);
  int silent = 2;
  hosts.answer = [&](const bus::FetchState& wish) -> Result<FilePiece> {
    if (wish.offset != 0 && silent-- > 0) return Error{Code::kUnavailable, "its worker is away", ""};
    return hosts.piece(wish.offset);
  };
  CHECK(hosts.get().ok());
  CHECK(slurp(hosts.here / "state") == slurp(hosts.there / "state"));
  CHECK(std::count(hosts.asked.begin(), hosts.asked.end(), 0u) == 1);
}

TEST_CASE("no state but this task's whole one is taken, and what was here stays") {
  TwoHosts hosts;
  TwoHosts::save(hosts.here, "mine", 5);
  const auto refused = [&](const std::string& why) {
    const Status got = hosts.get();
    REQUIRE_FALSE(got.ok());
    CHECK_THAT(got.error().message, Catch::Contains(why));
    CHECK(slurp(hosts.here / "state").substr(sizeof(freeride_saved_state)) == "mine");
    CHECK_FALSE(fs::exists(hosts.here / "state.next"));
  };
  hosts.answer = [&](const bus::FetchState&) -> Result<FilePiece> {
    return Error{Code::kNotFound, "task t has no saved state there", ""};
  };
  refused("no saved state");

  TwoHosts::save(hosts.there, "another's", 100, "another");
  hosts.answer = [&](const bus::FetchState& wish) { return hosts.piece(wish.offset); };
  refused("not this task's");

  worker::testing::write_file(hosts.there / "state", "short");
  refused("shorter");

  TwoHosts::save(hosts.there, many_bytes(), 100);
  hosts.answer = [&](const bus::FetchState& wish) {
    if (wish.offset != 0) TwoHosts::save(hosts.there, "newer", 101);
    return hosts.piece(wish.offset);
  };
  refused("changed meanwhile");

  TwoHosts::save(hosts.there, many_bytes(), 100);
  hosts.answer = [&](const bus::FetchState& wish) {
    auto piece = hosts.piece(wish.offset);
    if (wish.offset != 0) piece->bytes.clear();
    return piece;
  };
  refused("cut off");

  hosts.answer = [&](const bus::FetchState&) -> Result<FilePiece> {
    FilePiece huge;
    freeride_saved_state header{};
    header.magic = FREERIDE_STATE_MAGIC;
    header.major = FREERIDE_PAGES_MAJOR;
    header.size = FREERIDE_STATE_MOST_BYTES + 1;
    std::strcpy(header.instance, "one");
    huge.bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
    huge.reply.bytes = sizeof(header) + header.size;
    return huge;
  };
  refused("not this task's");
}

TEST_CASE("a state that has come further than the fetched one stays") {
  TwoHosts hosts;
  TwoHosts::save(hosts.here, "further", 200);
  TwoHosts::save(hosts.there, "behind", 100);
  CHECK(hosts.get().ok());
  CHECK(slurp(hosts.here / "state").substr(sizeof(freeride_saved_state)) == "further");
  TwoHosts::save(hosts.there, "ahead", 300);
  CHECK(hosts.get().ok());
  CHECK(slurp(hosts.here / "state").substr(sizeof(freeride_saved_state)) == "ahead");
}

TEST_CASE("a state that nobody waits for any more leaves nothing") {
  TwoHosts hosts;
  TwoHosts::save(hosts.there, many_bytes(), 100);
  hosts.answer = [&](const bus::FetchState& wish) {
    hosts.wanted = wish.offset == 0;
    return hosts.piece(wish.offset);
  };
  (void)hosts.get();
  CHECK_FALSE(hosts.done.has_value());
  CHECK_FALSE(fs::exists(hosts.here / "state"));
  CHECK_FALSE(fs::exists(hosts.here / "state.next"));
}

TEST_CASE("at most four pieces are under way, and each state comes whole") {
  TwoHosts hosts;
  TwoHosts::save(hosts.there, many_bytes(), 100);
  std::vector<std::function<void()>> held;
  size_t most = 0, done = 0;
  StateFetch fetch{*hosts.loop, [&](const bus::FetchState& wish, auto answered) {
                     held.push_back([&hosts, wish, answered] { answered(hosts.piece(wish.offset)); });
                     most = std::max(most, held.size());
                   }};
  for (int n = 0; n < 10; ++n) {
    const fs::path here = hosts.temp.path() / std::to_string(n);
    fetch.get({{"b:cpu-0", "t", 7, 0},
               "one",
               here,
               [] { return true; },
               [&](const Status& s, bool) {
                 CHECK(s.ok());
                 ++done;
               }});
  }
  while (!held.empty()) {
    const auto first = held.front();
    held.erase(held.begin());
    first();
  }
  CHECK(done == 10);
  CHECK(most == StateFetch::kMostAtOnce);
  for (int n = 0; n < 10; ++n)
    CHECK(slurp(hosts.temp.path() / std::to_string(n) / "state") == slurp(hosts.there / "state"));
}

TEST_CASE("a state that cannot be written here is told apart from one that cannot be had") {
  TwoHosts hosts;
  TwoHosts::save(hosts.there, many_bytes(), 100);
  worker::testing::write_file(hosts.here, "no folder");
  std::optional<bool> here;
  hosts.fetch.get({{"b:cpu-0", "t", 7, 0},
                   "one",
                   hosts.here,
                   [] { return true; },
                   [&](const Status& s, bool ours) {
                     CHECK_FALSE(s.ok());
                     here = ours;
                   }});
  CHECK(here == true);
}

TEST_CASE("of two writers of one task's state the later one counts, and the earlier one removes nothing") {
  TempFolder temp;
  const fs::path folder = temp.path() / "t";
  freeride_saved_state header{};
  header.magic = FREERIDE_STATE_MAGIC;
  header.major = FREERIDE_PAGES_MAJOR;
  auto earlier = StateFile::create(folder, "one");
  REQUIRE(earlier.ok());
  header.steps = 1;
  REQUIRE((*earlier)->begin(header).ok());
  auto later = StateFile::create(folder, "one");
  REQUIRE(later.ok());
  header.steps = 2;
  REQUIRE((*later)->begin(header).ok());
  CHECK_FALSE((*earlier)->keep().ok());
  earlier->reset();
  CHECK((*later)->keep().ok());
  std::memcpy(&header, slurp(folder / "state").data(), sizeof(header));
  CHECK(header.steps == 2);
}
