#include "shim.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "freeride/base/fd.hpp"

namespace freeride::shim {
namespace {

void* pointer(Word word) {
  return reinterpret_cast<void*>(word);
}

void say(const std::string& sentence) {
  const std::string line = "freeride: " + sentence + "\n";
  // Somebody may have closed stderr: there is nobody else to tell.
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// "cuMemcpyHtoD_v2_ptds" -> "cuMemcpyHtoD".
std::string base_of(std::string name) {
  for (const char* suffix : {"_ptsz", "_ptds"}) {
    const size_t length = std::strlen(suffix);
    if (name.size() > length && name.compare(name.size() - length, length, suffix) == 0)
      name.resize(name.size() - length);
  }
  const size_t at = name.rfind("_v");
  if (at != std::string::npos && at + 2 < name.size() &&
      name.find_first_not_of("0123456789", at + 2) == std::string::npos)
    name.resize(at);
  return name;
}

bool of_thread(const char* name) {
  const size_t length = std::strlen(name);
  return length > 5 && (std::strcmp(name + length - 5, "_ptsz") == 0 || std::strcmp(name + length - 5, "_ptds") == 0);
}

constexpr int64_t kShortNs = 50 * kNsPerUs;

uint64_t this_thread() {
  static thread_local char here;
  return reinterpret_cast<uint64_t>(&here);
}

}  // namespace

constinit thread_local Credit thread_credit;

Shim::Shim() {
  for (const auto* one = freeride_functions; one->name != nullptr; ++one) by_name_.emplace(base_of(one->name), one);
  if (const char* path = setting("FREERIDE_SHIM_LOG"))
    log_fd_ = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (const char* bytes = setting("FREERIDE_MEMORY_BYTES")) memory_.limit(std::strtoull(bytes, nullptr, 10));
  if (!page_.open(std::getenv("FREERIDE_SHIM_PAGE")))
    say("the shim's counters are not kept: FREERIDE_SHIM_PAGE is no writable file of 4096 bytes");
  open_real();
  open_lease();
}

void Shim::open_real() {
  const char* path = setting("FREERIDE_SHIM_REAL");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_LOCAL | RTLD_NOW);
  const bool itself = library != nullptr && dlsym(library, "freeride_shim_version") != nullptr;
  if (library == nullptr || itself) {
    freeride_missing_code = kSharedObjectInitFailed;
    say(path == nullptr ? "there is no GPU here: FREERIDE_SHIM_REAL does not name the CUDA driver"
        : itself        ? "there is no GPU here: FREERIDE_SHIM_REAL names the shim, not the CUDA driver"
                        : std::string("there is no GPU here: the CUDA driver cannot be loaded: ") + dlerror());
    return;
  }
  for (const auto* one = freeride_functions; one->name != nullptr; ++one) {
    void* address = dlsym(library, one->name);
    if (address == nullptr) continue;
    *one->real = address;
    by_address_.emplace(address, one);
  }
}

void Shim::open_lease() {
  const char* path = setting("FREERIDE_LEASE_PAGE");
  std::string problem = "FREERIDE_LEASE_PAGE names none";
  if (path != nullptr) {
    const Fd fd(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    problem = std::string(path) + ": " + std::strerror(errno);
    if (fd.valid()) {
      auto mapped = pages::map_page_file<freeride_lease_page>(fd.get());
      if (mapped.ok()) {
        lease_ = std::move(*mapped);
        limits_.plugin = setting("FREERIDE_SHIM_PLUGIN") != nullptr;
        gate_.emplace(*lease_, clock_, queue_, page_, limits_, [this](const Cost* cost) { return name_of(cost); });
        return;
      }
      problem = std::string(path) + ": " + mapped.error().text();
    }
  }
  say("nothing is submitted to the GPU: there is no lease page (" + problem + ")");
}

Code Shim::refuse() {
  page_.add(&freeride_shim_page::refused);
  if (!refused_.exchange(true)) say("a submission to the GPU was refused: there is no lease page");
  return kNotPermitted;
}

Work Shim::work_of(const Wrapped& what, const Words& w) const {
  Work work;
  const Word stream = what.stream < 0 ? 0 : w[static_cast<size_t>(what.stream)];
  const auto name = reinterpret_cast<uint64_t>(what.name);
  switch (what.what) {
    case What::kKernel:
    case What::kCooperative:
      return kernel_work(what, {w[0], {w[1], w[2], w[3]}, {w[4], w[5], w[6]}, w[8]});
    case What::kConfig:
      return kernel_work(what, launch_of(w[0], w[1]));
    case What::kFunction:
    case What::kGraph:
      work.handle = w[0];
      work.key = mix(name, w[0]);
      break;
    case What::kCopy: {
      const uint64_t bytes = what.size < 0 ? 0 : w[static_cast<size_t>(what.size)];
      work.key = mix(mix(name, 1), static_cast<uint64_t>(std::bit_width(bytes)));
      break;
    }
    default:
      work.key = mix(name, 1);
      work.weightless = what.what == What::kSignal;
      break;
  }
  work.stream = stream_handle(what, stream);
  return work;
}

Stream* Shim::stream_of(void* handle, bool& none) {
  const auto number = reinterpret_cast<Word>(handle);
  if (number != kLegacy && number != kPerThread) return queue_.stream(nullptr, handle, 0);
  void* context = RealEvents::current_context();
  none = context == nullptr;
  return none ? nullptr : queue_.stream(context, handle, number == kPerThread ? this_thread() : 0);
}

Code Shim::submit(const Wrapped& what, void* real, const Words& words) {
  Credit& credit = thread_credit;
  if (!gate_) return refuse();
  if (what.what == What::kConfig && words[0] == 0) return call(real, words);  // an error, by the driver's own word
  const Work work = work_of(what, words);
  static thread_local Stream* credited = nullptr;
  if (credited != nullptr && credit.left_ns > 0) queue_.will_not_submit(credited, std::exchange(credit.left_ns, 0));
  credit.left_ns = 0;
  if (log_fd_ >= 0) log("submitted", what.name);
  if (events_.capturing(work.stream)) {
    page_.add(&freeride_shim_page::captured);
    return call(real, words);
  }
  const uint64_t generation = queue_.generation().load(std::memory_order_acquire);
  bool none = false;
  Stream* stream = stream_of(work.stream, none);
  if (none) return call(real, words);  // without a context nothing can be submitted, and the driver says so
  Cost* cost = work.weightless ? nullptr : learned_.find(work.key, work.handle, work.blocks);
  const bool kernel = what.what == What::kKernel || what.what == What::kConfig;
  // Who launches to one stream and another has no use for it. Each submission to a thread's own default stream needs a
  // mark by that thread. While streams capture, each submission has to ask whether its own does.
  const bool more = kernel && credit.stream == work.stream && !stream->own_thread &&
                    events_.captures.load(std::memory_order_relaxed) <= 0;
  credit.stream = work.stream;
  Wish wish{cost == nullptr ? 0 : cost->expected_ns(), work.weightless, more};
  // A guess only lets pass more than what is said of nothing at all.
  if (cost != nullptr && wish.expected_ns == 0) {
    const int64_t guessed_ns = cost->guessed_ns();
    if (guessed_ns < limits_.bound_ns) wish.expected_ns = guessed_ns;
  }
  const auto passed = gate_->pass(wish, cost, credit);
  const int64_t weight_ns = passed.weight_ns;
  // Not before this one is submitted: the driver's call may call the program, which launches.
  const int32_t given_ns = std::exchange(credit.left_ns, 0);
  const uint64_t given_ticks = credit.begin_ticks;
  if (cost == nullptr || !(cost->measure_next(passed.now_ns) || passed.tried)) {
    const Code code = call(real, words);
    if (code != kSuccess) {
      queue_.cancel(weight_ns + given_ns);
      return code;
    }
    if (queue_.submitted(stream, weight_ns, passed.mark_ns)) {
      page_.add(&freeride_shim_page::marks);
      // A GPU that keeps up has done what was before: so the queue is not found full.
      if (!stream->own_thread) gate_->look(clock_.now_ns());
    }
    if (credit.begin_ticks != given_ticks) {
      queue_.cancel(given_ns);  // a launch of the program's has passed meanwhile, perhaps under another lease
    } else if (given_ns > 0) {
      InFlight::will_submit(stream, given_ns);
      credited = stream;
      credit.generation = generation;
      credit.generation_now = &queue_.generation();
      credit.left_ns = given_ns;
    }
    return code;
  }
  queue_.cancel(given_ns);
  page_.add(&freeride_shim_page::measured);
  const int64_t begun_ns = clock_.now_ns();
  void* begin = queue_.begin_timing(stream);
  // The launch of a short kernel takes the host longer than the kernel takes the GPU.
  const bool idle = kernel && wish.expected_ns < kShortNs && queue_.is_idle(begin);
  const int64_t called_ns = clock_.now_ns();
  const Code code = call(real, words);
  if (code == kSuccess) {
    const int64_t idle_ns = idle ? clock_.now_ns() - called_ns : 0;
    queue_.timed(stream, begin, weight_ns, cost, clock_, begun_ns, idle_ns);
  } else {
    queue_.cancel(weight_ns);
    queue_.drop_timing(stream, begin);
  }
  return code;
}

Code Shim::notice(const Wrapped& what, void* real, const Words& words) {
  const auto stream = [&] {
    return stream_handle(what, what.stream < 0 ? 0 : words[static_cast<size_t>(what.stream)]);
  };
  switch (what.what) {
    case What::kHost:
      page_.add(&freeride_shim_page::host_functions);
      if (log_fd_ >= 0) log("submitted", what.name);
      break;
    case What::kBeginCapture: {
      events_.captures.fetch_add(1);
      queue_.renew();
      const Code code = call(real, words);
      if (code != kSuccess) events_.captures.fetch_sub(1);
      return code;
    }
    case What::kEndCapture: {
      const bool captured = events_.capturing(stream());
      const Code code = call(real, words);
      if (captured) events_.captures.fetch_sub(1);
      return code;
    }
    case What::kDestroyStream:
      queue_.forget_stream(stream());
      break;
    case What::kForget:
      queue_.forget_all();
      break;
    case What::kAllocate: {
      const Code code = call(real, words);
      if (code == kSuccess && words[0] != 0) memory_.allocated(*static_cast<Word*>(pointer(words[0])), words[1]);
      return code;
    }
    case What::kFree:
      memory_.freed(words[0]);
      break;
    case What::kNames:
    case What::kRenames: {
      const Code code = call(real, words);
      if (code != kSuccess || words[0] == 0) return code;
      const std::lock_guard lock(mutex_);
      const Word handle = *static_cast<Word*>(pointer(words[0]));
      if (what.what == What::kNames && words[2] != 0) {
        names_[handle] = static_cast<const char*>(pointer(words[2]));
      } else if (const auto known = names_.find(words[1]); known != names_.end()) {
        names_[handle] = std::string(known->second);
      }
      return code;
    }
    default:
      break;
  }
  return call(real, words);
}

void* Shim::instead_of(const char* symbol, void* real, int version, uint64_t flags) {
  const std::string base = base_of(symbol);
  const freeride_function* found = nullptr;
  const auto [first, last] = by_address_.equal_range(real);
  for (auto at = first; at != last; ++at) {
    if (found == nullptr || base_of(at->second->name) == base) found = at->second;
  }
  if (found == nullptr) {
    // The driver gives another function than it exports: which of its variants this is, its version says.
    constexpr uint64_t kPerThreadDefaultStream = 2;
    const bool thread = (flags & kPerThreadDefaultStream) != 0;
    const auto [begin, end] = by_name_.equal_range(base);
    for (auto at = begin; at != end; ++at) {
      const auto* one = at->second;
      const auto better = [&] {
        if (found == nullptr) return true;
        if (of_thread(one->name) != of_thread(found->name)) return of_thread(one->name) == thread;
        return one->since > found->since;
      };
      if (one->since <= version && better()) found = one;
    }
  }
  if (found == nullptr) return unknown(symbol, real);
  log(found->kind == FREERIDE_KIND_PASS ? "known" : "wrapped", found->name);
  return found->kind == FREERIDE_KIND_PASS ? real : found->exported;
}

void* Shim::unknown(const std::string& name, void* real) {
  log("unknown", name);
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = unknown_.try_emplace(name, -1);
  if (fresh) {
    at->second = page_.place_of(name);
    if (at->second >= 0) {
      freeride_thunk_calls[at->second] = page_.calls_of(at->second);
      freeride_thunk_targets[at->second] = real;
    }
  }
  const int place = at->second;
  // Another variant of that name, or two names in one place.
  if (place < 0 || freeride_thunk_targets[place] != real) return real;
  return freeride_thunk(place);
}

void Shim::export_table(const unsigned char (&id)[16]) {
  std::string name = "table ";
  for (const unsigned char byte : id) {
    constexpr const char* kHex = "0123456789abcdef";
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  page_.add(&freeride_shim_page::export_tables);
  log("unknown", name);
  const std::lock_guard lock(mutex_);
  const auto [at, fresh] = unknown_.try_emplace(name, -1);
  if (fresh) at->second = page_.place_of(name);
  if (at->second >= 0) __atomic_fetch_add(page_.calls_of(at->second), uint64_t{1}, __ATOMIC_RELAXED);
}

void Shim::log(const char* what, const std::string& name) {
  if (log_fd_ < 0) return;
  const std::string line = std::string(what) + " " + name + "\n";
  {
    const std::lock_guard lock(mutex_);
    if (!logged_.insert(line).second) return;
  }
  if (write(log_fd_, line.data(), line.size()) < 0) return;
}

std::string Shim::name_of(const Cost* cost) {
  const uint64_t handle = cost == nullptr ? 0 : cost->function();
  if (handle == 0) return "a copy";
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(handle);
  return found == names_.end() ? "a graph or an unnamed kernel" : found->second;
}

void Shim::lock() {
  mutex_.lock();
  if (gate_) gate_->lock();
  queue_.lock();
  memory_.lock();
}

void Shim::unlock() {
  memory_.unlock();
  queue_.unlock();
  if (gate_) gate_->unlock();
  mutex_.unlock();
}

}  // namespace freeride::shim
