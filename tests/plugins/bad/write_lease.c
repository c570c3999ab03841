/* Gives itself a lease: finds the page in its own memory and writes to it. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  int found = 0;
  while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
    unsigned long begin, end;
    if (strstr(line, "lease page") == NULL || sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    found = 1;
    bad_try(mprotect((void*)begin, end - begin, PROT_READ | PROT_WRITE) == 0, "make the lease page writable");
    *(volatile char*)begin = 0;
    bad_try(1, "write to the lease page");
  }
  if (!found) bad_try(1, "hide its lease page from this test");
  return bad_end();
}
BAD_PLUGIN("write_lease", step)
