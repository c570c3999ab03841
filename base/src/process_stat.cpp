#include "freeride/base/process_stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "freeride/base/fd.hpp"

namespace freeride {
namespace {
constexpr int kState = 3, kParent = 4, kReapedUser = 16, kReapedSystem = 17, kThreads = 20, kStarted = 22;  // proc(5)
}

std::optional<ProcessStat> parse_process_stat(std::string_view text) {
  ProcessStat stat;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 >= text.size()) return std::nullopt;
  size_t at = name_end + 2;
  const auto number = [&](auto& into, size_t begin, size_t end) {
    return std::from_chars(text.data() + begin, text.data() + end, into).ec == std::errc();
  };
  bool good = true;
  int field = kState;
  for (; at < text.size() && field <= kStarted; ++field) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    if (field == kState) stat.state = text[at];
    if (field == kParent) good = good && number(stat.parent, at, end);
    if (field == kReapedUser || field == kReapedSystem) {
      int64_t ticks = 0;
      good = good && number(ticks, at, end);
      stat.reaped_ticks += ticks;
    }
    if (field == kThreads) good = good && number(stat.threads, at, end);
    if (field == kStarted) good = good && number(stat.started, at, end);
    at = end + 1;
  }
  if (!good || field <= kStarted) return std::nullopt;
  return stat;
}

std::optional<ProcessStat> read_process_stat(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::array<char, 1024> text;
  const ssize_t length = read(fd.get(), text.data(), text.size());
  if (length <= 0) return std::nullopt;
  return parse_process_stat({text.data(), static_cast<size_t>(length)});
}

std::optional<ProcessStat> stat_of(pid_t pid) {
  return read_process_stat("/proc/" + std::to_string(pid) + "/stat");
}

}  // namespace freeride
