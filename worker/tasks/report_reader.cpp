#include "tasks/report_reader.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "tasks/verdicts.hpp"

namespace freeride::worker {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = 16384;
constexpr size_t kMostText = 1024;

// One datagram with at most two descriptors; as recv().
ssize_t receive(int socket, std::array<char, kMostBytes>& buffer, std::array<Fd, 2>& fds) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* head = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return got;
  const size_t count = std::min(fds.size(), (head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  for (size_t i = 0; i < count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
    fds[i].reset(fd);
  }
  return got;
}

}  // namespace

std::string text_in(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>().substr(0, kMostText) : std::string();
}

int64_t number_in(const json& object, const char* key, int64_t otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : otherwise;
}

std::vector<std::string> texts_in(const json& object, const char* key, size_t most) {
  std::vector<std::string> texts;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return texts;
  for (const json& one : *it) {
    if (one.is_string() && texts.size() < most) texts.push_back(one.get<std::string>().substr(0, kMostText));
  }
  return texts;
}

ReportReader::ReportReader(Fd socket, Loop& loop, Calls calls)
    : socket_(std::move(socket)), loop_(loop), calls_(std::move(calls)) {}

ReportReader::~ReportReader() {
  if (watched_) loop_.forget(socket_.get());
}

Status ReportReader::start() {
  auto watched = loop_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { read(); });
  watched_ = watched.ok();
  return watched;
}

void ReportReader::read() {
  std::array<char, kMostBytes> buffer;
  for (;;) {
    std::array<Fd, 2> fds;
    const ssize_t got = receive(socket_.get(), buffer, fds);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {  // the supervisor has closed it: its exit follows
      if (std::exchange(watched_, false)) loop_.forget(socket_.get());
      return;
    }
    const json message = json::parse(buffer.data(), buffer.data() + got, nullptr, false);
    if (!message.is_object()) continue;
    const std::string event = text_in(message, "event");
    if (event == "started") {
      calls_.started(std::move(fds[0]), std::move(fds[1]));
    } else if (event == "verdict") {
      calls_.verdict(verdict_of(message), number_in(message, "peak_resident_bytes", 0));
    }
  }
}

}  // namespace freeride::worker
