// What may be a name. Everybody who takes one from outside asks here, so that nobody refuses what another has accepted.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace freeride {

constexpr size_t kMaxTaskName = 64;    ///< bytes
constexpr size_t kMaxPlainName = 128;  ///< bytes
constexpr size_t kMaxFileName = 255;   ///< bytes, the kernel's limit
constexpr size_t kMaxMetricName = 23;  ///< bytes

/// Whether `c` may be in a task's name, whatever the locale.
constexpr bool is_task_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

/// Task names become file names and topics. None begins with a dot: a folder that does is one half removed.
inline bool is_task_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTaskName && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), is_task_name_char);
}

/// The is_task_name() rule in words, for an error's hint.
constexpr const char* kTaskNameRule = "use at most 64 letters, digits, '.', '_' and '-', no '.' first";

/// Of ASCII: it moves a reader's cursor.
constexpr bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

/// Names of jobs, devices, workers, users, files: short, on one line.
inline bool is_plain(std::string_view text, size_t limit = kMaxPlainName) {
  return !text.empty() && text.size() <= limit && std::none_of(text.begin(), text.end(), is_control);
}

/// A job is its user and its name. Outside of a worker, a job of the worker's own user or of root is called by its
/// name, and any other one "UID/NAME". So nobody's job is taken for another's.
inline std::string job_of(uid_t uid, std::string_view name) {
  return std::to_string(uid).append("/").append(name);
}

/// How long the "UID/" of `job` is; 0: it has none.
inline size_t owner_size(std::string_view job) {
  const size_t digits = std::min(job.find_first_not_of("0123456789"), job.size());
  return digits > 0 && digits < job.size() && job[digits] == '/' ? digits + 1 : 0;
}

/// Whether `wanted` means `job`: in full, or by its name alone, whosever it is.
inline bool means_job(std::string_view wanted, std::string_view job) {
  return wanted == job || wanted == job.substr(owner_size(job));
}

/// Of a task's own figure: printable ASCII without spaces, as long as the answer page has room for.
inline bool is_metric_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxMetricName &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

/// The name that a plugin gives itself in its table: [a-z0-9_-]+.
inline bool is_plugin_name(std::string_view name) {
  return is_plain(name) && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
         });
}

}  // namespace freeride
