#include "shim_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace freeride::shim {

bool ShimPage::open(const char* path) {
  if (path == nullptr || *path == '\0') return true;
  const int fd = ::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat info {};
  void* address = MAP_FAILED;
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= static_cast<off_t>(FREERIDE_SHIM_BYTES))
    address = mmap(nullptr, FREERIDE_SHIM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (address == MAP_FAILED) return false;
  page_ = static_cast<freeride_shim_page*>(address);
  __atomic_store_n(&page_->version, FREERIDE_SHIM_VERSION, __ATOMIC_RELAXED);
  __atomic_store_n(&page_->magic, FREERIDE_SHIM_MAGIC, __ATOMIC_RELEASE);
  __atomic_fetch_add(&page_->processes, 1u, __ATOMIC_RELAXED);
  return true;
}

bool ShimPage::raise(uint64_t freeride_shim_page::*field, uint64_t value) {
  uint64_t there = get(field);
  while (value > there) {
    if (__atomic_compare_exchange_n(&(page_->*field), &there, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return true;
  }
  return false;
}

void ShimPage::text(char (freeride_shim_page::*field)[64], const std::string& value) {
  char(&place)[64] = page_->*field;
  const size_t length = std::min(value.size(), sizeof(place) - 1);
  for (size_t i = 0; i < sizeof(place); ++i)
    __atomic_store_n(&place[i], i < length ? value[i] : '\0', __ATOMIC_RELAXED);
}

int ShimPage::place_of(const std::string& name) {
  for (uint32_t i = 0; i < FREERIDE_SHIM_NAMES; ++i) {
    auto& place = page_->names[i];
    const std::string cut = name.substr(0, sizeof(place.name) - 1);
    uint32_t state = __atomic_load_n(&place.state, __ATOMIC_ACQUIRE);
    if (state == FREERIDE_SHIM_NAME_FREE && __atomic_compare_exchange_n(&place.state, &state, FREERIDE_SHIM_NAME_TAKEN,
                                                                        false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      std::memcpy(place.name, cut.c_str(), cut.size() + 1);
      __atomic_store_n(&place.state, FREERIDE_SHIM_NAME_WRITTEN, __ATOMIC_RELEASE);
      return static_cast<int>(i);
    }
    // One that another process is writing at this moment may be the same name: it has two places then.
    if (state == FREERIDE_SHIM_NAME_WRITTEN && std::strncmp(place.name, cut.c_str(), sizeof(place.name)) == 0)
      return static_cast<int>(i);
  }
  add(&freeride_shim_page::unlisted);
  return -1;
}

}  // namespace freeride::shim
