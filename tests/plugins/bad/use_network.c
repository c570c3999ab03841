/* Looks for a way out: the host's loopback, the routes, the hypervisor. `pid` is a TCP port of the host's that
 * listens. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bad.h"

static int reaches(const char* address, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) return 0;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  inet_pton(AF_INET, address, &to.sin_addr);
  const int done = connect(fd, (struct sockaddr*)&to, sizeof(to)) == 0;
  close(fd);
  return done;
}
/* A datagram socket's connect sends nothing: it only looks for a route. */
static int routed(const char* address) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
  inet_pton(AF_INET, address, &to.sin_addr);
  const int done = fd >= 0 && connect(fd, (struct sockaddr*)&to, sizeof(to)) == 0;
  close(fd);
  return done;
}
static freeride_status step(void* task) {
  (void)task;
  bad_try(reaches("127.0.0.1", (int)bad_pid), "connect to the host");
  bad_try(routed("192.0.2.1"), "send into the network");
  bad_try(socket(AF_VSOCK, SOCK_STREAM, 0) >= 0, "talk to the hypervisor");
  bad_try(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0, "make raw packets");
  return bad_end();
}
BAD_PLUGIN("use_network", step)
