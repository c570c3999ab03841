// What gcc's runtime libraries want of a glibc newer than 2.34, by means that 2.34 has, too: so that what is packed
// runs on every host that the wheel is for. Part of each library that has gcc's runtime inside
// (freeride_static_runtime), hidden there; and a library of its own beside a packed libstdc++.so.6 and libgcc_s.so.1
// (scripts/lower-glibc.py). Any thread.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

#ifdef FREERIDE_OLD_GLIBC_LIBRARY
#define SHOWN __attribute__((visibility("default")))
#else
#define SHOWN __attribute__((visibility("hidden")))
#endif

SHOWN uint32_t arc4random(void);

/// For std::random_device (glibc 2.36 has it). Like glibc's it ends the process where the kernel has no random numbers.
uint32_t arc4random(void) {
  uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
    if (errno != EINTR) abort();
  }
  return number;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look_at(struct dl_phdr_info* object, size_t size, void* argument) {
  (void)size;
  struct search* search = argument;
  const ElfW(Phdr)* frames = NULL;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  int within = 0;
  for (int at = 0; at < object->dlpi_phnum; ++at) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[at];
    const uintptr_t first = object->dlpi_addr + part->p_vaddr, after = first + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) frames = part;
    if (part->p_type != PT_LOAD) continue;
    if (first < begin) begin = first;
    if (after > end) end = after;
    within |= search->address >= first && search->address < after;
  }
  if (!within) return 0;
  search->found->dlfo_map_start = (void*)begin;
  search->found->dlfo_map_end = (void*)end;
  search->found->dlfo_eh_frame = frames != NULL ? (void*)(object->dlpi_addr + frames->p_vaddr) : NULL;
  return 1;
}

SHOWN int _dl_find_object(void* address, struct dl_find_object* found);

/// For the unwinder of exceptions (glibc 2.35 has it, without dl_iterate_phdr's lock): which loaded object `address` is
/// in, and where that has its frames. 0, or -1: none. No link map: the unwinder does not read it.
int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search search = {(uintptr_t)address, found};
  *found = (struct dl_find_object){0};
  return dl_iterate_phdr(look_at, &search) == 1 && found->dlfo_eh_frame != NULL ? 0 : -1;
}
#endif
