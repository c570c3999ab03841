// The real freeride-worker as root, and trainings of other users'.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "daemon/stranger_test_support.hpp"
#include "daemon/worker_process_test_support.hpp"
#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/base/wait_set.hpp"

using namespace freeride;
using namespace freeride::worker::testing;

namespace fs = std::filesystem;

namespace {

bus::CreateTask counter(Rig& rig) {
  bus::CreateTask create;
  create.task = "t";
  create.purpose = "run";
  create.plugin = "counter.so";
  create.sha256 =
      rig.manager.offer(freeride::testing::slurp(fs::path(FREERIDE_BUILD_DIR) / "test-plugins" / "counter.so"));
  create.params = {{"step_us", "300"}};
  return create;
}

size_t refusals(const Rig& rig) {
  const std::string log = freeride::testing::slurp(rig.temp.path() / "worker.log");
  size_t count = 0;
  for (size_t at = log.find("was refused"); at != std::string::npos; at = log.find("was refused", at + 1)) ++count;
  return count;
}

void keep_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Hands a page in, and tells what the worker says.
std::string hand_in(const Paths& paths, int fd) {
  auto socket = pages::connect_to_worker(paths.worker_socket("cpu-0").string());
  if (!socket.ok()) return socket.error().text();
  return exchange(socket->get(), "FRHELLO1", fd);
}

}  // namespace

TEST_CASE("another user's training on root's worker is hooked and harvested, and its job is its own", "[process]") {
  if (geteuid() != 0) return;
  Rig rig({"--host-id", "here"});
  open_to_all(rig);
  rig.manager.wait_registered();
  const Stranger training(kNobody, [&](const Stranger::Tell&) {
    const FakeTrainer trainer(rig.paths);
    for (;;) pause();
  });
  const std::string its = std::to_string(kNobody) + "/gpt";
  rig.manager.wait([&] { return rig.manager.rank_state(its, 0) == "active"; });
  rig.manager.create(counter(rig));
  rig.manager.wait([&] { return rig.manager.task("t").counters.steps > 20 && rig.manager.harvested_ns > 0; });
  rig.manager.wait([&] { return !rig.manager.iterations.empty(); });
  CHECK(rig.manager.iterations.front().job == its);
  CHECK(rig.manager.ranks[its + "/0"].worker == "here:cpu-0");
  // Nobody else's job of that name is taken for it, and the place of nobody's rank is taken.
  const FakeTrainer own(rig.paths);
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  Stranger other(kOther, [&](const Stranger::Tell& tell) {
    const FakeTrainer trainer(rig.paths);
    tell("attached");
    for (;;) pause();
  });
  CHECK(other.line() == "attached");
  rig.manager.wait([&] { return rig.manager.rank_state(std::to_string(kOther) + "/gpt", 0) == "active"; });
  CHECK(rig.manager.rank_state(its, 0) == "active");
  CHECK(refusals(rig) == 0);
  rig.stop_worker();
}

TEST_CASE("a bell that one user's hooks have is not handed to another's", "[process]") {
  if (geteuid() != 0 || has_futex_waitv()) return;  // as in worker_process_test_without_futex_waitv
  Rig rig;
  open_to_all(rig);
  rig.manager.wait_registered();
  // Attaches; what it tells is the incarnation of the bell that it was handed, or 0.
  const auto attach = [&](const FakeRank& rank, Fd& socket) {
    socket = std::move(pages::connect_to_worker(rig.paths.worker_socket("cpu-0").string()).value());
    REQUIRE(pages::send_hello(socket.get(), rank.fd()).ok());
    pollfd answered{socket.get(), POLLIN, 0};
    REQUIRE(poll(&answered, 1, static_cast<int>(std::chrono::milliseconds(kWatchdog).count())) == 1);
    char text[pages::kMaxReplyBytes];
    Fd bell;
    const ssize_t got = pages::receive_reply(socket.get(), text, sizeof(text), bell);
    REQUIRE(std::string(text, static_cast<size_t>(std::max<ssize_t>(got, 0))) == "OK");
    if (!bell.valid()) return uint64_t{0};
    return (*pages::map_page<freeride_bell_page>(bell.get()))->header.incarnation;
  };
  const FakeRank first(0), second(1), third(2);
  Fd sockets[3];
  const uint64_t own = attach(first, sockets[0]);
  CHECK(own != 0);
  CHECK(attach(second, sockets[1]) == own);
  const auto strangers = [&](const Stranger::Tell& tell) {
    FakeRank rank;
    Fd socket;
    tell(attach(rank, socket) == 0 ? "none" : "a bell");
    for (;;) pause();  // attached
  };
  {
    Stranger beside(kNobody, strangers);
    CHECK(beside.line() == "none");
  }
  sockets[0].reset();
  sockets[1].reset();
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 1) == "lost"; });
  rig.manager.wait([&] { return rig.manager.rank_state(std::to_string(kNobody) + "/gpt", 0) == "lost"; });
  Stranger alone(kNobody, strangers);
  CHECK(alone.line() == "a bell");
  CHECK(attach(third, sockets[2]) == 0);
  rig.stop_worker();
}

TEST_CASE("a process that is not on the device is refused, in one line; one that leaves it is let go", "[process]") {
  if (geteuid() != 0) return;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  Rig rig({"--cores", "0"});
  open_to_all(rig);
  rig.manager.wait_registered();
  Stranger elsewhere(kNobody, [&](const Stranger::Tell& tell) {
    keep_to(1);
    FakeRank rank;
    for (int i = 0; i < 5; ++i) tell(hand_in(rig.paths, rank.fd()));
  });
  for (int i = 0; i < 5; ++i) CHECK_THAT(elsewhere.line(), Catch::Contains("may not run on the cores of this device"));
  CHECK(refusals(rig) == 1);
  rig.manager.wait_new_report();
  CHECK(rig.manager.ranks.empty());

  Stranger leaving(kOther, [&](const Stranger::Tell& tell) {
    const FakeTrainer trainer(rig.paths);
    tell("attached");
    keep_to(1);
    tell(trainer.disconnected() ? "let go" : "kept");
  });
  CHECK(leaving.line() == "attached");
  CHECK(leaving.line() == "let go");
  rig.manager.wait([&] { return rig.manager.rank_state(std::to_string(kOther) + "/gpt", 0) == "lost"; });
  CHECK(refusals(rig) == 2);
  rig.stop_worker();
}

TEST_CASE("a thousand connections of one user leave room for the others", "[process]") {
  if (geteuid() != 0) return;
  Rig rig;
  open_to_all(rig);
  rig.manager.wait_registered();
  const size_t before = fds_of(rig.worker.pid());
  Stranger crowd(kNobody, [&](const Stranger::Tell& tell) {
    std::deque<Fd> open;
    for (int made = 0;;) {
      auto socket = pages::connect_to_worker(rig.paths.worker_socket("cpu-0").string());
      if (!socket.ok()) continue;
      open.push_back(std::move(*socket));
      if (++made == 1000) tell("1000");
      if (open.size() > 500) open.pop_front();
    }
  });
  REQUIRE(crowd.line() == "1000");
  const FakeTrainer own(rig.paths);
  Stranger other(kOther, [&](const Stranger::Tell& tell) {
    const FakeTrainer trainer(rig.paths);
    tell("attached");
    for (;;) pause();
  });
  CHECK(other.line() == "attached");
  rig.manager.wait([&] { return rig.manager.rank_state("gpt", 0) == "active"; });
  rig.manager.wait([&] { return rig.manager.rank_state(std::to_string(kOther) + "/gpt", 0) == "active"; });
  CHECK(fds_of(rig.worker.pid()) < before + 40);
  CHECK(refusals(rig) == 1);
  rig.stop_worker();
}

TEST_CASE("what a stranger sends is no page that could harm; nothing of it is left", "[process]") {
  if (geteuid() != 0) return;
  Rig rig;
  open_to_all(rig);
  rig.manager.wait_registered();
  const size_t before = fds_of(rig.worker.pid());
  Stranger liar(kNobody, [&](const Stranger::Tell& tell) {
    int ends[2];
    if (pipe(ends) != 0) return tell("no pipe");
    tell(hand_in(rig.paths, ends[0]));
    tell(hand_in(rig.paths, -1));
    // Sealed as it should be, but none of its memory is there.
    const int hollow = memfd_create("page", MFD_ALLOW_SEALING);
    if (ftruncate(hollow, sizeof(freeride_bubble_page)) != 0) return tell("no memory");
    fcntl(hollow, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x0010 | F_SEAL_SEAL);
    tell(hand_in(rig.paths, hollow));
    // Whose holes can be made later.
    const int open = memfd_create("page", MFD_ALLOW_SEALING);
    if (posix_fallocate(open, 0, sizeof(freeride_bubble_page)) != 0) return tell("no memory");
    fcntl(open, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    tell(hand_in(rig.paths, open));
    FakeRank elsewhere(0, "cpu-7");
    tell(hand_in(rig.paths, elsewhere.fd()));
  });
  for (const char* why : {"no memory file", "carries 0 descriptors", "part of its memory is not there",
                          "not a memfd sealed against", "the page is of device cpu-7"}) {
    const std::string answer = liar.line();
    CHECK(answer.rfind("ERR ", 0) == 0);
    CHECK_THAT(answer, Catch::Contains(why));
  }
  rig.manager.wait([&] { return children_of(rig.worker.pid()).empty(); });
  rig.manager.wait([&] { return fds_of(rig.worker.pid()) <= before; });
  rig.manager.wait_new_report();
  CHECK(rig.manager.ranks.empty());
  CHECK(refusals(rig) <= 2);  // one a minute
  // And no more hellos than somebody could have trainings.
  Stranger many(kOther, [&](const Stranger::Tell& tell) {
    std::string last;
    for (int i = 0; i < 40; ++i) last = hand_in(rig.paths, -1);
    tell(last);
  });
  CHECK_THAT(many.line(), Catch::Contains("trainers of one user in 10 s"));
  const FakeTrainer own(rig.paths);
  rig.stop_worker();
}
