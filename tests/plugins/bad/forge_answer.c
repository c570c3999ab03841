/* Says on its answer page that it is paused, with numbers beyond all reason, and goes on. */
#define _GNU_SOURCE
#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
    unsigned long begin, end;
    if (strstr(line, "answer page") == NULL || sscanf(line, "%lx-%lx", &begin, &end) != 2) continue;
    for (;;) { /* behind the header, all that the worker reads: nonsense, and again */
      for (volatile unsigned char* at = (unsigned char*)begin + 64; at < (unsigned char*)end; ++at)
        *at = (unsigned char)(*at * 5 + 1);
    }
  }
  bad_try(1, "find no answer page");
  return bad_end();
}
BAD_PLUGIN("forge_answer", step)
