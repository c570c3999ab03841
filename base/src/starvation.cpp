#include "freeride/base/starvation.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "freeride/base/fd.hpp"
#include "freeride/base/time.hpp"

namespace freeride {
namespace {

// No more than fits; "" where there is no such file.
std::string_view read_some(pid_t pid, const char* file, char* text, size_t room) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/%s", static_cast<int>(pid), file);
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t got = fd.valid() ? ::read(fd.get(), text, room) : -1;
  return {text, got > 0 ? static_cast<size_t>(got) : 0};
}

}  // namespace

Starvation starvation_of(pid_t pid) {
  Starvation found;
  char text[512];
  // "<ns executed> <ns waited> <times>"
  const std::string_view times = read_some(pid, "schedstat", text, sizeof(text));
  if (const size_t space = times.find(' '); space != std::string_view::npos)
    std::from_chars(times.data() + space + 1, times.data() + times.size(), found.waited_ns);
  const std::string_view stat = read_some(pid, "stat", text, sizeof(text));
  const size_t name_end = stat.rfind(')');  // the name may hold anything
  const bool gone = name_end == std::string_view::npos || name_end + 2 >= stat.size();
  found.wants_cpu = gone || stat[name_end + 2] == 'R' || stat[name_end + 2] == 'Z';
  return found;
}

// The clock id that clock_getcpuclockid() makes, without its extra system call.
int64_t process_cpu_ns(pid_t pid) {
  return clock_ns(static_cast<clockid_t>((~static_cast<unsigned>(pid) << 3) | 2U));
}

}  // namespace freeride
