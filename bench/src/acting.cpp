// bench-acting [--quick]: how soon a side task runs after a bubble's begin and stands still after its end, through the
// real manager, worker, runner and hook; a gRPC round trip between the bubbles of the same run; and what all of it
// costs while idle. Prints one JSON object.
//
// This process is the training rank; a thread on another core plays its neighbour, whose messages end the rank's waits:
// timers of the rank's own would be measured with it, and setting one takes a virtual machine 10 us. Its bubbles have
// one length, but for one in nineteen, which ends early: there the lease is taken back while the task is at work, which
// is what edge_to_pause means. Every wait index is cut short so seldom that its learned length stays.
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "answer_page.hpp"
#include "child.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/hook.h"
#include "grpc_ping.hpp"
#include "stats.hpp"

namespace freeride::bench {
namespace {

constexpr int kWaits = 19;
constexpr int64_t kBreathNs =
    150 * kNsPerUs;  // after a bubble: its core is free for a while, so that the task can pause
constexpr int64_t kBubbleNs = 12 * kNsPerMs, kEarlyNs = 6 * kNsPerMs;  // of the order of real ones
constexpr int64_t kSampleNs = 3 * kNsPerMs, kRestNs = kNsPerMs;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "bench-acting: %s\n", what.c_str());
  std::exit(1);
}

void sleep_until(int64_t until_ns) {
  const timespec until = {until_ns / kNsPerSec, until_ns % kNsPerSec};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  (void)::sched_setaffinity(0, sizeof set, &set);
}

/// The neighbour: after each post() it sends a byte at each of the times given, from then on.
class Neighbour {
 public:
  explicit Neighbour(int core) {
    if (::pipe2(orders_, O_CLOEXEC) != 0 || ::pipe2(bytes_, O_CLOEXEC) != 0) fail("no pipe");
    thread_ = std::thread([this, core] { run(core); });
  }
  ~Neighbour() {
    ::close(orders_[1]);
    thread_.join();
    ::close(orders_[0]);
    ::close(bytes_[0]);
    ::close(bytes_[1]);
  }
  using Times = std::array<int64_t, 4>;  // ns from now on, ascending
  void post(const Times& times) const {
    if (::write(orders_[1], times.data(), sizeof times) != sizeof times) fail("the neighbour is gone");
  }
  void receive() const {
    char byte = 0;
    if (::read(bytes_[0], &byte, 1) != 1) fail("the neighbour is gone");
  }

 private:
  void run(int core) const {
    pin(core);
    for (Times times; ::read(orders_[0], times.data(), sizeof times) == sizeof times;) {
      const int64_t now_ns = SteadyClock::now();
      for (const int64_t time_ns : times) {
        sleep_until(now_ns + time_ns);
        if (::write(bytes_[1], "", 1) != 1) return;
      }
    }
  }

  int orders_[2], bytes_[2];
  std::thread thread_;
};

struct Samples {
  std::vector<int64_t> to_step, to_pause, grpc, grpc_in_a_row;
  uint64_t bubbles = 0, without_step = 0, late_pauses = 0;
};

class Trainer {
 public:
  Trainer(const std::string& run_dir, const char* job, const char* device, PingClient& ping) : ping_(ping) {
    freeride_hook_config config = {};
    config.struct_size = sizeof config;
    config.job = job;
    config.device = device;
    config.framework = "bench";
    config.run_dir = run_dir.c_str();
    config.stages = config.replicas = 1;
    hook_ = freeride_hook_attach(&config);
    if (hook_ == nullptr) fail("the hook did not attach");
    page_ = freeride_hook_page(hook_);
  }
  ~Trainer() { freeride_hook_detach(hook_); }

  /// One iteration; samples are taken where `samples` and `answer` are given.
  void iteration(const AnswerPage* answer, Samples* samples) {
    for (int wait = 0; wait < kWaits; ++wait) {
      const bool early = static_cast<uint64_t>(wait) == iteration_ % kWaits;
      const int64_t length_ns = early ? kEarlyNs : kBubbleNs;
      neighbour_.post({kRestNs, kRestNs + kSampleNs, kRestNs + length_ns, kRestNs + length_ns + kBreathNs});
      neighbour_.receive();
      freeride_hook_mark_begin(hook_);
      const auto begin_ns = static_cast<int64_t>(page_->begin_ns);
      const auto learned_ns = static_cast<int64_t>(page_->learned[wait].low_ns);
      neighbour_.receive();  // half-way: the first lease of the bubble still holds
      const int64_t first_ns = answer == nullptr ? 0 : answer->first_step_ns();
      neighbour_.receive();
      freeride_hook_mark_end(hook_);
      const uint64_t bubbles = page_->bubbles;
      const auto end_ns = static_cast<int64_t>(page_->history[(bubbles - 1) % FREERIDE_HISTORY].end_ns);
      neighbour_.receive();
      if (samples != nullptr) take(*answer, *samples, begin_ns, first_ns, end_ns, learned_ns, early);
      // One call after a rest, as a bubble's begin and end come after one: calls in a row keep both cores awake and
      // warm, and would be compared with something that never is.
      sleep_until(SteadyClock::now() + kRestNs);
      const int64_t round_trip = ping_.call();
      if (round_trip < 0) fail("a gRPC call failed");
      if (samples != nullptr) samples->grpc.push_back(round_trip);
      // And some in a row, for whoever thinks that unfair to gRPC.
      for (int i = 0; i < 3; ++i) {
        const int64_t warm = ping_.call();
        if (samples != nullptr && warm >= 0) samples->grpc_in_a_row.push_back(warm);
      }
    }
    freeride_hook_iteration_end(hook_);
    ++iteration_;
  }

 private:
  static void take(const AnswerPage& answer, Samples& samples, int64_t begin_ns, int64_t first_ns, int64_t end_ns,
                   int64_t learned_ns, bool early) {
    ++samples.bubbles;
    if (first_ns < begin_ns) {
      ++samples.without_step;
      return;
    }
    samples.to_step.push_back(first_ns - begin_ns);
    if (!early || learned_ns < end_ns - begin_ns + 200 * kNsPerUs) return;  // it may have paused at its own deadline
    const int64_t give_up_ns = SteadyClock::now() + kNsPerSec;
    while (answer.last_paused_ns() < end_ns) {
      if (SteadyClock::now() > give_up_ns) {
        ++samples.late_pauses;  // counted, not dropped from sight
        return;
      }
      sleep_until(SteadyClock::now() + 50 * kNsPerUs);
    }
    samples.to_pause.push_back(answer.last_paused_ns() - end_ns);
  }

  PingClient& ping_;
  Neighbour neighbour_{1};
  freeride_hook* hook_;
  freeride_bubble_page* page_;
  uint64_t iteration_ = 0;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Loads the task and trains until it runs in the bubbles.
AnswerPage start_task(bus::Requester& manager, Trainer& trainer, const std::filesystem::path& plugin,
                      const std::string& job, const std::string& name, int step_us) {
  bus::Load load;
  load.plugin = plugin.filename();
  load.name = name;
  load.job = job;
  load.stage = 0;
  load.params["us"] = std::to_string(step_us);
  load.memory_bytes = 64 << 20;
  auto loaded = manager.request(load, std::chrono::seconds(10), read_file(plugin));
  if (!loaded) fail("cannot load the side task: " + loaded.error().text());
  const int64_t give_up_ns = SteadyClock::now() + 60 * kNsPerSec;
  std::string last;
  while (SteadyClock::now() < give_up_ns) {
    for (int i = 0; i < 5; ++i) trainer.iteration(nullptr, nullptr);
    if (auto page = AnswerPage::find(name); page && page->steps() > 0) return *page;
    bus::ShowTask show;
    show.task = name;
    auto shown = manager.request(show, std::chrono::seconds(5));
    if (!shown) fail(shown.error().text());
    auto reply = shown->as<bus::TaskReply>();
    if (!reply) fail(reply.error().text());
    const bus::TaskState& state = reply->task.state;
    last = state.state + ", " + state.reason;
    if (!state.verdict.kind.empty()) fail("the side task ended: " + state.verdict.kind + ": " + state.verdict.reason);
  }
  fail("the side task made no step within a minute; it is " + last);
}

struct Usage {
  int64_t cpu_ns = 0, switches = 0;
};

Usage usage_of(const std::vector<pid_t>& pids) {
  Usage usage;
  for (const pid_t pid : pids) {
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
      int64_t cpu_ns = 0;
      std::ifstream(task.path() / "schedstat") >> cpu_ns;
      usage.cpu_ns += cpu_ns;
      std::ifstream status(task.path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (line.rfind("voluntary_ctxt_switches:", 0) == 0) usage.switches += std::stoll(line.substr(24));
      }
    }
  }
  return usage;
}

void idle(Figures& figures, const std::vector<pid_t>& pids, const char* suffix, int seconds) {
  const Usage before = usage_of(pids);
  const int64_t begin_ns = SteadyClock::now();
  ::sleep(static_cast<unsigned>(seconds));
  const Usage after = usage_of(pids);
  const auto passed = static_cast<double>(SteadyClock::now() - begin_ns);
  if (*suffix == '\0') figures.set("idle_cpu_pct", 100.0 * static_cast<double>(after.cpu_ns - before.cpu_ns) / passed);
  figures.set(std::string("idle_wakeups_per_s") + suffix,
              static_cast<double>(after.switches - before.switches) * 1e9 / passed);
}

// The least that waking a process on another, sleeping core costs: one futex word, no FreeRide. Virtual machines pay
// tens of microseconds here, and every figure across cores contains it.
std::vector<int64_t> wake_other_core(int count) {
  struct Shared {
    std::atomic<uint32_t> word{0};
    std::atomic<int64_t> woken_ns{0};
  };
  void* map = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) fail("no memory");
  auto* shared = new (map) Shared;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(1);
    for (uint32_t seen = 0;;) {
      ::syscall(SYS_futex, &shared->word, FUTEX_WAIT, seen, nullptr, nullptr, 0);
      if (shared->word.load() == seen) continue;
      seen = shared->word.load();
      shared->woken_ns.store(SteadyClock::now());
    }
  }
  std::vector<int64_t> samples;
  for (int i = 0; i < count; ++i) {
    sleep_until(SteadyClock::now() + kBubbleNs);
    const int64_t begin_ns = SteadyClock::now();
    shared->word.fetch_add(1);
    ::syscall(SYS_futex, &shared->word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    sleep_until(begin_ns + kNsPerMs);
    samples.push_back(shared->woken_ns.load() - begin_ns);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::munmap(map, sizeof(Shared));
  return samples;
}

// Where the worker and its side tasks are: on the trainer's own core, as with training on CPUs, or on another, as with
// a GPU.
struct Layout {
  const char* job;
  const char* device;
  const char* core;
  const char* suffix;
};

// Runs one side task of `step_us` on `layout` and takes its samples.
Samples measure(bus::Requester& commands, Trainer& trainer, const Layout& layout, const std::filesystem::path& plugin,
                int step_us, int iterations, const std::function<void()>& meanwhile) {
  const std::string task = "step" + std::to_string(step_us) + layout.suffix;
  const AnswerPage answer = start_task(commands, trainer, plugin, layout.job, task, step_us);
  for (int i = 0; i < 20; ++i) trainer.iteration(nullptr, nullptr);
  Samples samples;
  for (int i = 0; i < iterations; ++i) {
    trainer.iteration(&answer, &samples);
    meanwhile();
  }
  if (samples.to_step.empty() || samples.to_pause.empty()) fail("no bubble was harvested: nothing to measure");
  return samples;
}

void stop(bus::Requester& commands, const std::string& task) {
  bus::StopTask stop;
  stop.task = task;
  if (auto stopped = commands.request(stop, std::chrono::seconds(10)); !stopped) fail(stopped.error().text());
}

int run(const std::filesystem::path& self, bool quick) {
  char name[] = "/tmp/freeride-bench-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  const std::string run_dir = folder + "/run", state_dir = folder + "/state";
  std::filesystem::create_directories(state_dir + "/plugins");
  const auto programs = self.parent_path();
  const std::filesystem::path plugin = programs / "bench_step.so";
  const Layout same = {"same-core", "cpu-0", "0", ""}, other = {"other-core", "cpu-1", "1", "_other_core"};
  const int iterations = quick ? 10 : 100;
  Figures figures;
  {
    Child server({self.string(), "--grpc-server", folder + "/grpc.sock"}, "ready");
    Child manager({(programs / "freeride-manager").string(), "--run-dir", run_dir, "--state-dir", state_dir,
                   "--baseline-pct", "0", "--budget-pct", "100"},
                  "ready: ");
    const auto worker_on = [&](const Layout& layout) {
      return std::make_unique<Child>(
          std::vector<std::string>{(programs / "freeride-worker").string(), "--run-dir", run_dir, "--state-dir",
                                   state_dir, "--device", layout.device, "--cores", layout.core},
          "ready: ");
    };
    std::unique_ptr<Child> worker;
    const auto drain = [&] {
      manager.drain();
      worker->drain();
    };
    PingClient ping(folder + "/grpc.sock");
    for (int i = 0; i < 200; ++i) (void)ping.call();
    pin(0);
    zmq::context_t context(1);
    auto requester = bus::Requester::connect(context, "ipc://" + run_dir + "/commands.sock");
    if (!requester) fail(requester.error().text());
    bus::Requester& commands = **requester;
    std::vector<int64_t> grpc, grpc_in_a_row;
    const auto keep_grpc = [&](const Samples& samples) {
      grpc.insert(grpc.end(), samples.grpc.begin(), samples.grpc.end());
      grpc_in_a_row.insert(grpc_in_a_row.end(), samples.grpc_in_a_row.begin(), samples.grpc_in_a_row.end());
    };
    if (std::thread::hardware_concurrency() > 1) {
      worker = worker_on(other);
      Trainer trainer(run_dir, other.job, other.device, ping);
      const Samples samples = measure(commands, trainer, other, plugin, 2, iterations, drain);
      figures.set_us("edge_to_step_other_core", samples.to_step);
      figures.set_us("edge_to_pause_other_core", samples.to_pause);
      figures.set_us("wake_other_core", wake_other_core(quick ? 100 : 500));
      stop(commands, "step2_other_core");
      keep_grpc(samples);
    }
    worker = worker_on(same);
    {
      Trainer trainer(run_dir, same.job, same.device, ping);
      const Samples steps = measure(commands, trainer, same, plugin, 50, iterations, drain);
      figures.set_us("edge_to_step", steps.to_step);
      figures.set_us("edge_to_pause_50us_steps", steps.to_pause);
      stop(commands, "step50");
      const Samples pauses = measure(commands, trainer, same, plugin, 2, iterations, drain);
      figures.set_us("edge_to_pause", pauses.to_pause);
      figures.set("bubbles_measured", static_cast<double>(steps.bubbles));
      figures.set("bubbles_without_step_pct",
                  100.0 * static_cast<double>(steps.without_step) / static_cast<double>(steps.bubbles));
      figures.set("pauses_measured", static_cast<double>(pauses.to_pause.size()));
      figures.set("pauses_over_1s", static_cast<double>(steps.late_pauses + pauses.late_pauses));
      keep_grpc(steps);
      keep_grpc(pauses);
    }
    figures.set_us("grpc_rtt", grpc);
    figures.set_us("grpc_rtt_in_a_row", grpc_in_a_row);
    ::sleep(2);  // the last reports
    std::vector<pid_t> pids = find_processes({"freeride-runner supervise", "--name=step2 "});
    if (pids.empty()) fail("the paused task is gone");
    idle(figures, {manager.pid()}, "_manager", quick ? 2 : 5);
    idle(figures, {worker->pid()}, "_worker", quick ? 2 : 5);
    idle(figures, pids, "_task", quick ? 2 : 5);
    pids.push_back(manager.pid());
    pids.push_back(worker->pid());
    idle(figures, pids, "", quick ? 3 : 10);
  }
  std::filesystem::remove_all(folder);
  figures.print();
  return 0;
}

}  // namespace
}  // namespace freeride::bench

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--grpc-server") return freeride::bench::serve_ping(argv[2]);
  const bool quick = argc == 2 && std::string(argv[1]) == "--quick";
  return freeride::bench::run(std::filesystem::canonical("/proc/self/exe"), quick);
}
