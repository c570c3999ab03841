#include "freeride/base/fd.hpp"

#include <unistd.h>

namespace freeride {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

}  // namespace freeride
