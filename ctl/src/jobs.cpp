#include "jobs.hpp"

#include <pwd.h>

#include <charconv>

#include "freeride/base/names.hpp"

namespace freeride::ctl {
namespace {

constexpr size_t kMostNameBytes = 16384;

}  // namespace

std::string shown_job(const std::string& job) {
  const size_t owner = owner_size(job);
  uid_t uid = 0;
  if (owner == 0 || std::from_chars(job.data(), job.data() + owner - 1, uid).ec != std::errc()) return job;
  char space[kMostNameBytes];
  passwd entry{}, *found = nullptr;
  if (getpwuid_r(uid, &entry, space, sizeof space, &found) != 0 || found == nullptr) return job;
  return found->pw_name + job.substr(owner - 1);
}

std::string job_argument(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || owner_size(text) != 0) return text;
  char space[kMostNameBytes];
  passwd entry{}, *found = nullptr;
  if (getpwnam_r(text.substr(0, slash).c_str(), &entry, space, sizeof space, &found) != 0 || found == nullptr)
    return text;
  return job_of(found->pw_uid, text.substr(slash + 1));
}

}  // namespace freeride::ctl
