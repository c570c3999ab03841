// What the kernel says of a process in one line: /proc/PID/stat. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace freeride {

/// The fields of /proc/PID/stat (or /proc/PID/task/TID/stat) that somebody here reads; proc(5).
struct ProcessStat {
  char state = 0;
  pid_t parent = 0;
  int threads = 0;
  uint64_t started = 0;      ///< clock ticks since the boot: with the number, one process for ever
  int64_t reaped_ticks = 0;  ///< CPU time of the children that it has waited for, and of theirs
};

/// Nothing when `text` is no such line. The process's name in it may hold anything. Pure.
std::optional<ProcessStat> parse_process_stat(std::string_view text);

/// Reads such a file. Nothing: it is not there, since the process or thread is gone.
std::optional<ProcessStat> read_process_stat(const std::string& path);
/// Of the process of this number.
std::optional<ProcessStat> stat_of(pid_t pid);

}  // namespace freeride
