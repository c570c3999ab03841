#include "daemon/hello_reader.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace freeride::worker {
namespace {

void close_between(int first, int last) {
  if (first > last || syscall(SYS_close_range, first, last, 0u) == 0) return;
  for (int fd = first; fd <= last; ++fd) close(fd);  // a filter of calls may not know that one
}

// Everything but these two: whoever looks whether this program has ended looks at some of them.
void keep_only(int one, int other) {
  const int low = std::min(one, other), high = std::max(one, other);
  close_between(0, low - 1);
  close_between(low + 1, high - 1);
  close_between(high + 1, static_cast<int>(std::max(1024L, sysconf(_SC_OPEN_MAX))));
}

[[noreturn]] void read_in_child(int socket, int answer, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  keep_only(socket, answer);
  // glibc sees to it that memory can be had after a fork beside other threads.
  auto hello = pages::receive_hello(socket);
  if (hello.ok()) {
    if (!pages::send_hello(answer, hello->page.get()).ok()) _exit(1);
  } else if (hello.error().code != Code::kUnavailable) {
    const std::string text = hello.error().text();
    if (send(answer, text.data(), std::min(text.size(), pages::kMaxReplyBytes), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
      _exit(1);
  }
  _exit(0);
}

}  // namespace

Result<std::unique_ptr<HelloReader>> HelloReader::start(int socket, Loop& loop, Done done,
                                                        std::function<void()> ended) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return errno_error("cannot make a socket for a trainer's hello", errno);
  std::unique_ptr<HelloReader> reader(new HelloReader(loop, std::move(done)));
  reader->answer_.reset(ends[0]);
  const Fd childs(ends[1]);
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid < 0) return errno_error("cannot start a process for a trainer's hello", errno);
  if (child.pid == 0) read_in_child(socket, ends[1], parent);
  child.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0)));
  reader->child_.reset(fcntl(child.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  HelloReader* self = reader.get();
  auto watched = reader->child_.valid()
                     ? loop.watch(ends[0], EPOLLIN | EPOLLRDHUP, [self](uint32_t) { self->on_answer(); })
                     : Status(errno_error("cannot watch the process for a trainer's hello", errno));
  if (!watched.ok()) {
    reader->answer_.reset();
    end_child(std::move(child), loop, nullptr);
    return watched.error();
  }
  reap_child(std::move(child), loop, std::move(ended));
  return reader;
}

HelloReader::~HelloReader() {
  if (!answer_.valid()) return;
  loop_.forget(answer_.get());
  syscall(SYS_pidfd_send_signal, child_.get(), SIGKILL, nullptr, 0);
}

void HelloReader::on_answer() {
  char text[pages::kMaxReplyBytes + 1];
  ssize_t got = recv(answer_.get(), text, sizeof(text), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  auto hello = pages::receive_hello(answer_.get());
  loop_.forget(answer_.get());
  answer_.reset();
  const Done done = std::move(done_);
  if (hello.ok()) return done(std::move(hello));
  got = std::max<ssize_t>(got, 0);
  done(got == 0 ? Error{Code::kUnavailable, "the trainer closed the connection", ""}
                : Error{Code::kInvalidArgument, std::string(text, static_cast<size_t>(got)), ""});
}

}  // namespace freeride::worker
