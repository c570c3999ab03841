#include "pressed_keys.hpp"

#include <unistd.h>

namespace freeride::ctl {
namespace {

// Who touches another's terminal is stopped.
bool is_in_foreground() {
  return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

}  // namespace

PressedKeys::PressedKeys() {
  if (isatty(STDIN_FILENO) == 0 || !is_in_foreground() || tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 0;
  raw.c_cc[VTIME] = 0;
  on_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

PressedKeys::~PressedKeys() {
  if (on()) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

bool PressedKeys::on() const {
  return on_ && is_in_foreground();
}

char PressedKeys::next() const {
  char key = 0;
  return on() && read(STDIN_FILENO, &key, 1) == 1 ? key : '\0';
}

}  // namespace freeride::ctl
