#include "sent.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "freeride/base/clock.hpp"

namespace freeride::hooks {

using pages::load_acquire;
using pages::load_relaxed;
using pages::store_relaxed;
using pages::store_release;

namespace {

constexpr const char* kPrefix = "freeride-sent-";

// The job as part of a file name: what is not plain becomes '_', and a hash keeps different jobs apart.
std::string file_stem(const std::string& job) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  std::string plain;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    const bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    if (plain.size() < 64) plain += ok ? c : '_';
  }
  char suffix[24];
  std::snprintf(suffix, sizeof(suffix), "-%08x-", static_cast<uint32_t>(hash ^ (hash >> 32)));
  return kPrefix + plain + suffix;
}

bool lives(const freeride_sent_rank& rank) {
  const uint64_t started = load_relaxed(rank.start_time);
  return started != 0 && process_start_time(load_relaxed(rank.pid)) == started;
}

// Where a rank may join; none: a rank of its own number is there, all slots are taken, or the one that it must have.
std::optional<uint32_t> free_slot(const pages::Mapped<freeride_sent_page>& page, uint32_t wanted, uint32_t world_rank,
                                  SentMember::Slot slot) {
  const auto absent = [&](uint32_t at) { return load_acquire(page->rank[at].status) == FREERIDE_RANK_ABSENT; };
  std::optional<uint32_t> found;
  if (slot == SentMember::Slot::kLocalRank || !page.holds(&freeride_sent_page::world_rank)) {
    if (wanted < FREERIDE_MAX_RANKS && absent(wanted)) found = wanted;
    return found;
  }
  for (uint32_t at = 0; at < FREERIDE_MAX_RANKS; ++at) {
    if (!absent(at) && load_relaxed(page->world_rank[at]) == world_rank + 1) return std::nullopt;
    if (absent(at) && (!found || at == wanted)) found = at;
  }
  return found;
}

// Serialises joining and leaving. The lock is on the folder itself: a lock file would have to be removed by somebody.
Result<Fd> lock_folder(const std::string& folder) {
  Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open " + folder, errno);
  const int64_t deadline = SteadyClock::now() + 250 * kNsPerMs;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (SteadyClock::now() > deadline) return Error{Code::kTimeout, folder + " stays locked by another process", ""};
    // flock has no timeout; this wait happens once, at attach, and only when ranks start in the same millisecond.
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return fd;
}

std::vector<std::string> list(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {  // NOLINT(concurrency-mt-unsafe): a DIR of our own
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0) names.emplace_back(entry->d_name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void raise_to(uint32_t& number, uint32_t value) {
  uint32_t seen = load_relaxed(number);
  while (seen < value) {
    if (__atomic_compare_exchange_n(&number, &seen, value, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) break;
  }
}

uint64_t process_start_time(uint32_t pid) {
  char path[40];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  const Fd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return 0;
  char text[1024];
  const ssize_t got = read(fd.get(), text, sizeof(text) - 1);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = std::strrchr(text, ')');  // the name may hold anything; the fields after its last ')' do not
  if (at == nullptr) return 0;
  ++at;
  if (at[0] == ' ' && (at[1] == 'Z' || at[1] == 'X')) return 0;  // a zombie sends nothing any more
  for (int field = 2; field < 21 && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return 0;
  unsigned long long value = 0;
  return std::sscanf(at, "%llu", &value) == 1 ? value : 0;
}

Result<std::unique_ptr<SentMember>> SentMember::join(const std::string& folder, const std::string& job,
                                                     uint32_t local_rank, uint32_t world_rank, uint32_t first,
                                                     Slot wanted) {
  if (wanted == Slot::kLocalRank && local_rank >= FREERIDE_MAX_RANKS) {
    return Error{
        Code::kInvalidArgument,
        "local rank " + std::to_string(local_rank) + ": a sent page holds " + std::to_string(FREERIDE_MAX_RANKS), ""};
  }
  // Any user of the host may hold the lock for as long as they like. Without it nothing is removed, and two ranks that
  // join at the same moment may each make a page: they then do not hold each other's receives.
  auto lock = lock_folder(folder);
  if (!lock.ok() && lock.error().code != Code::kTimeout) return lock.error();
  const std::string stem = file_stem(job);
  std::unique_ptr<SentMember> member(new SentMember);
  member->folder_ = folder;
  member->local_rank_ = local_rank < FREERIDE_MAX_RANKS ? local_rank : 0;
  for (const auto& name : list(folder, kPrefix)) {
    const std::string path = std::string(folder).append("/").append(name);
    auto page = pages::open_sent_page(path);
    if (!page.ok()) continue;  // somebody else's, or of another version
    bool any_alive = false, any_dead = false;
    for (const auto& rank : (*page)->rank) {
      const uint32_t status = load_acquire(rank.status);
      if (status == FREERIDE_RANK_ABSENT) continue;
      const bool alive = status == FREERIDE_RANK_HOOKED && lives(rank);
      any_alive = any_alive || alive;
      any_dead = any_dead || !alive;
    }
    if (!any_alive) {
      if (lock.ok()) unlink(path.c_str());
      continue;
    }
    const auto slot = free_slot(*page, local_rank, world_rank, wanted);
    if (name.compare(0, stem.size(), stem) != 0 || any_dead || !slot || member->page_) continue;
    member->page_ = std::move(*page);
    member->local_rank_ = *slot;
    member->path_ = path;
  }
  if (!member->page_) {
    char suffix[40];
    std::snprintf(suffix, sizeof(suffix), "%llx%05x", static_cast<unsigned long long>(SteadyClock::now()),
                  static_cast<unsigned>(getpid()));
    const std::string path = folder + "/" + stem + suffix;
    if (auto s = take(member->page_, pages::create_sent_page(path)); !s.ok()) return s.error();
    member->path_ = path;
  }
  auto& page = *member->page_;
  const uint32_t at = member->local_rank_;
  auto& slot = page.rank[at];
  store_relaxed(slot.pid, static_cast<uint32_t>(getpid()));
  store_relaxed(slot.start_time, process_start_time(static_cast<uint32_t>(getpid())));
  if (member->page_.holds(&freeride_sent_page::world_rank)) store_relaxed(page.world_rank[at], world_rank + 1);
  for (uint32_t& counter : page.sent[at]) store_relaxed(counter, first);
  for (uint32_t& counter : member->met_of(at)) store_relaxed(counter, first);
  store_release(slot.status, static_cast<uint32_t>(FREERIDE_RANK_HOOKED));
  raise_to(page.ranks, at + 1);  // others may join at this moment, without the lock
  return member;
}

SentMember::~SentMember() {
  for (const int fd : pidfds_) close(fd);
}

uint32_t SentMember::produce(uint32_t destination) {
  if (destination >= FREERIDE_MAX_RANKS) return 0;
  uint32_t& counter = page_->sent[local_rank_][destination];
  uint32_t value = load_relaxed(counter);
  do {
    if (value == FREERIDE_POISON) return value;
  } while (!__atomic_compare_exchange_n(&counter, &value, value + 1, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
  pages::futex_wake(counter);
  return value + 1;
}

SentMember::Waited SentMember::wait(uint32_t source, uint32_t count, int64_t deadline_ns) {
  if (source >= FREERIDE_MAX_RANKS) return Waited::kReleased;
  const uint32_t& counter = page_->sent[source][local_rank_];
  for (;;) {
    const uint32_t value = load_acquire(counter);
    if (value == FREERIDE_POISON) return Waited::kReleased;
    if (value >= count) return Waited::kReached;
    if (pages::futex_wait(counter, value, deadline_ns) == pages::Wait::kTimeout) return Waited::kTimeout;
    if (SteadyClock::now() >= deadline_ns && load_acquire(counter) < count) return Waited::kTimeout;
  }
}

void SentMember::release_rank(uint32_t rank, uint32_t status) {
  store_release(page_->rank[rank].status, status);
  release_counters(rank);
}

void SentMember::release_counters(uint32_t rank) {
  for (uint32_t& counter : page_->sent[rank]) {
    if (load_relaxed(counter) == FREERIDE_POISON) continue;
    store_release(counter, FREERIDE_POISON);
    pages::futex_wake(counter);
  }
  for (uint32_t& counter : met_of(rank)) {  // only GPUs wait for these
    if (load_relaxed(counter) != FREERIDE_POISON) store_release(counter, FREERIDE_POISON);
  }
}

std::span<uint32_t> SentMember::met_of(uint32_t rank) {
  if (!page_.holds(&freeride_sent_page::met)) return {};
  return page_->met[rank];
}

std::optional<uint32_t> SentMember::slot_of(uint32_t world_rank, Row row) const {
  if (!page_.holds(&freeride_sent_page::world_rank)) return std::nullopt;
  if (row == Row::kMet && !page_.holds(&freeride_sent_page::met)) return std::nullopt;
  // Not up to `ranks`: a version before wrote it as it was when two of them joined at the same moment.
  for (uint32_t slot = 0; slot < FREERIDE_MAX_RANKS; ++slot) {
    if (load_acquire(page_->rank[slot].status) == FREERIDE_RANK_ABSENT) continue;
    if (load_relaxed(page_->world_rank[slot]) == world_rank + 1) return slot;
  }
  return std::nullopt;
}

bool SentMember::is_hooked(uint32_t slot) const {
  return load_acquire(page_->rank[slot].status) == FREERIDE_RANK_HOOKED;
}

const uint32_t& SentMember::word_from(uint32_t slot, Row row) const {
  return (row == Row::kSent ? page_->sent : page_->met)[slot][local_rank_];
}

uint32_t SentMember::counter_from(uint32_t slot, Row row) const {
  return load_acquire(word_from(slot, row));
}

void SentMember::advance_from(uint32_t slot, uint32_t value, Row row) {
  if (slot >= FREERIDE_MAX_RANKS) return;
  raise_to((row == Row::kSent ? page_->sent : page_->met)[slot][local_rank_], value);
}

void SentMember::tell_ended(uint32_t slot, uint64_t word) {
  if (page_.holds(&freeride_sent_page::ended)) store_release(page_->ended[local_rank_][slot], word);
}

uint64_t SentMember::ended_by(uint32_t slot) const {
  if (!page_.holds(&freeride_sent_page::ended) || !is_hooked(slot)) return 0;
  return load_acquire(page_->ended[slot][local_rank_]);
}

void SentMember::rejoin(const std::function<uint32_t(uint32_t)>& value_of, uint32_t met) {
  auto& rank = page_->rank[local_rank_];
  if (load_acquire(rank.status) != FREERIDE_RANK_DISABLED) return;
  for (uint32_t slot = 0; slot < FREERIDE_MAX_RANKS; ++slot) {
    // A slot that nobody has taken yet will be read by somebody who has not received anything.
    const uint32_t world_rank = load_relaxed(page_->world_rank[slot]);
    store_release(page_->sent[local_rank_][slot], world_rank == 0 ? FREERIDE_SENT_FIRST : value_of(world_rank - 1));
  }
  for (uint32_t& counter : met_of(local_rank_)) store_release(counter, met);
  // Last: who sees it relies on the counters. Another rank's helper that has just seen the old status may still release
  // some again; that holds until this rank's next message.
  store_release(rank.status, static_cast<uint32_t>(FREERIDE_RANK_HOOKED));
}

void SentMember::release_again() {
  for (uint32_t rank = 0; rank < FREERIDE_MAX_RANKS; ++rank) {
    const uint32_t status = load_acquire(page_->rank[rank].status);
    if (status != FREERIDE_RANK_DISABLED && status != FREERIDE_RANK_DEAD) continue;
    release_counters(rank);
  }
}

void SentMember::release(uint32_t status) {
  release_rank(local_rank_, status);
}

void SentMember::leave() {
  release(FREERIDE_RANK_DEAD);
  drop_descriptors();
  pidfds_.clear();
  watched_.clear();
  const auto lock = lock_folder(folder_);  // without it: a file more that the next rank removes
  if (!lock.ok()) return;
  for (const auto& rank : page_->rank) {
    if (load_acquire(rank.status) == FREERIDE_RANK_HOOKED && lives(rank)) return;
  }
  unlink(path_.c_str());
}

void SentMember::look_for_ranks() {
  for (uint32_t rank = 0; rank < FREERIDE_MAX_RANKS; ++rank) {
    if (rank == local_rank_ || load_acquire(page_->rank[rank].status) != FREERIDE_RANK_HOOKED) continue;
    if (std::find(watched_.begin(), watched_.end(), rank) != watched_.end()) continue;
    const uint32_t pid = load_relaxed(page_->rank[rank].pid);
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    // The start time is compared after the descriptor is open: from then on the pid cannot be reused unnoticed.
    if (fd < 0 || !lives(page_->rank[rank])) {
      if (fd >= 0) close(fd);
      if (fd >= 0 || errno == ESRCH) release_rank(rank, FREERIDE_RANK_DEAD);
      continue;
    }
    pidfds_.push_back(fd);
    watched_.push_back(rank);
  }
}

void SentMember::rank_died(size_t index) {
  if (index >= watched_.size()) return;
  const uint32_t rank = watched_[index];
  close(pidfds_[index]);
  pidfds_.erase(pidfds_.begin() + static_cast<ptrdiff_t>(index));
  watched_.erase(watched_.begin() + static_cast<ptrdiff_t>(index));
  release_rank(rank, FREERIDE_RANK_DEAD);
}

void SentMember::drop_descriptors() {
  for (const int fd : pidfds_) close(fd);
}

}  // namespace freeride::hooks
