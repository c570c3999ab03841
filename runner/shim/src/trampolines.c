/* The functions of the driver that submit nothing: each is one jump to the real one, with all arguments where they are.
 */
#include "real.h"

int freeride_missing_code = 801; /* CUDA_ERROR_NOT_SUPPORTED */
static int missing(void) {
  return freeride_missing_code;
}

#if defined(__x86_64__)
#define JUMP(name) "endbr64\n  jmp *freeride_real_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name) \
  "bti c\n  adrp x16, freeride_real_" #name "\n  ldr x16, [x16, :lo12:freeride_real_" #name "]\n  br x16\n"
#else
#error "the shim knows x86-64 and aarch64"
#endif

#define REAL(name) void* freeride_real_##name = (void*)missing;

/* clang-format off */
#define FREERIDE_PASS(name)                                                                                 \
  REAL(name)                                                                                                \
  __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n  " JUMP(name)      \
          ".size " #name ", . - " #name "\n");
/* clang-format on */
#define FREERIDE_SUBMIT(name, what, stream, size, since) REAL(name)
#define FREERIDE_NOTICE(name, what, stream, since) REAL(name)
#define FREERIDE_OWN(name, since) REAL(name)
#include "driver.inc"
#undef FREERIDE_PASS
#undef FREERIDE_SUBMIT
#undef FREERIDE_NOTICE
#undef FREERIDE_OWN

#define FREERIDE_PASS(name) extern void name(void);
#define FREERIDE_SUBMIT(name, what, stream, size, since) FREERIDE_PASS(name)
#define FREERIDE_NOTICE(name, what, stream, since) FREERIDE_PASS(name)
#define FREERIDE_OWN(name, since) FREERIDE_PASS(name)
#include "driver.inc"
#undef FREERIDE_PASS
#undef FREERIDE_SUBMIT
#undef FREERIDE_NOTICE
#undef FREERIDE_OWN

const struct freeride_function freeride_functions[] = {
#define FREERIDE_PASS(name) {#name, &freeride_real_##name, (void*)name, FREERIDE_KIND_PASS, 0},
#define FREERIDE_SUBMIT(name, what, stream, size, since) \
  {#name, &freeride_real_##name, (void*)name, FREERIDE_KIND_SUBMIT, since},
#define FREERIDE_NOTICE(name, what, stream, since) \
  {#name, &freeride_real_##name, (void*)name, FREERIDE_KIND_NOTICE, since},
#define FREERIDE_OWN(name, since) {#name, &freeride_real_##name, (void*)name, FREERIDE_KIND_OWN, since},
#include "driver.inc"
    {0, 0, 0, 0, 0}};

uint64_t* freeride_thunk_calls[FREERIDE_THUNKS];
void* freeride_thunk_targets[FREERIDE_THUNKS];

/* Registers that carry no argument are used: r11, and x16 and x17 with x9 and x10. Each thunk is 32 bytes long (64). */
#if defined(__x86_64__)
#define THUNK_BYTES 32
__asm__(
    ".text\n.p2align 5\nfreeride_thunks:\n.set i, 0\n.rept 48\n.p2align 5\n  endbr64\n"
    "  movq freeride_thunk_calls+8*i(%rip), %r11\n  lock incq (%r11)\n"
    "  jmp *freeride_thunk_targets+8*i(%rip)\n.set i, i+1\n.endr\n");
#else
#define THUNK_BYTES 64
__asm__(
    ".text\n.p2align 6\nfreeride_thunks:\n.set i, 0\n.rept 48\n.p2align 6\n  bti c\n"
    "  adrp x16, freeride_thunk_calls+8*i\n  ldr x16, [x16, :lo12:freeride_thunk_calls+8*i]\n"
    "1: ldxr x9, [x16]\n  add x9, x9, #1\n  stxr w10, x9, [x16]\n  cbnz w10, 1b\n"
    "  adrp x17, freeride_thunk_targets+8*i\n  ldr x17, [x17, :lo12:freeride_thunk_targets+8*i]\n  br x17\n"
    ".set i, i+1\n.endr\n");
#endif
extern char freeride_thunks[] __attribute__((visibility("hidden")));

void* freeride_thunk(int place) {
  return freeride_thunks + place * THUNK_BYTES;
}
