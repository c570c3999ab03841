// For process tests: a freeride-worker of one's own, and the trainer, the manager and the watchers around it.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "acting/fake_pages_test_support.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/pages/handover.hpp"
#include "loop/temp_folder_test_support.hpp"

namespace freeride::worker::testing {

constexpr auto kWatchdog = std::chrono::seconds(120);

inline pid_t spawn_worker(const Paths& paths, const std::vector<std::string>& args) {
  std::vector<std::string> words{std::string(FREERIDE_BUILD_DIR) + "/bin/freeride-worker", "--run-dir",
                                 paths.run_dir.string(), "--state-dir", paths.state_dir.string()};
  if (std::find(args.begin(), args.end(), "--settle-ms") == args.end()) words.insert(words.end(), {"--settle-ms", "0"});
  words.insert(words.end(), args.begin(), args.end());
  const std::string log = (paths.state_dir.parent_path() / "worker.log").string();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(fd, 1);
  dup2(fd, 2);
  unsetenv("FREERIDE_CONFIG");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(99);
}

/// Runs a worker that is expected to end by itself; its exit code.
inline int run_worker(const Paths& paths, const std::vector<std::string>& args) {
  const pid_t pid = spawn_worker(paths, args);
  if (pid <= 1) throw std::runtime_error("fork");
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class WorkerProcess {
 public:
  WorkerProcess() = default;
  ~WorkerProcess() { kill_hard(); }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  void start(const Paths& paths, std::vector<std::string> args) {
    if (std::find(args.begin(), args.end(), "--device") == args.end()) args.insert(args.begin(), {"--device", "cpu-0"});
    pid_ = spawn_worker(paths, args);
    if (pid_ <= 1) throw std::runtime_error("fork");
  }
  pid_t pid() const { return pid_; }
  bool alive() const { return pid_ > 1 && waitpid(pid_, nullptr, WNOHANG) == 0; }
  void kill_hard() {
    if (pid_ <= 1) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void terminate() const {
    if (pid_ > 1) kill(pid_, SIGTERM);
  }
  /// Exit code after terminate(), or nothing yet.
  bool ended(int& code) {
    int status = 0;
    if (pid_ <= 1 || waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = 0;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return true;
  }

 private:
  pid_t pid_ = 0;
};

/// One process, whatever becomes of its number.
class Watched {
 public:
  explicit Watched(pid_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}
  /// Whether it ends before the watchdog.
  bool ends() const {
    pollfd wait{fd_.get(), POLLIN, 0};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(kWatchdog).count();
    return !fd_.valid() || poll(&wait, 1, static_cast<int>(ms)) == 1;
  }

 private:
  Fd fd_;
};

inline std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream in(task.path() / "children");
    for (pid_t child = 0; in >> child;) children.push_back(child);
  }
  return children;
}

/// Of a worker's only task: the supervisor and the runner, whatever sandbox is around them. Empty: not there.
struct TaskProcesses {
  pid_t supervisor = 0, runner = 0;
};
inline TaskProcesses task_processes(pid_t worker) {
  TaskProcesses found;
  pid_t pid = worker;
  for (auto children = children_of(pid); children.size() == 1; children = children_of(pid)) {
    found.supervisor = pid == worker ? 0 : pid;
    pid = found.runner = children[0];
  }
  return found;
}

inline size_t fds_of(pid_t pid) {
  const auto begin = std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

/// Sends one datagram, with a descriptor if it is not -1, and returns the answer ("" for an end of file).
inline std::string exchange(int socket, const std::string& text, int fd) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) return "cannot send";
  pollfd wait{socket, POLLIN, 0};
  if (poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kWatchdog).count())) != 1) return "no answer";
  char answer[1024];
  const ssize_t got = recv(socket, answer, sizeof(answer), 0);
  return got > 0 ? std::string(answer, static_cast<size_t>(got)) : std::string();
}

/// A training rank in a thread: iterations of bubbles, until it is destroyed (then its connection ends without a word).
class FakeTrainer {
 public:
  enum class Mode { kBubbles, kOneLongBubble };
  explicit FakeTrainer(const Paths& paths, Mode mode = Mode::kBubbles, const std::string& device = "cpu-0",
                       uint32_t flags = 0, uint32_t rank = 0)
      : rank_(rank, device.c_str()) {
    rank_.page().flags = flags;
    rank_.learn(1, 20 * kNsPerMs, 25 * kNsPerMs, 30 * kNsPerMs);
    rank_.learn(2, 20 * kNsPerMs, 25 * kNsPerMs, 30 * kNsPerMs);
    if (mode == Mode::kOneLongBubble) rank_.learn(1, 600 * kNsPerSec, 600 * kNsPerSec, 600 * kNsPerSec);
    rank_.started(SteadyClock::now());
    const auto until = std::chrono::steady_clock::now() + kWatchdog;
    while (true) {
      auto socket = pages::connect_to_worker(paths.worker_socket(device).string());
      if (socket.ok()) {
        socket_ = std::move(*socket);
        break;
      }
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error(socket.error().text());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::string answer = exchange(socket_.get(), "FRHELLO1", rank_.fd());
    if (answer != (flags == 0 ? "OK" : "OK never")) throw std::runtime_error("refused: " + answer);
    thread_ = std::thread([this, mode] { train(mode); });
  }
  ~FakeTrainer() {
    stop_ = true;
    thread_.join();
  }
  /// What the worker says next, if it has said anything.
  std::string heard() const {
    char text[pages::kMaxReplyBytes];
    const ssize_t got = recv(socket_.get(), text, sizeof(text), MSG_DONTWAIT);
    return {text, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }
  bool disconnected() const {
    pollfd wait{socket_.get(), POLLIN, 0};
    return poll(&wait, 1, static_cast<int>(std::chrono::milliseconds(kWatchdog).count())) == 1;
  }

 private:
  void train(Mode mode) {
    while (!stop_) {
      for (int i = 0; i < 2 && !stop_; ++i) {
        rank_.begin(SteadyClock::now());
        do {
          std::this_thread::sleep_for(std::chrono::milliseconds(22));
        } while (mode == Mode::kOneLongBubble && !stop_);
        if (mode == Mode::kOneLongBubble) return;  // dies within it
        rank_.end(SteadyClock::now());
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      rank_.finish_iteration(SteadyClock::now());
    }
  }
  FakeRank rank_;
  Fd socket_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// The manager's end of the command socket, turned by the test's waiting.
class FakeManager {
 public:
  explicit FakeManager(const Paths& paths) : paths_(paths) { up(); }

  bus::WorkerPlan plan;  ///< what a registration is answered with
  std::map<std::string, bus::TaskReport> tasks;
  std::map<std::string, bus::TrainingState> ranks;
  std::deque<bus::TrainingIteration> iterations;
  std::map<std::string, std::string> contents;
  std::vector<bus::PluginState> plugins;
  std::set<std::string> wanted;  ///< tasks that it wants to place again
  int64_t harvested_ns = 0, bubble_ns = 0;
  uint64_t probes = 0, probe_findings = 0;
  bool know_worker = true;
  int64_t pause_ms = 0, stop_ms = 0;  ///< of orders; 0: an earlier version, whose orders do not expire
  bool other_process = false;         ///< as the latest report says
  bool silent = false;                ///< answers no registration and no report
  uint64_t heard = 0;                 ///< number of the latest registration or report

  void up() {
    auto server = bus::Server::bind(context_, paths_.commands_endpoint());
    if (!server.ok()) throw std::runtime_error(server.error().text());
    server_ = std::move(*server);
  }
  void down() {
    server_.reset();
    registered_ = know_worker = false;
    tasks.clear();
  }
  std::string offer(const std::string& bytes) {
    if (bytes.empty()) throw std::runtime_error("no such plugin");
    std::string sha256 = sha256_hex(bytes);
    contents[sha256] = bytes;
    return sha256;
  }
  void turn() {
    auto incoming = server_->receive(std::chrono::milliseconds(20));
    if (!incoming) return;
    const bus::Message& message = incoming->message;
    if (message.is_reply) {
      replies_[message.id] = message;
    } else if (message.command == "worker.register") {
      auto body = message.as<bus::RegisterWorker>().value();
      peer_ = incoming->peer;
      registered_ = know_worker = true;
      for (auto& task : body.tasks) tasks[task.task] = task;
      for (auto& rank : body.ranks) ranks[rank.key()] = rank;
      if (silent) {
        ++reports_;
        return;
      }
      heard = body.number;
      server_->reply(*incoming, plan_now());
    } else if (message.command == "worker.report") {
      auto body = message.as<bus::WorkerReport>().value();
      if (!know_worker) {
        registered_ = false;
        server_->reply_error(*incoming, Error{Code::kNotFound, "who?", ""});
        return;
      }
      ++reports_;
      other_process = body.other_process;
      for (auto& task : body.tasks) tasks[task.task] = task;
      for (auto& rank : body.ranks) ranks[rank.key()] = rank;
      for (auto& plugin : body.plugins) plugins.push_back(plugin);
      for (auto& iteration : body.iterations) iterations.push_back(iteration);
      for (auto& bubbles : body.bubbles) {
        harvested_ns += bubbles.harvested_ns;
        bubble_ns += bubbles.bubble_ns;
        probes += bubbles.probes;
        probe_findings += bubbles.probe_findings;
      }
      if (silent) return;
      heard = body.number;
      if (pause_ms == 0) {
        server_->reply(*incoming, bus::Ack{});
      } else {
        server_->reply(*incoming, plan_now());
      }
    } else if (message.command == bus::ShowTask::kCommand) {
      const std::string name = message.as<bus::ShowTask>().value().task;
      bus::TaskReply shown;
      if (wanted.count(name) == 0) shown.task.state.verdict = task(name).verdict;
      server_->reply(*incoming, shown);
    } else if (message.command == "plugin.fetch") {
      const auto it = contents.find(message.as<bus::FetchPlugin>().value().sha256);
      if (it == contents.end()) {
        server_->reply_error(*incoming, Error{Code::kNotFound, "no such content", ""});
      } else {
        server_->reply(*incoming, bus::Ack{}, it->second);
      }
    }
  }
  void wait(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + kWatchdog;
    while (!done()) {
      if (std::chrono::steady_clock::now() > until) throw std::runtime_error("the watchdog ran out");
      turn();
    }
  }
  void wait_registered() {
    wait([&] { return registered_; });
  }
  void wait_new_report() {
    const uint64_t before = reports_;
    wait([&] { return reports_ > before; });
  }
  template <class C>
  bus::Message call(const C& command) {
    const std::string id = server_->send(peer_, command).value();
    wait([&] { return replies_.count(id) != 0; });
    return replies_[id];
  }
  void create(const bus::CreateTask& task) {
    tasks.erase(task.task);
    std::erase_if(plan.orders, [&](const auto& o) { return o.task == task.task; });
    plan.orders.push_back({task.task, "run", task.epoch});
    const auto reply = call(task);
    if (reply.error) throw std::runtime_error(reply.error->text());
  }
  Error create_error(const bus::CreateTask& task) { return call(task).error.value_or(Error{}); }
  void order(const std::string& task, const std::string& order) {
    const auto reply = call(bus::TaskOrder{task, order});
    if (reply.error) throw std::runtime_error(reply.error->text());
  }
  bus::TaskReport task(const std::string& name) { return tasks.count(name) != 0 ? tasks[name] : bus::TaskReport{}; }
  bus::Verdict verdict(const std::string& name) {
    wait([&] { return !task(name).verdict.kind.empty(); });
    return task(name).verdict;
  }
  void forget(const std::string& name) { tasks.erase(name); }
  std::string rank_why(const std::string& job, uint32_t rank) { return ranks[job + "/" + std::to_string(rank)].why; }
  std::string rank_state(const std::string& job, uint32_t rank) {
    return ranks[job + "/" + std::to_string(rank)].state;
  }

  bus::WorkerPlan plan_now() const {
    bus::WorkerPlan now = plan;
    if (pause_ms != 0) now.heard = heard;
    now.pause_ms = pause_ms;
    now.stop_ms = stop_ms;
    return now;
  }

 private:
  const Paths paths_;
  zmq::context_t context_{1};
  std::unique_ptr<bus::Server> server_;
  std::string peer_;
  bool registered_ = false;
  uint64_t reports_ = 0;
  std::map<std::string, bus::Message> replies_;
};

/// Folders, a manager and a worker.
struct Rig {
  TempFolder temp;
  Paths paths{temp.path() / "run", temp.path() / "state"};
  std::vector<std::string> args;
  FakeManager manager;
  WorkerProcess worker;

  explicit Rig(std::vector<std::string> worker_args = {}) : args(std::move(worker_args)), manager(prepared(paths)) {
    worker.start(paths, args);
  }
  ~Rig() {
    if (std::uncaught_exceptions() == 0 && worker.pid() == 0) return;
    tell_log();
  }
  static const Paths& prepared(const Paths& paths) {
    std::filesystem::create_directories(paths.run_dir);
    std::filesystem::create_directories(paths.state_dir);
    return paths;
  }
  void restart_worker() {
    worker.kill_hard();
    manager.know_worker = false;
    manager.down();
    manager.up();
    worker.start(paths, args);
  }
  /// In good order, with exit code 0.
  void stop_worker() {
    worker.terminate();
    int code = -1;
    manager.wait([&] { return worker.ended(code); });
    if (code != 0) tell_log();
    CHECK(code == 0);
  }

 private:
  void tell_log() const {
    std::ifstream in(temp.path() / "worker.log");
    std::stringstream log;
    log << in.rdbuf();
    WARN(log.str());
  }
};

}  // namespace freeride::worker::testing
