// The library itself, under a played driver. Each case is a process of its own, since the shim reads its environment
// once.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/pages/mapping.hpp"
#include "freeride/pages/shim_report.hpp"
#include "played_cuda.h"

namespace {

using freeride::kNsPerMs;
using freeride::kNsPerSec;
using freeride::SteadyClock;
namespace pages = freeride::pages;

#define MUST(condition)                                                            \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                    \
    }                                                                              \
  } while (false)

void sleep_ms(int64_t ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// A program under the shim: in the child of a fork.
class Program {
 public:
  explicit Program(bool with_lease = true) {
    setenv("FREERIDE_SHIM_REAL", FREERIDE_PLAYED_CUDA, 1);
    counters_ = memfd_create("counters", 0);
    MUST(ftruncate(counters_, FREERIDE_SHIM_BYTES) == 0);
    setenv("FREERIDE_SHIM_PAGE", ("/proc/self/fd/" + std::to_string(counters_)).c_str(), 1);
    auto made = pages::create_page<freeride_lease_page>(false);
    MUST(made.ok());
    lease_ = std::move(made->page);
    lease_fd_ = std::move(made->fd);
    const std::string path = with_lease ? "/proc/self/fd/" + std::to_string(lease_fd_.get()) : "/nonexistent";
    setenv("FREERIDE_LEASE_PAGE", path.c_str(), 1);
  }
  void load() {
    shim_ = dlopen(FREERIDE_SHIM, RTLD_NOW | RTLD_LOCAL);
    if (shim_ == nullptr) std::fprintf(stderr, "%s\n", dlerror());
    MUST(shim_ != nullptr);
    real_ = dlopen(FREERIDE_PLAYED_CUDA, RTLD_NOW | RTLD_LOCAL);
    MUST(real_ != nullptr);
    use_context();
  }
  void use_context() {
    void* context = nullptr;
    MUST(call("cuDevicePrimaryCtxRetain", &context, 0) == 0);
    MUST(call("cuCtxSetCurrent", context) == 0);
  }

  template <class... Arguments>
  int call(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(shim_, name));
    MUST(function != nullptr);
    return function(arguments...);
  }
  template <class Result = int, class... Arguments>
  Result played(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<Result (*)(Arguments...)>(dlsym(real_, name));
    MUST(function != nullptr);
    return function(arguments...);
  }
  void* kernel(const std::string& name) {
    void* function = nullptr;
    MUST(call("cuModuleGetFunction", &function, static_cast<void*>(nullptr), name.c_str()) == 0);
    return function;
  }
  int launch(void* kernel, void* stream = nullptr, const char* how = "cuLaunchKernel") {
    return call(how, kernel, 1U, 1U, 1U, 1U, 1U, 1U, 0U, stream, static_cast<void**>(nullptr),
                static_cast<void**>(nullptr));
  }
  void* stream() {
    void* stream = nullptr;
    MUST(call("cuStreamCreate", &stream, 0U) == 0);
    return stream;
  }
  std::vector<played_record> records() {
    std::vector<played_record> all(100'000);
    all.resize(static_cast<size_t>(played("played_records", all.data(), 100'000)));
    return all;
  }
  int submitted() { return static_cast<int>(records().size()); }

  int64_t open(int64_t length_ns, uint32_t kind = FREERIDE_LEASE_BUBBLE, uint32_t order = FREERIDE_ORDER_RUN) {
    const int64_t now_ns = SteadyClock::now();
    pages::Lease lease;
    lease.order = order;
    lease.kind = kind;
    lease.lease_id = ++id_;
    lease.opened_ns = static_cast<uint64_t>(now_ns);
    lease.deadline_ns = static_cast<uint64_t>(now_ns + length_ns);
    pages::write_lease(*lease_, lease);
    pages::futex_wake(lease_->sequence, FREERIDE_WAKE_RUNNER);
    return now_ns + length_ns;
  }
  void close() {
    pages::write_lease(*lease_, pages::Lease{});
    pages::futex_wake(lease_->sequence, FREERIDE_WAKE_RUNNER);
  }
  freeride_lease_page& page() { return *lease_; }
  pages::ShimReport report() {
    auto report = pages::read_shim_page(counters_);
    MUST(report.ok());
    return *report;
  }
  void* symbol(const char* name) { return dlsym(shim_, name); }
  void* real_symbol(const char* name) { return dlsym(real_, name); }

 private:
  int counters_ = -1;
  pages::Mapped<freeride_lease_page> lease_;
  freeride::Fd lease_fd_;
  uint64_t id_ = 0;
  void* shim_ = nullptr;
  void* real_ = nullptr;
};

// Checks that a process in which the body is executed ends well.
void in_a_process(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);
    for (const int one : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE}) std::signal(one, SIG_DFL);  // not Catch2's
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

}  // namespace

TEST_CASE("launches wait for a lease and pass under one") {
  in_a_process([] {
    Program program;
    program.load();
    void* kernel = program.kernel("k:1000");
    std::atomic<int> done{0};
    std::thread thread([&] {
      program.use_context();
      MUST(program.launch(kernel) == 0);
      ++done;
      MUST(program.call("cuMemcpyHtoD_v2", uint64_t{1}, static_cast<void*>(nullptr), size_t{100}) == 0);
      ++done;
    });
    sleep_ms(30);
    MUST(done == 0 && program.submitted() == 0);
    program.open(60 * kNsPerSec, FREERIDE_LEASE_BUBBLE, FREERIDE_ORDER_PAUSE);
    sleep_ms(30);
    MUST(done == 0 && program.submitted() == 0);
    program.open(60 * kNsPerSec, FREERIDE_LEASE_SAVE);
    sleep_ms(30);
    MUST(done == 0 && program.submitted() == 0);
    MUST(program.report().held == 1 && program.report().waits == 0);
    program.open(60 * kNsPerSec, FREERIDE_LEASE_INIT, FREERIDE_ORDER_PAUSE);
    sleep_ms(30);
    MUST(done == 0 && program.submitted() == 0);
    program.open(60 * kNsPerSec);
    thread.join();
    MUST(program.submitted() == 2);
    const auto report = program.report();
    MUST(report.processes == 1 && report.submissions == 2 && report.waits == 1 && report.waited_ns > 0);
    MUST(report.held == 1);
    MUST(report.refused == 0 && report.leases == 1);
  });
}

TEST_CASE("a plugin's work passes under a save lease, and once it is to stop") {
  in_a_process([] {
    setenv("FREERIDE_SHIM_PLUGIN", "1", 1);
    Program program;
    program.load();
    void* kernel = program.kernel("k:1000");
    program.open(60 * kNsPerSec, FREERIDE_LEASE_SAVE, FREERIDE_ORDER_PAUSE);
    MUST(program.launch(kernel) == 0);
    program.close();
    std::atomic<int> done{0};
    std::thread thread([&] {
      program.use_context();
      MUST(program.launch(kernel) == 0);
      ++done;
    });
    sleep_ms(30);
    MUST(done == 0 && program.submitted() == 1);
    pages::Lease stop;
    stop.order = FREERIDE_ORDER_STOP;
    pages::write_lease(program.page(), stop);
    pages::futex_wake(program.page().sequence, FREERIDE_WAKE_RUNNER);
    thread.join();
    MUST(program.submitted() == 2);
  });
}

TEST_CASE("nothing is submitted after a lease's end, by whatever it ends") {
  // Short kernels are submitted on credit.
  for (const auto& [revoked, name] :
       {std::pair{false, "k:50000"}, {true, "k:50000"}, {false, "k:1000"}, {true, "k:1000"}}) {
    in_a_process([revoked = revoked, name = name] {
      Program program;
      program.load();
      constexpr int kThreads = 3;
      std::atomic<bool> stop{false};
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
          program.use_context();
          void* stream = program.stream();
          void* kernel = program.kernel(name);
          while (!stop) MUST(program.launch(kernel, stream) == 0);
        });
      }
      const int64_t end_ns = program.open((revoked ? 60'000 : 40) * kNsPerMs);
      int64_t ended_ns = end_ns;
      if (revoked) {
        sleep_ms(40);
        program.close();
        ended_ns = SteadyClock::now();
      } else {
        while (SteadyClock::now() <= end_ns) sleep_ms(1);
      }
      sleep_ms(50);
      const int then = program.submitted();
      MUST(then > 0);
      sleep_ms(100);
      MUST(program.submitted() == then);
      // A thread that was between its look and the driver when the lease ended. On credit it looks at the time only
      // each time that it has spent 62 µs.
      int late = 0;
      for (const auto& record : program.records()) late += record.submitted_ns > ended_ns ? 1 : 0;
      MUST(late <= kThreads * (revoked || name == std::string("k:50000") ? 1 : 1 + 62));
      stop = true;
      program.open(60 * kNsPerSec);
      for (auto& thread : threads) thread.join();
    });
  }
}

#if defined(__x86_64__)
namespace {

// Calls a function of four arguments with a stack above which nothing can be written.
uint64_t call_below(void* top, void* function, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t result = 0;
  asm volatile(
      "mov %%rsp, %%rbx\n"
      "mov %[top], %%rsp\n"
      "call *%[function]\n"
      "mov %%rbx, %%rsp\n"
      : "=a"(result), "+D"(a), "+S"(b), "+d"(c), "+c"(d)
      : [top] "r"(top), [function] "r"(function)
      : "rbx", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
        "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
  return result;
}

}  // namespace

TEST_CASE("a launch writes nothing into its caller's memory") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(60 * kNsPerSec);
    void* kernel = program.kernel("k:1000");
    struct {
      uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0;
      void* stream = nullptr;
      void* attributes = nullptr;
      uint32_t count = 0;
    } config;
    constexpr size_t kStack = size_t{1} << 20;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    auto* memory =
        static_cast<char*>(mmap(nullptr, kStack + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    MUST(memory != MAP_FAILED && mprotect(memory + kStack, page, PROT_READ) == 0);
    const auto word = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
    const int64_t until_ns = SteadyClock::now() + 50 * kNsPerMs;
    int launches = 0;
    // Until the counter's rate is known, and some on credit.
    while (SteadyClock::now() < until_ns || launches < 1000) {
      MUST(call_below(memory + kStack, program.symbol("cuLaunchKernelEx"), word(&config), word(kernel), 0, 0) == 0);
      ++launches;
    }
    MUST(program.submitted() == std::min(launches, 100'000));
  });
}
#endif

TEST_CASE("a kernel that takes much longer than it did fills the queue for a second at most") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(60 * kNsPerSec);
    void* kernel = program.kernel("k:200000");
    const auto launch = [&](int count) {
      for (int i = 0; i < count; ++i) MUST(program.launch(kernel) == 0);
    };
    launch(1000);
    program.call("cuStreamSynchronize", static_cast<void*>(nullptr));
    program.played<void>("played_takes", kernel, 8 * kNsPerMs);
    // Three of the last four have to be so; on a busy machine some times are dropped.
    int64_t most_ns = INT64_MAX;
    for (int rounds = 0; rounds < 10 && most_ns > 16 * kNsPerMs; ++rounds) {
      sleep_ms(1100);
      launch(8);
      program.call("cuStreamSynchronize", static_cast<void*>(nullptr));
      static_cast<void>(program.played<int64_t>("played_most_queued_ns"));
      launch(20);
      most_ns = program.played<int64_t>("played_most_queued_ns");
    }
    MUST(most_ns <= 16 * kNsPerMs);
  });
}

TEST_CASE("a kernel that has become short is tried, and passes then") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(60 * kNsPerSec);
    void* kernel = program.kernel("k:60000000");
    for (int i = 0; i < 4; ++i) MUST(program.launch(kernel) == 0);
    program.call("cuStreamSynchronize", static_cast<void*>(nullptr));
    program.played<void>("played_takes", kernel, kNsPerMs);
    program.close();
    std::atomic<int> launched{0};
    std::thread thread([&] {
      program.use_context();
      for (int i = 0; i < 30; ++i) {
        MUST(program.launch(kernel) == 0);
        ++launched;
      }
    });
    int leases = 0;
    for (; launched < 30 && leases < 2000; ++leases) {
      program.open(30 * kNsPerMs);
      sleep_ms(5);
      program.close();
      sleep_ms(1);
    }
    MUST(launched == 30);
    thread.join();
  });
}

TEST_CASE("a launch from within the driver's launch passes") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(60 * kNsPerSec);
    void* kernel = program.kernel("k:0");
    static Program* the_program = nullptr;
    static void* the_kernel = nullptr;
    the_program = &program;
    the_kernel = kernel;
    program.played<void>(
        "played_launching", +[] { MUST(the_program->launch(the_kernel) == 0); });
    const int64_t until_ns = SteadyClock::now() + 50 * kNsPerMs;
    int launches = 0;
    while (SteadyClock::now() < until_ns || launches < 1000) {
      MUST(program.launch(kernel) == 0);
      ++launches;
    }
    MUST(program.submitted() >= std::min(2 * launches, 100'000));
  });
}

TEST_CASE("orders that have expired end a lease") {
  in_a_process([] {
    Program program;
    program.load();
    pages::store_relaxed(program.page().orders_until_ns, uint64_t{1});
    program.open(60 * kNsPerSec);
    std::atomic<bool> done{false};
    std::thread thread([&] {
      program.use_context();
      MUST(program.launch(program.kernel("k:1000")) == 0);
      done = true;
    });
    sleep_ms(50);
    MUST(!done && program.submitted() == 0);
    pages::store_relaxed(program.page().orders_until_ns,
                         static_cast<uint64_t>(freeride::boottime_now() + 60 * kNsPerSec));
    program.open(60 * kNsPerSec);
    thread.join();
    MUST(program.submitted() == 1);
  });
}

TEST_CASE("the queue is bounded by what is known") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(100 * kNsPerSec);
    for (const int64_t ns : {100'000, 300'000}) {
      void* kernel = program.kernel("k:" + std::to_string(ns));
      for (int i = 0; i < 20; ++i) MUST(program.launch(kernel) == 0);
      program.played<int64_t>("played_most_queued_ns");
      for (int i = 0; i < 100; ++i) MUST(program.launch(kernel) == 0);
      // By what they took, which on a played GPU is more than what they say.
      MUST(program.played<int64_t>("played_most_queued_ns") <= 2 * kNsPerMs);  // early in a lease
    }
    MUST(program.report().full > 0);
    MUST(program.report().longest_name.rfind("k:", 0) == 0);
  });
}

TEST_CASE("what is not known is alone on the GPU") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(100 * kNsPerSec);
    for (int i = 0; i < 10; ++i) {
      void* kernel = program.kernel("k" + std::to_string(i) + ":2000000");
      MUST(program.launch(kernel) == 0);
      MUST(program.played<int64_t>("played_most_queued_ns") <= 2'000'000);
    }
  });
}

TEST_CASE("a long kernel is kept out of short leases, and tried seldom where there are no others") {
  in_a_process([] {
    Program program;
    program.load();
    void* kernel = program.kernel("long:60000000");
    program.open(60 * kNsPerSec);
    for (int i = 0; i < 3; ++i) MUST(program.launch(kernel) == 0);
    program.call("cuStreamSynchronize", static_cast<void*>(nullptr));
    program.close();
    for (int i = 0; i < 40; ++i) {  // the long lease is forgotten
      program.open(30 * kNsPerMs);
      MUST(program.launch(program.kernel("short:1000")) == 0);
      program.close();
    }
    const int before = program.submitted();
    std::atomic<bool> done{false};
    std::thread thread([&] {
      program.use_context();
      MUST(program.launch(kernel) == 0);
      done = true;
    });
    int leases = 0;
    while (!done) {
      ++leases;
      program.open(30 * kNsPerMs);
      sleep_ms(32);
      MUST(leases < 200);
    }
    thread.join();
    MUST(leases > 3);
    MUST(program.submitted() == before + 1);
    const auto report = program.report();
    MUST(report.let_in == 1 && report.too_long >= 1 && report.too_long_ns >= 60'000'000);
    MUST(report.too_long_name == "long:60000000");
    MUST(report.longest_ns >= 60'000'000 && report.longest_name == "long:60000000");
  });
}

TEST_CASE("a capture needs no lease, its graph's launch does") {
  in_a_process([] {
    Program program;
    program.load();
    void* stream = program.stream();
    void* kernel = program.kernel("k:1000");
    MUST(program.call("cuStreamBeginCapture_v2", stream, 0) == 0);
    for (int i = 0; i < 5; ++i) MUST(program.launch(kernel, stream) == 0);
    void* graph = nullptr;
    MUST(program.call("cuStreamEndCapture", stream, &graph) == 0);
    MUST(program.submitted() == 0 && program.report().captured == 5);
    void* exec = nullptr;
    MUST(program.call("cuGraphInstantiateWithFlags", &exec, graph, 0ULL) == 0);
    std::atomic<bool> done{false};
    std::thread thread([&] {
      program.use_context();
      for (int i = 0; i < 10; ++i) MUST(program.call("cuGraphLaunch", exec, stream) == 0);
      done = true;
    });
    sleep_ms(30);
    MUST(!done && program.submitted() == 0);
    program.open(60 * kNsPerSec);
    thread.join();
    MUST(program.submitted() == 10 && program.report().captured == 5);
  });
}

TEST_CASE("a wait on the GPU for something that is yet to be submitted ends") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(100 * kNsPerSec);
    void* first = program.stream();
    void* second = program.stream();
    void* kernel = program.kernel("k:300000");
    for (int i = 0; i < 20; ++i) MUST(program.launch(kernel, second) == 0);
    uint32_t word = 0;
    const auto address = reinterpret_cast<uint64_t>(&word);
    MUST(program.call("cuStreamWaitValue32_v2", first, address, 1U, 0U) == 0);
    // More behind the wait than the queue's bound.
    for (int i = 0; i < 10; ++i) MUST(program.launch(kernel, first) == 0);
    MUST(program.call("cuStreamWriteValue32_v2", second, address, 1U, 0U) == 0);
    MUST(program.call("cuStreamSynchronize", first) == 0);
    MUST(program.report().stalled > 0);
  });
}

TEST_CASE("a thread that waits inside the driver for something that is yet to be submitted gets it") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(100 * kNsPerSec);
    uint32_t word = 0;
    const auto address = reinterpret_cast<uint64_t>(&word);
    MUST(program.call("cuStreamWaitValue32_v2", static_cast<void*>(nullptr), address, 1U, 0U) == 0);
    std::thread thread([&] {
      program.use_context();
      MUST(program.call("cuMemcpyHtoD_v2", uint64_t{1}, static_cast<void*>(nullptr), size_t{100}) == 0);
    });
    while (program.submitted() < 2) sleep_ms(1);
    void* other = program.stream();
    for (int i = 0; i < 3; ++i) MUST(program.launch(program.kernel("k:1000"), other) == 0);
    MUST(program.call("cuStreamWriteValue32_v2", other, address, 1U, 0U) == 0);
    thread.join();
    MUST(program.report().stalled > 0);
  });
}

TEST_CASE("many threads and streams, leases that come and go") {
  in_a_process([] {
    Program program;
    program.load();
    std::atomic<int> left{6};
    std::vector<std::thread> threads;
    std::atomic<int> called{0};
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        program.use_context();
        for (int round = 0; round < 3; ++round) {
          void* stream = program.stream();
          void* kernel = program.kernel("k:" + std::to_string(5000 * (i + 1)));
          for (int j = 0; j < 60; ++j) {
            MUST(program.launch(kernel, stream) == 0);
            MUST(program.launch(kernel, nullptr) == 0);
            MUST(program.launch(kernel, nullptr, "cuLaunchKernel_ptsz") == 0);
            if (j % 20 == 0) {
              MUST(program.call("cuMemsetD8Async", uint64_t{1}, static_cast<unsigned char>(0), size_t{1000}, stream) ==
                   0);
              MUST(program.call(
                       "cuLaunchHostFunc", stream, +[](void* context) { ++*static_cast<std::atomic<int>*>(context); },
                       static_cast<void*>(&called)) == 0);
            }
          }
          MUST(program.call("cuStreamSynchronize", stream) == 0);
          MUST(program.call("cuStreamDestroy_v2", stream) == 0);
        }
        --left;
      });
    }
    while (left > 0) {
      program.open(20 * kNsPerMs);
      sleep_ms(15);
      program.close();
      sleep_ms(2);
    }
    for (auto& thread : threads) thread.join();
    MUST(program.submitted() == 6 * 3 * (3 * 60 + 3));
    MUST(called == 6 * 3 * 3);
    const auto report = program.report();
    MUST(report.submissions == 6 * 3 * (3 * 60 + 3) && report.host_functions == 6 * 3 * 3);
  });
}

TEST_CASE("cuGetProcAddress gives wrappers of what submits, in all versions") {
  in_a_process([] {
    Program program;
    program.load();
    const auto get = [&](const char* name, int version, uint64_t flags) {
      void* function = nullptr;
      int status = -1;
      MUST(program.call("cuGetProcAddress_v2", name, &function, version, flags, &status) == 0);
      void* same = nullptr;
      MUST(program.call("cuGetProcAddress", name, &same, version, flags) == 0);
      MUST(function == same && function != nullptr);
      return function;
    };
    MUST(get("cuLaunchKernel", 12000, 0) == program.symbol("cuLaunchKernel"));
    MUST(get("cuLaunchKernel", 12000, 2) == program.symbol("cuLaunchKernel_ptsz"));
    MUST(get("cuMemcpyHtoDAsync", 12000, 0) == program.symbol("cuMemcpyHtoDAsync_v2"));
    MUST(get("cuMemcpyHtoDAsync", 12000, 2) == program.symbol("cuMemcpyHtoDAsync_v2_ptsz"));
    MUST(get("cuMemPrefetchAsync", 12000, 0) == program.symbol("cuMemPrefetchAsync"));
    // One that the driver does not export under the address that it gives.
    MUST(get("cuMemPrefetchAsync", 13000, 0) == program.symbol("cuMemPrefetchAsync_v2"));
    MUST(get("cuGetProcAddress", 11030, 0) == program.symbol("cuGetProcAddress"));
    MUST(get("cuGetProcAddress", 12000, 0) == program.symbol("cuGetProcAddress_v2"));
    MUST(get("cuMemGetInfo", 12000, 0) == program.symbol("cuMemGetInfo_v2"));
    // Known to submit nothing: the driver's own.
    MUST(get("cuCtxGetCurrent", 12000, 0) == program.real_symbol("cuCtxGetCurrent"));
    void* function = &program;
    int status = -1;
    MUST(program.call("cuGetProcAddress_v2", "cuNothing", &function, 12000, uint64_t{0}, &status) == 500);
    MUST(status == 1 && program.report().unknown.empty());
  });
}

TEST_CASE("what is not known passes, is counted and named") {
  in_a_process([] {
    Program program;
    const std::string log = "/tmp/freeride-shim-log-" + std::to_string(getpid());
    setenv("FREERIDE_SHIM_LOG", log.c_str(), 1);
    program.load();
    void* function = nullptr;
    for (int i = 0; i < 2; ++i)
      MUST(program.call("cuGetProcAddress", "cuPlayedSecret", &function, 13000, uint64_t{0}) == 0);
    auto* secret = reinterpret_cast<int (*)(int, double, int, int, int, int, int, int)>(function);
    for (int i = 0; i < 3; ++i) MUST(secret(1, 2.0, 3, 4, 5, 6, 7, 8) == 36);
    MUST(program.played("played_secrets") == 3);
    const void* table = nullptr;
    const unsigned char id[16] = {0xab, 1};
    MUST(program.call("cuGetExportTable", &table, static_cast<const void*>(id)) == 0);
    const auto report = program.report();
    MUST(report.unknown.size() == 2 && report.export_tables == 1);
    MUST(report.unknown[0].name == "cuPlayedSecret" && report.unknown[0].calls == 3);
    MUST(report.unknown[1].name.rfind("table ab01", 0) == 0 && report.unknown[1].calls == 1);
    std::ifstream file(log);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    MUST(text.find("unknown cuPlayedSecret\n") != std::string::npos);
    unlink(log.c_str());
  });
}

TEST_CASE("without a lease page everything is refused that submits, and nothing else") {
  in_a_process([] {
    Program program(false);
    program.load();
    void* kernel = program.kernel("k:1000");
    MUST(program.launch(kernel) == 800);
    MUST(program.call("cuMemcpyHtoD_v2", uint64_t{1}, static_cast<void*>(nullptr), size_t{100}) == 800);
    MUST(program.submitted() == 0 && program.report().refused == 2);
    uint64_t address = 0;
    MUST(program.call("cuMemAlloc_v2", &address, size_t{1000}) == 0);
  });
}

TEST_CASE("without a driver every function answers that there is none") {
  in_a_process([] {
    Program program;
    for (const char* real : {"/nonexistent", FREERIDE_SHIM}) {
      setenv("FREERIDE_SHIM_REAL", real, 1);
      if (real[1] != 'n') continue;
      void* shim = dlopen(FREERIDE_SHIM, RTLD_NOW | RTLD_LOCAL);
      MUST(shim != nullptr);
      MUST(reinterpret_cast<int (*)(unsigned)>(dlsym(shim, "cuInit"))(0) == 303);
    }
  });
  in_a_process([] {
    Program program;
    setenv("FREERIDE_SHIM_REAL", FREERIDE_SHIM, 1);
    void* shim = dlopen(FREERIDE_SHIM, RTLD_NOW | RTLD_LOCAL);
    MUST(shim != nullptr);
    MUST(reinterpret_cast<int (*)(unsigned)>(dlsym(shim, "cuInit"))(0) == 303);
  });
}

TEST_CASE("the driver's errors are the program's, and leave nothing in the queue") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(60 * kNsPerSec);
    void* kernel = program.kernel("k:1000");
    for (int i = 0; i < 6; ++i) MUST(program.launch(kernel) == 0);
    program.played<void>("played_fail", 719);
    for (int i = 0; i < 5000; ++i) MUST(program.launch(kernel) == 719);
    program.played<void>("played_fail", 0);
    MUST(program.launch(kernel) == 0);
    MUST(program.call("cuCtxSetCurrent", static_cast<void*>(nullptr)) == 0);
    MUST(program.launch(kernel) == 201);
  });
}

TEST_CASE("memory is told by the limit") {
  in_a_process([] {
    Program program;
    setenv("FREERIDE_MEMORY_BYTES", "8589934592", 1);
    program.load();
    size_t free = 0;
    size_t total = 0;
    MUST(program.call("cuMemGetInfo_v2", &free, &total) == 0);
    MUST(total == size_t{8} << 30 && free == total);
    uint64_t address = 0;
    MUST(program.call("cuMemAlloc_v2", &address, size_t{1} << 30) == 0);
    MUST(program.call("cuMemGetInfo_v2", &free, &total) == 0);
    MUST(total == size_t{8} << 30 && free == size_t{7} << 30);
    MUST(program.call("cuMemFree_v2", address) == 0);
    MUST(program.call("cuMemGetInfo_v2", &free, &total) == 0);
    MUST(free == total);
    MUST(program.call("cuDeviceTotalMem_v2", &total, 0) == 0);
    MUST(total == size_t{8} << 30);
  });
}

TEST_CASE("a fork in the middle of things leaves a child that can call") {
  in_a_process([] {
    Program program;
    program.load();
    program.open(100 * kNsPerSec);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        program.use_context();
        void* stream = program.stream();
        void* kernel = program.kernel("k:20000");
        while (!stop) MUST(program.launch(kernel, stream) == 0);
      });
    }
    for (int i = 0; i < 20; ++i) {
      sleep_ms(3);
      const pid_t child = fork();
      if (child == 0) {
        alarm(60);
        int count = 0;
        MUST(program.call("cuDeviceGetCount", &count) == 0 && count == 1);
        size_t free = 0;
        size_t total = 0;
        MUST(program.call("cuMemGetInfo_v2", &free, &total) == 0);
        void* function = nullptr;
        MUST(program.call("cuGetProcAddress", "cuLaunchKernel", &function, 12000, uint64_t{0}) == 0);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stop = true;
    for (auto& thread : threads) thread.join();
  });
}
