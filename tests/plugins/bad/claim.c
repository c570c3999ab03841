/* Says on its answer page that it is in the state `path` names ("state,transition"), and goes on executing. */
#define _GNU_SOURCE
#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  unsigned state = 0, transition = 0;
  if (sscanf(bad_path, "%u,%u", &state, &transition) != 2) return bad_fail("path is not state,transition");
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512];
  while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
    unsigned long begin = 0;
    if (strstr(line, "answer page") == NULL || sscanf(line, "%lx", &begin) != 1) continue;
    for (;;) { /* as pages/README.md has it: state, transition, last paused timestamp */
      *(volatile unsigned*)(begin + 36) = state;
      *(volatile unsigned*)(begin + 40) = transition;
      *(volatile unsigned long long*)(begin + 64) = ~0ull;
    }
  }
  bad_try(1, "find no answer page");
  return bad_end();
}
BAD_PLUGIN("claim", step)
