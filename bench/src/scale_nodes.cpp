// bench-scale-nodes: many hosts' nodes with their workers, as one manager sees them: each node with a key, connections
// and an address of its own, over TCP with CURVE. The workers do what they are told at once and report each second.
//
//   bench-scale-nodes keys FOLDER NODES            the manager's key and one for each node, as freeride-ctl keys makes
//   bench-scale-nodes run FOLDER NODES WORKERS RANKS PORT COMMANDS PLUGIN
//
// FOLDER: of `keys`. RANKS: of one training job. PORT: the manager's, on this host. COMMANDS: the manager's own command
// socket, for who submits and who looks. Orders come on standard input, a line each, and each is answered with one line
// of JSON; they are in Fleet::order().
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/policy/heartbeat.hpp"
#include "message.hpp"
#include "tcp.hpp"

namespace freeride::bench {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr int64_t kReportNs = kNsPerSec;
constexpr int64_t kGoldenNs = 618'033'989;      // of a second, the golden ratio: multiples of it are spread evenly
constexpr int64_t kPatienceNs = 3 * kNsPerSec;  // without an answer, before a request is sent again
constexpr uint32_t kStages = 8;
constexpr int kIoThreads = 1;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench-scale-nodes: %s\n", what.c_str());
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) fail(result.error().text());
  return std::move(*result);
}

// ---- keys

std::string host_name(int node) {
  char text[16];
  std::snprintf(text, sizeof text, "h%05d", node);
  return text;
}

void write_key(const std::filesystem::path& file, const KeyFile& key) {
  if (auto made = make_key_file(file, key, 0600, geteuid()); !made) fail(made.error().text());
}

int make_keys(const std::filesystem::path& folder, int nodes) {
  for (const auto& one : {folder, folder / "authorized", folder / "nodes"}) {
    std::filesystem::create_directory(one);
    chmod(one.c_str(), 0700);
  }
  const auto fill = [](KeyFile& key) {
    const auto pair = must(bus::make_key_pair());
    key.public_key = pair.public_key;
    key.secret_key = pair.secret_key;
  };
  KeyFile manager;
  manager.name = manager.role = "manager";
  fill(manager);
  write_key(folder / "manager.key", manager);
  for (int node = 0; node < nodes; ++node) {
    KeyFile key;
    key.name = key.account = "node-" + host_name(node);
    key.role = "node";
    key.host = host_name(node);
    fill(key);
    KeyFile known = key;
    known.secret_key.clear();
    key.manager_key = manager.public_key;
    write_key(folder / "nodes" / (key.name + ".key"), key);
    write_key(folder / "authorized" / (key.name + ".key"), known);
  }
  return 0;
}

// ---- figures

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  void clear() { values_.clear(); }
  json summary() {
    std::sort(values_.begin(), values_.end());
    const auto at = [&](double share) {
      if (values_.empty()) return 0.0;
      return values_[std::min(values_.size() - 1, static_cast<size_t>(share * static_cast<double>(values_.size())))];
    };
    return {{"count", values_.size()}, {"p50", at(0.5)}, {"p99", at(0.99)}, {"max", at(1)}};
  }

 private:
  std::vector<double> values_;
};

double ms_since(int64_t begin_ns) {
  return static_cast<double>(SteadyClock::now() - begin_ns) / kNsPerMs;
}

// ---- one worker of a node, in messages

class FakeWorker {
 public:
  FakeWorker(const std::string& host, int device, uint32_t index, uint32_t ranks_of_job)
      : name_(host + ":GPU-" + std::to_string(device)), host_(host), device_("GPU-" + std::to_string(device)) {
    rank_.job = "job-" + std::to_string(index / ranks_of_job);
    rank_.device = device_;
    rank_.worker = name_;
    rank_.framework = "bench";
    rank_.state = "active";
    rank_.rank = index % ranks_of_job;
    rank_.stages = kStages;
    rank_.stage = rank_.rank % kStages;
    rank_.replica = rank_.rank / kStages;
    rank_.replicas = std::max(1U, ranks_of_job / kStages);
    phase_ns = static_cast<int64_t>(index) * kGoldenNs % kReportNs;
  }

  const std::string& name() const { return name_; }
  const bus::TrainingState& rank() const { return rank_; }
  const std::map<std::string, bus::TaskReport>& tasks() const { return tasks_; }

  bus::RegisterWorker registration() {
    bus::RegisterWorker hello;
    hello.worker = name_;
    hello.incarnation = "one-" + name_;
    hello.host = host_;
    hello.device = device_;
    hello.device_model = "Bench GPU";
    hello.sandbox = "bubblewrap";
    hello.pid = 1;
    hello.memory_bytes = hello.usable_bytes = int64_t{40} << 30;
    hello.ranks = {rank_};
    hello.tasks = reports();
    hello.number = ++number_;
    return hello;
  }

  bus::WorkerReport report(bool leases) {
    ++rank_.iteration;
    bus::WorkerReport report;
    report.worker = name_;
    report.incarnation = "one-" + name_;
    report.usable_bytes = int64_t{40} << 30;
    report.ranks = {rank_};
    report.number = ++number_;
    bus::TrainingIteration iteration;
    iteration.job = rank_.job;
    iteration.device = device_;
    iteration.rank = rank_.rank;
    iteration.stage = rank_.stage;
    iteration.replica = rank_.replica;
    iteration.iteration = rank_.iteration;
    iteration.end_ns = SteadyClock::now();
    iteration.begin_ns = iteration.end_ns - kReportNs;
    iteration.bubble_ns = kReportNs / 4;
    bool any = false;
    for (auto& [task, one] : tasks_) {
      if (one.state == "STOPPED") continue;
      any = leases;
      // Where a report finds it in a training whose bubbles are a quarter of the time.
      one.state = std::hash<std::string>{}(task + std::to_string(number_)) % 4 == 0 ? "RUNNING" : "PAUSED";
      one.counters.steps += 20;
      one.counters.leases += 10;
      one.counters.step_ns += kReportNs / 5;
      one.counters.harvested_ns += kReportNs / 5;
      one.counters.predicted_ns = 10 * kNsPerMs;
    }
    iteration.harvested = any;
    iteration.harvested_ns = any ? kReportNs / 5 : 0;
    report.iterations = {iteration};
    bus::BubbleTotals totals;
    totals.job = rank_.job;
    totals.rank = rank_.rank;
    totals.stage = rank_.stage;
    totals.replica = rank_.replica;
    totals.bubbles = 10;
    totals.bubble_ns = kReportNs / 4;
    totals.harvested_ns = iteration.harvested_ns;
    if (any) totals.overruns_ns = {20'000, 30'000};
    report.bubbles = {totals};
    report.tasks = reports();
    return report;
  }

  // True: there is something new to report.
  bool create(const bus::CreateTask& order) {
    bus::TaskReport& task = tasks_[order.task] = {};
    task.task = order.task;
    task.purpose = order.purpose;
    task.state = "CREATED";
    task.epoch = order.epoch;
    task.instance = order.instance;
    task.revision = order.revision;
    task.sha256 = order.sha256;
    if (order.purpose == "profile") {
      task.state = "STOPPED";
      task.verdict.kind = "finished";
      task.counters.steps = 10;
      task.counters.step_ns = 100 * kNsPerMs;
      task.counters.peak_memory_bytes = int64_t{1} << 30;
      task.init_ns = task.create_ns = kNsPerMs;
    }
    return true;
  }

  bool stop(const std::string& name) {
    const auto task = tasks_.find(name);
    if (task == tasks_.end() || task->second.state == "STOPPED") return false;
    task->second.state = "STOPPED";
    task->second.verdict.kind = "stopped";
    return true;
  }

  bool obey(const bus::WorkerPlan& plan) {
    bool news = false;
    for (const auto& order : plan.settled) {
      const auto task = tasks_.find(order.task);
      if (task != tasks_.end() && task->second.epoch == order.epoch && task->second.state == "STOPPED")
        tasks_.erase(task);
    }
    for (const auto& order : plan.orders) news = (order.order == "stop" && stop(order.task)) || news;
    return news;
  }

  bool registered = false;
  std::string request;   // that is not answered yet
  std::string fetch;     // the piece of a plugin that is under way
  uint64_t fetched = 0;  // bytes before it
  int64_t phase_ns = 0;  // within a second: real workers have nothing in common that decides when they report
  int64_t due_ns = 0, sent_ns = 0;

 private:
  std::vector<bus::TaskReport> reports() const {
    std::vector<bus::TaskReport> all;
    for (const auto& [name, report] : tasks_) all.push_back(report);
    return all;
  }
  std::string name_, host_, device_;
  bus::TrainingState rank_;
  std::map<std::string, bus::TaskReport> tasks_;
  uint64_t number_ = 0;
};

// ---- a node: three connections, as freeride-node has

class Node {
 public:
  Node(int number, int workers, uint32_t ranks_of_job, const std::filesystem::path& keys)
      : address_("127." + std::to_string(16 + number / 62500) + "." + std::to_string(number / 250 % 250) + "." +
                 std::to_string(2 + number % 250)),
        source_("worker bench #" + std::to_string(number)) {
    const KeyFile key = must(read_secret_key(keys / "nodes" / ("node-" + host_name(number) + ".key")));
    key_ = {key.public_key, key.secret_key, key.manager_key, ""};
    for (int n = 0; n < workers; ++n)
      this->workers.emplace_back(host_name(number), n, static_cast<uint32_t>(number * workers + n), ranks_of_job);
  }

  // `everything`: hears what the manager says of all tasks and workers, as while somebody on its host listens.
  void connect(zmq::context_t& context, int port, bool everything) {
    up = std::make_unique<zmq::socket_t>(context, zmq::socket_type::dealer);
    there_ = std::make_unique<zmq::socket_t>(context, zmq::socket_type::sub);
    events_ = std::make_unique<zmq::socket_t>(context, zmq::socket_type::xpub);
    up->set(zmq::sockopt::immediate, true);
    up->set(zmq::sockopt::sndhwm, 64);
    if (everything) {
      for (const char* topic : {bus::TaskState::kTopic, bus::WorkerState::kTopic, bus::JobMeasures::kTopic})
        there_->set(zmq::sockopt::subscribe, std::string(topic) + "/");
    }
    int to = port;
    for (zmq::socket_t* socket : {up.get(), there_.get(), events_.get()}) {
      socket->set(zmq::sockopt::linger, 0);
      bus::detail::set_client_key(*socket, &key_);
      socket->set(zmq::sockopt::ipv6, false);
      bus::detail::set_long_link(*socket);
      socket->connect("tcp://" + address_ + ":0;127.0.0.1:" + std::to_string(to++));
    }
    for (FakeWorker& worker : workers) {
      worker.registered = false;
      worker.request.clear();
      worker.due_ns = policy::next_heartbeat_ns(SteadyClock::now(), worker.phase_ns, kReportNs);
    }
  }

  void disconnect() {
    up.reset();
    there_.reset();
    events_.reset();
    bubbles_wanted = false;
  }
  bool connected() const { return up != nullptr; }

  // What has come of events, and what the manager wants of bubbles.
  void look_at_events(uint64_t& heard) {
    zmq::message_t frame;
    while (there_->recv(frame, zmq::recv_flags::dontwait)) {
      if (!frame.more()) ++heard;
    }
    while (events_->recv(frame, zmq::recv_flags::dontwait)) {
      const std::string_view text = bus::detail::view(frame);
      if (text.size() > 1 && text.substr(1, 6) == "bubble") bubbles_wanted = text[0] == 1;
    }
  }

  template <class E>
  void publish(const E& event) {
    bus::Envelope envelope;
    envelope.source = source_;
    envelope.seq = ++seq_;
    envelope.t_ns = SteadyClock::now();
    const std::string topic = std::string(E::kTopic) + "/" + event.key();
    events_->send(bus::detail::frame_of(topic), zmq::send_flags::dontwait | zmq::send_flags::sndmore);
    events_->send(bus::detail::frame_of(bus::encode(envelope, event)), zmq::send_flags::dontwait);
  }

  bool send(size_t worker, const bus::Message& message) {
    bus::detail::Frames frames;
    frames.push_back(bus::detail::frame_of(bus::detail::relay_address("w" + std::to_string(worker))));
    frames.push_back(bus::detail::frame_of(bus::detail::pack_message(message)));
    return bus::detail::send_frames(*up, std::move(frames));
  }

  std::vector<FakeWorker> workers;
  std::unique_ptr<zmq::socket_t> up;
  bool bubbles_wanted = false;

 private:
  std::unique_ptr<zmq::socket_t> there_, events_;
  std::string address_, source_;
  bus::ClientKey key_;
  uint64_t seq_ = 0;
};

// ---- who submits and who looks, each in a thread

class Clients {
 public:
  Clients(std::string endpoint, std::string plugin) : endpoint_(std::move(endpoint)), plugin_(std::move(plugin)) {}
  ~Clients() { stop_looking(); }

  // `count` tasks over `jobs` jobs, so many requests under way at once.
  void submit(int first, int count, int jobs) {
    submitted_ = std::thread([=, this] {
      zmq::context_t context;
      auto requester = must(bus::Requester::connect(context, endpoint_));
      std::map<std::string, int64_t> begun;
      int sent = 0;
      failed_ = answered_ = 0;
      while (answered_ < count && !give_up_) {
        while (sent < count && begun.size() < kAtOnce && (answered_ > 0 || sent == 0)) {
          bus::Load load;
          load.plugin = "side.so";
          load.name = "t-" + std::to_string(first + sent);
          load.job = "job-" + std::to_string(sent % jobs);
          if (answered_ > 0) load.sha256 = sha256_hex(plugin_);
          const std::string bytes = answered_ > 0 ? "" : plugin_;  // the first brings it
          begun[requester->send(load, bytes)] = SteadyClock::now();
          ++sent;
        }
        const auto reply = requester->receive(1000ms);
        if (!reply) continue;
        const auto one = begun.find(reply->id);
        if (one == begun.end()) continue;
        if (reply->error && failed_++ == 0) std::fprintf(stderr, "load: %s\n", reply->error->text().c_str());
        loads.add(ms_since(one->second));
        begun.erase(one);
        ++answered_;
      }
      done_ = true;
    });
  }
  bool done() const { return done_; }
  int failed() const { return failed_; }
  void end_submitting() {
    give_up_ = true;
    if (submitted_.joinable()) submitted_.join();
    done_ = give_up_ = false;
  }

  // Commands as people and scripts give them, one after the other, and beside them one that costs the manager nothing:
  // how long that takes is how long its loop was busy with something else.
  void look(int tasks) {
    stop_looking();
    looking_ = true;
    lookers_.emplace_back(
        [this] { ask(5ms, loop, [](bus::Requester& r, int) { return r.request(bus::ListFaults{}, 30s).ok(); }); });
    lookers_.emplace_back([this, tasks] {
      ask(20ms, commands, [tasks](bus::Requester& r, int n) {
        bus::ShowTask show;
        show.task = "t-" + std::to_string(n * 7919 % std::max(1, tasks));
        if (n % 2 == 0) return r.request(show, 30s).ok();
        bus::PauseTask pause;
        pause.task = show.task;
        bus::ResumeTask resume;
        resume.task = show.task;
        return n % 4 == 1 ? r.request(pause, 30s).ok() : r.request(resume, 30s).ok();
      });
    });
  }
  void stop_looking() {
    looking_ = false;
    for (auto& one : lookers_) one.join();
    lookers_.clear();
  }

  Samples loads, loop, commands;

 private:
  static constexpr size_t kAtOnce = 256;

  template <class Ask>
  void ask(std::chrono::milliseconds pause, Samples& samples, Ask one) {
    zmq::context_t context;
    auto requester = must(bus::Requester::connect(context, endpoint_));
    for (int n = 0; looking_; ++n) {
      const int64_t begin = SteadyClock::now();
      (void)one(*requester, n);
      samples.add(ms_since(begin));
      std::this_thread::sleep_for(pause);
    }
  }

  std::string endpoint_, plugin_;
  std::thread submitted_;
  std::vector<std::thread> lookers_;
  std::atomic<bool> done_{false}, give_up_{false}, looking_{false};
  std::atomic<int> answered_{0}, failed_{0};
};

// ---- all nodes, in one thread

class Fleet {
 public:
  Fleet(const std::filesystem::path& keys, int nodes, int workers, uint32_t ranks_of_job, int port,
        const std::string& commands, std::string plugin)
      : context_(kIoThreads), port_(port), clients_(commands, std::move(plugin)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    context_.set(zmq::ctxopt::max_sockets, nodes * 3 + 64);
    for (int n = 0; n < nodes; ++n) nodes_.emplace_back(n, workers, ranks_of_job, keys);
    jobs_ = static_cast<int>((static_cast<uint32_t>(nodes * workers) + ranks_of_job - 1) / ranks_of_job);
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = UINT64_MAX;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, STDIN_FILENO, &event);
  }

  int run() {
    std::vector<epoll_event> ready(256);
    while (!ended_) {
      const int count = epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 2);
      for (int i = 0; i < count; ++i) {
        if (ready[static_cast<size_t>(i)].data.u64 == UINT64_MAX) {
          read_orders();
        } else {
          receive(ready[static_cast<size_t>(i)].data.u64);
        }
      }
      send_due();
      if (waiting_ && waiting_()) waiting_ = nullptr;
      if (!waiting_ && !orders_.empty()) {
        const std::string line = std::move(orders_.front());
        orders_.pop_front();
        order(line);
      }
    }
    return 0;
  }

 private:
  void read_orders() {
    char buffer[4096];
    ssize_t size = 0;
    while ((size = read(STDIN_FILENO, buffer, sizeof buffer)) > 0) input_.append(buffer, static_cast<size_t>(size));
    if (size == 0) ended_ = true;
    for (size_t end = 0; (end = input_.find('\n')) != input_.npos; input_.erase(0, end + 1))
      orders_.push_back(input_.substr(0, end));
  }

  static void answer(const json& said) {
    std::cout << said.dump() << std::endl;  // NOLINT(performance-avoid-endl): somebody waits for it
  }

  size_t count_registered() const {
    size_t count = 0;
    for (const Node& node : nodes_)
      count += static_cast<size_t>(
          std::count_if(node.workers.begin(), node.workers.end(), [](const auto& one) { return one.registered; }));
    return count;
  }

  // Tasks that some worker has, and those that two have.
  std::pair<size_t, size_t> count_tasks() const {
    std::map<std::string, int> held;
    for (const Node& node : nodes_) {
      for (const FakeWorker& worker : node.workers) {
        for (const auto& [name, task] : worker.tasks()) {
          if (task.purpose == "run" && task.state != "STOPPED") ++held[name];
        }
      }
    }
    return {held.size(), static_cast<size_t>(
                             std::count_if(held.begin(), held.end(), [](const auto& one) { return one.second > 1; }))};
  }

  void wait_for(std::function<bool()> reached, std::function<json()> tell, int64_t most_ns) {
    const int64_t begin = SteadyClock::now();
    waiting_ = [=, next = begin]() mutable {
      const int64_t now = SteadyClock::now();
      if (now < next) return false;
      next = now + 20 * kNsPerMs;
      const bool there = reached();
      if (!there && now - begin < most_ns) return false;
      json said = tell();
      said["reached"] = there;
      said["s"] = static_cast<double>(now - begin) / kNsPerSec;
      answer(said);
      return true;
    };
  }

  void order(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "connect") {  // connect EVERYTHING SECONDS: all nodes; until all workers are registered
      int seconds = 0;
      words >> everything_ >> seconds;
      for (size_t n = 0; n < nodes_.size(); ++n) connect(n);
      wait_registered(seconds);
    } else if (verb == "wait-registered") {  // SECONDS
      int seconds = 0;
      words >> seconds;
      wait_registered(seconds);
    } else if (verb == "forget-registered") {  // the manager was ended: who is answered from now on is counted
      for (Node& node : nodes_) {
        for (FakeWorker& worker : node.workers) worker.registered = false;
      }
      answer({});
    } else if (verb == "submit") {  // COUNT SECONDS: until all are answered and workers have them
      int count = 0, seconds = 0;
      words >> count >> seconds;
      const size_t before = count_tasks().first, wanted = before + static_cast<size_t>(count);
      clients_.submit(tasks_, count, jobs_);
      tasks_ += count;
      wait_for([=, this] { return clients_.done() && count_tasks().first >= wanted; },
               [=, this] {
                 clients_.end_submitting();
                 json said = {{"load_ms", clients_.loads.summary()}, {"failed", clients_.failed()}};
                 clients_.loads.clear();
                 return tell_tasks(said);
               },
               seconds * kNsPerSec);
    } else if (verb == "look") {  // begin to ask the manager
      clients_.loop.clear(), clients_.commands.clear();
      clients_.look(tasks_);
      answer({});
    } else if (verb == "looked") {  // what it took
      clients_.stop_looking();
      answer({{"loop_ms", clients_.loop.summary()}, {"command_ms", clients_.commands.summary()}});
    } else if (verb == "away") {  // COUNT nodes
      size_t count = 0;
      words >> count;
      for (size_t n = 0; n < std::min(count, nodes_.size()); ++n) {
        leave(n);
        nodes_[n].disconnect();
      }
      answer({{"workers", count * nodes_.front().workers.size()}});
    } else if (verb == "back") {  // SECONDS: all who are away
      int seconds = 0;
      words >> seconds;
      for (size_t n = 0; n < nodes_.size(); ++n) {
        if (!nodes_[n].connected()) connect(n);
      }
      wait_registered(seconds);
    } else if (verb == "wait-tasks") {  // COUNT SECONDS: until so many tasks are held, by one worker each
      size_t count = 0;
      int seconds = 0;
      words >> count >> seconds;
      wait_for([=, this] { return count_tasks() == std::pair<size_t, size_t>(count, 0); },
               [this] { return tell_tasks({}); }, seconds * kNsPerSec);
    } else if (verb == "fetch") {  // SHA256: every worker fetches that plugin, over and over; nothing: no more
      fetched_.clear();
      words >> fetched_;
      const uint64_t bytes = std::exchange(fetched_bytes_, 0);
      for (size_t n = 0; !fetched_.empty() && n < nodes_.size(); ++n) {
        for (size_t w = 0; w < nodes_[n].workers.size(); ++w) fetch(nodes_[n], w);
        receive(n);
      }
      answer({{"bytes", bytes}});
    } else if (verb == "bubbles") {  // so many a second and worker, where the manager asks for them
      words >> bubbles_per_s_;
      answer({});
    } else if (verb == "figures") {  // since the last time
      json said = {{"reports", sent_},
                   {"report_ms", reports_.summary()},
                   {"bubbles", bubbles_},
                   {"heard", heard_},
                   {"registered", count_registered()}};
      sent_ = bubbles_ = heard_ = 0;
      reports_.clear();
      answer(tell_tasks(said));
    } else {
      answer({{"error", "there is no order " + verb}});
    }
  }

  json tell_tasks(json said) const {
    const auto [held, twice] = count_tasks();
    said["held"] = held;
    said["twice"] = twice;
    return said;
  }

  void wait_registered(int seconds) {
    const size_t all = nodes_.size() * nodes_.front().workers.size();
    wait_for([=, this] { return count_registered() == all; },
             [this] {
               return json{{"registered", count_registered()}};
             },
             seconds * kNsPerSec);
  }

  void connect(size_t n) {
    nodes_[n].connect(context_, port_, everything_ != 0);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = n;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, nodes_[n].up->get(zmq::sockopt::fd), &event);
  }
  void leave(size_t n) {
    if (nodes_[n].connected()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, nodes_[n].up->get(zmq::sockopt::fd), nullptr);
  }

  void send_due() {
    const int64_t now = SteadyClock::now();
    if (now < next_pass_ns_) return;
    next_pass_ns_ = now + 5 * kNsPerMs;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      Node& node = nodes_[n];
      if (!node.connected()) continue;
      bool sent = false;
      for (size_t w = 0; w < node.workers.size(); ++w) {
        FakeWorker& worker = node.workers[w];
        if (now < worker.due_ns) continue;
        if (w == 0) node.look_at_events(heard_);
        worker.due_ns = policy::next_heartbeat_ns(now, worker.phase_ns, kReportNs);
        sent = say(node, w) || sent;
        publish(node, worker);
      }
      if (sent) receive(n);  // what libzmq has read meanwhile does not wake the descriptor again
    }
  }

  void fetch(Node& node, size_t w) {
    constexpr uint64_t kPieceBytes = 1 << 20;
    FakeWorker& worker = node.workers[w];
    bus::Message message;
    message.id = std::to_string(++requests_) + "-fetch-" + worker.name();
    message.command = bus::FetchPlugin::kCommand;
    message.body = bus::encode(bus::FetchPlugin{fetched_, worker.fetched, kPieceBytes});
    if (node.send(w, message)) worker.fetch = message.id;
  }

  bool say(Node& node, size_t w) {
    FakeWorker& worker = node.workers[w];
    const int64_t now = SteadyClock::now();
    if (!worker.request.empty() && now - worker.sent_ns < kPatienceNs) return false;
    bus::Message message;
    message.id = std::to_string(++requests_) + "-" + worker.name();
    if (worker.registered) {
      message.command = bus::WorkerReport::kCommand;
      message.body = bus::encode(worker.report(true));
    } else {
      message.command = bus::RegisterWorker::kCommand;
      message.body = bus::encode(worker.registration());
    }
    if (!node.send(w, message)) return false;
    worker.request = message.id;
    worker.sent_ns = now;
    ++sent_;
    return true;
  }

  void publish(Node& node, const FakeWorker& worker) {
    const auto& rank = worker.rank();
    if (rank.iteration == 1) node.publish(rank);
    if (!node.bubbles_wanted) return;
    for (int n = 0; n < bubbles_per_s_; ++n) {
      bus::BubbleEnd bubble;
      bubble.job = rank.job;
      bubble.device = rank.device;
      bubble.rank = rank.rank;
      bubble.stage = rank.stage;
      bubble.replica = rank.replica;
      bubble.iteration = rank.iteration;
      bubble.begin_ns = SteadyClock::now();
      bubble.end_ns = bubble.begin_ns + 25 * kNsPerMs;
      bubble.leased = true;
      node.publish(bubble);
      ++bubbles_;
    }
  }

  void receive(size_t n) {
    Node& node = nodes_[n];
    if (!node.connected()) return;
    bus::detail::Frames frames;
    bool too_many = false;
    while (bus::detail::receive_frames(*node.up, frames, too_many, 8)) {
      if (frames.size() < 2 || frames[0].size() < 3) continue;
      const auto w = static_cast<size_t>(std::atoi(frames[0].to_string().c_str() + 2));
      if (w >= node.workers.size()) continue;
      const auto message = bus::detail::unpack_message(bus::detail::view(frames[1]), {});
      if (!message) fail("the manager says " + message.error().text());
      if (message->is_reply && !message->id.empty() && message->id == node.workers[w].fetch) {
        uint64_t bytes = 0;
        for (size_t i = 2; i < frames.size(); ++i) bytes += frames[i].size();
        if (message->error) fail("a plugin is not fetched: " + message->error->text());
        fetched_bytes_ += bytes;
        node.workers[w].fetched = bytes == 0 ? 0 : node.workers[w].fetched + bytes;
        node.workers[w].fetch.clear();
        if (!fetched_.empty()) fetch(node, w);
        continue;
      }
      take(node, w, *message);
    }
  }

  void take(Node& node, size_t w, const bus::Message& message) {
    FakeWorker& worker = node.workers[w];
    bool news = false;
    if (message.is_reply) {
      if (message.id != worker.request) return;
      worker.request.clear();
      reports_.add(ms_since(worker.sent_ns));
      worker.registered = !message.error;
      if (message.error && message.error->code != Code::kNotFound && !said_++)
        std::fprintf(stderr, "%s: %s\n", worker.name().c_str(), message.error->text().c_str());
      if (!message.error) news = worker.obey(must(message.as<bus::WorkerPlan>()));
    } else {
      bus::Message reply;
      reply.is_reply = true;
      reply.id = message.id;
      reply.command = message.command;
      reply.body = bus::encode(bus::Ack{});
      if (message.command == bus::CreateTask::kCommand) {
        news = worker.create(must(message.as<bus::CreateTask>()));
      } else if (message.command == bus::TaskOrder::kCommand) {
        const auto order = must(message.as<bus::TaskOrder>());
        news = order.order == "stop" && worker.stop(order.task);
      } else if (message.command == bus::WorkerPlan::kCommand) {
        news = worker.obey(must(message.as<bus::WorkerPlan>()));
      } else if (message.command == bus::GetLog::kCommand) {
        reply.body = bus::encode(bus::LogReply{});
      }
      (void)node.send(w, reply);
    }
    if (news) worker.due_ns = std::min(worker.due_ns, SteadyClock::now() + 10 * kNsPerMs);
  }

  zmq::context_t context_;
  int port_, jobs_ = 1, tasks_ = 0, everything_ = 0, bubbles_per_s_ = 0;
  std::deque<Node> nodes_;
  Clients clients_;
  Fd epoll_;
  std::string input_;
  std::deque<std::string> orders_;
  std::function<bool()> waiting_;
  bool ended_ = false;
  int64_t next_pass_ns_ = 0;
  std::string fetched_;  // SHA-256 of what workers fetch; empty: nothing
  uint64_t requests_ = 0, sent_ = 0, bubbles_ = 0, heard_ = 0, said_ = 0, fetched_bytes_ = 0;
  Samples reports_;
};

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  using namespace freeride::bench;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "keys") return make_keys(words[1], std::atoi(words[2].c_str()));
  if (words.size() != 8 || words[0] != "run") fail("see the beginning of bench/src/scale_nodes.cpp");
  const auto number = [&](size_t at) { return std::atoi(words[at].c_str()); };
  const std::string plugin = must(freeride::read_file(words[7], size_t{64} << 20));
  return Fleet(words[1], number(2), number(3), static_cast<uint32_t>(number(4)), number(5), words[6], plugin).run();
}
