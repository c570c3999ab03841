/* The least that passes for a plugin file: the entry symbol. Nothing here ever runs. */
__attribute__((visibility("default"))) const void* freeride_plugin_v1(void) {
  return 0;
}
