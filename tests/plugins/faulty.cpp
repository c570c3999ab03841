// Misbehaves once, in the way `how`, in the transition `where`: create, init, start, step, pause or stop. In a step,
// from the `after`-th step on.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "tiny.h"

namespace {

struct Faulty {
  const freeride_host* host;
  std::string where, how;
  long after;
  bool hangs_at_exit;
};

// The process flushes its streams when it ends: of this one that takes for ever.
void hang_at_exit() {
  cookie_io_functions_t functions{};
  functions.write = [](void*, const char*, size_t) -> ssize_t {
    for (;;) pause();
  };
  std::fputs("something", fopencookie(nullptr, "w", functions));
}

freeride_status misbehave(const Faulty& self) {
  const std::string& how = self.how;
  if (self.hangs_at_exit) hang_at_exit();
  const auto fail = [&](const char* text) { self.host->fail(self.host->context, text); };
  if (how == "fail") {
    fail("told to fail");
    return FREERIDE_ERROR;
  }
  if (how == "silent") return FREERIDE_ERROR;
  if (how == "unavailable") return FREERIDE_UNAVAILABLE;
  if (how == "status") return 4711;
  if (how == "oom") {
    fail("no memory for the table");
    return FREERIDE_OUT_OF_MEMORY;
  }
  if (how == "finished") return FREERIDE_FINISHED;
  if (how == "throw") throw std::runtime_error("thrown on purpose");
  if (how == "throw_int") throw 7;
  if (how == "bad_alloc") throw std::bad_alloc();
  if (how == "throw_thread") {
    std::thread([] { throw std::runtime_error("thrown in a thread"); }).join();
  }
  if (how == "abort") std::abort();
  if (how == "segv") raise(SIGSEGV);
  if (how == "exit0") _exit(0);
  if (how == "exit3") std::exit(3);
  if (how == "kill") kill(getpid(), SIGKILL);
  if (how == "hang") {
    for (;;) pause();
  }
  if (how == "spin") {
    for (volatile unsigned turning = 1; turning;) {
    }
  }
  if (how == "hold") {  // 300 ms of execution: longer than a short lease, then well-behaved
    const auto end = self.host->now_ns(self.host->context) + 300'000'000;
    while (self.host->now_ns(self.host->context) < end) {
    }
  }
  return FREERIDE_OK;
}

freeride_status maybe(void* task, const char* where) {
  const auto& self = *static_cast<Faulty*>(task);
  return self.where == where ? misbehave(self) : FREERIDE_OK;
}

freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  auto* self = new Faulty{host, tiny_param(info, "where"), tiny_param(info, "how"), atol(tiny_param(info, "after")),
                          *tiny_param(info, "exit") != '\0'};
  if (self->where == "create") {
    const freeride_status status = misbehave(*self);
    if (status != FREERIDE_OK) {
      delete self;
      return status;
    }
  }
  *task = self;
  return FREERIDE_OK;
}

freeride_status step(void* task) {
  auto& self = *static_cast<Faulty*>(task);
  if (self.where == "step" && --self.after < 0) return misbehave(self);
  usleep(200);
  return FREERIDE_OK;
}

const freeride_param_spec kParams[] = {
    {"where", "step", "create, init, start, step, pause or stop"},
    {"how", "fail", "what to do there"},
    {"after", "0", "good steps before the bad one"},
    {"exit", "", "hang: once it has misbehaved, its process does not come to its end"},
};

freeride_plugin make() {
  freeride_plugin plugin = tiny_plugin("faulty");
  plugin.params = kParams;
  plugin.param_count = 4;
  plugin.create = create;
  plugin.init = [](void* task) { return maybe(task, "init"); };
  plugin.start = [](void* task) { return maybe(task, "start"); };
  plugin.run_next_step = step;
  plugin.pause = [](void* task) { return maybe(task, "pause"); };
  plugin.stop = [](void* task) { return maybe(task, "stop"); };
  plugin.destroy = [](void* task) { delete static_cast<Faulty*>(task); };
  return plugin;
}

}  // namespace

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static const freeride_plugin plugin = make();
  return &plugin;
}
