#include "gpu/probe_program.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include "acting/probe_page.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::worker {
namespace {

// A kernel that has not ended by then is given up: the answer is that there is none.
constexpr int64_t kGiveUpNs = 200 * kNsPerMs;

// One thread that looks at the GPU's clock for `for_ns`: struct ProbeBeats is {began, ended, gap, beat}. As PTX, so
// that whichever driver there is makes code for whichever GPU there is.
constexpr const char* kKernel = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry freeride_probe(.param .u64 out, .param .u64 for_ns)
{
  .reg .pred %p, %q;
  .reg .b64 %out, %for, %begin, %now, %last, %beat, %gap, %since;
  ld.param.u64 %out, [out];
  ld.param.u64 %for, [for_ns];
  cvta.to.global.u64 %out, %out;
  mov.u64 %begin, %globaltimer;
  st.volatile.global.u64 [%out], %begin;
  mov.u64 %last, %begin;
  mov.u64 %beat, %begin;
  mov.u64 %gap, 0;
LOOK:
  mov.u64 %now, %globaltimer;
  sub.s64 %since, %now, %last;
  max.u64 %gap, %gap, %since;
  mov.u64 %last, %now;
  sub.s64 %since, %now, %beat;
  setp.lt.u64 %q, %since, 2000;
  @%q bra NO_BEAT;
  st.volatile.global.u64 [%out+24], %now;
  mov.u64 %beat, %now;
NO_BEAT:
  sub.s64 %since, %now, %begin;
  setp.lt.u64 %p, %since, %for;
  @%p bra LOOK;
  st.volatile.global.u64 [%out+16], %gap;
  membar.sys;
  st.volatile.global.u64 [%out+8], %now;
  ret;
}
)";

// The CUDA driver, as far as it is needed: its calls are stable, so they are written down here, as NVML's in nvml.cpp.
struct Cuda {
  int (*init)(unsigned) = nullptr;
  int (*device)(int*, int) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*set_current)(void*) = nullptr;
  int (*register_host)(void*, size_t, unsigned) = nullptr;
  int (*device_pointer)(unsigned long long*, void*, unsigned) = nullptr;
  int (*load)(void**, const void*) = nullptr;
  int (*function)(void**, void*, const char*) = nullptr;
  int (*stream)(void**, unsigned) = nullptr;
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**) = nullptr;

  const char* missing = nullptr;
  template <class F>
  void find(void* library, F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (function == nullptr) missing = name;
  }
};

constexpr unsigned kMapped = 2;       // CU_MEMHOSTREGISTER_DEVICEMAP
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

int fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return 1;
}

/// The kernel, ready to be launched.
struct Kernel {
  Cuda cuda;
  void* function = nullptr;
  void* stream = nullptr;
  unsigned long long beats = 0;  ///< their address on the GPU

  /// What did not work; empty: all did.
  std::string open(ProbePage& page) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "no CUDA driver: libcuda.so.1 cannot be opened";
    cuda.find(library, cuda.init, "cuInit");
    cuda.find(library, cuda.device, "cuDeviceGet");
    cuda.find(library, cuda.retain, "cuDevicePrimaryCtxRetain");
    cuda.find(library, cuda.set_current, "cuCtxSetCurrent");
    cuda.find(library, cuda.register_host, "cuMemHostRegister_v2");
    cuda.find(library, cuda.device_pointer, "cuMemHostGetDevicePointer_v2");
    cuda.find(library, cuda.load, "cuModuleLoadData");
    cuda.find(library, cuda.function, "cuModuleGetFunction");
    cuda.find(library, cuda.stream, "cuStreamCreate");
    cuda.find(library, cuda.launch, "cuLaunchKernel");
    if (cuda.missing != nullptr) return std::string("the CUDA driver lacks ") + cuda.missing;
    int device = 0;
    void *context = nullptr, *module = nullptr;
    const auto failed = [](const char* call, int error) {
      return std::string(call) + " failed with error " + std::to_string(error);
    };
    if (int e = cuda.init(0)) return failed("cuInit", e);
    if (int e = cuda.device(&device, 0)) return failed("cuDeviceGet", e);
    if (int e = cuda.retain(&context, device)) return failed("cuDevicePrimaryCtxRetain", e);
    if (int e = cuda.set_current(context)) return failed("cuCtxSetCurrent", e);
    if (int e = cuda.register_host(&page, 4096, kMapped)) return failed("cuMemHostRegister", e);
    if (int e = cuda.device_pointer(&beats, &page, 0)) return failed("cuMemHostGetDevicePointer", e);
    beats += offsetof(ProbePage, beats);
    if (int e = cuda.load(&module, kKernel)) return failed("cuModuleLoadData", e);
    if (int e = cuda.function(&function, module, "freeride_probe")) return failed("cuModuleGetFunction", e);
    if (int e = cuda.stream(&stream, kNonBlocking)) return failed("cuStreamCreate", e);
    return {};
  }

  int launch(int64_t for_ns) {
    auto length = static_cast<unsigned long long>(for_ns);
    void* arguments[] = {&beats, &length};
    return cuda.launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  }
};

uint64_t read(const uint64_t& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

// Launches once and waits for the end. False: the GPU does not work any more.
bool answer(Kernel& kernel, ProbePage& page, uint32_t serial) {
  ProbeBeats& beats = page.beats;
  page.began_ns = page.ended_ns = page.gap_ns = 0;
  for (uint64_t* word : {&beats.began, &beats.ended, &beats.gap, &beats.beat})
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  const int64_t before_ns = SteadyClock::now();
  if (kernel.launch(page.for_ns) != 0) return false;
  // Taken after the call: where this thread was kept from going on in between, the kernel seems to begin early, not
  // late.
  const int64_t launched_ns = SteadyClock::now();
  page.launched_ns = launched_ns;
  pages::store_release(page.launched, serial);
  // The GPU's clock beside ours: what is seen at a look was written between this look and the last, so each look bounds
  // the difference from both sides. Where this process gets no core, the bounds are far apart.
  int64_t least_ns = std::numeric_limits<int64_t>::min(), most_ns = std::numeric_limits<int64_t>::max();
  bool ended = false;
  uint64_t shown_before = 0;
  for (int64_t last_ns = before_ns, now_ns = launched_ns; !ended && now_ns - launched_ns < kGiveUpNs;) {
    ended = read(beats.ended) != 0;
    const uint64_t shown = ended ? read(beats.ended) : std::max(read(beats.beat), read(beats.began));
    const int64_t look_ns = now_ns;  // before what was shown was read
    now_ns = SteadyClock::now();
    if (shown != 0) most_ns = std::min(most_ns, now_ns - static_cast<int64_t>(shown));
    if (shown != shown_before) least_ns = std::max(least_ns, last_ns - static_cast<int64_t>(shown));
    shown_before = shown;
    last_ns = look_ns;
  }
  if (!ended) return false;
  page.gap_ns = static_cast<int64_t>(read(beats.gap));
  page.ended_ns = static_cast<int64_t>(read(beats.ended)) + most_ns;
  page.began_ns = static_cast<int64_t>(read(beats.began)) + std::min(least_ns, most_ns);
  page.began_by_ns = static_cast<int64_t>(read(beats.began)) + most_ns;
  pages::store_release(page.answered, serial);
  pages::futex_wake(page.answered);
  return true;
}

}  // namespace

int run_probe(int fd) {
  const pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (parent == 1) return 1;  // it has gone already
  auto mapping = ProbeMapping::open(fd);
  if (!mapping.ok()) return fail(mapping.error().text());
  ProbePage& page = (*mapping)->page();
  Kernel kernel;
  if (const std::string problem = kernel.open(page); !problem.empty()) return fail(problem);
  // The first launch makes what later ones find made.
  if (!answer(kernel, page, 0)) return fail("its first kernel did not end");
  uint32_t serial = pages::load_acquire(page.asked);
  pages::store_release<uint32_t>(page.ready, 1);
  for (;;) {
    pages::futex_wait(page.asked, serial, pages::kForever);
    const uint32_t asked = pages::load_acquire(page.asked);
    if (asked == serial) continue;
    serial = asked;
    if (!answer(kernel, page, serial)) return fail("its kernel did not end within 200 ms, or could not be launched");
  }
}

}  // namespace freeride::worker
