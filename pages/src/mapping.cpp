#include "freeride/pages/mapping.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>

#include "freeride/base/clock.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/time.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace freeride::pages {
namespace {

constexpr uint32_t kBudgetPerPct = 10'000;  // millionths
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

uint64_t random_incarnation() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value) || value == 0) {
    value = (static_cast<uint64_t>(SteadyClock::now()) << 16) ^ static_cast<uint64_t>(getpid());
  }
  return value == 0 ? 1 : value;
}

Error bad(const char* name, const std::string& what, std::string hint = {}) {
  return Error{Code::kInvalidArgument, std::string(name) + ": " + what, std::move(hint)};
}

// Maps, reserves memory for and heads a new, empty descriptor.
Result<Mapping> fill(int fd, const char* name, uint64_t magic, size_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return errno_error(std::string("cannot size a ") + name, errno);
  // Reserves every block now: a full file system must be an error here, not a SIGBUS at some later store.
  const int err = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (err != 0) return errno_error(std::string("cannot reserve memory for a ") + name, err, "free some shared memory");
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno_error(std::string("cannot map a new ") + name, errno);
  auto* header = static_cast<freeride_page_header*>(address);
  header->major = FREERIDE_PAGES_MAJOR;
  header->minor = FREERIDE_PAGES_MINOR;
  header->size_bytes = bytes;
  header->incarnation = random_incarnation();
  header->magic = magic;
  return Mapping(address, bytes, bytes);
}

// Maps a file, and behind it, where the layout is longer than that, zeroes of our own: no read of the layout can end in
// SIGBUS. The kernel fills up the file's last memory page by itself.
void* map_at_least(int fd, size_t file_bytes, size_t bytes, int protection) {
  if (bytes <= file_bytes) return mmap(nullptr, file_bytes, protection, MAP_SHARED, fd, 0);
  void* address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return MAP_FAILED;
  if (mmap(address, file_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED) return address;
  const int err = errno;
  munmap(address, bytes);
  errno = err;
  return MAP_FAILED;
}

}  // namespace

Mapping::~Mapping() {
  if (address_ != nullptr) munmap(address_, bytes_);
}

namespace detail {

Result<Raw> create(const char* name, uint64_t magic, size_t bytes, bool others_read_only) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error(std::string("cannot make a ") + name, errno);
  auto mapping = fill(fd.get(), name, magic, bytes);
  if (!mapping.ok()) return mapping.error();
  const int seals = kSizeSeals | F_SEAL_SEAL | (others_read_only ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return errno_error(std::string("cannot seal a ") + name, errno);
  return Raw{std::move(fd), std::move(*mapping)};
}

Result<Mapping> map(int fd, const Expected& expected, Access access, bool must_be_sealed) {
  const char* name = expected.name;
  const size_t least_bytes = expected.version_1_bytes;
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_error(std::string("cannot look at the descriptor of a ") + name, errno);
  if (!S_ISREG(info.st_mode)) return bad(name, "the descriptor is not a memory file");
  if (must_be_sealed) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
      return bad(name, "not a memfd sealed against shrinking and growing",
                 "the writer must seal it before handing it on");
    }
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (info.st_size < 0 || bytes < least_bytes) {
    return bad(name, "too short: " + std::to_string(info.st_size) + " bytes, at least " + std::to_string(least_bytes) +
                         " expected");
  }
  if (bytes > kMaxPageBytes) return bad(name, "too long: " + std::to_string(bytes) + " bytes");
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const size_t mapped_bytes = std::max<size_t>(bytes, expected.type_bytes);
  void* address = map_at_least(fd, bytes, mapped_bytes, protection);
  if (address == MAP_FAILED) return errno_error(std::string("cannot map a ") + name, errno);
  freeride_page_header header;
  std::memcpy(&header, address, sizeof(header));
  Mapping mapping(address, mapped_bytes, header.size_bytes);
  if (header.magic != expected.magic) return bad(name, "wrong magic: these bytes are something else");
  if (header.major != FREERIDE_PAGES_MAJOR) {
    return Error{Code::kVersion,
                 std::string(name) + ": layout version " + std::to_string(header.major) + "." +
                     std::to_string(header.minor) + ", this program knows " + std::to_string(FREERIDE_PAGES_MAJOR) +
                     ".x",
                 "use a hook and a worker of the same major version"};
  }
  if (header.size_bytes < least_bytes || header.size_bytes > bytes) {
    return bad(
        name, "says that it is " + std::to_string(header.size_bytes) + " bytes long, but has " + std::to_string(bytes));
  }
  if (header.incarnation == 0) return bad(name, "incarnation 0");
  return mapping;
}

Result<Raw> create_file(const std::string& path, const char* name, uint64_t magic, size_t bytes) {
  const auto slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  // Without a name until it is whole: nobody can map half a page.
  Fd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) return errno_error("cannot make a file in " + folder, errno);
  auto mapping = fill(fd.get(), name, magic, bytes);
  if (!mapping.ok()) return mapping.error();
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return errno_error("cannot name the " + std::string(name) + " " + path, errno);
  }
  return Raw{std::move(fd), std::move(*mapping)};
}

}  // namespace detail

Status check_stays(int fd) {
  constexpr int kNeeded = kSizeSeals | F_SEAL_FUTURE_WRITE;
  constexpr int64_t kBlockBytes = 512;  // of st_blocks, whatever the file system's are
  struct stat info {};
  struct statfs system {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded)
    return bad("bubble page", "not a memfd sealed against shrinking, growing and writing",
               "the writer must seal it before handing it on");
  if (fstat(fd, &info) != 0 || fstatfs(fd, &system) != 0)
    return errno_error("cannot look at the descriptor of a bubble page", errno);
  if (system.f_type != TMPFS_MAGIC) return bad("bubble page", "not of ordinary memory");
  if (info.st_blocks < info.st_size / kBlockBytes)
    return bad("bubble page", "part of its memory is not there", "the writer must reserve all of it");
  return {};
}

Result<Created<freeride_lease_page>> create_lease_file(const std::string& path) {
  unlink(path.c_str());
  auto raw = detail::create_file(path, PageTraits<freeride_lease_page>::kName, FREERIDE_LEASE_MAGIC,
                                 sizeof(freeride_lease_page));
  if (!raw.ok()) return raw.error();
  Fd reader;
  if (fchmod(raw->fd.get(), 0644) == 0) reader.reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!reader.valid()) return errno_error("cannot open " + path, errno);
  return Created<freeride_lease_page>{std::move(reader), Mapped<freeride_lease_page>(std::move(raw->mapping))};
}

Result<Mapped<const freeride_lease_page>> map_trusted_lease(int fd) {
  auto mapping = detail::map(fd, detail::expected<freeride_lease_page>(), Access::kRead, false);
  if (!mapping.ok()) return mapping.error();
  return Mapped<const freeride_lease_page>(std::move(*mapping));
}

Result<Mapped<freeride_sent_page>> create_sent_page(const std::string& path) {
  auto raw =
      detail::create_file(path, PageTraits<freeride_sent_page>::kName, FREERIDE_SENT_MAGIC, sizeof(freeride_sent_page));
  if (!raw.ok()) return raw.error();
  return Mapped<freeride_sent_page>(std::move(raw->mapping));
}

Result<Mapped<freeride_sent_page>> open_sent_page(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return errno_error("cannot open " + path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return errno_error("cannot look at " + path, errno);
  if (info.st_uid != geteuid()) {
    return Error{Code::kPermission, path + " belongs to uid " + std::to_string(info.st_uid), "remove it"};
  }
  auto mapping = detail::map(fd.get(), detail::expected<freeride_sent_page>(), Access::kReadWrite, false);
  if (!mapping.ok()) return mapping.error();
  return Mapped<freeride_sent_page>(std::move(*mapping));
}

namespace {

// A text field, copied. It may change while we look, hence the copy first.
Result<std::string> text(const char (&field)[FREERIDE_NAME_BYTES], const char* name, bool required) {
  char copy[FREERIDE_NAME_BYTES];
  std::memcpy(copy, field, sizeof(copy));
  const size_t length = strnlen(copy, sizeof(copy));
  if (length == sizeof(copy)) return bad("bubble page", std::string(name) + " is not terminated");
  if (length == 0 && required) return bad("bubble page", std::string(name) + " is empty");
  for (size_t i = 0; i < length; ++i) {
    if (is_control(copy[i])) return bad("bubble page", std::string(name) + " holds a control character");
  }
  return std::string(copy, length);
}

}  // namespace

uint32_t budget_word(std::optional<double> budget_pct) {
  if (!budget_pct || !(*budget_pct >= 0 && *budget_pct <= 100)) return 0;
  return static_cast<uint32_t>(std::lround(*budget_pct * kBudgetPerPct)) + 1;
}

std::optional<double> budget_of_word(uint32_t word) {
  if (word == 0 || word - 1 > 100 * kBudgetPerPct) return std::nullopt;
  return (word - 1) / double{kBudgetPerPct};
}

LearnedLengths learned_lengths(const freeride_bubble_page& page) {
  LearnedLengths found;
  const uint32_t waits = std::min(load_relaxed(page.waits), FREERIDE_MAX_WAITS);
  for (uint32_t i = 0; i < waits; ++i) {
    found.samples = std::max(found.samples, load_relaxed(page.learned[i].samples));
    if (load_relaxed(page.learned[i].low_ns) == 0) continue;
    found.usable = true;
    for (const uint64_t& length_ns : {page.learned[i].low_ns, page.learned[i].mid_ns, page.learned[i].high_ns})
      found.longest_ns = std::max(found.longest_ns, load_relaxed(length_ns));
  }
  for (const freeride_phase& phase : page.phases) {
    const uint64_t count = load_relaxed(phase.count);
    if (count == 0) continue;
    // Leases follow a phase of any length, also of one that is not learned.
    found.samples = std::max(found.samples, static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX)));
    found.usable = true;
    found.longest_ns = std::max(found.longest_ns, load_relaxed(phase.total_ns) / count);
  }
  return found;
}

Result<BubbleIdentity> check_bubble_page(const freeride_bubble_page& page) {
  BubbleIdentity identity;
  auto job = text(page.job, "job", true);
  if (!job.ok()) return job.error();
  auto device = text(page.device, "device", true);
  if (!device.ok()) return device.error();
  auto framework = text(page.framework, "framework", false);
  if (!framework.ok()) return framework.error();
  identity.job = std::move(*job);
  identity.device = std::move(*device);
  identity.framework = std::move(*framework);
  identity.rank = load_relaxed(page.rank);
  identity.stage = load_relaxed(page.stage);
  identity.stages = load_relaxed(page.stages);
  identity.replica = load_relaxed(page.replica);
  identity.replicas = load_relaxed(page.replicas);
  identity.pid = load_relaxed(page.pid);
  identity.incarnation = load_relaxed(page.header.incarnation);
  identity.budget_pct = budget_of_word(load_relaxed(page.budget));
  constexpr uint32_t kMost = 1u << 20;  // far above any job; keeps sums and products of them from wrapping
  if (identity.stages == 0 || identity.stages > kMost) return bad("bubble page", "stages out of range");
  if (identity.stage >= identity.stages) {
    return bad("bubble page", "stage " + std::to_string(identity.stage) + " of " + std::to_string(identity.stages));
  }
  if (identity.replicas == 0 || identity.replicas > kMost) return bad("bubble page", "replicas out of range");
  if (identity.replica >= identity.replicas) {
    return bad("bubble page",
               "replica " + std::to_string(identity.replica) + " of " + std::to_string(identity.replicas));
  }
  if (identity.rank > kMost) return bad("bubble page", "rank out of range");
  return identity;
}

void write_lease(freeride_lease_page& page, const Lease& lease) {
  const uint32_t sequence = load_relaxed(page.sequence) & ~1u;
  store_relaxed(page.sequence, sequence + 1);
  __atomic_thread_fence(__ATOMIC_RELEASE);  // no field store may be seen before the odd value
  store_relaxed(page.order, lease.order);
  store_relaxed(page.kind, lease.kind);
  store_relaxed(page.iteration, lease.iteration);
  store_relaxed(page.lease_id, lease.lease_id);
  store_relaxed(page.deadline_ns, lease.deadline_ns);
  store_relaxed(page.opened_ns, lease.opened_ns);
  store_relaxed(page.grace_ns, lease.grace_ns);
  store_relaxed(page.hang_ns, lease.hang_ns);
  store_relaxed(page.begin_ns, lease.begin_ns);
  store_release(page.sequence, sequence + 2);
}

bool read_lease(const freeride_lease_page& page, Lease& lease, uint32_t& sequence, int tries) {
  for (int i = 0; i < tries; ++i) {
    const uint32_t before = load_acquire(page.sequence);
    if ((before & 1u) == 0) {
      lease.order = load_relaxed(page.order);
      lease.kind = load_relaxed(page.kind);
      lease.iteration = load_relaxed(page.iteration);
      lease.lease_id = load_relaxed(page.lease_id);
      lease.deadline_ns = load_relaxed(page.deadline_ns);
      lease.opened_ns = load_relaxed(page.opened_ns);
      lease.grace_ns = load_relaxed(page.grace_ns);
      lease.hang_ns = load_relaxed(page.hang_ns);
      lease.begin_ns = load_relaxed(page.begin_ns);
      __atomic_thread_fence(__ATOMIC_ACQUIRE);  // the fields are read before `sequence` is read again
      if (load_relaxed(page.sequence) == before) {
        sequence = before;
        return true;
      }
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  lease = Lease{};
  sequence = load_relaxed(page.sequence);
  return false;
}

Wait futex_wait(const uint32_t& word, uint32_t expected, int64_t deadline_ns, uint32_t bits) {
  timespec until{};
  timespec* timeout = nullptr;
  if (deadline_ns >= 0) {
    until = as_timespec(deadline_ns);
    timeout = &until;
  }
  if (syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, timeout, nullptr, bits) == 0) return Wait::kWoken;
  switch (errno) {
    case EAGAIN:
      return Wait::kChanged;
    case ETIMEDOUT:
      return Wait::kTimeout;
    default:
      return Wait::kInterrupted;
  }
}

int futex_wake(const uint32_t& word, uint32_t bits, int count) {
  const int32_t woken =
      static_cast<int32_t>(syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, count, nullptr, nullptr, bits));
  return woken < 0 ? 0 : woken;
}

}  // namespace freeride::pages
