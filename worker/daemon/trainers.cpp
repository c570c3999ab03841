#include "daemon/trainers.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "freeride/base/clock.hpp"
#include "freeride/base/log.hpp"
#include "freeride/pages/handover.hpp"

namespace freeride::worker {
namespace {

constexpr size_t kMostConnections = 64;
constexpr int64_t kPatienceNs = 5 * kNsPerSec;  // for a hello after the connection

}  // namespace

Trainers::Trainers(std::string path, std::string device, Loop& loop, ActingThread& acting, Listener listener)
    : path_(std::move(path)),
      device_(std::move(device)),
      loop_(loop),
      acting_(acting),
      listener_(std::move(listener)) {}

Result<std::unique_ptr<Trainers>> Trainers::listen(const std::string& path, const std::string& device, Loop& loop,
                                                   ActingThread& acting, Listener listener) {
  std::unique_ptr<Trainers> self(new Trainers(path, device, loop, acting, std::move(listener)));
  if (Status opened = self->open_socket(); !opened.ok()) return opened.error();
  return self;
}

Status Trainers::open_socket() {
  auto socket = pages::listen_for_pages(path_);
  if (!socket.ok()) return socket.error();
  auto watched = loop_.watch(socket->get(), EPOLLIN, [this](uint32_t) { on_connection(); });
  if (!watched.ok()) return watched.error();
  if (socket_.valid()) loop_.forget(socket_.get());
  socket_ = std::move(*socket);
  return {};
}

void Trainers::keep_listening() {
  if (access(path_.c_str(), F_OK) == 0 || errno != ENOENT) return;
  if (Status opened = open_socket(); !opened.ok()) {
    return spdlog::error("the socket {} was removed and cannot be made again: {}", path_, opened.error().text());
  }
  spdlog::warn("the socket {} was removed and is made again", path_);
}

Trainers::~Trainers() {
  for (auto& [fd, connection] : connections_) {
    loop_.cancel(connection.patience);
    loop_.forget(fd);
  }
  if (socket_.valid()) {
    loop_.forget(socket_.get());
    unlink(path_.c_str());
  }
}

void Trainers::on_connection() {
  Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;
  const int fd = socket.get();
  if (connections_.size() >= kMostConnections) {
    refuse(fd, Error{Code::kExhausted, "too many connections to this worker", ""});
    return;
  }
  if (!loop_.watch(fd, EPOLLIN | EPOLLRDHUP, [this, fd](uint32_t) { on_readable(fd); }).ok()) return;
  Connection& connection = connections_[fd];
  connection.socket = std::move(socket);
  connection.patience = loop_.at(SteadyClock::now() + kPatienceNs, [this, fd] {
    connections_[fd].patience = 0;
    refuse(fd, Error{Code::kTimeout, "no hello came within 5 s", ""});
    drop(fd);
  });
}

void Trainers::on_readable(int fd) {
  Connection& connection = connections_[fd];
  if (connection.rank != 0) {
    // Silent by agreement: whatever comes now, and the end of file above all, ends it.
    drop(fd);
    return;
  }
  auto rank = accept_page(fd);
  if (!rank.ok()) {
    if (rank.error().code != Code::kUnavailable) {
      spdlog::warn("a trainer was refused: {}", rank.error().text());
      refuse(fd, rank.error());
    }
    drop(fd);
    return;
  }
  loop_.cancel(connection.patience);
  connection.patience = 0;
  connection.rank = rank->id;
  const AttachedRank& attached = ranks_[rank->id] = std::move(*rank);
  acting_.add_rank(attached.source);
  if (send(fd, "OK", 2, MSG_NOSIGNAL | MSG_DONTWAIT) != 2) {
    drop(fd);
    return;
  }
  listener_(attached, Change::kAttached);
}

Result<AttachedRank> Trainers::accept_page(int fd) {
  auto hello = pages::receive_hello(fd);
  if (!hello.ok()) return hello.error();
  auto page = pages::map_page<freeride_bubble_page>(hello->page.get());
  if (!page.ok()) return page.error();
  auto identity = pages::check_bubble_page(**page);
  if (!identity.ok()) return identity.error();
  if (identity->device != device_) {
    return Error{Code::kInvalidArgument, "the page is of device " + identity->device + ", this worker has " + device_,
                 "set FREERIDE_DEVICE, or connect to that device's worker"};
  }
  for (const auto& [id, other] : ranks_) {
    if (other.identity.job == identity->job && other.identity.rank == identity->rank) {
      return Error{Code::kAlreadyExists,
                   "rank " + std::to_string(identity->rank) + " of job " + identity->job +
                       " is attached already, pid " + std::to_string(other.pid),
                   "name jobs apart with FREERIDE_JOB"};
    }
  }
  if (ranks_.size() >= Actor::kMostRanks) {
    return Error{Code::kExhausted, "this worker has " + std::to_string(ranks_.size()) + " ranks already", ""};
  }
  AttachedRank rank;
  rank.id = ++last_id_;
  rank.identity = std::move(*identity);
  rank.pid = hello->pid;
  auto source = std::make_shared<RankSource>();
  source->id = rank.id;
  source->job = rank.identity.job;
  source->page = std::move(*page);
  rank.source = std::move(source);
  return rank;
}

int64_t Trainers::wanted_bytes() const {
  constexpr uint64_t kMost = uint64_t{1} << 50;
  uint64_t sum = 0;
  for (const auto& [id, rank] : ranks_) sum += std::min(kMost, pages::load_acquire(rank.source->page->wanted_bytes));
  return static_cast<int64_t>(sum);
}

void Trainers::refuse(int fd, const Error& error) {
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
  loop_.forget(fd);
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
