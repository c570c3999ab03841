#include "freeride/pages/handover.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "freeride/pages/mapping.hpp"

namespace freeride::pages {
namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/freeride-handover-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

struct Pair {
  Pair() {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    trainer = Fd(fds[0]);
    worker = Fd(fds[1]);
  }
  Fd trainer, worker;
};

}  // namespace

TEST_CASE("a page travels from trainer to worker") {
  Folder folder;
  const std::string path = folder.path + "/worker-cpu-0.sock";
  CHECK(connect_to_worker(path).error().code == Code::kNotFound);
  auto listener = listen_for_pages(path);
  REQUIRE(listener.ok());
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(listen_for_pages(path).error().code == Code::kAlreadyExists);

  auto trainer = connect_to_worker(path);
  REQUIRE(trainer.ok());
  auto made = create_page<freeride_bubble_page>(true);
  REQUIRE(made.ok());
  REQUIRE(send_hello(trainer->get(), made->fd.get()).ok());
  // The connect above made an accept by the second listener's probe too: skip connections that say nothing.
  for (;;) {
    Fd accepted(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(accepted.valid());
    auto hello = receive_hello(accepted.get());
    if (!hello.ok()) continue;
    CHECK(hello->pid == getpid());
    auto page = map_page<freeride_bubble_page>(hello->page.get());
    REQUIRE(page.ok());
    CHECK((*page)->header.incarnation == made->page->header.incarnation);
    break;
  }
}

TEST_CASE("a worker's socket in a folder that somebody else has made gets no page") {
  if (geteuid() != 0) return;  // only root can make files of other users
  Folder folder;
  const std::string path = folder.path + "/worker-cpu-0.sock";
  auto listener = listen_for_pages(path);
  REQUIRE(listener.ok());
  CHECK(connect_to_worker(path).ok());
  REQUIRE(chown(folder.path.c_str(), 65534, 65534) == 0);
  const auto refused = connect_to_worker(path);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kPermission);
}

TEST_CASE("a worker for anybody is one that anybody can connect to, whatever the umask") {
  Folder folder;
  const std::string path = folder.path + "/worker-cpu-0.sock";
  const mode_t before = umask(077);
  auto listener = listen_for_pages(path, Callers::kAnybody);
  umask(before);
  REQUIRE(listener.ok());
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0666);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a stale socket is replaced, another file is not") {
  Folder folder;
  const std::string path = folder.path + "/worker-cpu-0.sock";
  { REQUIRE(listen_for_pages(path).ok()); }
  CHECK(connect_to_worker(path).error().code == Code::kUnavailable);
  CHECK(listen_for_pages(path).ok());
  const std::string file = folder.path + "/file";
  Fd made(open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  CHECK_FALSE(listen_for_pages(file).ok());
  CHECK(std::filesystem::exists(file));
  CHECK(connect_to_worker(std::string(200, 'x')).error().code == Code::kInvalidArgument);
}

TEST_CASE("a bell travels from worker to trainer, and a hook that knows of none hears the word alone") {
  const int before = open_descriptors();
  {
    Pair pair;
    auto made = create_page<freeride_bell_page>(false);
    REQUIRE(made.ok());
    char text[kMaxReplyBytes];
    Fd bell;
    REQUIRE(send_reply(pair.worker.get(), "OK", made->fd.get()).ok());
    REQUIRE(receive_reply(pair.trainer.get(), text, sizeof(text), bell) == 2);
    auto page = map_page_writable<freeride_bell_page>(bell.get());
    REQUIRE(page.ok());
    CHECK((*page)->header.incarnation == made->page->header.incarnation);
    bump_and_wake((*page)->rings);
    CHECK(made->page->rings == 1);

    REQUIRE(send_reply(pair.worker.get(), "OK").ok());
    Fd none;
    CHECK(receive_reply(pair.trainer.get(), text, sizeof(text), none) == 2);
    CHECK_FALSE(none.valid());

    const int with_both = open_descriptors();
    REQUIRE(send_reply(pair.worker.get(), "OK", made->fd.get()).ok());
    CHECK(recv(pair.trainer.get(), text, sizeof(text), MSG_DONTWAIT) == 2);  // as earlier hooks do
    CHECK(std::string(text, 2) == "OK");
    CHECK(open_descriptors() == with_both);
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("bad hellos are refused and leak nothing") {
  const int before = open_descriptors();
  {
    Pair pair;
    CHECK(receive_hello(pair.worker.get()).error().code == Code::kUnavailable);  // nothing yet
    SECTION("closed") {
      pair.trainer.reset();
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kUnavailable);
    }
    SECTION("no descriptor") {
      REQUIRE(send(pair.trainer.get(), kHello, kHelloBytes, 0) == 8);
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kInvalidArgument);
    }
    SECTION("no memory file") {
      int ends[2];
      REQUIRE(pipe(ends) == 0);
      CHECK(send_hello(pair.trainer.get(), ends[0]).ok());
      close(ends[0]);
      close(ends[1]);
      CHECK(receive_hello(pair.worker.get()).error().message.find("no memory file") != std::string::npos);
    }
    SECTION("garbage") {
      REQUIRE(send(pair.trainer.get(), "GET / HT", 8, 0) == 8);
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kInvalidArgument);
    }
    SECTION("oversized") {
      const std::string big(70000, 'x');
      REQUIRE(send(pair.trainer.get(), big.data(), big.size(), 0) > 0);
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kInvalidArgument);
    }
    SECTION("newer version") {
      REQUIRE(send(pair.trainer.get(), "FRHELLO2", 8, 0) == 8);
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kVersion);
    }
    SECTION("many descriptors") {
      int fds[12];
      for (int& fd : fds) fd = dup(0);
      char control[CMSG_SPACE(sizeof(fds))] = {};
      iovec part{const_cast<char*>(kHello), kHelloBytes};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(fds));
      std::memcpy(CMSG_DATA(head), fds, sizeof(fds));
      REQUIRE(sendmsg(pair.trainer.get(), &message, 0) == 8);
      for (const int fd : fds) close(fd);
      CHECK(receive_hello(pair.worker.get()).error().code == Code::kInvalidArgument);
    }
  }
  CHECK(open_descriptors() == before);
}

}  // namespace freeride::pages
