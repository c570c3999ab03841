/* A trainer in C: what a training loop of your own has to call. Two "stages" in two processes pass a token over a pair
 * of pipes, as a pipeline passes activations; the time a stage waits for its token is its bubble.
 *
 *   cc c_trainer.c -lfreeride_hook && ./a.out 50
 */
#include <freeride/hook.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void compute(long milliseconds) {
  struct timespec duration = {0, milliseconds * 1000000L};
  nanosleep(&duration, NULL);
}

static int train(unsigned stage, int from, int to, int iterations) {
  char device[16];
  snprintf(device, sizeof(device), "cpu-%u", stage);
  freeride_hook_config config;
  memset(&config, 0, sizeof(config));
  config.struct_size = sizeof(config);
  config.job = "c-trainer";
  config.device = device;
  config.framework = "C example";
  config.rank = stage;
  config.stage = stage;
  config.stages = 2;
  config.replicas = 1;
  /* NULL is fine: every call below then does nothing. */
  freeride_hook* hook = freeride_hook_attach(&config);

  for (int i = 0; i < iterations; ++i) {
    char token = 0;
    compute(stage == 0 ? 5 : 10);
    if (stage == 0 && write(to, "t", 1) != 1) return 1;

    freeride_hook_mark_begin(hook);
    const ssize_t got = read(from, &token, 1);
    freeride_hook_mark_end(hook); /* also when the read fails */
    if (got != 1) return 1;

    if (stage == 1) {
      compute(5);
      if (write(to, "t", 1) != 1) return 1;
    }
    freeride_hook_iteration_end(hook);
  }
  if (hook != NULL) {
    const freeride_bubble_page* page = freeride_hook_page(hook);
    printf("stage %u: %llu iterations, %llu bubbles, learned %.1f ms\n", stage, (unsigned long long)page->iteration,
           (unsigned long long)page->bubbles, (double)page->learned[0].mid_ns / 1e6);
  }
  freeride_hook_detach(hook);
  return 0;
}

int main(int argc, char** argv) {
  const int iterations = argc > 1 ? atoi(argv[1]) : 50;
  int forward[2];
  int backward[2];
  if (pipe(forward) != 0 || pipe(backward) != 0) return 1;
  const pid_t child = fork(); /* before attach: each process attaches for itself */
  if (child < 0) return 1;
  if (child == 0) {
    close(forward[1]);
    close(backward[0]);
    return train(1, forward[0], backward[1], iterations);
  }
  close(forward[0]);
  close(backward[1]);
  const int result = train(0, backward[0], forward[1], iterations);
  int status = 0;
  waitpid(child, &status, 0);
  return result != 0 || status != 0;
}
