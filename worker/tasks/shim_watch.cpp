#include "tasks/shim_watch.hpp"

#include <fcntl.h>

#include <algorithm>

#include "freeride/base/fd.hpp"
#include "freeride/pages/shim_report.hpp"

namespace freeride::worker {

void ShimWatch::look(const std::string& path, int64_t now_ns) {
  if (path.empty()) return;
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const auto report = pages::read_shim_page(file.get());
  if (!report.ok() || report->processes == 0) return;
  bus::ShimCounters now;
  now.processes = report->processes;
  now.submissions = report->submissions;
  now.waits = report->waits;
  now.waited_ns = static_cast<int64_t>(report->waited_ns);
  now.refused = report->refused;
  now.too_long = report->too_long;
  now.too_long_ns = static_cast<int64_t>(report->too_long_ns);
  now.too_long_name = report->too_long_name;
  now.lease_longest_ns = static_cast<int64_t>(report->lease_longest_ns);
  now.late = report->late;
  now.late_most_ns = static_cast<int64_t>(report->late_most_ns);
  now.host_functions = report->host_functions;
  now.export_tables = report->export_tables;
  // Those that were called most.
  auto unknown = report->unknown;
  std::sort(unknown.begin(), unknown.end(), [](const auto& a, const auto& b) { return a.calls > b.calls; });
  unknown.resize(std::min(unknown.size(), bus::ShimCounters::kMostNames));
  for (const auto& [name, calls] : unknown) now.unknown[name] = calls;
  if (now.too_long > (counters_.empty() ? 0 : counters_.front().too_long)) too_long_at_ns_ = now_ns;
  counters_ = {now};
}

bool ShimWatch::work_too_long(int64_t now_ns) const {
  if (counters_.empty() || too_long_at_ns_ == 0 || now_ns - too_long_at_ns_ > kLatelyNs) return false;
  return counters_.front().too_long_ns > counters_.front().lease_longest_ns;
}

}  // namespace freeride::worker
