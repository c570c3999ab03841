// Plays libnvidia-ml.so.1 for tests: one GPU, as the file $FREERIDE_FAKE_GPU says at every call. Lines: "uuid U", "name
// N", "serial S", "total BYTES", "used BYTES", "mode N", "mig N", "error N", "process PID BYTES", "client PID BYTES",
// "xid N": each such line is an event, told once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
} process_info;

static int the_device;

static int look(const char* key, unsigned long long* value, char* text, unsigned room) {
  FILE* file = fopen(getenv("FREERIDE_FAKE_GPU"), "r");
  char line[256], word[64], rest[128];
  int found = 0;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (sscanf(line, "%63s %127s", word, rest) != 2 || strcmp(word, key) != 0) continue;
    found = 1;
    if (value != NULL) *value = strtoull(rest, NULL, 10);
    if (text != NULL) snprintf(text, room, "%s", rest);
  }
  if (file != NULL) fclose(file);
  return found;
}

static int error(void) {
  unsigned long long code = 0;
  look("error", &code, NULL, 0);
  return (int)code;
}

static int list(const char* also, unsigned* count, process_info* infos) {
  FILE* file = fopen(getenv("FREERIDE_FAKE_GPU"), "r");
  char line[256], word[64];
  unsigned pid = 0, found = 0;
  unsigned long long used = 0;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (sscanf(line, "%63s %u %llu", word, &pid, &used) != 3) continue;
    if (strcmp(word, "client") != 0 && strcmp(word, also) != 0) continue;
    if (found < *count) infos[found] = (process_info){pid, used, 0, 0};
    ++found;
  }
  if (file != NULL) fclose(file);
  const int fits = found <= *count;
  *count = found;
  return error() != 0 ? error() : fits ? 0 : 7;
}

int nvmlInit_v2(void) {
  return error();
}
int nvmlShutdown(void) {
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &the_device;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  char mine[128] = "";
  *device = &the_device;
  return look("uuid", NULL, mine, sizeof(mine)) && strcmp(mine, uuid) == 0 ? 0 : 6;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned room) {
  (void)device;
  return look("uuid", NULL, text, room) ? 0 : 6;
}
int nvmlDeviceGetSerial(void* device, char* text, unsigned room) {
  (void)device;
  return look("serial", NULL, text, room) ? 0 : 3;
}
int nvmlDeviceGetName(void* device, char* text, unsigned room) {
  (void)device;
  return look("name", NULL, text, room) ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  (void)device;
  memory[0] = memory[2] = 0;
  look("total", &memory[0], NULL, 0);
  look("used", &memory[2], NULL, 0);
  memory[1] = memory[0] - memory[2];
  return error();
}
int nvmlDeviceGetComputeMode(void* device, unsigned* mode) {
  unsigned long long value = 0;
  (void)device;
  look("mode", &value, NULL, 0);
  *mode = (unsigned)value;
  return error();
}
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* pending) {
  unsigned long long value = 0;
  (void)device;
  if (!look("mig", &value, NULL, 0)) return 3;
  *now = *pending = (unsigned)value;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, process_info* infos) {
  (void)device;
  return list("process", count, infos);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void* device, unsigned* count, process_info* infos) {
  (void)device;
  return list("client", count, infos);
}

typedef struct {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} event_data;
static unsigned told;

int nvmlEventSetCreate(void** set) {
  *set = &told;
  return 0;
}
int nvmlEventSetFree(void* set) {
  (void)set;
  return 0;
}
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  (void)device, (void)set;
  return types == 8 ? 0 : 3;
}
int nvmlEventSetWait_v2(void* set, event_data* event, unsigned timeout_ms) {
  FILE* file = fopen(getenv("FREERIDE_FAKE_GPU"), "r");
  char line[256];
  unsigned long long xid = 0;
  unsigned at = 0;
  (void)set, (void)timeout_ms;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (sscanf(line, "xid %llu", &xid) != 1 || at++ < told) continue;
    fclose(file);
    ++told;
    *event = (event_data){&the_device, 8, xid, 0, 0};
    return 0;
  }
  if (file != NULL) fclose(file);
  return 10; /* NVML_ERROR_TIMEOUT */
}
