// The real freeride-ctl against a manager that the test plays: every command, every error code, and managers that lie
// or hang.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "freeride/base/fd.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/bus/sockets.hpp"

using namespace freeride;  // NOLINT(google-build-using-namespace)
using Catch::Contains;
using Catch::StartsWith;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "ctl-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const fs::path& path() const { return path_; }
  std::string endpoint(const char* name) const { return "ipc://" + (path_ / (std::string(name) + ".sock")).string(); }

 private:
  fs::path path_;
};

const fs::path kCtl = fs::path(FREERIDE_BUILD_DIR) / "bin" / "freeride-ctl";

struct Outcome {
  int code = -1;
  std::string out, err;
};

// A child with its output in pipes; ended and reaped in every case.
class Child {
 public:
  Child(const fs::path& program, const std::vector<std::string>& arguments,
        const std::vector<std::string>& environment = {}) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    REQUIRE(pipe2(out.data(), O_CLOEXEC) == 0);
    REQUIRE(pipe2(err.data(), O_CLOEXEC) == 0);
    std::vector<std::string> texts{program.string()};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    std::vector<std::string> settings{"TERM=dumb", "LC_ALL=C.UTF-8"};
    settings.insert(settings.end(), environment.begin(), environment.end());
    for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) settings.push_back(std::string(name) + "=" + value);
    }
    std::vector<char*> envp;
    for (auto& text : settings) envp.push_back(text.data());
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    REQUIRE(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_.reset(out[0]);
    err_.reset(err[0]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { kill(pid_, number); }

  // Reads until `text` has been printed, or both pipes are closed. The test program's own timeout is the watchdog.
  bool wait_for(const std::string& text) {
    while (outcome_.out.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  bool wait_for_error(const std::string& text) {
    while (outcome_.err.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  Outcome finish() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome_;
  }

 private:
  bool read_some() {
    std::array<pollfd, 2> fds{pollfd{out_.get(), POLLIN, 0}, pollfd{err_.get(), POLLIN, 0}};
    if (fds[0].fd < 0 && fds[1].fd < 0) return false;
    poll(fds.data(), fds.size(), -1);
    drain(fds[0], out_, outcome_.out);
    drain(fds[1], err_, outcome_.err);
    return true;
  }
  static void drain(const pollfd& ready, Fd& fd, std::string& into) {
    if (ready.fd < 0 || ready.revents == 0) return;
    std::array<char, 4096> buffer{};
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got > 0) {
      into.append(buffer.data(), static_cast<size_t>(got));
    } else {
      fd.reset();
    }
  }
  pid_t pid_ = -1;
  Fd out_, err_;
  Outcome outcome_;
};

Outcome run(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  return Child(kCtl, arguments, environment).finish();
}

// Answers commands on a thread of its own until it goes out of scope.
class FakeManager {
 public:
  using Handler = std::function<void(bus::Server&, const bus::Server::Incoming&)>;
  FakeManager(const TempDir& folder, Handler handler) : run_dir_(folder.path().string()), handler_(std::move(handler)) {
    auto server = bus::Server::bind(context_, folder.endpoint("commands"));
    REQUIRE(server.ok());
    server_ = std::move(*server);
    thread_ = std::thread([this] {
      while (!stop_) {
        if (auto incoming = server_->receive(std::chrono::milliseconds(20))) handler_(*server_, *incoming);
      }
    });
  }
  ~FakeManager() {
    stop_ = true;
    thread_.join();
  }
  FakeManager(const FakeManager&) = delete;
  FakeManager& operator=(const FakeManager&) = delete;

  Outcome ask(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--run-dir", run_dir_, "--timeout", "60"});
    return run(arguments);
  }

 private:
  std::string run_dir_;
  Handler handler_;
  zmq::context_t context_;
  std::unique_ptr<bus::Server> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

bus::TaskInfo task_named(const std::string& name, const std::string& state) {
  bus::TaskInfo info;
  info.state.task = name;
  info.state.state = state;
  info.state.plugin = "pagerank.so";
  info.state.stage = 3;
  return info;
}

}  // namespace

TEST_CASE("every command that lists something, as table and as JSON") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    const std::string& command = request.message.command;
    if (command == "status") {
      bus::StatusReply reply;
      reply.version = "0.1.0";
      reply.pid = 4711;
      reply.tasks_by_state = {{"RUNNING", 2}};
      server.reply(request, reply);
    } else if (command == "tasks") {
      server.reply(request, bus::TasksReply{{task_named("pagerank", "RUNNING")}});
    } else if (command == "task") {
      auto info = task_named(request.message.as<bus::ShowTask>()->task, "PAUSED");
      info.log_tail = "read 100 edges\n";
      server.reply(request, bus::TaskReply{info});
    } else if (command == "workers") {
      bus::WorkerInfo worker;
      worker.state.worker = "host:cpu-0";
      server.reply(request, bus::WorkersReply{{worker}});
    } else if (command == "ranks") {
      bus::RankInfo rank;
      rank.state.job = request.message.as<bus::ListRanks>()->job;
      rank.state.why = "no_messages";
      server.reply(request, bus::RanksReply{{rank}});
    } else if (command == "plugins") {
      bus::PluginState plugin;
      plugin.name = "image.so";
      server.reply(request, bus::PluginsReply{{plugin}});
    } else if (command == "report") {
      bus::JobMeasures job;
      job.job = "gpt" + request.message.as<bus::GetReport>()->job;
      server.reply(request, bus::ReportReply{{job}, {}});
    }
  });
  struct Case {
    std::vector<std::string> arguments;
    std::string text;
    std::function<bool(const json&)> holds;
  };
  const std::vector<Case> cases{
      {{"status"}, "pid 4711", [](const json& j) { return j["tasks_by_state"]["RUNNING"] == 2; }},
      {{"tasks"}, "RUNNING", [](const json& j) { return j["tasks"][0]["state"]["task"] == "pagerank"; }},
      {{"task", "mine"}, "read 100 edges", [](const json& j) { return j["task"]["state"]["task"] == "mine"; }},
      {{"workers"}, "host:cpu-0", [](const json& j) { return j["workers"][0]["state"]["worker"] == "host:cpu-0"; }},
      {{"ranks", "gpt"},
       "no_messages: no message of a pipeline was seen",
       [](const json& j) { return j["ranks"][0]["state"]["job"] == "gpt"; }},
      {{"plugins"}, "image.so", [](const json& j) { return j["plugins"][0]["name"] == "image.so"; }},
      {{"report", "--job", "-x"}, "gpt-x", [](const json& j) { return j["jobs"][0]["job"] == "gpt-x"; }},
  };
  for (const Case& one : cases) {
    CAPTURE(one.arguments);
    const auto table = manager.ask(one.arguments);
    CHECK(table.code == 0);
    CHECK(table.err.empty());
    CHECK_THAT(table.out, Contains(one.text));
    auto arguments = one.arguments;
    arguments.insert(arguments.end(), {"--format", "json"});
    const auto as_json = manager.ask(arguments);
    CHECK(as_json.code == 0);
    const auto parsed = json::parse(as_json.out, nullptr, false);
    REQUIRE_FALSE(parsed.is_discarded());
    CHECK(one.holds(parsed));
  }
}

TEST_CASE("lists as CSV, with chosen columns; what is no list says so") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    auto old = task_named("old", "STOPPED");
    old.state.verdict.kind = "finished";
    old.ended_unix_ms = 1;
    server.reply(request, bus::TasksReply{{old, task_named("pagerank", "RUNNING")}});
  });
  const auto csv = manager.ask({"tasks", "--format", "csv", "--columns", "task,state,memory"});
  CHECK(csv.out == "task,state,memory_bytes\npagerank,RUNNING,0\n");
  CHECK(csv.code == 0);
  CHECK(manager.ask({"tasks", "--all", "--format", "csv", "--columns", "task"}).out == "task\npagerank\nold\n");
  CHECK(manager.ask({"tasks", "--since", "1h", "--format", "csv", "--columns", "task"}).out == "task\npagerank\n");
  // JSON is the reply as it is.
  CHECK(json::parse(manager.ask({"tasks", "--format", "json"}).out)["tasks"].size() == 2);
  CHECK(json::parse(manager.ask({"tasks", "--since", "1h", "--format", "json"}).out)["tasks"].size() == 1);
  const auto table = manager.ask({"tasks"});
  CHECK_THAT(table.out, Contains("pagerank") && Contains("1 ended: freeride-ctl tasks --all"));
  const auto wrong = manager.ask({"tasks", "--columns", "nonsense"});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Contains("no column 'nonsense'") && Contains("memory_bytes"));
  CHECK(manager.ask({"status", "--format", "csv"}).code == 2);
  CHECK_THAT(manager.ask({"tasks", "--format", "json", "--columns", "task"}).err, Contains("json has all fields"));
  CHECK(manager.ask({"tasks", "--since", "soon"}).code == 2);
}

TEST_CASE("colours come on a terminal alone, and never with NO_COLOR") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    server.reply(request, bus::TasksReply{{task_named("pagerank", "RUNNING")}});
  });
  CHECK(manager.ask({"tasks"}).out.find('\x1b') == std::string::npos);
  for (const bool none : {false, true}) {
    int terminal = -1;
    const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
    REQUIRE(pid >= 0);
    if (pid == 0) {
      setenv("TERM", "xterm", 1);
      unsetenv("NO_COLOR");
      if (none) setenv("NO_COLOR", "1", 1);
      execl(kCtl.c_str(), "freeride-ctl", "tasks", "--run-dir", folder.path().c_str(), nullptr);
      _exit(127);
    }
    std::string shown;
    std::array<char, 4096> buffer{};
    for (ssize_t got = 0; (got = read(terminal, buffer.data(), buffer.size())) > 0;)
      shown.append(buffer.data(), static_cast<size_t>(got));
    close(terminal);
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
    CHECK_THAT(shown, Contains("pagerank"));
    CHECK((shown.find("\x1b[") == std::string::npos) == none);
  }
}

TEST_CASE("a load that takes its time says so on a terminal, and leaves no trace of it") {
  const TempDir folder;
  std::atomic<bool> let_go{false};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    while (!let_go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server.reply(request, bus::TaskReply{task_named("mine", "SUBMITTED")});
  });
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  REQUIRE(pid >= 0);
  if (pid == 0) {
    setenv("TERM", "xterm", 1);
    execl(kCtl.c_str(), "freeride-ctl", "load", CTL_TEST_PLUGIN, "--timeout", "60", "--run-dir", folder.path().c_str(),
          nullptr);
    _exit(127);
  }
  std::string shown;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(terminal, buffer.data(), buffer.size())) > 0;) {
    shown.append(buffer.data(), static_cast<size_t>(got));
    if (shown.find(", 2 s") != std::string::npos) let_go = true;
  }
  close(terminal);
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK(status == 0);
  CHECK_THAT(shown, Contains("loading libctl_test_plugin.so (") && Contains("\r\x1b[Kmine: SUBMITTED"));
}

TEST_CASE("what was nearly right is told: verbs, tasks, plugins; and numbers are told as numbers") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    const std::string& command = request.message.command;
    if (command == "tasks") {
      server.reply(request, bus::TasksReply{{task_named("pagerank", "RUNNING")}});
    } else if (command == "plugins") {
      bus::PluginState plugin;
      plugin.name = "my_image.so";
      server.reply(request, bus::PluginsReply{{plugin}});
    } else {
      server.reply_error(request, Error{Code::kNotFound, "there is none", "look"});
    }
  });
  const auto verb = manager.ask({"taks"});
  CHECK(verb.code == 2);
  CHECK_THAT(verb.err, Contains("no verb 'taks'; did you mean 'tasks'?"));
  CHECK_THAT(manager.ask({"--format", "json", "profile", "--steps", "x"}).err, Contains("--steps"));
  CHECK_THAT(manager.ask({"keys", "lits"}).err, Contains("freeride-ctl keys has no verb 'lits'; did you mean 'list'?"));
  for (const char* name : {"task", "stop", "rm"}) {
    const auto wrong = manager.ask({name, "pagernak"});
    CHECK(wrong.code == 4);
    CHECK_THAT(wrong.err, Contains("did you mean 'pagerank'?"));
  }
  const auto plugin = manager.ask({"load", "my_imag.so"});
  CHECK(plugin.code == 4);
  CHECK_THAT(plugin.err, Contains("did you mean 'my_image.so'?"));
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"load", "x.so", "--stage", "x"},
                                                {"load", "x.so", "--stage", "-1"},
                                                {"load", "x.so", "--replica", "9999999999"},
                                                {"load", "x.so", "--steps", "0"},
                                                {"load", "x.so", "--steps", "1e3"},
                                                {"load", "x.so", "--priority", "high"},
                                                {"events", "--count", "-1"},
                                                {"top", "--count", "many"},
                                                {"profile", "x.so", "--steps", "2001"},
                                                {"profile", "x.so", "--stage", "x"}}) {
    CAPTURE(wrong);
    const auto told = manager.ask(wrong);
    CHECK(told.code == 2);
    CHECK_THAT(told.err, Contains("is no whole number from "));
    CHECK(told.err.size() < 160);
  }
}

TEST_CASE("wait ends with the tasks, by what they ended with; rm says what it has removed") {
  const TempDir folder;
  zmq::context_t context;
  auto broker = bus::Broker::start(context, folder.endpoint("publish"), folder.endpoint("events"));
  REQUIRE(broker.ok());
  auto publisher = bus::Publisher::connect(context, folder.endpoint("publish"), "test");
  REQUIRE(publisher.ok());
  std::mutex mutex;
  std::map<std::string, std::string> ended{{"b", "finished"}};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (request.message.command == "tasks") return server.reply(request, bus::TasksReply{});
    const std::string name = request.message.as<bus::ShowTask>()->task;
    if (name == "nobody") return server.reply_error(request, Error{Code::kNotFound, "there is none", ""});
    auto info = task_named(name, ended.count(name) != 0 ? "STOPPED" : "RUNNING");
    if (ended.count(name) != 0) info.state.verdict.kind = ended[name];
    server.reply(request, bus::TaskReply{info});
  });
  CHECK(manager.ask({"wait", "nobody"}).code == 4);
  const auto late = manager.ask({"wait", "a", "--for", "0.2"});
  CHECK(late.code == 1);
  CHECK_THAT(late.err, Contains("1 side tasks have not ended, a"));
  Child waits(kCtl, {"wait", "a", "b", "--run-dir", folder.path().string(), "--timeout", "60"});
  REQUIRE(waits.wait_for("b: STOPPED"));
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ended["a"] = "crashed";
  }
  const auto done = waits.finish();
  CHECK(done.code == 1);
  CHECK_THAT(done.out, Contains("a: STOPPED (crashed)"));
  CHECK(manager.ask({"wait", "b"}).code == 0);
  CHECK(manager.ask({"rm", "b"}).out == "removed: b\n");
}

TEST_CASE("load refuses a parameter that an option of its own would hide") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    server.reply(request, bus::TaskReply{task_named("x", "SUBMITTED")});
  });
  for (const auto& [option, value] : {std::pair{"interface", "imperative"}, std::pair{"python", "/usr/bin/python3"}}) {
    const std::string name(option);
    const auto both = manager.ask({"load", "a.py", "--" + name, value, "--param", name + "=mine"});
    CHECK(both.code == 2);
    CHECK_THAT(both.err, Contains("--" + name + " and --param " + name + "=... are one parameter"));
    CHECK(manager.ask({"load", "a.py", "--param", name + "=mine"}).code == 0);
  }
}

TEST_CASE("load sends a file's bytes for a path, and only the name for a name") {
  const TempDir folder;
  std::mutex mutex;
  bus::Load seen;
  std::string bytes;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    seen = *request.message.as<bus::Load>();
    bytes = request.message.attachment;
    auto info = task_named(seen.name.empty() ? "made-up" : seen.name, "SUBMITTED");
    info.state.reason = "waiting for a trainer with stage 3";
    server.reply(request, bus::TaskReply{info});
  });
  std::ifstream file(CTL_TEST_PLUGIN, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const auto by_path =
      manager.ask({"load",    CTL_TEST_PLUGIN, "--stage",    "3",   "--job",       "gpt",     "--replica", "1",
                   "--name",  "mine",          "--param",    "a=1", "--param",     "b=x=y",   "--memory",  "2GiB",
                   "--steps", "100",           "--priority", "-4",  "--when-idle", "--paused"});
  CHECK(by_path.code == 0);
  CHECK(by_path.out == "mine: SUBMITTED (waiting for a trainer with stage 3)\n");
  {
    const std::lock_guard<std::mutex> lock(mutex);
    CHECK(bytes == content);
    CHECK(seen.sha256 == sha256_hex(content));
    CHECK(seen.plugin == fs::path(CTL_TEST_PLUGIN).filename().string());
    CHECK(seen.stage == 3);
    CHECK(seen.job == "gpt");
    CHECK(seen.replica == 1);
    CHECK(seen.params == std::map<std::string, std::string>{{"a", "1"}, {"b", "x=y"}});
    CHECK(seen.memory_bytes == 2LL << 30);
    CHECK(seen.steps == 100);
    CHECK(seen.priority == -4);
    CHECK(seen.when_idle);
    CHECK(seen.start_paused);
    CHECK_FALSE(seen.user.empty());
  }
  const auto by_name = manager.ask({"load", "pagerank.so", "--any-job", "--format", "json"});
  CHECK(by_name.code == 0);
  CHECK(json::parse(by_name.out)["task"]["state"]["task"] == "made-up");
  const std::lock_guard<std::mutex> lock(mutex);
  CHECK(bytes.empty());
  CHECK(seen.sha256.empty());
  CHECK(seen.plugin == "pagerank.so");
  CHECK(seen.any_job);
  CHECK(seen.stage == -1);
  CHECK(seen.replica == -1);
}

namespace {

// Plays a profile run: each follow gets the next of `replies`, the last one again and again.
class ProfilePlay {
 public:
  explicit ProfilePlay(std::vector<bus::ProfileReply> replies) : replies_(std::move(replies)) {}
  void operator()(bus::Server& server, const bus::Server::Incoming& request) {
    const std::string& command = request.message.command;
    if (command == "profile.stop") {
      ++stopped;
      bus::ProfileReply reply;
      reply.run = "r";
      reply.state = "failed";
      server.reply(request, reply);
    } else {
      if (command == "profile.take") taken = *request.message.as<bus::TakeProfile>();
      server.reply(request, replies_[std::min(next_++, replies_.size() - 1)]);
    }
  }
  bus::TakeProfile taken;
  std::atomic<int> stopped{0};

 private:
  std::vector<bus::ProfileReply> replies_;
  size_t next_ = 0;
};

bus::ProfileReply profile_reply(const std::string& state, uint64_t steps = 0) {
  bus::ProfileReply reply;
  reply.run = "r";
  reply.state = state;
  reply.worker = "host:cpu-0";
  reply.steps = steps;
  reply.reason = "being initialised";
  return reply;
}

}  // namespace

TEST_CASE("profile follows its run, says how far it is, and prints what came of it") {
  const TempDir folder;
  bus::ProfileReply done = profile_reply("done", 9);
  bus::Profile profile;
  profile.plugin = "side.so";
  profile.peak_bytes["host"] = 3 << 20;
  profile.steps = {9, 2'000'000, 3'000'000, 4'000'000, 4'000'000};
  done.profiles = {profile};
  ProfilePlay play({profile_reply("starting"), profile_reply("running", 1), profile_reply("running", 4), done});
  const FakeManager manager(folder, std::ref(play));
  const auto outcome = manager.ask({"profile", "side.so", "--steps", "9", "--worker", "host:cpu-0", "--device", "cpu-0",
                                    "--param", "a=1", "--stage", "2", "--again", "--memory", "1GiB"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, Contains("3.0 MiB at most"));
  CHECK(outcome.err ==
        "profiling side.so on host:cpu-0: being initialised\nprofiling side.so on host:cpu-0: 1 step so far\n"
        "profiling side.so on host:cpu-0: 4 steps so far\n");
  CHECK(play.taken.load.steps == 9);
  CHECK(play.taken.load.stage == 2);
  CHECK(play.taken.load.params.at("a") == "1");
  CHECK(play.taken.load.memory_bytes == 1 << 30);
  CHECK(play.taken.worker == "host:cpu-0");
  CHECK(play.taken.device == "cpu-0");
  CHECK(play.taken.again);
}

TEST_CASE("profile: a verdict decides the exit code; a manager that makes no sense is an error") {
  const auto outcome_of = [](const bus::ProfileReply& last) {
    const TempDir folder;
    ProfilePlay play({profile_reply("starting"), last});
    const FakeManager manager(folder, std::ref(play));
    return manager.ask({"profile", "side.so"});
  };
  auto failed = profile_reply("failed");
  failed.verdict.kind = "crashed";
  failed.verdict.signal = 11;
  failed.verdict.transition = "RunNextStep";
  failed.verdict.reason = "a\x1b[2Jb";
  failed.verdict.log_tail = "last words\x1b[1m\n";
  const auto crashed = outcome_of(failed);
  CHECK(crashed.code == 5);
  CHECK_THAT(crashed.err, Contains("log\nlast words"));
  CHECK_THAT(crashed.err,
             Contains("freeride-ctl: profile of side.so on host:cpu-0: crashed (signal 11 in RunNextStep)"));
  CHECK(crashed.err.find('\x1b') == std::string::npos);
  for (const char* kind : {"lost", "evicted", "stopped"}) {
    failed.verdict.kind = kind;
    CHECK(outcome_of(failed).code == 1);
  }
  const auto nothing = outcome_of(profile_reply("done"));
  CHECK(nothing.code == 1);
  CHECK_THAT(nothing.err, Contains("sends no profile"));
}

TEST_CASE("profile: Ctrl-C gives the run up, also under a manager that answers without end") {
  const TempDir folder;
  ProfilePlay play({profile_reply("running", 3)});
  const FakeManager manager(folder, std::ref(play));
  for (const int signal : {SIGINT, SIGTERM}) {
    const int before = play.stopped;
    Child child(kCtl, {"profile", "side.so", "--run-dir", folder.path().string()});
    REQUIRE(child.wait_for_error("3 steps so far"));
    child.signal(signal);
    const auto outcome = child.finish();
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, Contains("interrupted: the profile was given up"));
    CHECK(play.stopped == before + 1);
  }
}

TEST_CASE("a bare name that no drop folder has is a plugin that FreeRide was installed with") {
  const TempDir folder;
  std::mutex mutex;
  std::vector<bus::Load> seen;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (request.message.command == "plugins") return server.reply(request, bus::PluginsReply{});
    seen.push_back(*request.message.as<bus::Load>());
    if (request.message.attachment.empty())
      server.reply_error(request,
                         Error{Code::kNotFound, "there is no plugin 'shipped.so' in the drop folder", "drop it"});
    else
      server.reply(request, bus::TaskReply{task_named("made-up", "SUBMITTED")});
  });
  for (const char* plugins : {"plugins", "lib/freeride/plugins"}) {
    CAPTURE(plugins);
    const auto installed = folder.path() / (plugins[0] == 'p' ? "dist" : "usr");
    fs::create_directories(installed / "bin");
    fs::create_directories(installed / plugins);
    fs::copy_file(kCtl, installed / "bin/freeride-ctl");
    const std::vector<std::string> words{"--run-dir", folder.path(), "load", "shipped.so", "--stage", "2"};
    seen.clear();
    const auto without = Child(installed / "bin/freeride-ctl", words).finish();
    CHECK(without.code == 4);
    CHECK_THAT(without.err, Contains("there is no plugin 'shipped.so'"));
    CHECK(seen.size() == 1);
    fs::copy_file(CTL_TEST_PLUGIN, installed / plugins / "shipped.so");
    CHECK(Child(installed / "bin/freeride-ctl", words).finish().code == 0);
    REQUIRE(seen.size() == 3);
    CHECK(seen[2].plugin == "shipped.so");
    CHECK(seen[2].stage == 2);
    CHECK_FALSE(seen[2].sha256.empty());
  }
}

namespace {

// A plugin that is too large to go along with its command.
std::string large_plugin(const fs::path& file) {
  std::string text = "import freeride_plugin\n";
  while (text.size() < 700'000) text += "# " + std::to_string(text.size()) + "\n";
  std::ofstream(file) << text;
  return text;
}

}  // namespace

TEST_CASE("a large plugin is given in pieces, from where the manager has it, and load names it") {
  const TempDir folder;
  const std::string content = large_plugin(folder.path() / "side.py");
  std::mutex mutex;
  std::string got;
  size_t largest = 0;
  bool forgot = false;
  bus::Load loaded;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    largest = std::max(largest, request.message.attachment.size());
    if (request.message.command == "plugin.write") {
      const auto piece = *request.message.as<bus::WritePlugin>();
      if (piece.offset == got.size()) got += request.message.attachment;
      if (got.size() > 500'000 && !std::exchange(forgot, true)) got.clear();  // as one that was started again
      bus::FileReply reply;
      reply.next = got.size();
      return server.reply(request, reply);
    }
    loaded = *request.message.as<bus::Load>();
    server.reply(request, bus::TaskReply{task_named("side", "SUBMITTED")});
  });
  const auto done = manager.ask({"load", folder.path() / "side.py"});
  CHECK(done.code == 0);
  CHECK(got == content);
  CHECK(largest == bus::WritePlugin::kPieceBytes);
  CHECK(loaded.sha256 == sha256_hex(content));
}

TEST_CASE("a manager that takes no piece of a plugin is not asked for ever, and one that refuses it is heard") {
  const TempDir folder;
  (void)large_plugin(folder.path() / "side.py");
  std::atomic<bool> refuses{false};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    if (refuses) return server.reply_error(request, Error{Code::kExhausted, "too many plugins are on their way", ""});
    server.reply(request, bus::FileReply{});
  });
  const auto done = manager.ask({"load", folder.path() / "side.py"});
  CHECK(done.code == 3);
  CHECK_THAT(done.err, Contains("takes no bytes of the plugin"));
  refuses = true;
  CHECK_THAT(manager.ask({"load", folder.path() / "side.py"}).err, Contains("too many plugins are on their way"));
}

TEST_CASE("an earlier manager is given a large plugin together with its command") {
  const TempDir folder;
  const std::string content = large_plugin(folder.path() / "side.py");
  std::mutex mutex;
  std::string got;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (request.message.command == "plugin.write")
      return server.reply_error(request, Error{Code::kVersion, "this manager knows no command", ""});
    got = request.message.attachment;
    server.reply(request, bus::TaskReply{task_named("side", "SUBMITTED")});
  });
  CHECK(manager.ask({"load", folder.path() / "side.py"}).code == 0);
  CHECK(got == content);
}

TEST_CASE("a load that may have been done says so, and doing it again as it says is done once") {
  const TempDir folder;
  std::mutex mutex;
  std::vector<bus::Server::Incoming> loads;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (request.message.command == "load") return loads.push_back(request);
    for (const auto& late : loads) server.reply(late, bus::TaskReply{task_named("once", "SUBMITTED")});
    server.reply(request, bus::StatusReply{});
  });
  const std::string run_dir = folder.path().string();
  const auto silent = run({"--run-dir", run_dir, "--timeout", "0.5", "load", "some.so"});
  CHECK(silent.code == 3);
  CHECK_THAT(silent.err, Contains("may have been done"));
  const std::string option = "--request-id ";
  const size_t at = silent.err.find(option);
  REQUIRE(at != std::string::npos);
  const std::string id = silent.err.substr(at + option.size(), 16);
  CHECK(manager.ask({"status"}).code == 0);  // by now it has been done
  const auto again = manager.ask({"load", "some.so", "--request-id", id});
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Contains("once"));
  CHECK(loads.size() == 1);
  CHECK(manager.ask({"load", "some.so", "--request-id", "mine"}).code == 2);
}

TEST_CASE("a job is drained and given back by the name that people are shown") {
  const TempDir folder;
  std::mutex mutex;
  std::vector<std::string> subjects;
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto drain = request.message.as<bus::Drain>();
    subjects.push_back(drain ? drain->subject : request.message.as<bus::Uncordon>()->subject);
    server.reply(request, bus::DrainReply{"job", "0/gpt", {}});
  });
  for (const char* typed : {"root/gpt", "job:root/gpt", "gpt", "host:gpu7", "device:gpu7:cpu-0"}) {
    const auto drained = manager.ask({"drain", typed});
    CHECK(drained.code == 0);
    CHECK_THAT(drained.out, Contains("job root/gpt: no worker has it now"));
    CHECK(manager.ask({"uncordon", typed}).out == "job root/gpt is given back\n");
  }
  CHECK(subjects == std::vector<std::string>{"0/gpt", "0/gpt", "job:0/gpt", "job:0/gpt", "gpt", "gpt", "host:gpu7",
                                             "host:gpu7", "device:gpu7:cpu-0", "device:gpu7:cpu-0"});
}

TEST_CASE("what cannot be a plugin never reaches the manager") {
  const TempDir folder;
  std::atomic<int> requests{0};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    ++requests;
    server.reply(request, bus::TaskReply{});
  });
  const auto text = folder.path() / "text.so";
  std::ofstream(text) << "not an ELF file";
  std::ofstream(folder.path() / "empty.so").close();
  REQUIRE(mkfifo((folder.path() / "fifo.so").c_str(), 0600) == 0);
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string message;
  };
  for (const Case& one : {
           Case{{"load", text.string()}, 2, "is not an ELF file"},
           Case{{"load", (folder.path() / "empty.so").string()}, 2, "is empty"},
           Case{{"load", (folder.path() / "fifo.so").string()}, 2, "is not a file"},
           Case{{"load", folder.path().string() + "/"}, 2, "is no Python package"},
           Case{{"load", "./no-such-file.so"}, 4, "no-such-file.so"},
           Case{{"load", CTL_TEST_PLUGIN, "--memory", "lots"}, 2, "--memory: 'lots' is not a size"},
           Case{{"load", CTL_TEST_PLUGIN, "--param", "novalue"}, 2, "'novalue'"},
           Case{{"load", CTL_TEST_PLUGIN, "--stage", "x"}, 2, "stage"},
           Case{{"load", CTL_TEST_PLUGIN, "--stage", "-2"}, 2, "stage"},
           Case{{"load", CTL_TEST_PLUGIN, "--steps", "0"}, 2, "steps"},
       }) {
    CAPTURE(one.arguments);
    const auto outcome = manager.ask(one.arguments);
    CHECK(outcome.code == one.code);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, StartsWith("freeride-ctl: ") && Contains(one.message));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  }
  CHECK(requests == 0);
}

TEST_CASE("stop, pause and resume, several at once; one that is gone does not keep the others") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    const auto name = request.message.as<bus::StopTask>()->task;  // the three commands have the same fields
    if (name == "gone") {
      server.reply_error(request, Error{Code::kNotFound, "no task is named 'gone'", "freeride-ctl tasks lists them"});
      return;
    }
    const std::string& command = request.message.command;
    server.reply(request, bus::TaskReply{task_named(name, command == "stop"    ? "STOPPED"
                                                          : command == "pause" ? "PAUSED"
                                                                               : "RUNNING")});
  });
  CHECK(manager.ask({"stop", "a"}).out == "a: STOPPED\n");
  CHECK(manager.ask({"pause", "a"}).out == "a: PAUSED\n");
  CHECK(manager.ask({"resume", "a", "b"}).out == "a: RUNNING\nb: RUNNING\n");
  const auto mixed = manager.ask({"stop", "a", "gone", "b"});
  CHECK(mixed.code == 4);
  CHECK(mixed.out == "a: STOPPED\nb: STOPPED\n");
  CHECK(mixed.err == "freeride-ctl: no task is named 'gone'; freeride-ctl tasks lists them\n");
  const auto as_json = manager.ask({"stop", "a", "b", "--format", "json"});
  CHECK(json::parse(as_json.out)["tasks"].size() == 2);
}

TEST_CASE("the manager's errors become exit codes and one line") {
  const TempDir folder;
  std::atomic<Code> code{Code::kInternal};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    server.reply_error(request, Error{code, "it did not work\x1b[2J\nat all", "do something"});
  });
  for (const auto& [error, expected] : std::map<Code, int>{{Code::kInvalidArgument, 2},
                                                           {Code::kNotFound, 4},
                                                           {Code::kAlreadyExists, 1},
                                                           {Code::kRejected, 5},
                                                           {Code::kUnavailable, 3},
                                                           {Code::kVersion, 1},
                                                           {Code::kPermission, 1},
                                                           {Code::kExhausted, 1},
                                                           {Code::kInternal, 1}}) {
    code = error;
    CAPTURE(to_string(error));
    const auto outcome = manager.ask({"task", "x", "--format", "json"});
    CHECK(outcome.code == expected);
    CHECK(outcome.out.empty());
    CHECK(outcome.err == "freeride-ctl: it did not work?[2J?at all; do something\n");
    const auto apart = manager.ask({"task", "x", "--errors", "json"});
    CHECK(apart.code == expected);
    CHECK(json::parse(apart.err) ==
          json{{"code", to_string(error)}, {"message", "it did not work\x1b[2J\nat all"}, {"hint", "do something"}});
  }
}

TEST_CASE("no manager, and a manager that hangs: exit 3 after the timeout, saying where and what to start") {
  const TempDir folder;
  const auto check = [&](const std::vector<std::string>& arguments) {
    CAPTURE(arguments);
    const auto outcome = run(arguments);
    CHECK(outcome.code == 3);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err,
               StartsWith("freeride-ctl: no ") && Contains(folder.path().string()) && Contains("freeride-manager"));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  };
  check({"--run-dir", folder.path().string(), "--timeout", "0.2", "status"});
  check({"--run-dir", folder.path().string(), "--timeout", "0.2", "stop", "a", "b"});
  // Without a socket nobody waits for the timeout; the test's own is shorter.
  check({"--run-dir", folder.path().string(), "--timeout", "86400", "status"});
  check({"--run-dir", folder.path().string(), "events", "--count", "1"});
  check({"--run-dir", folder.path().string(), "top", "--count", "1"});
  const FakeManager silent(folder, [](bus::Server&, const bus::Server::Incoming&) {});
  check({"--run-dir", folder.path().string(), "--timeout", "0.5", "tasks"});
  // A socket file that a dead manager left behind.
  const fs::path stale = folder.path() / "events.sock";
  std::ofstream(stale).close();
  check({"--run-dir", folder.path().string(), "events", "--count", "1"});
}

TEST_CASE("a manager that does not know the command has ranks all the same, of unknown reason") {
  const TempDir folder;
  const FakeManager manager(folder, [](bus::Server& server, const bus::Server::Incoming& request) {
    if (request.message.command != "workers") {
      return server.reply_error(request, Error{Code::kVersion, "this manager knows no such command", ""});
    }
    bus::WorkerInfo worker;
    worker.state.host = "head";
    worker.ranks.resize(2);
    worker.ranks[0].job = "gpt";
    worker.ranks[0].state = "active";
    worker.ranks[1].job = "bert";
    server.reply(request, bus::WorkersReply{{worker}});
  });
  const auto outcome = manager.ask({"ranks", "gpt"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK_THAT(outcome.out, Contains("active  unknown") && Contains("older version") && !Contains("bert"));
  const auto as_json = json::parse(manager.ask({"ranks", "gpt", "--format", "json"}).out);
  CHECK(as_json["ranks"][0]["state"]["why"] == "unknown");
}

TEST_CASE("top says that no events come, where the manager has workers") {
  const TempDir folder;
  zmq::context_t context;
  auto broker = bus::Broker::start(context, folder.endpoint("publish"), folder.endpoint("events"));
  REQUIRE(broker.ok());
  std::atomic<int> workers{2};
  const FakeManager manager(folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    server.reply(request, bus::WorkersReply{std::vector<bus::WorkerInfo>(static_cast<size_t>(workers))});
  });
  const std::vector<std::string> words{"--run-dir", folder.path(), "--timeout", "5", "top", "--count", "1"};
  const auto deaf = run(words);
  CHECK(deaf.code == 3);
  CHECK(deaf.out.empty());
  CHECK_THAT(deaf.err, Contains("no events come from") && Contains("2 workers"));
  workers = 0;
  const auto empty = run(words);
  CHECK(empty.code == 0);
  CHECK_THAT(empty.out, Contains("0 of 0 workers up"));
}

TEST_CASE("garbage from the manager is skipped or reported, never believed") {
  const TempDir folder;
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  router.bind(folder.endpoint("commands"));
  std::atomic<bool> stop{false};
  std::thread liar([&] {
    while (!stop) {
      std::array<zmq::pollitem_t, 1> items{zmq::pollitem_t{router.handle(), 0, ZMQ_POLLIN, 0}};
      zmq::poll(items.data(), items.size(), std::chrono::milliseconds(20));
      zmq::message_t peer;
      if (!router.recv(peer, zmq::recv_flags::dontwait)) continue;
      std::string request;
      for (bool more = true; more;) {
        zmq::message_t part;
        if (!router.recv(part, zmq::recv_flags::none)) break;
        if (request.empty()) request = part.to_string();
        more = part.more();
      }
      const auto asked = json::from_msgpack(request, true, false);
      auto reply = asked;
      reply["kind"] = "reply";
      reply["ok"] = true;
      reply["body"] = json::binary({0xc1, 0xff});  // 0xc1 is never MessagePack
      auto wrong_version = reply;
      wrong_version["v"] = 99;
      const auto packed = json::to_msgpack(reply);
      const auto packed_wrong = json::to_msgpack(wrong_version);
      for (const std::string& bytes :
           {std::string("\xc1 garbage"), std::string(),
            std::string(packed.begin(), packed.begin() + static_cast<long>(packed.size() / 2)),
            std::string(packed_wrong.begin(), packed_wrong.end()), request,
            std::string(packed.begin(), packed.end())}) {
        router.send(zmq::buffer(peer.data(), peer.size()), zmq::send_flags::sndmore);
        router.send(zmq::buffer(bytes), zmq::send_flags::none);
      }
    }
  });
  const auto outcome = run({"--run-dir", folder.path().string(), "--timeout", "3", "tasks"});
  stop = true;
  liar.join();
  CHECK((outcome.code == 1 || outcome.code == 3));
  CHECK(outcome.out.empty());
  CHECK_THAT(outcome.err, StartsWith("freeride-ctl: "));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

TEST_CASE("events come as lines or as JSON, kept states first, until the count or Ctrl-C") {
  const TempDir folder;
  zmq::context_t context;
  auto broker = bus::Broker::start(context, folder.endpoint("publish"), folder.endpoint("events"));
  REQUIRE(broker.ok());
  auto publisher = bus::Publisher::connect(context, folder.endpoint("publish"), "test");
  REQUIRE(publisher.ok());
  std::atomic<bool> stop{false};
  std::thread source([&] {
    bus::BubbleEnd bubble;
    bubble.job = "gpt";
    for (uint64_t i = 0; !stop; ++i) {
      (*publisher)->publish(task_named("pagerank", "RUNNING").state);
      bubble.iteration = i;
      (*publisher)->publish(bubble);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const std::string run_dir = folder.path().string();
  const auto lines = run({"--run-dir", run_dir, "events", "--topic", "task.state/pagerank", "--count", "3"});
  const auto as_json = run({"--run-dir", run_dir, "events", "--topic", "bubble.", "--count", "5", "--format", "json"});
  Child endless(kCtl, {"--run-dir", run_dir, "events"});
  const bool flowed = endless.wait_for("bubble.end/gpt/0");
  endless.signal(SIGINT);
  const auto interrupted = endless.finish();
  const auto top = run({"--run-dir", run_dir, "top", "--count", "2", "--interval", "0.2"});
  const auto top_json = run({"--run-dir", run_dir, "top", "--count", "2", "--interval", "0.2", "--format", "json"});
  stop = true;
  source.join();

  CHECK(lines.code == 0);
  CHECK(std::count(lines.out.begin(), lines.out.end(), '\n') == 3);
  CHECK_THAT(lines.out, Contains("task.state/pagerank") && Contains("state=RUNNING"));
  CHECK(as_json.code == 0);
  std::istringstream stream(as_json.out);
  int count = 0;
  uint64_t last = 0;
  for (std::string line; std::getline(stream, line); ++count) {
    const auto event = json::parse(line);
    CHECK(event["topic"] == "bubble.end/gpt/0");
    if (count > 0) CHECK(event["iteration"] == last + 1);
    last = event["iteration"];
  }
  CHECK(count == 5);
  CHECK(flowed);
  CHECK(interrupted.code == 0);
  CHECK(top.code == 0);
  CHECK_THAT(top.out, Contains("pagerank") && Contains("RUNNING") && !Contains("\x1b"));
  CHECK(top_json.code == 0);
  CHECK_THAT(top_json.out, Contains("\"task\":\"pagerank\""));
}

TEST_CASE("plugin check starts the runner beside it and takes over its exit code") {
  const TempDir folder;
  const auto ctl = folder.path() / "freeride-ctl";
  fs::copy_file(kCtl, ctl);
  const auto without = Child(ctl, {"plugin", "check", "x.so"}, {"PATH=/nowhere"}).finish();
  CHECK(without.code == 3);
  CHECK_THAT(without.err, Contains("freeride-runner") && Contains("PATH"));
  const auto runner = folder.path() / "freeride-runner";
  std::ofstream(runner) << "#!/bin/sh\necho \"$@\"\nexit 5\n";
  fs::permissions(runner, fs::perms::owner_all);
  const auto beside =
      Child(ctl, {"plugin", "check", "x.so", "--param", "a=1", "--steps", "7"}, {"PATH=/nowhere"}).finish();
  CHECK(beside.code == 5);
  CHECK(beside.out == "check x.so --format text --param a=1 --steps 7\n");
  const auto described = Child(ctl, {"plugin", "describe", "x.so", "--format", "json"}, {"PATH=/nowhere"}).finish();
  CHECK(described.out == "describe x.so --format json\n");
}

TEST_CASE("python-path prints the folder of the package, in an installation as in a packed tree and a wheel") {
  const TempDir folder;
  const auto ctl = folder.path() / "bin/freeride-ctl";
  fs::create_directory(folder.path() / "bin");
  fs::copy_file(kCtl, ctl);
  const auto without = Child(ctl, {"python-path"}).finish();
  CHECK(without.code == 4);
  CHECK_THAT(without.err, Contains(folder.path().string()) && Contains("pip install"));
  for (const char* place : {"python", "share/freeride/python"}) {
    fs::create_directories(folder.path() / place / "freeride");
    std::ofstream(folder.path() / place / "freeride/__init__.py") << "";
    const auto found = Child(ctl, {"python-path"}).finish();
    CHECK(found.code == 0);
    CHECK(found.out == (folder.path() / place).string() + "\n");
  }
  CHECK(json::parse(Child(ctl, {"python-path", "--format", "json"}).finish().out)["path"] ==
        (folder.path() / "share/freeride/python").string());
  const auto package = folder.path() / "site-packages/freeride";
  fs::create_directories(package / "_tree/bin");
  std::ofstream(package / "__init__.py") << "";
  fs::copy_file(kCtl, package / "_tree/bin/freeride-ctl");
  const auto found = Child(package / "_tree/bin/freeride-ctl", {"python-path"}).finish();
  CHECK(found.out == package.parent_path().string() + "\n");
}

TEST_CASE("wrong usage is exit 2 with one line; help and version are exit 0") {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{},
                                                                     {"fly"},
                                                                     {"load"},
                                                                     {"task"},
                                                                     {"stop"},
                                                                     {"plugin"},
                                                                     {"tasks", "--format", "xml"},
                                                                     {"tasks", "--timeout", "soon"},
                                                                     {"tasks", "--no-such-option"},
                                                                     {"events", "--count", "-1"}}) {
    CAPTURE(arguments);
    const auto outcome = run(arguments);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, StartsWith("freeride-ctl: ") && Contains("--help"));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  }
  const auto help = run({"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Contains("Examples") && Contains("Exit codes") && Contains("load"));
  CHECK(run({"load", "--help"}).code == 0);
  CHECK_THAT(run({"--version"}).out, Contains("0."));
}

TEST_CASE("configuration: file below environment below flags, and an unknown key is refused") {
  const TempDir folder;
  const auto file = folder.path() / "freeride.toml";
  std::ofstream(file) << "[ctl]\ntimeout = 0.1\nrun_dir = \"" << (folder.path() / "from-file").string() << "\"\n";
  const std::string config = "FREERIDE_CONFIG=" + file.string();
  CHECK_THAT(run({"status"}, {config}).err, Contains("from-file"));
  CHECK_THAT(run({"status"}, {config, "FREERIDE_RUN_DIR=/tmp/from-environment"}).err, Contains("from-environment"));
  CHECK_THAT(run({"status", "--run-dir", "/tmp/from-flag"}, {config, "FREERIDE_RUN_DIR=/tmp/from-environment"}).err,
             Contains("from-flag"));
  std::ofstream(file) << "[ctl]\ncolour = \"red\"\n";
  const auto unknown = run({"status"}, {config});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("colour") && Contains("known keys"));
}

// ---- host add, host join

namespace {

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

unsigned mode_of(const fs::path& file) {
  struct stat info {};
  REQUIRE(stat(file.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

sockaddr_in loopback_at(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A socket that listens there; invalid where the port is taken. 0: any port.
Fd listener_at(uint16_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback_at(port);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(fd.get(), 8) != 0)
    fd.reset();
  return fd;
}

uint16_t port_of(const Fd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  REQUIRE(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return ntohs(address.sin_port);
}

// The first of three ports that are free together.
uint16_t three_free_ports() {
  for (;;) {
    const Fd first = listener_at(0);
    const uint16_t port = port_of(first);
    if (port < 65533 && listener_at(port + 1).valid() && listener_at(port + 2).valid()) return port;
  }
}

// systemctl and journalctl on the PATH, that write down how they are called and answer what they are told to.
class PlayedSystemd {
 public:
  explicit PlayedSystemd(const fs::path& folder) : folder_(folder) {
    fs::create_directory(folder_);
    const std::string failure = (folder_ / "failure").string();
    program("systemctl", "echo \"$@\" >>" + (folder_ / "calls").string() + "\ncase $1 in\n  list-units) cat " +
                             (folder_ / "units").string() + " ;;\n  *) [ ! -e " + failure + " ] || { cat " + failure +
                             "; exit 1; } ;;\nesac\n");
    program("journalctl", "echo '2026-11-23T03:14:05.000 error [freeride-worker] no driver; use --device cpu-N'\n");
    units("");
  }
  std::string path() const { return "PATH=" + folder_.string() + ":/usr/bin:/bin"; }
  void units(const std::string& text) const { std::ofstream(folder_ / "units") << text; }
  void fail(const std::string& text) const { std::ofstream(folder_ / "failure") << text; }
  std::string calls() const {
    std::string lines;
    std::ifstream all(folder_ / "calls");
    for (std::string line; std::getline(all, line);) {
      if (line.rfind("list-units", 0) != 0) lines += line + "\n";
    }
    return lines;
  }

 private:
  void program(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  fs::path folder_;
};

// A manager's keys, made by `host add`, and another host's folder of settings.
struct TwoHosts {
  TwoHosts() {
    const auto added = host_add({});
    REQUIRE(added.code == 0);
    CHECK(added.err.empty());
  }
  Outcome host_add(std::vector<std::string> more, const std::string& host = "gpu7") const {
    std::vector<std::string> words = {"host",
                                      "add",
                                      host,
                                      "--etc",
                                      head_etc.string(),
                                      "--keys-dir",
                                      keys.string(),
                                      "--out",
                                      (folder.path() / (host + "-node.key")).string()};
    if (more.empty()) more = {"--no-start"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, {systemd.path()});
  }
  Outcome host_join(const std::string& head, const std::vector<std::string>& more = {"--no-start"}) const {
    std::vector<std::string> words = {"host", "join", head, key.string(), "--etc", etc.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, {systemd.path()});
  }
  const TempDir folder;
  const fs::path keys = folder.path() / "keys", head_etc = folder.path() / "head", etc = folder.path() / "etc",
                 key = folder.path() / "gpu7-node.key";
  const PlayedSystemd systemd{folder.path() / "systemd"};
};

// What listens on the network for these keys: commands, and two ports that accept.
class NetworkManager {
 public:
  explicit NetworkManager(const TwoHosts& hosts) : authorized_(hosts.keys / "authorized" / "gpu7-node.key") {
    const auto own = read_secret_key(hosts.keys / "manager.key");
    REQUIRE(own.ok());
    auto door = bus::Doorkeeper::start(context_, own->secret_key, [this](const std::string& key) {
      const auto known = read_authorized_key(authorized_);
      return known.ok() && known->public_key == key;
    });
    REQUIRE(door.ok());
    door_ = std::move(*door);
    auto server = bus::Server::bind(context_, hosts.folder.endpoint("manager"));
    REQUIRE(server.ok());
    server_ = std::move(*server);
    REQUIRE(server_->listen(context_, {"tcp://" + address(), door_.get()}).ok());
    events_ = listener_at(port + 1);
    nodes_ = listener_at(port + 2);
    thread_ = std::thread([this] {
      while (!stop_) {
        if (auto incoming = server_->receive(std::chrono::milliseconds(20))) {
          asked_for_uid = asked_for_uid || incoming->message.uid.has_value();
          server_->reply(*incoming, bus::StatusReply{});
        }
      }
    });
  }
  ~NetworkManager() {
    stop_ = true;
    thread_.join();
  }
  NetworkManager(const NetworkManager&) = delete;
  NetworkManager& operator=(const NetworkManager&) = delete;
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
  void close_nodes_port() { nodes_.reset(); }

  const uint16_t port = three_free_ports();
  std::atomic<bool> asked_for_uid{false};

 private:
  fs::path authorized_;
  zmq::context_t context_;
  std::unique_ptr<bus::Doorkeeper> door_;
  std::unique_ptr<bus::Server> server_;
  Fd events_, nodes_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string settings_for(const TwoHosts& hosts, const std::string& address) {
  return "FREERIDE_MANAGER=tcp://" + address + "\nFREERIDE_KEY=" + (hosts.etc / "node.key").string() + "\n";
}

}  // namespace

TEST_CASE("host add makes a node's key and the manager's setting, and done again it changes nothing") {
  const TwoHosts hosts;
  const auto secret = read_secret_key(hosts.key);
  REQUIRE(secret.ok());
  CHECK(secret->role == "node");
  CHECK(secret->host == "gpu7");
  CHECK(read_authorized_key(hosts.keys / "authorized/gpu7-node.key")->public_key == secret->public_key);
  CHECK(text_of(hosts.head_etc / "manager.env") == "FREERIDE_LISTEN=tcp://*:7420\n");
  const auto again = hosts.host_add({});
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Contains("is there already") && Contains("freeride-ctl host join ") &&
                            Contains(" gpu7-node.key\n") && Contains("ports 7420, 7421 and 7422"));
  CHECK(read_secret_key(hosts.key)->public_key == secret->public_key);
  CHECK(text_of(hosts.head_etc / "manager.env") == "FREERIDE_LISTEN=tcp://*:7420\n");
  const auto other = json::parse(hosts.host_add({"--no-start", "--format", "json"}, "gpu8").out);
  CHECK(other["key"] == "gpu8-node");
  CHECK(other["changed"] == true);
  CHECK(hosts.systemd.calls().empty());

  // A key whose file is elsewhere is not made twice, and no other file is taken for one.
  fs::rename(hosts.key, hosts.folder.path() / "taken.key");
  const auto twice = hosts.host_add({});
  CHECK(twice.code == 1);
  CHECK_THAT(twice.err,
             Contains("there is a node's key for the host gpu7 already") && Contains("keys revoke gpu7-node"));
  CHECK(hosts.host_add({}, "g 7").code == 2);
  CHECK(hosts.host_add({}, std::string(57, 'g')).code == 2);
}

TEST_CASE("host add leaves a manager that listens already, and says where others reach it") {
  const TwoHosts hosts;
  const auto env = hosts.head_etc / "manager.env", config = hosts.head_etc / "freeride.toml";
  std::ofstream(env) << "# mine\nFREERIDE_LISTEN='tcp://*:7500'\n";
  auto told = hosts.host_add({});
  CHECK_THAT(told.out, Contains("set to listen at tcp://*:7500 already") && Contains("host join tcp://") &&
                           Contains(":7500 gpu7-node.key") && Contains("ports 7500, 7501 and 7502"));
  std::ofstream(env) << "FREERIDE_LOG_LEVEL=debug";
  std::ofstream(config) << "[manager]\nlisten = \"tcp://10.0.0.1:7420\"\n";
  told = hosts.host_add({});
  CHECK_THAT(told.out, Contains("host join 10.0.0.1 gpu7-node.key"));
  CHECK(text_of(env) == "FREERIDE_LOG_LEVEL=debug");

  // Settings that keep others out, or cannot be read: nothing is made.
  std::ofstream(config) << "[manager]\nlisten = \"tcp://127.0.0.1:7420\"\n";
  told = hosts.host_add({}, "gpu8");
  CHECK(told.code == 2);
  CHECK_THAT(told.err, Contains("where no other host reaches it") && Contains(config.string()));
  std::ofstream(config) << "[manager]\nlisten = \"7420\"\n";
  CHECK(hosts.host_add({}, "gpu8").code == 2);
  std::ofstream(config) << "[manager\n";
  CHECK(hosts.host_add({}, "gpu8").code == 2);
  CHECK_FALSE(fs::exists(hosts.folder.path() / "gpu8-node.key"));

  // The file that the unit names is the one that counts.
  const auto other = hosts.folder.path() / "other.toml";
  std::ofstream(other) << "[manager]\nbudget_pct = 1\n";
  std::ofstream(env) << "FREERIDE_CONFIG=" << other.string();
  CHECK(hosts.host_add({}).code == 0);
  CHECK(text_of(env) == "FREERIDE_CONFIG=" + other.string() + "\nFREERIDE_LISTEN=tcp://*:7420\n");
}

TEST_CASE("host add restarts the manager and waits until it listens") {
  const TwoHosts hosts;
  const auto env = hosts.head_etc / "manager.env";
  fs::remove(env);
  const FakeManager manager(hosts.folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    bus::StatusReply reply;
    if (hosts.systemd.calls().find("restart") != std::string::npos) reply.network = "tcp://*:7420, by key";
    server.reply(request, reply);
  });
  const std::vector<std::string> here = {"--run-dir", hosts.folder.path().string()};
  const auto told = hosts.host_add(here);
  CHECK(told.code == 0);
  CHECK_THAT(told.out, Contains("and freeride-manager was restarted"));
  CHECK(hosts.systemd.calls() == "enable freeride-manager\nrestart freeride-manager\n");
  // It listens now: nothing is restarted, whoever has told it to.
  fs::remove(env);
  CHECK(hosts.host_add(here).code == 0);
  CHECK_FALSE(fs::exists(env));
  // Found where its unit's settings say that it is.
  const std::string place = "FREERIDE_RUN_DIR=" + hosts.folder.path().string() + "\n";
  std::ofstream(env) << place;
  CHECK(run({"host", "add", "gpu7", "--etc", hosts.head_etc.string(), "--keys-dir", hosts.keys.string(), "--out",
             hosts.key.string()},
            {hosts.systemd.path()})
            .code == 0);
  CHECK(text_of(env) == place);
  CHECK(hosts.systemd.calls() == "enable freeride-manager\nrestart freeride-manager\n");
}

TEST_CASE("host add says what systemd has said") {
  const TwoHosts hosts;
  fs::remove(hosts.head_etc / "manager.env");
  hosts.systemd.fail("Unit freeride-manager.service does not exist.\nmore\n");
  const auto told = hosts.host_add({"--run-dir", hosts.folder.path().string()});
  CHECK(told.code == 3);
  CHECK_THAT(told.err, Contains("systemctl enable freeride-manager has failed: Unit freeride-manager.service does") &&
                           !Contains("more") && Contains("systemctl restart freeride-manager"));
}

TEST_CASE("host join installs key and settings, keeps all others, and done again it changes nothing") {
  const TwoHosts hosts;
  NetworkManager manager(hosts);
  const auto told = hosts.host_join(manager.address());
  CHECK(told.code == 0);
  CHECK(told.err.empty());
  CHECK_THAT(told.out,
             Contains("join tcp://" + manager.address() + " as gpu7") && Contains("systemctl restart freeride-node"));
  CHECK(manager.asked_for_uid);
  CHECK(text_of(hosts.etc / "node.key") == text_of(hosts.key));
  CHECK(mode_of(hosts.etc / "node.key") == 0600);
  CHECK(text_of(hosts.etc / "node.env") == settings_for(hosts, manager.address()));
  CHECK(mode_of(hosts.etc / "node.env") == 0644);

  const auto again = json::parse(hosts.host_join(manager.address(), {"--no-start", "--format", "json"}).out);
  CHECK(again["changed"] == false);
  CHECK(again["host"] == "gpu7");

  // From the key that is installed, which would stay as it is; with what the operator has written around ours.
  std::ofstream(hosts.etc / "node.env") << "# mine\nFREERIDE_LOG_LEVEL=debug\nFREERIDE_MANAGER=tcp://old:7420\nA=1";
  fs::permissions(hosts.etc / "node.env", fs::perms::owner_read | fs::perms::owner_write);
  const auto words = std::vector<std::string>{"host",
                                              "join",
                                              manager.address(),
                                              (hosts.etc / "node.key").string(),
                                              "--etc",
                                              hosts.etc.string(),
                                              "--no-start",
                                              "--device",
                                              "cpu-0",
                                              "--cores",
                                              "0"};
  CHECK(run(words, {hosts.systemd.path()}).code == 0);
  CHECK(text_of(hosts.etc / "node.env") ==
        "# mine\nFREERIDE_LOG_LEVEL=debug\nFREERIDE_MANAGER=tcp://" + manager.address() +
            "\nA=1\nFREERIDE_KEY=" + (hosts.etc / "node.key").string() + "\nFREERIDE_DEVICE=cpu-0\nFREERIDE_CORES=0\n");
  CHECK(mode_of(hosts.etc / "node.env") == 0600);
  CHECK(text_of(hosts.etc / "node.key") == text_of(hosts.key));
  CHECK(hosts.systemd.calls().empty());
  for (const auto& entry : fs::directory_iterator(hosts.etc)) CHECK(entry.path().filename().string()[0] != '.');
}

TEST_CASE("host join refuses, and changes nothing") {
  const TwoHosts hosts;
  NetworkManager manager(hosts);
  const auto refused = [&](const Outcome& told, int code, const std::string& what, const std::string& todo) {
    CAPTURE(told.err);
    CHECK(told.code == code);
    CHECK(told.out.empty());
    CHECK_THAT(told.err, StartsWith("freeride-ctl: ") && Contains(what) && Contains(todo));
    CHECK(std::count(told.err.begin(), told.err.end(), '\n') == 1);
    CHECK_FALSE(fs::exists(hosts.etc));
    CHECK(hosts.systemd.calls().empty());
  };
  const auto with_key = [&](const fs::path& key) {
    return run({"host", "join", manager.address(), key.string(), "--etc", hosts.etc.string(), "--no-start"},
               {hosts.systemd.path()});
  };

  SECTION("the key is none of a node's, has no secret, is open to others or is not there") {
    refused(with_key(hosts.folder.path() / "none.key"), 4, "none.key", "");
    const auto monitor = hosts.folder.path() / "m.key";
    REQUIRE(
        run({"keys", "make", "m", "--role", "monitor", "--keys-dir", hosts.keys.string(), "--out", monitor.string()})
            .code == 0);
    refused(with_key(monitor), 2, "is no key of a node (its role is 'monitor')", "freeride-ctl host add");
    const auto open = hosts.folder.path() / "open.key";
    fs::copy_file(hosts.key, open);
    fs::permissions(open, fs::perms::group_read, fs::perm_options::add);
    refused(with_key(open), 1, "other users may read it", "chmod 600");
    const auto without = hosts.folder.path() / "public.key";
    fs::copy_file(hosts.keys / "authorized/gpu7-node.key", without);
    refused(with_key(without), 2, "it has no 'secret' key", "");
  }
  SECTION("the key was revoked, or is another manager's") {
    const TwoHosts others;
    refused(with_key(others.key), 1, "is not the one that", "check --manager");
    fs::remove(hosts.keys / "authorized/gpu7-node.key");
    refused(hosts.host_join(manager.address()), 1, "refused this key", "keys list");
  }
  SECTION("ports are closed") {
    manager.close_nodes_port();
    const auto port = std::to_string(manager.port + 2);
    refused(hosts.host_join(manager.address()), 3, "nobody is reached at tcp://127.0.0.1:" + port, "a firewall must");
    const auto nobody = three_free_ports();
    refused(hosts.host_join("127.0.0.1:" + std::to_string(nobody)), 3,
            "nor at ports " + std::to_string(nobody + 1) + " and " + std::to_string(nobody + 2),
            "freeride-ctl host add gpu7");
    refused(hosts.host_join("not a host"), 2, "'not a host'", "tcp://HOST:PORT");
    refused(hosts.host_join("no-such-host.invalid"), 2, "is not known", "name a host");
  }
  SECTION("units want the same devices") {
    hosts.systemd.units(
        "freeride-manager.service loaded active running FreeRide manager\n"
        "freeride-worker@cpu-0.service loaded activating auto-restart FreeRide worker\n");
    refused(hosts.host_join(manager.address()), 1, "freeride-worker@cpu-0, freeride-manager",
            "systemctl disable --now freeride-worker@cpu-0 freeride-manager");
  }
  SECTION("systemd does not answer") {
    const auto told = run({"host", "join", manager.address(), hosts.key.string(), "--etc", hosts.etc.string()},
                          {"PATH=" + hosts.folder.path().string()});
    refused(told, 3, "systemctl", "--no-start");
  }
  SECTION("options make no sense, and without root there is no /etc to write") {
    CHECK(hosts.host_join(manager.address(), {"--no-start", "--cores", "0"}).code == 2);
    if (geteuid() != 0) refused(run({"host", "join", "head", hosts.key.string()}), 1, "only root may", "sudo");
  }
}

TEST_CASE("host join starts the node and says with how many workers it has joined") {
  const TwoHosts hosts;
  const NetworkManager manager(hosts);
  std::atomic<int> asked{0};
  const FakeManager node(hosts.folder, [&](bus::Server& server, const bus::Server::Incoming& request) {
    if (asked++ == 0)
      return server.reply_error(request, Error{Code::kUnavailable, "this host's node does not reach it", ""});
    bus::StatusReply reply;
    for (const char* name : {"gpu7:cpu-0", "gpu7:cpu-1", "gpu70:cpu-0", "gpu7:cpu-2"}) {
      bus::WorkerInfo worker;
      worker.state.worker = name;
      worker.state.state = name == std::string("gpu7:cpu-2") ? "lost" : "up";
      reply.workers.push_back(worker);
    }
    server.reply(request, reply);
  });
  const std::vector<std::string> here = {"--run-dir", hosts.folder.path().string()};
  const auto told = hosts.host_join(manager.address(), here);
  CHECK(told.err.empty());
  CHECK(told.out == "joined tcp://" + manager.address() + " as gpu7, with 2 workers\n");
  CHECK(told.code == 0);
  CHECK(hosts.systemd.calls() == "enable freeride-node\nrestart freeride-node\n");
  CHECK(hosts.host_join(manager.address(), here).code == 0);
  // Nothing had to be changed, so side tasks of a node that runs go on.
  CHECK(hosts.systemd.calls() ==
        "enable freeride-node\nrestart freeride-node\n"
        "enable freeride-node\nstart freeride-node\n");
  std::ofstream(hosts.etc / "node.env", std::ios::app) << "FREERIDE_RUN_DIR=" << hosts.folder.path().string() << "\n";
  CHECK(hosts.host_join(manager.address(), {}).code == 0);
}

TEST_CASE("host join: a node that does not start is told with its last word") {
  const TwoHosts hosts;
  const NetworkManager manager(hosts);
  const auto told = hosts.host_join(manager.address(), {"--run-dir", hosts.folder.path().string()});
  CHECK(told.code == 3);
  CHECK_THAT(told.err,
             Contains("has not joined tcp://" + manager.address() + ": no driver; use --device cpu-N; on a host") &&
                 Contains("add --device cpu-0 --cores 0") && Contains("journalctl -u freeride-node"));
}
