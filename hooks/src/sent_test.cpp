#include "sent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <thread>

#include "fake_worker_test_support.hpp"
#include "frozen/version_1.h"

namespace freeride::hooks {
namespace {

using Waited = SentMember::Waited;

int64_t in(int64_t ns) {
  return SteadyClock::now() + ns;
}

// A rank in a process of its own that joins, produces once for rank 0 and then sleeps until killed.
pid_t start_rank(const std::string& folder, uint32_t local_rank) {
  int ready[2];
  REQUIRE(pipe2(ready, O_CLOEXEC) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    auto member = SentMember::join(folder, "job", local_rank);
    if (!member.ok()) _exit(1);
    (*member)->produce(0);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ready[1]);
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  return pid;
}

size_t files_in(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a rank is found also where the number of slots in use was lost to one that joined at the same moment") {
  const TempDir dir;
  const auto first = SentMember::join(dir.path(), "job", 0, 100), second = SentMember::join(dir.path(), "job", 1, 101);
  REQUIRE((first.ok() && second.ok()));
  CHECK((*first)->page().ranks == 2);
  (*first)->page().ranks = 1;  // as if the first had written last
  CHECK((*first)->slot_of(101) == 1U);
  (*second)->leave();
  (*first)->leave();
}

TEST_CASE(
    "ranks that are all called local rank 0, or more than 63, meet on one page; the same ranks once more do not") {
  const TempDir dir;
  const auto join = [&](uint32_t local_rank, uint32_t world_rank) {
    auto joined = SentMember::join(dir.path(), "job", local_rank, world_rank, 0, SentMember::Slot::kAny);
    REQUIRE(joined.ok());
    return std::move(*joined);
  };
  const auto first = join(0, 64), second = join(0, 65), third = join(66, 66);
  CHECK(second->path() == first->path());
  CHECK(third->path() == first->path());
  CHECK(first->slot_of(65) == second->local_rank());
  CHECK(second->slot_of(66) == third->local_rank());
  CHECK(third->slot_of(64) == first->local_rank());
  const auto again = join(0, 64), its_second = join(0, 65);
  CHECK(again->path() != first->path());
  CHECK(its_second->path() == again->path());
  for (const auto* member : {&first, &second, &third, &again, &its_second}) (*member)->leave();
}

TEST_CASE("ranks meet also while somebody else holds the folder's lock, and then remove nothing") {
  const TempDir dir;
  const pid_t killed = start_rank(dir.path(), 3);
  REQUIRE(kill(killed, SIGKILL) == 0);
  REQUIRE(waitpid(killed, nullptr, 0) == killed);
  const size_t before = files_in(dir.path());
  const Fd lock(open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(flock(lock.get(), LOCK_EX) == 0);
  const auto first = SentMember::join(dir.path(), "another", 0), second = SentMember::join(dir.path(), "another", 1);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK((*first)->path() == (*second)->path());
  CHECK(files_in(dir.path()) == before + 1);
  CHECK((*second)->produce(0) == 1);
  CHECK((*first)->wait(1, 1, in(30 * kNsPerSec)) == Waited::kReached);
  REQUIRE(flock(lock.get(), LOCK_UN) == 0);
  (*first)->leave();
  (*second)->leave();
}

TEST_CASE("ranks of a job meet on one page; other jobs do not") {
  const TempDir dir;
  auto first = SentMember::join(dir.path(), "job", 0);
  REQUIRE(first.ok());
  const pid_t other = start_rank(dir.path(), 1);
  CHECK(files_in(dir.path()) == 1);
  CHECK((*first)->wait(1, 1, in(30 * kNsPerSec)) == Waited::kReached);
  CHECK((*first)->wait(1, 2, in(kNsPerMs)) == Waited::kTimeout);
  CHECK((*first)->produce(1) == 1);
  CHECK((*first)->produce(1) == 2);
  CHECK((*first)->produce(FREERIDE_MAX_RANKS) == 0);
  CHECK((*first)->wait(FREERIDE_MAX_RANKS, 1, in(0)) == Waited::kReleased);

  auto elsewhere = SentMember::join(dir.path(), "other job", 5);
  REQUIRE(elsewhere.ok());
  CHECK((*elsewhere)->path() != (*first)->path());
  (*elsewhere)->leave();
  CHECK(files_in(dir.path()) == 1);

  // Its death is seen by pidfd and releases its counters.
  (*first)->look_for_ranks();
  REQUIRE((*first)->pidfds().size() == 1);
  std::thread waiter([&] { CHECK((*first)->wait(1, 100, in(30 * kNsPerSec)) == Waited::kReleased); });
  REQUIRE(kill(other, SIGKILL) == 0);
  REQUIRE(readable((*first)->pidfds()[0]));
  (*first)->rank_died(0);
  waiter.join();
  CHECK((*first)->pidfds().empty());
  REQUIRE(waitpid(other, nullptr, 0) == other);

  // A page on which a rank has died is not joined again: the restarted job gets its own.
  const pid_t again = start_rank(dir.path(), 1);
  CHECK(files_in(dir.path()) == 2);
  REQUIRE(kill(again, SIGKILL) == 0);
  REQUIRE(waitpid(again, nullptr, 0) == again);
  (*first)->leave();
  // What is left belongs to the dead; the next rank that comes removes it.
  auto next = SentMember::join(dir.path(), "job", 0);
  REQUIRE(next.ok());
  CHECK(files_in(dir.path()) == 1);
  (*next)->leave();
  CHECK(files_in(dir.path()) == 0);
}

TEST_CASE("a page written by version 1's header is accepted for ever: ranks meet on a sent page") {
  const TempDir dir;
  const auto self = static_cast<uint32_t>(getpid());
  SECTION("a new rank joins an old one's") {
    // The file's name is what a first rank gives it; another job's would be left alone.
    auto named = SentMember::join(dir.path(), "job", 0, 100);
    REQUIRE(named.ok());
    const std::string path = (*named)->path();
    (*named)->leave();
    const Fd old(version_1_make(VERSION_1_SENT, path.c_str()));
    REQUIRE(old.valid());
    REQUIRE(version_1_join(old.get(), 0, self, process_start_time(self), 3) == 0);
    auto member = SentMember::join(dir.path(), "job", 1, 101);
    REQUIRE(member.ok());
    CHECK((*member)->path() == path);
    CHECK((*member)->shared_bytes() == version_1_bytes(VERSION_1_SENT));
    CHECK((*member)->wait(0, 3, in(30 * kNsPerSec)) == Waited::kReached);
    CHECK((*member)->produce(0) == 1);
    CHECK(version_1_counter(old.get(), 1, 0) == 1);
    // It has no place to say which rank of the job it is, nor to count collectives: nobody is held for either.
    CHECK_FALSE((*member)->slot_of(100).has_value());
    CHECK_FALSE((*member)->slot_of(101, SentMember::Row::kMet).has_value());
    (*member)->release(FREERIDE_RANK_DISABLED);
    CHECK(version_1_counter(old.get(), 1, 0) == FREERIDE_POISON);
    (*member)->rejoin([](uint32_t) { return FREERIDE_SENT_FIRST; }, FREERIDE_SENT_FIRST);
    CHECK_FALSE((*member)->released());
    (*member)->leave();
    CHECK(version_1_counter(old.get(), 1, 0) == FREERIDE_POISON);
  }
  SECTION("an old rank joins a new one's") {
    auto member = SentMember::join(dir.path(), "job", 1, 101);
    REQUIRE(member.ok());
    const Fd old(open((*member)->path().c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(version_1_refuses(VERSION_1_SENT, old.get()) == nullptr);
    REQUIRE(version_1_join(old.get(), 0, self, process_start_time(self), 3) == 0);
    CHECK((*member)->wait(0, 3, in(30 * kNsPerSec)) == Waited::kReached);
    CHECK((*member)->produce(0) == 1);
    CHECK(version_1_counter(old.get(), 1, 0) == 1);
    CHECK_FALSE((*member)->slot_of(100).has_value());
    CHECK((*member)->slot_of(101, SentMember::Row::kMet) == 1);
    (*member)->leave();
  }
}

TEST_CASE("a rank that switches off releases who waits for it, for good") {
  const TempDir dir;
  auto member = SentMember::join(dir.path(), "job", 0);
  REQUIRE(member.ok());
  (*member)->release(FREERIDE_RANK_DISABLED);
  CHECK((*member)->produce(1) == FREERIDE_POISON);
  CHECK((*member)->wait(0, 1, in(30 * kNsPerSec)) == Waited::kReleased);
  (*member)->leave();
}

TEST_CASE("joining fails with a reason, not with a crash") {
  const TempDir dir;
  CHECK(SentMember::join(dir.path(), "job", FREERIDE_MAX_RANKS).error().code == Code::kInvalidArgument);
  CHECK(SentMember::join(dir.path() + "/none", "job", 0).error().code == Code::kNotFound);
  CHECK_FALSE(SentMember::join("/proc", "job", 0).ok());  // no files can be made there, as in a full /dev/shm
  // Junk under our prefix is somebody else's.
  Fd junk(open((dir.path() + "/freeride-sent-junk").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  auto member = SentMember::join(dir.path(), "a/../b c", 0);
  REQUIRE(member.ok());
  CHECK(files_in(dir.path()) == 2);
  (*member)->leave();
}

TEST_CASE("a process's start time tells it from others of its number") {
  CHECK(process_start_time(static_cast<uint32_t>(getpid())) != 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(process_start_time(static_cast<uint32_t>(child)) == 0);  // a zombie
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(process_start_time(0xffffffffu) == 0);
}

}  // namespace freeride::hooks
