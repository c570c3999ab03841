// Making, mapping and checking pages. Also the few memory operations that their rules are made of: ordered loads and
// stores, the lease page's seqlock, and futexes shared between processes. pages/README.md is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages.h"

namespace freeride::pages {

// ---- ordered access to one field; any thread, lock-free; works on read-only mappings, which std::atomic_ref does not
// -----------

template <class T>
T load_relaxed(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_RELAXED);
}
/// What was written before the store that this load sees is visible after it.
template <class T>
T load_acquire(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_ACQUIRE);
}
template <class T>
void store_relaxed(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELAXED);
}
template <class T>
void store_release(T& field, T value) {
  __atomic_store_n(&field, value, __ATOMIC_RELEASE);
}

// ---- page types
// -------------------------------------------------------------------------------------------------------------

/// Name, magic and least size of each page type: that of its first layout, which every reader accepts for ever.
template <class Page>
struct PageTraits;
template <>
struct PageTraits<freeride_bubble_page> {
  static constexpr const char* kName = "bubble page";
  static constexpr uint64_t kMagic = FREERIDE_BUBBLE_MAGIC;
  static constexpr size_t kVersion1Bytes = 74240;
};
template <>
struct PageTraits<freeride_bell_page> {
  static constexpr const char* kName = "bell page";
  static constexpr uint64_t kMagic = FREERIDE_BELL_MAGIC;
  static constexpr size_t kVersion1Bytes = 64;
};
template <>
struct PageTraits<freeride_sent_page> {
  static constexpr const char* kName = "sent page";
  static constexpr uint64_t kMagic = FREERIDE_SENT_MAGIC;
  static constexpr size_t kVersion1Bytes = 17472;
};
template <>
struct PageTraits<freeride_lease_page> {
  static constexpr const char* kName = "lease page";
  static constexpr uint64_t kMagic = FREERIDE_LEASE_MAGIC;
  static constexpr size_t kVersion1Bytes = 96;
};
template <>
struct PageTraits<freeride_answer_page> {
  static constexpr const char* kName = "answer page";
  static constexpr uint64_t kMagic = FREERIDE_ANSWER_MAGIC;
  static constexpr size_t kVersion1Bytes = 672;
};

enum class Access { kRead, kReadWrite };

/// Largest page a reader maps; a larger descriptor is refused.
constexpr uint64_t kMaxPageBytes = 16u << 20;

/// Owns one shared mapping of a whole page. What this program's layout has past the end of the page's file is memory of
/// this process alone, zero. Not thread-safe itself; what it maps is, by the page's own rules.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes, size_t page_bytes) : address_(address), bytes_(bytes), page_bytes_(page_bytes) {}
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(page_bytes_, other.page_bytes_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  void* address() const { return address_; }
  /// What the page said of its size when it was mapped.
  size_t page_bytes() const { return page_bytes_; }
  explicit operator bool() const { return address_ != nullptr; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
  size_t page_bytes_ = 0;
};

/// A mapped page of one type; `Page` is const-qualified for read-only mappings. Move-only; unmaps when destroyed.
template <class Page>
class Mapped {
 public:
  Mapped() = default;
  explicit Mapped(Mapping mapping) : mapping_(std::move(mapping)) {}
  Page* get() const { return static_cast<Page*>(mapping_.address()); }
  Page* operator->() const { return get(); }
  Page& operator*() const { return *get(); }
  explicit operator bool() const { return static_cast<bool>(mapping_); }

  /// The size of the page, as its maker knew it: less or more than sizeof(Page) where that was another version.
  size_t page_bytes() const { return mapping_.page_bytes(); }
  /// Has its maker's layout this field? If not, it reads as zero, and nobody else sees what is stored there.
  template <class Type, class Field>
  bool holds(Field Type::*field) const {
    const char* end = reinterpret_cast<const char*>(&(get()->*field) + 1);
    return static_cast<size_t>(end - static_cast<const char*>(mapping_.address())) <= mapping_.page_bytes();
  }

 private:
  Mapping mapping_;
};

/// A page this process made: its memfd (close-on-exec; pass it on with SCM_RIGHTS or dup2 before exec) and a read-write
/// mapping.
template <class Page>
struct Created {
  Fd fd;
  Mapped<Page> page;
};

namespace detail {
struct Raw {
  Fd fd;
  Mapping mapping;
};
Result<Raw> create(const char* name, uint64_t magic, size_t bytes, bool others_read_only);
/// What is expected of somebody else's page: at least `version_1_bytes` long, and read by a layout of `type_bytes`.
struct Expected {
  const char* name;
  uint64_t magic;
  size_t version_1_bytes;
  size_t type_bytes;
};
template <class Page>
constexpr Expected expected() {
  using Traits = PageTraits<Page>;
  return {Traits::kName, Traits::kMagic, Traits::kVersion1Bytes, sizeof(Page)};
}
Result<Mapping> map(int fd, const Expected& expected, Access access, bool must_be_sealed);
Result<Raw> create_file(const std::string& path, const char* name, uint64_t magic, size_t bytes);
}  // namespace detail

/// Makes a page as a memfd: all memory reserved, everything 0 but the header (with a fresh incarnation), sealed against
/// shrinking, growing and more seals. With `others_read_only` also F_SEAL_FUTURE_WRITE: the mapping returned here stays
/// the only writable one (bubble and lease pages). Any thread; does not block. Errors: kExhausted (memory,
/// descriptors), kInternal.
template <class Page>
Result<Created<Page>> create_page(bool others_read_only) {
  auto raw = detail::create(PageTraits<Page>::kName, PageTraits<Page>::kMagic, sizeof(Page), others_read_only);
  if (!raw.ok()) return raw.error();
  return Created<Page>{std::move(raw->fd), Mapped<Page>(std::move(raw->mapping))};
}

/// Maps a page that somebody else made, read-only. It first checks that the page is a memfd sealed against shrinking
/// and growing, at least as large as version 1's, with the right magic and major version. What this program's layout
/// has past the page's end reads as zero. The descriptor stays the caller's and may be closed afterwards. The *content*
/// can still be any bytes: see check_bubble_page(). Errors: kInvalidArgument (not such a page), kVersion (another
/// major), kInternal.
template <class Page>
Result<Mapped<const Page>> map_page(int fd) {
  auto mapping = detail::map(fd, detail::expected<Page>(), Access::kRead, true);
  if (!mapping.ok()) return mapping.error();
  return Mapped<const Page>(std::move(*mapping));
}

/// map_page() of a file that need not be sealed. For a program that was started with the page, and trusts its maker not
/// to cut it.
template <class Page>
Result<Mapped<const Page>> map_page_file(int fd) {
  auto mapping = detail::map(fd, detail::expected<Page>(), Access::kRead, false);
  if (!mapping.ok()) return mapping.error();
  return Mapped<const Page>(std::move(*mapping));
}

/// Whether no read of the page can end in SIGBUS, whatever its maker does from now on. The file must be ordinary
/// memory, all of it there, and sealed so that no part can be given back (F_SEAL_FUTURE_WRITE forbids holes, too). For
/// a page of somebody who is not trusted, beside map_page()'s checks. Errors: kInvalidArgument.
Status check_stays(int fd);

/// map_page(), read-write (the runner's view of its answer page). Also kPermission: the page is sealed against writing.
template <class Page>
Result<Mapped<Page>> map_page_writable(int fd) {
  auto mapping = detail::map(fd, detail::expected<Page>(), Access::kReadWrite, true);
  if (!mapping.ok()) return mapping.error();
  return Mapped<Page>(std::move(*mapping));
}

/// Makes a lease page as a file (mode 0644) under `path`, which a program's processes can open read-only whatever
/// descriptors they have closed. The descriptor is read-only. A file that is there is replaced. No seals hold it, so
/// only who trusts its maker maps it. Errors: kExhausted, kPermission, kInternal.
Result<Created<freeride_lease_page>> create_lease_file(const std::string& path);
/// Maps such a page, or a memfd: map_page() without a look at the seals, of a maker who is trusted. Errors:
/// map_page()'s.
Result<Mapped<const freeride_lease_page>> map_trusted_lease(int fd);

/// Makes a sent page as a file (mode 0600). It appears under `path` only when it is whole, and its memory is reserved.
/// So a full /dev/shm is an error here and never a SIGBUS later. Errors: kAlreadyExists, kExhausted, kPermission,
/// kInternal.
Result<Mapped<freeride_sent_page>> create_sent_page(const std::string& path);
/// Maps the sent page at `path` read-write. The checks are map_page()'s without the seals. Also its owner must be this
/// process's uid, since another user could truncate it. Errors: kNotFound, kPermission and those of map_page().
Result<Mapped<freeride_sent_page>> open_sent_page(const std::string& path);

/// What is written once on a bubble page, copied, so that a writer who changes it later fools nobody.
struct BubbleIdentity {
  std::string job, device, framework;
  uint32_t rank = 0, stage = 0, stages = 1, replica = 0, replicas = 1, pid = 0;
  uint64_t incarnation = 0;
  std::optional<double> budget_pct;  ///< the slowdown budget that the training asks for
};

/// A slowdown budget as a bubble page has it, and back. Whatever is on a page, what is read is from 0 to 100 or
/// nothing.
uint32_t budget_word(std::optional<double> budget_pct);
std::optional<double> budget_of_word(uint32_t word);

/// Checks and copies a bubble page's identity: texts terminated, non-empty where required and printable; numbers in
/// range. Never reads past the page. Errors: kInvalidArgument, naming the field.
Result<BubbleIdentity> check_bubble_page(const freeride_bubble_page& page);

/// What a bubble page says of the waits of the last finished iteration. Any bytes are read safely.
struct LearnedLengths {
  uint32_t samples = 0;     ///< the most that a wait's length was learned from
  bool usable = false;      ///< some wait may have a lease
  uint64_t longest_ns = 0;  ///< of those that may have one; 0: none may
};
LearnedLengths learned_lengths(const freeride_bubble_page& page);

// ---- lease page
// ---------------------------------------------------------------------------------------------------------------

/// A consistent copy of the lease page's fields.
struct Lease {
  uint32_t order = FREERIDE_ORDER_PAUSE;
  uint32_t kind = FREERIDE_LEASE_NONE;
  uint32_t iteration = 0;
  uint64_t lease_id = 0;
  uint64_t deadline_ns = 0;
  uint64_t opened_ns = 0;
  uint64_t grace_ns = 0;
  uint64_t hang_ns = 0;
  uint64_t begin_ns = 0;
};

/// Writes all fields under the seqlock and leaves `sequence` even and 2 further; wakes nobody (see futex_wake). One
/// writer only.
void write_lease(freeride_lease_page& page, const Lease& lease);

/// Copies the lease. `sequence` gets the value it was read under, which is what to give futex_wait(). False when no
/// even, unchanged value was seen in `tries` attempts (a writer that died while writing, or lies): treat as no lease.
/// Does not block.
bool read_lease(const freeride_lease_page& page, Lease& lease, uint32_t& sequence, int tries = 1000);

// ---- futexes, always of the shared kind: pages lie in several processes
// ----------------------------------------------------------

constexpr int64_t kForever = -1;
constexpr uint32_t kAnyBit = 0xffffffffu;

enum class Wait { kWoken, kChanged, kTimeout, kInterrupted };

/// Sleeps while `word == expected`, until woken with a common bit or until `deadline_ns` (absolute CLOCK_MONOTONIC, or
/// kForever). Works on read-only mappings. kChanged: it did not have that value. kInterrupted: a signal. Wakes may be
/// spurious: look at the page again.
Wait futex_wait(const uint32_t& word, uint32_t expected, int64_t deadline_ns = kForever, uint32_t bits = kAnyBit);

/// Wakes up to `count` waiters that wait with a common bit (futex_waitv's waiters have all). Returns how many. About
/// 0.3 µs when nobody waits. Any thread, and a signal handler.
int futex_wake(const uint32_t& word, uint32_t bits = kAnyBit, int count = 0x7fffffff);

/// Adds one to a futex word (release) and wakes everybody: the last step of every change on the bubble and answer
/// pages.
inline void bump_and_wake(uint32_t& word) {
  __atomic_fetch_add(&word, 1u, __ATOMIC_RELEASE);
  futex_wake(word);
}

}  // namespace freeride::pages
