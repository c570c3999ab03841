// What whoever connects to a worker sends: a datagram of any bytes with any number of descriptors, some of them twice.
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "freeride/base/fd.hpp"
#include "freeride/pages/handover.hpp"
#include "fuzz.hpp"

using namespace freeride;

namespace {

// The lowest free number: the same before and after, or descriptors were left open.
int lowest_free() {
  const Fd probe(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return probe.get();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 4096) return 0;
  const size_t descriptors = std::min<size_t>(data[0] % 16, 12);
  const int type = data[1] % 4 == 0 ? SOCK_STREAM : SOCK_SEQPACKET;
  data += 2;
  size -= 2;
  const int before = lowest_free();
  {
    std::array<int, 2> pair{};
    fuzz::must(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair.data()) == 0);
    Fd trainer(pair[0]);
    const Fd worker(pair[1]);
    iovec part{const_cast<uint8_t*>(data), size};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(12 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptors > 0) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      const int sent = trainer.get();
      for (size_t i = 0; i < descriptors; ++i) memcpy(CMSG_DATA(head) + i * sizeof(int), &sent, sizeof(int));
    }
    if (sendmsg(trainer.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return 0;
    trainer.reset();
    for (int n = 0; n < 3; ++n) {
      const auto hello = pages::receive_hello(worker.get());
      if (hello.ok()) fuzz::must(hello->page.valid() && descriptors == 1);
    }
  }
  fuzz::must(lowest_free() == before);
  return 0;
}
