#include "gate.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "freeride/bus/bounds.hpp"

namespace freeride::bus::detail {
namespace {

// Looking at every connection for each one that is refused would be work that anybody can order.
constexpr int64_t kPrunePauseNs = 100 * kNsPerMs;
constexpr int kNoSparePauseMs = 10;

ino_t socket_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

// The other side has not taken what was sent to it long ago.
bool full(int fd) {
  pollfd look = {fd, POLLOUT, 0};
  return ::poll(&look, 1, 0) == 0;
}

void hold_spare();

size_t descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace

// Never destroyed: libzmq's threads may outlive everything.
Gate& Gate::instance() {
  static Gate& gate = *new Gate;  // NOLINT(cppcoreguidelines-owning-memory)
  return gate;
}

void Gate::guard(int fd, const std::string& endpoint) {
  const std::lock_guard lock(mutex_);
  listeners_[fd] = endpoint;
  hold_spare();
}

void Gate::forget(const std::string& endpoint) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second == endpoint; });
  std::erase_if(connections_, [&](const auto& entry) { return entry.second.endpoint == endpoint; });
}

void Gate::forget(int listener) {
  const std::lock_guard lock(mutex_);
  listeners_.erase(listener);
}

void Gate::check(const std::string& path) {
  const std::lock_guard lock(mutex_);
  checked_.insert(path);
}

bool Gate::guards(int listener) {
  const std::lock_guard lock(mutex_);
  return listeners_.count(listener) != 0;
}

bool Gate::checks(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return checked_.count(path) != 0;
}

size_t Gate::count(const std::string& who) const {
  return static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(),
                                           [&](const auto& entry) { return entry.second.who == who; }));
}

size_t Gate::count(Connection::Kind kind) const {
  return static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(),
                                           [&](const auto& entry) { return entry.second.kind == kind; }));
}

// On this host the kernel says whose process it is; on the network only the address is known yet. False: it is gone.
bool Gate::identify(int fd, Connection& connection) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_UNIX) {
    const auto peer = freeride::peer_of(fd);
    if (!peer) return false;
    connection.who = "uid " + std::to_string(peer->uid);
    connection.kind = is_trusted_user(peer->uid) ? Connection::Kind::kTrusted : Connection::Kind::kStranger;
    return true;
  }
  char text[INET6_ADDRSTRLEN] = {};
  const void* at = address.ss_family == AF_INET6
                       ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr)
                       : static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&address)->sin_addr);
  if (inet_ntop(address.ss_family, at, text, sizeof text) == nullptr) return false;
  connection.who = text;
  connection.kind = Connection::Kind::kNetwork;
  return true;
}

void Gate::prune(int64_t now_ns) {
  if (now_ns - pruned_ns_ < kPrunePauseNs) return;
  pruned_ns_ = now_ns;
  std::erase_if(connections_, [](const auto& entry) { return socket_of(entry.first) != entry.second.socket; });
}

void Gate::refused(const std::string& who, const std::string& endpoint, const char* why) {
  static std::atomic<int64_t> next{0};
  const int64_t now = SteadyClock::now();
  int64_t due = next.load();
  if (now < due || !next.compare_exchange_strong(due, now + 60 * kNsPerSec)) return;
  spdlog::warn("a connection of {} to {} is refused: {}; further refusals are not logged for a minute", who, endpoint,
               why);
}

bool Gate::admit(int listener, int fd) {
  Connection connection;
  const bool known = identify(fd, connection);
  connection.socket = socket_of(fd);
  const std::lock_guard lock(mutex_);
  const auto at = listeners_.find(listener);
  if (!known || connection.socket == 0 || at == listeners_.end()) return false;
  connection.endpoint = at->second;
  connections_.erase(fd);  // its number is free again, so that one is closed
  // The kernel gives the lowest number that is free: the number tells how many are in use.
  const size_t all = descriptors();
  if (static_cast<size_t>(fd) + kReserve >= all) {
    refused(connection.who, at->second, "the process has no descriptors to spare");
    return false;
  }
  using Kind = Connection::Kind;
  const auto reason = [&]() -> const char* {
    if (connections_.size() >= bounds().connections) return "there are too many connections";
    if (connection.kind == Kind::kTrusted) return nullptr;
    const bool network = connection.kind == Kind::kNetwork;
    if (network && count(Kind::kNetwork) >= std::min(bounds().network_connections,
                                                     std::max(all / 4, all - std::min(all, kDescriptorsForHost))))
      return "the network has too many connections (freeride-manager --max-connections)";
    if (network) return count(connection.who) >= kMostOfAddress ? "one address may have 32 connections" : nullptr;
    if (count(Kind::kStranger) >= std::min(kMostOfStrangers, all / 2)) return "other users have too many connections";
    return count(connection.who) >= kMostOfOne ? "one user may have 32 connections" : nullptr;
  };
  const char* why = reason();
  if (why != nullptr) {
    prune(SteadyClock::now());
    why = reason();
  }
  if (why != nullptr) {
    refused(connection.who, at->second, why);
    return false;
  }
  connections_[fd] = std::move(connection);
  return true;
}

// Through a copy of the descriptor: libzmq may close its own at any moment, and another file get the number.
bool Gate::shut(int fd, ino_t socket) {
  const Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return copy.valid() && socket_of(copy.get()) == socket && ::shutdown(copy.get(), SHUT_RDWR) == 0;
}

size_t Gate::hang_up_unless(const std::string& endpoint, const std::function<bool(int)>& keep) {
  const std::lock_guard lock(mutex_);
  size_t closed = 0;
  for (const auto& [fd, connection] : connections_) {
    if (connection.endpoint == endpoint && !keep(fd)) closed += shut(fd, connection.socket) ? 1 : 0;
  }
  return closed;
}

size_t Gate::drop_unread(const std::string& endpoint, Look look) {
  const std::lock_guard lock(mutex_);
  if (look == Look::kAll) prune(SteadyClock::now());
  size_t dropped = 0;
  for (auto& [fd, connection] : connections_) {
    if ((look == Look::kFull && connection.full_looks == 0) || connection.endpoint != endpoint) continue;
    connection.full_looks = full(fd) ? connection.full_looks + 1 : 0;
    if (connection.full_looks < kMostFullLooks) continue;
    connection.full_looks = 0;
    dropped += shut(fd, connection.socket) ? 1 : 0;
  }
  return dropped;
}

bool Gate::hang_up(int fd, const std::string& endpoint) {
  const std::lock_guard lock(mutex_);
  const auto one = connections_.find(fd);
  return one != connections_.end() && one->second.endpoint == endpoint && shut(fd, one->second.socket);
}

namespace {

template <class Call>
Call next_of(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));  // NOLINT: how dlsym() is used
}

// Held open so that a connection can be taken, and refused, when there is no descriptor left: one that waits to be
// taken would wake libzmq without end.
std::atomic<int> spare{-1};

void hold_spare() {
  if (spare.load() < 0) spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

using Accept = int (*)(int, sockaddr*, socklen_t*);

// What libzmq is told of the connection `fd`, or of why there is none: with EAGAIN it simply waits for the next.
int take(int listener, int fd) {
  if (fd < 0 && errno != EMFILE && errno != ENFILE) return fd;
  if (fd < 0) {
    if (const int freed = spare.exchange(-1); freed >= 0) ::close(freed);
    fd = next_of<Accept>("accept")(listener, nullptr, nullptr);
    // Another thread was quicker to use the spare one: libzmq would ask again at once, for as long as that lasts.
    if (fd < 0) ::poll(nullptr, 0, kNoSparePauseMs);
  } else if (Gate::instance().admit(listener, fd)) {
    return fd;
  }
  if (fd >= 0) ::close(fd);
  hold_spare();
  errno = EAGAIN;
  return -1;
}

std::string path_of(const sockaddr* address, socklen_t size) {
  constexpr socklen_t kHead = offsetof(sockaddr_un, sun_path);
  if (address == nullptr || size <= kHead || address->sa_family != AF_UNIX) return {};
  const char* path = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
  return std::string(path, ::strnlen(path, size - kHead));
}

}  // namespace

int connect_unchecked(int fd, const sockaddr* address, socklen_t size) {
  static const auto next = next_of<int (*)(int, const sockaddr*, socklen_t)>("connect");
  return next(fd, address, size);
}

}  // namespace freeride::bus::detail

// The linker takes these before the C library's, for this process and all of its libraries.
extern "C" {

__attribute__((visibility("default"))) int accept(int fd, sockaddr* address, socklen_t* size) {
  using namespace freeride::bus::detail;
  static const auto next = next_of<Accept>("accept");
  const bool guarded = Gate::instance().guards(fd);
  const int taken = next(fd, address, size);
  return guarded ? take(fd, taken) : taken;
}

__attribute__((visibility("default"))) int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  using namespace freeride::bus::detail;
  static const auto next = next_of<int (*)(int, sockaddr*, socklen_t*, int)>("accept4");
  const bool guarded = Gate::instance().guards(fd);
  const int taken = next(fd, address, size, flags);
  return guarded ? take(fd, taken) : taken;
}

__attribute__((visibility("default"))) int connect(int fd, const sockaddr* address, socklen_t size) {
  using namespace freeride::bus::detail;
  const std::string path = path_of(address, size);
  if (path.empty() || !Gate::instance().checks(path)) return connect_unchecked(fd, address, size);
  const auto folder = std::filesystem::path(path).parent_path();
  if (!freeride::check_run_folder(folder.empty() ? "." : folder)) {
    errno = ECONNREFUSED;
    return -1;
  }
  const int connected = connect_unchecked(fd, address, size);
  if (connected == 0 && !freeride::check_listener(fd, path)) {
    ::shutdown(fd, SHUT_RDWR);
    errno = ECONNREFUSED;
    return -1;
  }
  return connected;
}

}  // extern "C"
