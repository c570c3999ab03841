#include "freeride/pages/handover.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "freeride/base/access.hpp"

namespace freeride::pages {
namespace {

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Error{Code::kInvalidArgument, "socket path of " + std::to_string(path.size()) + " bytes: " + path,
                 "choose a run folder with a shorter path (--run-dir)"};
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<Fd> new_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno_error("cannot make a socket", errno);
  return fd;
}

// One datagram, with a descriptor if `fd` is one. False: errno says why not.
bool send_with(int socket, std::string_view text, int fd) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(text.size());
}

struct Received {
  ssize_t bytes = -1;  // as recv(2)
  int descriptors = 0;
  bool cut = false;  // there were more
};

// One datagram. `fd` gets the last descriptor that came with it.
Received receive_with(int socket, char* text, size_t bytes, Fd& fd) {
  iovec part{text, bytes};
  // Room for more descriptors than allowed: those that arrive are ours to close, those that do not fit the kernel
  // closes.
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  Received received;
  received.bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received.bytes < 0) return received;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int one = -1;
      std::memcpy(&one, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      fd.reset(one);  // closes the one before
      ++received.descriptors;
    }
  }
  received.cut = (message.msg_flags & MSG_CTRUNC) != 0;
  return received;
}

}  // namespace

Result<Fd> connect_to_worker(const std::string& path) {
  auto address = address_of(path);
  if (!address.ok()) return address.error();
  if (auto open = check_socket(path); !open.ok()) return open.error();
  auto fd = new_socket();
  if (!fd.ok()) return fd.error();
  if (connect(fd->get(), reinterpret_cast<sockaddr*>(&*address), sizeof(*address)) != 0) {
    const int err = errno;
    if (err == ECONNREFUSED) return Error{Code::kUnavailable, "nobody listens at " + path, "start the worker"};
    if (err == EAGAIN)
      return Error{Code::kExhausted, "the worker at " + path + " lets nobody in: too many wait before it", ""};
    return errno_error("cannot connect to " + path, err);
  }
  if (auto believed = check_listener(fd->get(), path); !believed.ok()) return believed.error();
  return fd;
}

Result<Fd> listen_for_pages(const std::string& path, Callers callers) {
  auto address = address_of(path);
  if (!address.ok()) return address.error();
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return Error{Code::kInvalidArgument, path + " exists and is no socket", "remove it"};
    auto other = connect_to_worker(path);
    if (other.ok() || other.error().code == Code::kExhausted)
      return Error{Code::kAlreadyExists, "another worker listens at " + path, "stop it, or use another device"};
    if (unlink(path.c_str()) != 0 && errno != ENOENT)
      return errno_error("cannot replace the stale socket " + path, errno);
  }
  auto fd = new_socket();
  if (!fd.ok()) return fd.error();
  // The mode is set on the descriptor before bind, so that the name never exists with a wider one.
  const mode_t mode = callers == Callers::kAnybody ? 0666 : 0600;
  if (fchmod(fd->get(), mode) != 0) return errno_error("cannot set the mode of " + path, errno);
  // Under another name until the mode is what it should be, in which the umask has a say, and somebody listens: who
  // finds the socket can use it.
  struct stat own {};
  if (fstat(fd->get(), &own) != 0) return errno_error("cannot look at a socket", errno);
  const std::string fresh = path.substr(0, path.rfind('/') + 1) + ".w" + std::to_string(own.st_ino);
  auto first = address_of(fresh);
  if (!first.ok()) return first.error();
  unlink(fresh.c_str());
  if (bind(fd->get(), reinterpret_cast<sockaddr*>(&*first), sizeof(*first)) != 0)
    return errno_error("cannot bind " + path, errno);
  if (chmod(fresh.c_str(), mode) != 0 || listen(fd->get(), SOMAXCONN) != 0 ||
      rename(fresh.c_str(), path.c_str()) != 0) {
    const int err = errno;
    unlink(fresh.c_str());
    return errno_error("cannot listen at " + path, err);
  }
  return fd;
}

Status send_hello(int socket, int page_fd) {
  if (send_with(socket, std::string_view(kHello, kHelloBytes), page_fd)) return {};
  return Error{Code::kUnavailable, std::string("cannot hand the page over: ") + std::strerror(errno), ""};
}

Status send_reply(int socket, std::string_view text, int bell_fd) {
  if (send_with(socket, text, bell_fd)) return {};
  return Error{Code::kUnavailable, std::string("cannot answer the trainer: ") + std::strerror(errno), ""};
}

ssize_t receive_reply(int socket, char* text, size_t bytes, Fd& bell) {
  return receive_with(socket, text, bytes, bell).bytes;
}

Result<Hello> receive_hello(int socket) {
  Hello hello;
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
    return errno_error("cannot identify the trainer", errno);
  hello.pid = peer.pid;
  hello.uid = peer.uid;

  char bytes[kHelloBytes + 1];
  const auto [got, descriptors, cut] = receive_with(socket, bytes, sizeof(bytes), hello.page);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return Error{Code::kUnavailable, "nothing has arrived yet", ""};
    return errno_error("cannot read the trainer's hello", errno);
  }
  if (got == 0 && descriptors == 0) return Error{Code::kUnavailable, "the trainer closed the connection", ""};
  if (got == static_cast<ssize_t>(kHelloBytes) && std::memcmp(bytes, kHello, kHelloBytes) != 0) {
    if (std::memcmp(bytes, kHello, kHelloBytes - 1) == 0) {
      return Error{Code::kVersion,
                   "hello of version " + std::string(1, bytes[kHelloBytes - 1]) + ", this worker knows 1",
                   "use a hook of this worker's version"};
    }
    return Error{Code::kInvalidArgument, "the first datagram is no hello", ""};
  }
  if (got != static_cast<ssize_t>(kHelloBytes)) {
    return Error{Code::kInvalidArgument, "the first datagram is " + std::to_string(got) + " bytes, expected 8", ""};
  }
  if (descriptors != 1 || cut) {  // of several, only the last is still open
    return Error{Code::kInvalidArgument,
                 "the hello carries " + std::to_string(descriptors) + " descriptors, expected 1", ""};
  }
  // Before anything else is asked of it: of another kind of file, any question may be answered by whom it belongs to.
  if (fcntl(hello.page.get(), F_GET_SEALS) < 0)
    return Error{Code::kInvalidArgument, "the hello's descriptor is no memory file", ""};
  return hello;
}

}  // namespace freeride::pages
