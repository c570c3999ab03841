/* The least that passes for a plugin's file: its entry symbol. Never opened, only sent. */
const void* freeride_plugin_v1(void);
const void* freeride_plugin_v1(void) {
  return 0;
}
