#include "acting/probe_page.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

namespace freeride::worker {
namespace {

constexpr size_t kBytes = 4096;  // a page of its own: the driver pins it
static_assert(sizeof(ProbePage) <= kBytes);

}  // namespace

Result<std::unique_ptr<ProbeMapping>> ProbeMapping::create(int64_t for_ns) {
  Fd fd(memfd_create("freeride-probe", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), kBytes) != 0) return errno_error("cannot make the probe's page", errno);
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return errno_error("cannot map the probe's page", errno);
  auto* page = new (at) ProbePage{};
  page->for_ns = for_ns;
  return std::unique_ptr<ProbeMapping>(new ProbeMapping(std::move(fd), page));
}

Result<std::unique_ptr<ProbeMapping>> ProbeMapping::open(int inherited) {
  Fd fd(inherited);
  struct stat info {};
  if (fstat(inherited, &info) != 0 || info.st_size != static_cast<off_t>(kBytes))
    return Error{Code::kInvalidArgument, "descriptor " + std::to_string(inherited) + " is no probe's page", ""};
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, inherited, 0);
  if (at == MAP_FAILED) return errno_error("cannot map the probe's page", errno);
  return std::unique_ptr<ProbeMapping>(new ProbeMapping(std::move(fd), static_cast<ProbePage*>(at)));
}

ProbeMapping::~ProbeMapping() {
  munmap(page_, kBytes);
}

}  // namespace freeride::worker
