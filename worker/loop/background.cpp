#include "loop/background.hpp"

#include <sys/epoll.h>

namespace freeride::worker {

Result<std::unique_ptr<Background>> Background::create(Loop& loop) {
  auto pieces = freeride::Background::create();
  if (!pieces) return pieces.error();
  freeride::Background& made = **pieces;
  if (auto s = loop.watch(made.fd(), EPOLLIN, [&made](uint32_t) { made.finish(); }); !s.ok()) return s.error();
  return std::unique_ptr<Background>(new Background(loop, std::move(*pieces)));
}

}  // namespace freeride::worker
