#include "freeride/pages/shim_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "freeride/base/time.hpp"

namespace freeride::pages {
namespace {

template <size_t N>
std::string text(const char (&field)[N]) {
  std::string copy(field, strnlen(field, N));
  for (char& one : copy) {
    if (one < ' ' || one > '~') one = '?';
  }
  return copy;
}

uint64_t number(uint64_t value) {
  return static_cast<uint64_t>(sane(value));
}

}  // namespace

Result<ShimReport> read_shim_page(int fd) {
  freeride_shim_page page{};
  ssize_t got = 0;
  do {
    got = pread(fd, &page, sizeof(page), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno_error("cannot read a shim page", errno);
  ShimReport report;
  if (page.magic == 0) return report;
  if (page.magic != FREERIDE_SHIM_MAGIC)
    return Error{Code::kInvalidArgument, "shim page: wrong magic: these bytes are something else", {}};
  if (page.version != FREERIDE_SHIM_VERSION)
    return Error{Code::kInvalidArgument, "shim page: unknown version " + std::to_string(page.version), {}};
  report.processes = page.processes;
  report.submissions = number(page.submissions);
  report.waits = number(page.waits);
  report.waited_ns = number(page.waited_ns);
  report.captured = number(page.captured);
  report.refused = number(page.refused);
  report.host_functions = number(page.host_functions);
  report.measured = number(page.measured);
  report.measured_ns = number(page.measured_ns);
  report.longest_ns = number(page.longest_ns);
  report.leases = number(page.leases);
  report.lease_longest_ns = number(page.lease_longest_ns);
  report.too_long = number(page.too_long);
  report.too_long_ns = number(page.too_long_ns);
  report.let_in = number(page.let_in);
  report.stalled = number(page.stalled);
  report.late = number(page.late);
  report.late_ns = number(page.late_ns);
  report.late_most_ns = number(page.late_most_ns);
  report.export_tables = number(page.export_tables);
  report.unlisted = number(page.unlisted);
  report.full = number(page.full);
  report.full_ns = number(page.full_ns);
  report.full_most_ns = number(page.full_most_ns);
  report.marks = number(page.marks);
  report.held = number(page.held);
  report.longest_name = text(page.longest_name);
  report.too_long_name = text(page.too_long_name);
  for (const auto& name : page.names) {
    if (name.state == FREERIDE_SHIM_NAME_WRITTEN) report.unknown.push_back({text(name.name), number(name.calls)});
  }
  return report;
}

}  // namespace freeride::pages
