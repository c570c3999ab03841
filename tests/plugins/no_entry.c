/* A shared object, but no plugin. */
__attribute__((visibility("default"))) int answer(void);
int answer(void) {
  return 42;
}
