// Who keeps whom out of the command socket: a real server, clients and workers of the bus, and a core.
#include "link.hpp"

#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;
using std::chrono::milliseconds;

namespace {
const size_t kMostOpen = Limits{}.open_requests(), kShare = kMostOpen / 16;
constexpr uid_t kStranger = 65534;               // and those below
constexpr int64_t kPatienceNs = 60 * kNsPerSec;  // a watchdog: nothing here takes long

/// A core behind a socket. What is asked of usage stays open: nobody calls go_on().
class LinkHouse {
 public:
  LinkHouse() {
    std::filesystem::permissions(dir.path, std::filesystem::perms(0755));
    const Paths paths{dir.path / "run", dir.path / "state"};
    commands = paths.commands_endpoint();
    auto server = bus::Server::bind(context, commands, gid_t{kStranger});
    auto publisher = bus::Publisher::connect(context, paths.publish_endpoint(), "manager");
    auto made = Background::create();
    auto opened = AuditLog::open(dir.path / "audit.jsonl", std::nullopt);
    auto store = StateStore::open(dir.path / "db");
    REQUIRE((server.ok() && publisher.ok() && made.ok() && opened.ok() && store.ok()));
    background = std::move(*made);
    audit = std::move(*opened);
    link = std::make_unique<Link>(std::move(*server), std::move(*publisher), *background, *audit, [] { return 0; });
    CoreConfig config;
    config.paths = paths;
    auto started = Core::start(config, std::move(*store), *link, clock, [] { return int64_t{0}; });
    REQUIRE(started.ok());
    core = std::move(*started);
  }
  /// Takes what arrives until `done`.
  void serve(const std::function<bool()>& done) {
    const int64_t end = SteadyClock::now() + kPatienceNs;
    while (!done()) {
      REQUIRE(SteadyClock::now() < end);
      (void)link->receive(*core, 256);
      background->finish();
    }
  }

  TempDir dir;
  std::string commands;
  zmq::context_t context;
  SteadyClock clock;
  std::unique_ptr<Background> background;
  std::unique_ptr<AuditLog> audit;
  std::unique_ptr<Link> link;
  std::unique_ptr<Core> core;
};

struct Caller {
  explicit Caller(const std::string& endpoint) : requester(bus::Requester::connect(context, endpoint).value()) {}
  /// Has `count` requests open, and the answer to another one.
  std::optional<Error> fill(size_t count) {
    // Without a connection a requester keeps its last 64 requests only.
    if (auto there = requester->request(bus::GetStatus{}, milliseconds(kPatienceNs / kNsPerMs)); !there)
      return there.error();
    for (size_t n = 0; n < count; ++n) requester->send(bus::GetUsage{0, "user"});
    return one_more();
  }
  std::optional<Error> one_more() {
    requester->send(bus::GetUsage{0, "user"});
    const auto answer = requester->receive(milliseconds(kPatienceNs / kNsPerMs));
    return answer ? answer->error : std::nullopt;
  }
  template <class C>
  std::optional<Error> answer_to(LinkHouse& house, const C& command) {
    const std::string id = requester->send(command);
    std::optional<bus::Message> answer;
    house.serve([&] { return (answer = requester->receive(milliseconds(0))).has_value(); });
    CHECK(answer->id == id);
    return answer->error;
  }
  zmq::context_t context;
  std::unique_ptr<bus::Requester> requester;
};

bus::RegisterWorker hello_of(const std::string& worker) {
  bus::RegisterWorker hello;
  hello.worker = worker;
  hello.incarnation = "first";
  hello.memory_bytes = hello.usable_bytes = 8LL << 30;
  return hello;
}

// Registers, reports and fetches, as one that has just been started.
void check_served(LinkHouse& house) {
  Caller worker(house.commands);
  const auto hello = hello_of("host:cpu-0");
  CHECK_FALSE(worker.answer_to(house, hello));
  bus::WorkerReport report;
  report.worker = hello.worker;
  report.incarnation = hello.incarnation;
  report.usable_bytes = hello.usable_bytes;
  CHECK_FALSE(worker.answer_to(house, report));
  const auto fetched = worker.answer_to(house, bus::FetchPlugin{std::string(64, 'a')});
  REQUIRE(fetched.has_value());
  CHECK(fetched->code == Code::kNotFound);
}

}  // namespace

TEST_CASE("who has its share of requests open is refused the next one; workers of the same user are not") {
  LinkHouse house;
  Caller client(house.commands);
  std::optional<Error> refused;
  std::atomic<bool> done = false;
  std::thread calls([&] {
    refused = client.fill(kShare);
    done = true;
  });
  house.serve([&] { return done.load(); });
  calls.join();
  REQUIRE(refused.has_value());
  CHECK(refused->code == Code::kExhausted);
  CHECK(contains(refused->message, std::to_string(kShare) + " requests of this sender"));
  check_served(house);
  while (house.core->next_slice_ns() == 0) house.core->go_on();  // answers what is open
  Caller again(house.commands);
  CHECK_FALSE(again.answer_to(house, bus::GetStatus{}));
}

TEST_CASE("clients that have all requests open that a manager keeps do not keep a worker out") {
  if (geteuid() != 0) return;  // only root can be others
  LinkHouse house;
  std::atomic<size_t> full = 0, ends = 0;
  std::vector<std::thread> users;
  for (uid_t n = 0; n < kMostOpen / kShare; ++n) {
    // In a thread of its own, which alone changes its user, and so do those that its context makes.
    users.emplace_back([&, uid = kStranger - n] {
      const gid_t group = kStranger;
      if (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, group, group, group) != 0 ||
          syscall(SYS_setresuid, uid, uid, uid) != 0)
        return;
      Caller user(house.commands);
      const auto refused = user.fill(kShare);
      if (refused && refused->code == Code::kExhausted) ++full;
      ++ends;
    });
  }
  house.serve([&] { return ends == users.size(); });
  for (auto& user : users) user.join();
  REQUIRE(full == users.size());
  const auto refused = Caller(house.commands).answer_to(house, bus::GetUsage{0, "user"});
  REQUIRE(refused.has_value());
  CHECK(refused->message == "the manager has too many requests open");
  check_served(house);
}
