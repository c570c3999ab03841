// Background: base's thread for long work, whose results come to a loop.
#pragma once

#include <memory>
#include <utility>

#include "freeride/base/background.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

class Background {
 public:
  /// Errors: kExhausted (descriptors, threads).
  static Result<std::unique_ptr<Background>> create(Loop& loop);
  ~Background() { loop_.forget(pieces_->fd()); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// As freeride::Background::run().
  void run(std::function<void()> work, std::function<void()> then) { pieces_->run(std::move(work), std::move(then)); }

 private:
  Background(Loop& loop, std::unique_ptr<freeride::Background> pieces) : loop_(loop), pieces_(std::move(pieces)) {}

  Loop& loop_;
  std::unique_ptr<freeride::Background> pieces_;
};

}  // namespace freeride::worker
