// The program: real sockets, a client and a worker of the bus, kill -9.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "freeride/bus/sockets.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;
using std::chrono::milliseconds;

namespace {
constexpr milliseconds kPatience{60'000};  // a watchdog: nothing here takes long

class Program {
 public:
  explicit Program(const TempDir& dir, std::vector<std::string> extra = {}, const std::string& run = "run",
                   rlim_t descriptors = 0)
      : log_(dir.path / ("log" + std::to_string(++count))) {
    std::vector<std::string> args = {FREERIDE_MANAGER, "--run-dir", (dir.path / run).string(), "--state-dir",
                                     (dir.path / "state").string()};
    args.insert(args.end(), extra.begin(), extra.end());
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // should the test itself die
      const rlimit few{descriptors, descriptors};
      if (descriptors != 0) setrlimit(RLIMIT_NOFILE, &few);
      const int fd = open(log_.c_str(), O_WRONLY | O_CREAT, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      std::vector<char*> argv;
      argv.reserve(args.size() + 1);
      for (auto& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Program() { end(SIGKILL); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Its exit code, or minus the signal that ended it.
  int end(int signal) {
    if (pid_ > 0 && signal != 0) kill(pid_, signal);
    if (pid_ > 0) waitpid(std::exchange(pid_, 0), &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  int wait() { return end(0); }
  pid_t pid() const { return pid_; }
  std::string log() const {
    std::ifstream file(log_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  int64_t lines() const {
    const std::string text = log();
    return std::count(text.begin(), text.end(), '\n');
  }

 private:
  static inline int count = 0;
  std::filesystem::path log_;
  pid_t pid_ = 0;
  int status_ = 0;
};

struct Client {
  explicit Client(const TempDir& dir) {
    Paths paths{dir.path / "run", dir.path / "state"};
    auto connected = bus::Requester::connect(context, paths.commands_endpoint());
    REQUIRE(connected.ok());
    requester = std::move(*connected);
  }
  template <class R, class C>
  Result<R> ask(const C& command, const std::string& attachment = {}) {
    auto reply = requester->request(command, kPatience, attachment);
    if (!reply) return reply.error();
    return reply->template as<R>();
  }
  zmq::context_t context;
  std::unique_ptr<bus::Requester> requester;
};
}  // namespace

TEST_CASE("load, kill -9, start again: the task is there, and a monitor sees it") {
  TempDir dir;
  {
    Program manager(dir);
    Client client(dir);
    auto loaded = client.ask<bus::TaskReply>(load_of("a", 3), plugin_bytes());
    REQUIRE(loaded.ok());
    CHECK(loaded->task.state.reason == "waiting for a worker: none is there; start freeride-worker");
    CHECK(manager.end(SIGKILL) == -SIGKILL);
  }
  Program manager(dir);
  Client client(dir);
  auto tasks = client.ask<bus::TasksReply>(bus::ListTasks{});
  REQUIRE(tasks.ok());
  REQUIRE(tasks->tasks.size() == 1);
  CHECK(tasks->tasks[0].state.task == "a");
  Paths paths{dir.path / "run", dir.path / "state"};
  auto monitor = bus::Subscriber::connect(client.context, paths.events_endpoint(), {"task.state"});
  REQUIRE(monitor.ok());
  auto event = (*monitor)->receive(kPatience);
  REQUIRE(event.has_value());
  CHECK(event->as<bus::TaskState>()->task == "a");
  CHECK(manager.end(SIGTERM) == 0);
}

TEST_CASE("a second manager is told of the first; other trouble at start is one line and exit 1") {
  TempDir dir;
  Program first(dir);
  Client client(dir);
  REQUIRE(client.ask<bus::StatusReply>(bus::GetStatus{}).ok());
  Program second(dir);
  CHECK(second.wait() == 1);
  CHECK(contains(second.log(), std::to_string(first.pid())));
  CHECK(second.lines() == 1);
  Program elsewhere(dir, {}, "run2");  // the same state
  CHECK(elsewhere.wait() == 1);
  CHECK(contains(elsewhere.log(), "another manager uses this state folder"));
  CHECK(client.ask<bus::StatusReply>(bus::GetStatus{}).ok());

  TempDir damaged;
  std::filesystem::create_directories(damaged.path / "state");
  std::ofstream(damaged.path / "state" / "freeride.db") << std::string(5000, 'x');
  {
    Program mended(damaged);
    Client its(damaged);
    REQUIRE(its.ask<bus::StatusReply>(bus::GetStatus{}).ok());
    CHECK(mended.end(SIGTERM) == 0);
    CHECK(contains(mended.log(), "is damaged"));
    CHECK(contains(mended.log(), "is kept as " + (damaged.path / "state" / "freeride.db.damaged-").string()));
  }
  Program wrong(damaged, {"--baseline-pct", "500"});
  CHECK(wrong.wait() == 2);
}

TEST_CASE("too few descriptors for the network's connections are said at the start") {
  const std::string said = "needs 3024: the network gets fewer connections; raise LimitNOFILE";
  for (const rlim_t descriptors : {3023, 3024}) {
    const TempDir dir;
    // Without keys it ends by itself.
    Program program(dir, {"--listen", "tcp://*:7420", "--max-connections", "2000"}, "run", descriptors);
    CHECK(program.wait() == 2);
    CHECK((program.log().find(said) != std::string::npos) == (descriptors < 3024));
  }
}

TEST_CASE("a worker of the bus registers, takes a task through profile and run, and ends it") {
  TempDir dir;
  Program manager(dir);
  Client client(dir), worker(dir);
  bus::RegisterWorker hello;
  hello.worker = "host:cpu-0";
  hello.incarnation = "i";
  hello.memory_bytes = hello.usable_bytes = 8LL << 30;
  bus::TrainingState rank;
  rank.job = "gpt";
  rank.stages = 2;
  rank.state = "active";
  hello.ranks = {rank};
  REQUIRE(worker.ask<bus::WorkerPlan>(hello).ok());
  REQUIRE(client.ask<bus::TaskReply>(load_of("a", 0), plugin_bytes()).ok());
  CHECK(client.ask<bus::TaskReply>(load_of("b", 5), plugin_bytes()).error().code == Code::kInvalidArgument);

  bus::WorkerReport report;
  report.worker = hello.worker;
  report.incarnation = hello.incarnation;
  report.usable_bytes = hello.usable_bytes;
  report.ranks = hello.ranks;
  std::string sha256;
  for (int n = 0; n < 2; ++n) {
    std::optional<bus::Message> message;
    do {
      message = worker.requester->receive(kPatience);
      REQUIRE(message.has_value());
    } while (message->is_reply || message->command != bus::CreateTask::kCommand);
    auto create = message->as<bus::CreateTask>();
    REQUIRE(create.ok());
    CHECK(create->purpose == (n == 0 ? "profile" : "run"));
    worker.requester->reply(*message, bus::Ack{});
    sha256 = create->sha256;
    bus::TaskReport task;
    task.task = create->task;
    task.purpose = create->purpose;
    task.state = "STOPPED";
    task.verdict.kind = "finished";
    task.counters.steps = 3;
    report.tasks = {task};
    REQUIRE(worker.ask<bus::Ack>(report).ok());
  }
  auto fetched = worker.requester->request(bus::FetchPlugin{sha256}, kPatience);
  REQUIRE(fetched.ok());
  CHECK(fetched->attachment == plugin_bytes());
  auto shown = client.ask<bus::TaskReply>(bus::ShowTask{"a"});
  REQUIRE(shown.ok());
  CHECK(shown->task.state.verdict.kind == "finished");
  CHECK(shown->task.state.counters.steps == 3);
}

TEST_CASE("garbage on the command socket harms nobody") {
  TempDir dir;
  Program manager(dir);
  Client client(dir);
  REQUIRE(client.ask<bus::StatusReply>(bus::GetStatus{}).ok());
  zmq::socket_t raw(client.context, zmq::socket_type::dealer);
  raw.set(zmq::sockopt::linger, 0);
  raw.connect(Paths{dir.path / "run", {}}.commands_endpoint());
  uint32_t random = 1;
  for (int n = 0; n < 2000; ++n) {
    std::string bytes(static_cast<size_t>(n % 97), '\0');
    for (char& c : bytes) c = static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
    raw.send(zmq::buffer(bytes), n % 3 == 0 ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  raw.send(zmq::buffer(std::string("x")), zmq::send_flags::none);
  bus::WorkerReport stranger;
  stranger.worker = "nobody";
  CHECK(client.ask<bus::Ack>(stranger).error().code == Code::kNotFound);
  CHECK(client.ask<bus::StatusReply>(bus::GetStatus{}).ok());
  CHECK(manager.end(SIGINT) == 0);
}

TEST_CASE("a command that is gone is refused by its name") {
  TempDir dir;
  Program manager(dir);
  Client client(dir);
  REQUIRE(client.ask<bus::StatusReply>(bus::GetStatus{}).ok());
  zmq::socket_t raw(client.context, zmq::socket_type::dealer);
  raw.set(zmq::sockopt::linger, 0);
  raw.set(zmq::sockopt::rcvtimeo, static_cast<int>(kPatience.count()));
  raw.connect(Paths{dir.path / "run", {}}.commands_endpoint());
  const auto request = nlohmann::json::to_msgpack(
      {{"v", 1}, {"kind", "request"}, {"id", "import-1"}, {"command", "profile.import"}, {"body", {{"profiles", 3}}}});
  raw.send(zmq::buffer(request), zmq::send_flags::none);
  zmq::message_t answer;
  REQUIRE(raw.recv(answer).has_value());
  const auto bytes = answer.to_string();
  const auto reply = nlohmann::json::from_msgpack(bytes);
  CHECK(reply.at("code") == "version");
  CHECK(reply.at("message") == "this manager knows no command 'profile.import'");
  CHECK(manager.end(SIGINT) == 0);
}

namespace {

constexpr uid_t kStranger = 65534;

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("who changed what is in the audit log, as the kernel says; of parameters the names only") {
  TempDir dir;
  Program manager(dir);
  Client client(dir);
  auto load = load_of("a", 3);
  load.params = {{"token", "secret-value"}};
  REQUIRE(client.ask<bus::TaskReply>(load, plugin_bytes()).ok());
  REQUIRE(client.ask<bus::TasksReply>(bus::ListTasks{}).ok());  // changes nothing
  CHECK_FALSE(client.ask<bus::TaskReply>(bus::StopTask{"nobody"}).ok());
  CHECK(manager.end(SIGTERM) == 0);
  const auto lines = lines_of(dir.path / "state" / "audit.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(contains(lines[0], "\"command\":\"load\""));
  CHECK(contains(lines[0], "\"params\":[\"token\"]"));
  CHECK(contains(lines[0], "\"pid\":" + std::to_string(getpid())));
  CHECK(contains(lines[0], "\"uid\":" + std::to_string(getuid())));
  CHECK(contains(lines[0], "\"outcome\":\"ok\""));
  CHECK_FALSE(contains(lines[0], "secret-value"));
  CHECK(contains(lines[1], "\"outcome\":\"not_found\""));
}

TEST_CASE("what the manager keeps is not for everybody to read") {
  TempDir dir;
  std::filesystem::create_directories(dir.path / "state");
  std::filesystem::permissions(dir.path / "state", std::filesystem::perms(0755));
  const mode_t before = umask(022);
  Program manager(dir);
  umask(before);
  Client client(dir);
  REQUIRE(client.ask<bus::TaskReply>(load_of("a", 3), plugin_bytes()).ok());
  for (const char* name : {"freeride.db", "freeride.db-wal", "audit.jsonl"}) {
    CAPTURE(name);
    CHECK((std::filesystem::status(dir.path / "state" / name).permissions() & std::filesystem::perms(0037)) ==
          std::filesystem::perms::none);
  }
  CHECK((std::filesystem::status(dir.path / "state").permissions() & std::filesystem::perms(0026)) ==
        std::filesystem::perms::none);
}

TEST_CASE("a member of the group commands under its own name, and is no worker and no operator") {
  if (geteuid() != 0) return;  // only root can be others
  TempDir dir;
  std::filesystem::permissions(dir.path, std::filesystem::perms(0755));
  const std::string group = getgrgid(kStranger)->gr_name;
  // Before this process has threads. It waits for the manager by itself.
  const pid_t member = fork();
  if (member == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(kStranger) != 0 || setuid(kStranger) != 0) _exit(100);
    Client client(dir);
    auto load = load_of("hers", 3);
    load.user = "root";
    auto loaded = client.ask<bus::TaskReply>(load, plugin_bytes());
    if (!loaded || loaded->task.load.user != user_name(kStranger)) _exit(101);
    bus::RegisterWorker worker;
    worker.worker = "false";
    auto registered = client.ask<bus::WorkerPlan>(worker);
    if (registered || registered.error().code != Code::kPermission) _exit(102);
    auto fetched = client.ask<bus::Ack>(bus::FetchPlugin{loaded->task.load.sha256});
    if (fetched || fetched.error().code != Code::kPermission) _exit(103);
    auto lifted = client.ask<bus::FaultsReply>(bus::LiftFaults{"user", "hers"});
    if (lifted || lifted.error().code != Code::kPermission) _exit(104);
    auto monitor = bus::Subscriber::connect(client.context, Paths{dir.path / "run", {}}.events_endpoint(), {"task."});
    if (!monitor || !(*monitor)->receive(kPatience)) _exit(105);
    _exit(0);
  }
  Program manager(dir, {"--group", group});
  int status = 0;
  REQUIRE(waitpid(member, &status, 0) == member);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(manager.end(SIGTERM) == 0);
  const auto lines = lines_of(dir.path / "state" / "audit.jsonl");
  REQUIRE(lines.size() == 4);
  for (const std::string& line : lines) CHECK(contains(line, "\"uid\":65534"));
  CHECK(contains(lines[1], "\"outcome\":\"permission\""));
}
