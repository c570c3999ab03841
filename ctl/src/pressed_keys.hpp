// Keys as they are pressed, not line by line.
#pragma once

#include <termios.h>

namespace freeride::ctl {

/// While it lives, the terminal at the standard input gives each key at once, and does not show it. The destructor puts
/// the terminal back. No terminal, or one that is another's by now (`freeride-ctl … &`): no keys. Not thread-safe.
class PressedKeys {
 public:
  PressedKeys();
  ~PressedKeys();
  PressedKeys(const PressedKeys&) = delete;
  PressedKeys& operator=(const PressedKeys&) = delete;

  /// Whether keys can come now.
  bool on() const;
  /// The next one that was pressed, or 0. Does not block.
  char next() const;

 private:
  termios before_{};
  bool on_ = false;
};

}  // namespace freeride::ctl
