#include "daemon/trainers.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/names.hpp"
#include "freeride/pages/handover.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kPatienceNs = 5 * kNsPerSec;    // for a hello after the connection
constexpr int64_t kSaidPauseNs = 60 * kNsPerSec;  // between two lines about one stranger
constexpr int64_t kSameSaidNs = 3600 * kNsPerSec;
constexpr size_t kMostKnown = 256;
constexpr int kMostHellos = 32;  // of one stranger, in this time: each is a process, and lines in logs
constexpr int64_t kHellosNs = 10 * kNsPerSec;
constexpr int kMostAbsentLooks = 2;
constexpr int kNoDescriptorMs = 10;
constexpr int kMostStrangeRanks = Actor::kMostRanks - 4;  // room for the worker's own user and root

}  // namespace

Trainers::Trainers(std::string path, std::string device, Loop& loop, ActingThread& acting, OnDevice on_device,
                   Listener listener)
    : path_(std::move(path)),
      device_(std::move(device)),
      loop_(loop),
      acting_(acting),
      on_device_(std::move(on_device)),
      listener_(std::move(listener)) {}

Result<std::unique_ptr<Trainers>> Trainers::listen(const std::string& path, const std::string& device, Loop& loop,
                                                   ActingThread& acting, OnDevice on_device, Listener listener) {
  std::unique_ptr<Trainers> self(new Trainers(path, device, loop, acting, std::move(on_device), std::move(listener)));
  if (Status opened = self->open_socket(); !opened.ok()) return opened.error();
  return self;
}

Status Trainers::open_socket() {
  // A trainer believes a worker of root's or its own user's, so nobody else has a use for another worker's socket.
  auto socket = pages::listen_for_pages(path_, geteuid() == 0 ? pages::Callers::kAnybody : pages::Callers::kOwner);
  if (!socket.ok()) return socket.error();
  auto watched = loop_.watch(socket->get(), EPOLLIN, [this](uint32_t) { on_connection(); });
  if (!watched.ok()) return watched.error();
  if (socket_.valid()) loop_.forget(socket_.get());
  socket_ = std::move(*socket);
  return {};
}

void Trainers::keep_listening() {
  if (access(path_.c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return;
  Status opened = make_run_folder(std::filesystem::path(path_).parent_path());
  if (opened.ok()) opened = open_socket();
  if (!opened.ok()) {
    if (std::exchange(failure_said_, true)) return;
    return spdlog::error("the socket {} was removed and cannot be made again yet: {}", path_, opened.error().text());
  }
  failure_said_ = false;
  spdlog::warn("the socket {} was removed and is made again", path_);
}

Trainers::~Trainers() {
  for (auto& [fd, connection] : connections_) {
    loop_.cancel(connection.patience);
    if (connection.reader == nullptr) loop_.forget(fd);
  }
  if (socket_.valid()) {
    loop_.forget(socket_.get());
    unlink(path_.c_str());
  }
}

void Trainers::on_connection() {
  Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    // A connection that cannot be taken would wake this loop without end, on training's host.
    if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, kNoDescriptorMs);
    return;
  }
  const int fd = socket.get();
  const auto peer = peer_of(fd);
  if (!peer.ok()) return;
  const bool stranger = !is_trusted_user(peer->uid);
  if (Status room = check_room(*peer, stranger); !room.ok()) {
    if (stranger) log_refusal(*peer, stranger, room.error().text());
    refuse(fd, room.error());
    return;
  }
  if (!loop_.watch(fd, EPOLLIN | EPOLLRDHUP, [this, fd](uint32_t) { on_readable(fd); }).ok()) return;
  Connection& connection = connections_[fd];
  connection.socket = std::move(socket);
  connection.peer = *peer;
  connection.stranger = stranger;
  connection.patience = loop_.at(SteadyClock::now() + kPatienceNs, [this, fd] {
    connections_[fd].patience = 0;
    refuse(fd, Error{Code::kTimeout, "no hello came within 5 s", ""});
    drop(fd);
  });
}

Status Trainers::check_room(const Peer& peer, bool stranger) const {
  const Error full{Code::kExhausted, "too many connections to this worker", ""};
  if (connections_.size() >= kMostConnections) return full;
  if (!stranger) return {};
  if (geteuid() != 0)
    return Error{Code::kPermission, "a process of uid " + std::to_string(peer.uid) + " tried to attach",
                 "run the worker as root, or as the training's user"};
  size_t strangers = 0, own = 0;
  for (const auto& [fd, connection] : connections_) {
    strangers += connection.stranger ? 1 : 0;
    own += connection.peer.uid == peer.uid ? 1 : 0;
  }
  if (strangers >= kMostOfStrangers) return full;
  const auto readers = readers_->find(peer.uid);
  if (own < kMostOfOne && (readers == readers_->end() || readers->second < kMostOfOne)) return {};
  return Error{Code::kExhausted, "one user may have " + std::to_string(kMostOfOne) + " connections to this worker", ""};
}

Status Trainers::check_stranger(const Peer& peer) const {
  const Error unseen{Code::kPermission, "this worker cannot see who is at the other end",
                     "start the worker where all processes and users of the host are to be seen, or as the training's "
                     "user"};
  // A process of a PID namespace that is not below ours; a user whom our user namespace has no number for, as which any
  // other such user would count, too.
  if (peer.pid <= 0 || is_nobody_known(peer.uid)) return unseen;
  // Its number may be another process's by now, but not another user's.
  const auto owner = user_of_process(peer.pid);
  if (!owner && process_exists(peer.pid)) {
    return Error{Code::kPermission,
                 "process " + std::to_string(peer.pid) +
                     ", which has connected, is hidden from this worker: /proc is mounted with hidepid",
                 "mount /proc without hidepid, or with gid= of a group that the worker is in"};
  }
  if (!owner || *owner != peer.uid)
    return Error{Code::kPermission, "process " + std::to_string(peer.pid) + ", which has connected, has ended", ""};
  return on_device_(peer.pid);
}

void Trainers::on_readable(int fd) {
  Connection& connection = connections_[fd];
  if (connection.rank != 0) {
    // Silent by agreement: whatever comes now, and the end of file above all, ends it.
    drop(fd);
    return;
  }
  if (!connection.stranger) return on_hello(fd, pages::receive_hello(fd));
  const Status read = read_apart(fd);
  // Also a driver that does not answer is told, as what it is: the trainer is still there.
  if (!read.ok()) turn_away(fd, Error{Code::kPermission, read.error().message, read.error().hint});
}

Status Trainers::read_apart(int fd) {
  Connection& connection = connections_[fd];
  if (Status checked = check_stranger(connection.peer); !checked.ok()) return checked;
  const uid_t uid = connection.peer.uid;
  Stranger& known = stranger(uid);
  const int64_t now = SteadyClock::now();
  if (known.since_ns == 0 || now - known.since_ns > kHellosNs) {
    known.since_ns = now;
    known.hellos = 0;
  }
  if (++known.hellos > kMostHellos)
    return Error{Code::kExhausted, "more than " + std::to_string(kMostHellos) + " trainers of one user in 10 s", ""};
  auto ended = [readers = readers_, uid] {
    if (--(*readers)[uid] == 0) readers->erase(uid);
  };
  ++(*readers_)[uid];
  auto reader = HelloReader::start(
      fd, loop_, [this, fd](Result<pages::Hello> hello) { on_hello(fd, std::move(hello)); }, ended);
  if (!reader.ok()) {
    ended();
    return reader.error();
  }
  connection.reader = std::move(*reader);
  loop_.forget(fd);  // the reader's now
  return {};
}

void Trainers::on_hello(int fd, Result<pages::Hello> hello) {
  Connection& connection = connections_[fd];
  if (connection.reader != nullptr) {
    connection.reader.reset();
    auto watched = loop_.watch(fd, EPOLLIN | EPOLLRDHUP, [this, fd](uint32_t) { on_readable(fd); });
    if (!watched.ok()) return turn_away(fd, watched.error());
  }
  auto rank = hello.ok() ? accept_page(connection, *hello) : Result<AttachedRank>(hello.error());
  if (!rank.ok()) return turn_away(fd, rank.error());
  loop_.cancel(connection.patience);
  connection.patience = 0;
  connection.rank = rank->id;
  const int bell = bell_for(connection.peer.uid);
  const AttachedRank& attached = ranks_[rank->id] = std::move(*rank);
  acting_.add_rank(attached.source);
  if (!pages::send_reply(fd, "OK", bell).ok()) {
    drop(fd);
    return;
  }
  listener_(attached, Change::kAttached);
}

// The bell for a hook of `uid`; -1: it gets none, and its page is looked at in short intervals. All who have a bell can
// keep the acting thread from hearing the others, so they are of one user.
int Trainers::bell_for(uid_t uid) {
  if (acting_.bell_fd() < 0) return -1;
  if (uid != bell_user_ && ranks_.empty() && acting_.renew_bell().ok()) bell_user_ = uid;
  return uid == bell_user_ ? acting_.bell_fd() : -1;
}

Result<AttachedRank> Trainers::accept_page(const Connection& connection, const pages::Hello& hello) {
  if (connection.stranger) {
    if (Status stays = pages::check_stays(hello.page.get()); !stays.ok()) return stays.error();
    // Again: reading took a while.
    if (Status checked = check_stranger(connection.peer); !checked.ok()) return checked.error();
  }
  auto page = pages::map_page<freeride_bubble_page>(hello.page.get());
  if (!page.ok()) return page.error();
  auto identity = pages::check_bubble_page(**page);
  if (!identity.ok()) return identity.error();
  if (identity->device != device_) {
    return Error{Code::kInvalidArgument, "the page is of device " + identity->device + ", this worker has " + device_,
                 "set FREERIDE_DEVICE, or connect to that device's worker"};
  }
  if (connection.stranger) identity->job = job_of(connection.peer.uid, identity->job);
  for (const auto& [id, other] : ranks_) {
    if (other.identity.job == identity->job && other.identity.rank == identity->rank) {
      return Error{Code::kAlreadyExists,
                   "rank " + std::to_string(identity->rank) + " of job " + identity->job +
                       " is attached already, pid " + std::to_string(other.peer.pid),
                   "name jobs apart with FREERIDE_JOB"};
    }
  }
  const auto strangers = std::count_if(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.second.stranger; });
  if (connection.stranger && strangers >= kMostStrangeRanks)
    return Error{Code::kExhausted, "this worker has " + std::to_string(strangers) + " ranks of other users already",
                 ""};
  if (ranks_.size() >= Actor::kMostRanks) {
    return Error{Code::kExhausted, "this worker has " + std::to_string(ranks_.size()) + " ranks already", ""};
  }
  AttachedRank rank;
  rank.id = ++last_id_;
  rank.identity = std::move(*identity);
  rank.peer = connection.peer;
  rank.stranger = connection.stranger;
  auto source = std::make_shared<RankSource>();
  source->id = rank.id;
  source->job = rank.identity.job;
  source->page = std::move(*page);
  rank.source = std::move(source);
  return rank;
}

void Trainers::look_at_strangers() {
  std::vector<std::pair<int, Error>> gone;
  for (const auto& [fd, connection] : connections_) {
    const auto rank = ranks_.find(connection.rank);
    if (!connection.stranger || rank == ranks_.end()) continue;
    const Status here = check_stranger(connection.peer);
    if (!here.ok() && here.error().code == Code::kUnavailable) continue;
    rank->second.absent_looks = here.ok() ? 0 : rank->second.absent_looks + 1;
    if (rank->second.absent_looks >= kMostAbsentLooks) gone.emplace_back(fd, here.error());
  }
  for (const auto& [fd, why] : gone) turn_away(fd, why);
}

int64_t Trainers::wanted_bytes(const std::function<bool(pid_t)>& here) const {
  constexpr uint64_t kMost = uint64_t{1} << 50;
  uint64_t sum = 0;
  for (const auto& [id, rank] : ranks_) {
    const uint64_t wanted = std::min(kMost, pages::load_acquire(rank.source->page->wanted_bytes));
    if (wanted != 0 && (!rank.stranger || here(rank.peer.pid))) sum += wanted;
  }
  return static_cast<int64_t>(sum);
}

void Trainers::turn_away(int fd, const Error& error) {
  const Connection& connection = connections_[fd];
  if (error.code != Code::kUnavailable) {
    log_refusal(connection.peer, connection.stranger, error.text());
    refuse(fd, error);
  }
  drop(fd);
}

Trainers::Stranger& Trainers::stranger(uid_t uid) {
  if (strangers_.size() >= kMostKnown && strangers_.count(uid) == 0) strangers_.clear();
  return strangers_[uid];
}

void Trainers::log_refusal(const Peer& peer, bool stranger, const std::string& text) {
  if (!stranger) return spdlog::warn("a trainer was refused: {}", text);
  // A stranger may ask a thousand times, and its hook asks every 5 s.
  const int64_t now = SteadyClock::now();
  Stranger& known = this->stranger(peer.uid);
  if (known.said_ns != 0 && now - known.said_ns < (known.said == text ? kSameSaidNs : kSaidPauseNs)) return;
  known.said_ns = now;
  known.said = text;
  spdlog::warn("a trainer of uid {} was refused: {}", peer.uid, text);
}

void Trainers::refuse(int fd, const Error& error) {
  // What is left unread has the peer told of a reset before it is told why. Without room for descriptors none is taken.
  char rest[pages::kHelloBytes];
  for (int i = 0; i < 4 && recv(fd, rest, sizeof(rest), MSG_DONTWAIT) > 0; ++i) {
  }
  std::string line = "ERR " + error.text();
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  line.resize(std::min(line.size(), pages::kMaxReplyBytes));
  // A peer that does not read its answer has itself to blame.
  if (send(fd, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

void Trainers::drop(int fd) {
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  loop_.cancel(it->second.patience);
  if (it->second.reader == nullptr) loop_.forget(fd);
  const uint64_t id = it->second.rank;
  connections_.erase(it);
  const auto rank = ranks_.find(id);
  if (rank == ranks_.end()) return;
  acting_.remove_rank(id);
  const AttachedRank gone = std::move(rank->second);
  ranks_.erase(rank);
  listener_(gone, Change::kLost);
}

}  // namespace freeride::worker
