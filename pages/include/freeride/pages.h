/* FreeRide's shared pages: bubble, sent, lease and answer. C11 and C++; depends on nothing of FreeRide.
 *
 * pages/README.md is the specification (byte tables, who writes what, in what order); this header says the same to a
 * compiler. All integers are little-endian and naturally aligned. All times are CLOCK_MONOTONIC nanoseconds of the
 * host.
 *
 * A page is a memfd that is sealed against shrinking, growing and further sealing. The sent page is a file in /dev/shm
 * that appears only when it is whole. So no writer can take memory away from under a reader.
 *
 * Pages grow by appending fields. `size_bytes` says where the maker's layout ends, and what lies past that reads as
 * zero. A reader accepts every size from version 1's on. `major` changes only when a field changes its meaning, and a
 * reader refuses a major that it does not know.
 */
#ifndef FREERIDE_PAGES_H
#define FREERIDE_PAGES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FREERIDE_PAGES_MAJOR 1u
#define FREERIDE_PAGES_MINOR 9u

#define FREERIDE_BUBBLE_MAGIC 0x454c424255425246ull  /* "FRBUBBLE" */
#define FREERIDE_BELL_MAGIC 0x204c4c4542525246ull    /* "FRRBELL " */
#define FREERIDE_SENT_MAGIC 0x20544e4553525246ull    /* "FRRSENT " */
#define FREERIDE_LEASE_MAGIC 0x455341454c525246ull   /* "FRRLEASE" */
#define FREERIDE_ANSWER_MAGIC 0x5257534e41525246ull  /* "FRRANSWR" */
#define FREERIDE_STATE_MAGIC 0x4554415453525246ull   /* "FRRSTATE" */
#define FREERIDE_PROFILE_MAGIC 0x464f525052525246ull /* "FRRRPROF" */

/* First 32 bytes of every page. Written once, before the page is handed to anybody. */
typedef struct freeride_page_header {
  uint64_t magic;
  uint32_t major;
  uint32_t minor;
  uint64_t size_bytes;  /* of the whole page, as its maker knew it: at least version 1's */
  uint64_t incarnation; /* random, never 0: tells a restarted writer from the one before */
} freeride_page_header;

/* ---- bubble page: written by a training rank's hook (and its GPU), read by the worker of its GPU
 * ------------------------- */

#define FREERIDE_MAX_WAITS \
  1024u /* waits per iteration that can be learned; later ones are marked with length 0: no lease */
#define FREERIDE_HISTORY 1024u   /* finished bubbles kept for measuring; power of two */
#define FREERIDE_ITERATIONS 256u /* finished iterations kept for measuring; power of two */
#define FREERIDE_NAME_BYTES 64u

/* What training may grant in this page's `hook_state`. */
enum {
  FREERIDE_HOOK_STARTING = 0, /* attached, no iteration finished yet */
  FREERIDE_HOOK_ACTIVE = 1,   /* marks are valid */
  FREERIDE_HOOK_DISABLED = 2, /* switched off, or met an error: the state word is 0 for good; no leases */
  FREERIDE_HOOK_GONE = 3      /* detached in good order: the training has ended */
};

/* The state word: 0 in the low 16 bits = training owns the GPU; else a bubble, wait index counted from 1 in each
 * iteration. */
#define FREERIDE_STATE(iteration, wait) (((uint64_t)(iteration) << 16) | ((uint64_t)(wait)&0xffffu))
#define FREERIDE_STATE_WAIT(word) ((uint32_t)((word)&0xffffu))
#define FREERIDE_STATE_ITERATION(word) ((uint64_t)(word) >> 16)

/* Learned length of one wait index. All 0: unknown, no lease. There are three quantiles, low <= mid <= high. The first
 * lease ends at `low_ns`. If the bubble is still open then, the worker may open another that ends at `mid_ns`, and then
 * one that ends at `high_ns`. */
typedef struct freeride_learned {
  uint64_t low_ns;
  uint64_t mid_ns;
  uint64_t high_ns;
  uint32_t samples; /* iterations these were learned from since the schedule last changed */
  uint32_t type;    /* 'A', 'B', 'C' (the paper's bubble types) or 0: not known */
} freeride_learned;

/* One finished bubble. */
typedef struct freeride_bubble_record {
  uint64_t state_word;
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t learned_low_ns; /* what was promised when it began: 0 = nothing */
} freeride_bubble_record;

/* One finished iteration: from one optimizer step's end to the next. */
typedef struct freeride_iteration_record {
  uint64_t iteration;
  uint64_t begin_ns;
  uint64_t end_ns;
  uint64_t bubble_ns; /* sum of the marked waits within */
} freeride_iteration_record;

/* What it costs this rank that its host holds waits for other hosts, by iterations of three kinds in turns. */
typedef struct freeride_hold_cost {
  int32_t increase_ppm; /* so much longer than plain ones, mean, millionths */
  int32_t low_ppm;      /* the 95 % interval of that mean */
  int32_t high_ppm;
  uint32_t periods; /* that were compared; 0: not measured */
} freeride_hold_cost;

/* Idle phases: stretches of any length in which training leaves its device alone, each with a name of training's.
 * FREERIDE_PHASE(number, name): its number, from 1, and the slot of its name. */
#define FREERIDE_MAX_PHASES 16u
#define FREERIDE_PHASE(number, name) (((uint64_t)(number) << 8) | ((uint64_t)(name)&0xffu))
#define FREERIDE_PHASE_NUMBER(word) ((uint64_t)(word) >> 8)
#define FREERIDE_PHASE_NAME(word) ((uint32_t)((word)&0xffu))
#define FREERIDE_PHASE_OPEN 1u /* nobody knows how long it lasts: until training says so */
/* The wait's number under which a phase stands in history: these are no waits' numbers. */
#define FREERIDE_PHASE_WAIT(name) (0xff00u + (uint32_t)(name))

/* What is known of the phases of one name. */
typedef struct freeride_phase {
  char name[32];            /*  0: NUL-terminated UTF-8; written before the first of them begins */
  freeride_learned learned; /* 32: samples: phases that were learned from */
  uint64_t count;           /* 64: that have ended */
  uint64_t total_ns;        /* 72: sum of their lengths */
  uint64_t apart_ns;        /* 80: the longest of the recent times from one's end to the next one's begin; 0: unknown */
  uint64_t reserved0;       /* 88 */
} freeride_phase;

/* Of hooks before this version, which held in iterations that a worker chose. Nobody reads it any more: such a hook,
 * not told anything, holds in all. */
#define FREERIDE_BUBBLE_LISTENS 1u
/* Nobody has told stage and replica: the hook has made them from the rank's number. */
#define FREERIDE_BUBBLE_GUESSED 2u

typedef struct freeride_bubble_page {
  freeride_page_header header;         /*    0 */
  char job[FREERIDE_NAME_BYTES];       /*   32: NUL-terminated UTF-8, as are the next two */
  char device[FREERIDE_NAME_BYTES];    /*   96: GPU UUID or "cpu-N" */
  char framework[FREERIDE_NAME_BYTES]; /* 160: free text, e.g. "torch 1.13.1 gloo" */
  uint32_t rank;                       /*  224: in the job */
  uint32_t stage;                      /*  228: pipeline stage, from 0 */
  uint32_t stages;                     /*  232: number of stages of the job, at least 1 */
  uint32_t replica;                    /*  236: data-parallel replica, from 0 */
  uint32_t replicas;                   /*  240 */
  uint32_t pid;    /*  244: for messages only; the worker identifies its peer by the socket's credentials */
  uint32_t budget; /*  248: slowdown budget that the training asks for, millionths of its time, plus 1; 0: none */
  uint32_t flags;  /*  252: FREERIDE_BUBBLE_* */

  /* 256: acted on */
  uint64_t state_word; /*  256: written last when a bubble begins, first when it ends */
  uint64_t begin_ns;   /*  264: when the present bubble began; valid while state_word says bubble */
  uint32_t wake;       /*  272: futex word; one more after every change a worker should look at */
  uint32_t hook_state; /*  276 */
  uint64_t iteration;  /*  280: iterations finished */
  uint32_t waits;      /*  288: waits in the last finished iteration */
  uint32_t relearned;  /*  292: times the schedule changed and lengths were learned anew */
  uint64_t
      usable_bytes;     /*  296: least memory of the device free over the last iteration; 0 unknown. On a GPU a hint for
                           people, since side tasks that are resident count as used: the worker reckons by itself */
  uint64_t bubbles;     /*  304: bubbles finished: history[(bubbles - 1) % FREERIDE_HISTORY] is the newest */
  uint64_t compute_ns;  /*  312: sum of all time outside bubbles since the first iteration ended */
  uint64_t expected_ns; /*  320: a bubble is expected to begin at any moment up to then: the worker need not sleep; 0 or
                           past: not */
  uint64_t wanted_bytes;   /*  328: training was refused so much memory just now: side tasks are to go; 0: nothing */
  freeride_hold_cost held; /*  336: iterations with holds and without leases */
  freeride_hold_cost held_with_leases; /*  352 */
  uint64_t bell;       /*  368: incarnation of the bell page that is rung after every change of wake; 0: none */
  uint32_t noted;      /*  376: why there are no bubbles, as far as only the rank's process knows: a RankWhy of
                          policy/rank_why.hpp; 0: nothing */
  uint32_t idle_flags; /*  380: FREERIDE_PHASE_OPEN or 0, of the present phase */
  /* An idle phase: FREERIDE_PHASE(number, name), numbers from 1. One is under way while
     FREERIDE_PHASE_NUMBER(idle_begun) > idle_ended */
  uint64_t idle_marked;      /*  384: newest phase that training's device has come to: by its GPU, in stream order */
  uint64_t idle_begun;       /*  392: newest that the hook has seen, written after the next two */
  uint64_t idle_begin_ns;    /*  400 */
  uint64_t idle_expected_ns; /*  408: how long training said that it lasts; 0: it did not */
  uint64_t idle_ended;       /*  416: number of the newest phase that has ended */
  uint8_t reserved1[88];     /*  424 */

  /* 512: learned, slot w - 1 for wait index w */
  freeride_learned learned[FREERIDE_MAX_WAITS];              /* 512, 32 bytes each */
  freeride_bubble_record history[FREERIDE_HISTORY];          /* 33280, 32 bytes each */
  freeride_iteration_record iterations[FREERIDE_ITERATIONS]; /* 66048: slot (iteration number) % FREERIDE_ITERATIONS */
  freeride_phase phases[FREERIDE_MAX_PHASES];                /* 74240: by the number of their name */
} freeride_bubble_page;

/* ---- bell page: one word for which a worker waits whose kernel cannot wait for several, made by it and written by the
 * hooks that it hands it to ---- */

typedef struct freeride_bell_page {
  freeride_page_header header; /*  0 */
  uint32_t rings;        /* 32: futex word; one more after every change of `wake` on a page that names this bell */
  uint32_t reserved0[7]; /* 36 */
} freeride_bell_page;

/* ---- sent page: one per job and host, /dev/shm/freeride-sent-<job>-<incarnation>, written by every rank of the host
 * ------- */

#define FREERIDE_MAX_RANKS 64u      /* ranks of one job on one host */
#define FREERIDE_POISON 0xffffffffu /* a counter that satisfies every wait: its sender is gone or disabled */
/* Where the row of a rank whose GPU counts starts. A GPU compares cyclically, (int32_t)(counter - wanted) >= 0: only
 * from here on does FREERIDE_POISON satisfy all that can be wanted. */
#define FREERIDE_SENT_FIRST 0x80000000u

enum { FREERIDE_RANK_ABSENT = 0, FREERIDE_RANK_HOOKED = 1, FREERIDE_RANK_DISABLED = 2, FREERIDE_RANK_DEAD = 3 };

typedef struct freeride_sent_rank {
  uint32_t status; /* FREERIDE_RANK_* */
  uint32_t pid;
  uint64_t start_time; /* of /proc/<pid>/stat: with pid, one process for ever */
} freeride_sent_rank;

/* Iterations that a rank has ended, and messages that it had exchanged with another one by the last end, sent and
 * received; both modulo 2^32. */
#define FREERIDE_ENDED(iterations, messages) (((uint64_t)(iterations) << 32) | ((uint64_t)(messages)&0xffffffffu))
#define FREERIDE_ENDED_ITERATIONS(word) ((uint32_t)((word) >> 32))
#define FREERIDE_ENDED_MESSAGES(word) ((uint32_t)(word))

typedef struct freeride_sent_page {
  freeride_page_header header;                           /* 0 */
  uint32_t ranks;                                        /* 32: slots in use, by local rank */
  uint32_t reserved0;                                    /* 36 */
  uint64_t reserved1[3];                                 /* 40 */
  freeride_sent_rank rank[FREERIDE_MAX_RANKS];           /* 64, 16 bytes each */
  uint32_t sent[FREERIDE_MAX_RANKS][FREERIDE_MAX_RANKS]; /* 1088: [source][destination], messages produced so far */
  uint32_t world_rank[FREERIDE_MAX_RANKS];               /* 17472: of each slot, its rank in the job plus 1 */
  uint32_t met[FREERIDE_MAX_RANKS][FREERIDE_MAX_RANKS];  /* 17728: [member][other member], collectives come to so far */
  uint64_t ended[FREERIDE_MAX_RANKS][FREERIDE_MAX_RANKS]; /* 34112: [rank][other rank], FREERIDE_ENDED() */
} freeride_sent_page;

/* ---- lease page: written by the worker, read by supervisor and runner
 * ---------------------------------------------------- */

enum {
  FREERIDE_ORDER_PAUSE = 0,
  FREERIDE_ORDER_RUN = 1,
  FREERIDE_ORDER_STOP = 2,
  FREERIDE_ORDER_END =
      3 /* programs only: SIGTERM, which it may act upon under a save lease; FREERIDE_ORDER_STOP follows */
};
enum {
  FREERIDE_LEASE_NONE = 0,
  FREERIDE_LEASE_BUBBLE = 1,  /* a bubble: steps that fit before the deadline */
  FREERIDE_LEASE_INIT = 2,    /* the init lease, once: InitSideTask, no steps */
  FREERIDE_LEASE_PROFILE = 3, /* the profile lease, once, with no training on the device: InitSideTask and some steps */
  FREERIDE_LEASE_IDLE = 4,    /* no training on the device and the user allows it: like a bubble */
  FREERIDE_LEASE_SAVE = 5     /* the save lease: SaveState, PAUSED before and after; no steps */
};

/* A reader copies the fields between two equal, even values of `sequence`; an odd value that stays is a dead worker: no
 * lease. */
typedef struct freeride_lease_page {
  freeride_page_header header; /*  0 */
  uint32_t sequence;  /* 32: seqlock and futex word. Runner waits with FUTEX_WAIT_BITSET bit 1, supervisor with bit 2 */
  uint32_t order;     /* 36: FREERIDE_ORDER_* */
  uint32_t kind;      /* 40: FREERIDE_LEASE_* */
  uint32_t iteration; /* 44: of the training behind this lease, its number's low bits plus 1; 0: none, or not told */
  uint64_t lease_id;  /* 48: 0 = none; grows by one with each lease */
  uint64_t deadline_ns; /* 56: no step may start that is not expected to end by then */
  uint64_t opened_ns;   /* 64 */
  uint64_t grace_ns;    /* 72: execution past the deadline or a pause after which the task is killed */
  uint64_t hang_ns;     /* 80: wall time past them after which it is killed though it does not execute */
  uint64_t begin_ns;    /* 88: begin of the bubble behind this lease, for latency measurement */
  /* Not under the seqlock: each is stored and loaded at once, and moves with every renewal. CLOCK_BOOTTIME, which goes
   * on while the host is suspended; 0: orders do not expire */
  uint64_t orders_until_ns; /*  96: from then on there is no lease, whatever stands above */
  uint64_t orders_end_ns;   /* 104: from then on the process is ended */
} freeride_lease_page;

#define FREERIDE_WAKE_RUNNER 1u
#define FREERIDE_WAKE_SUPERVISOR 2u

/* ---- answer page: written by the runner (so: by untrusted code), read by worker and supervisor, who trust nothing on
 * it ---- */

/* The paper's states. */
enum {
  FREERIDE_STATE_SUBMITTED = 0,
  FREERIDE_STATE_CREATED = 1,
  FREERIDE_STATE_PAUSED = 2,
  FREERIDE_STATE_RUNNING = 3,
  FREERIDE_STATE_STOPPED = 4
};

/* The transition the runner is in, for verdicts ("hung in InitSideTask"). */
enum {
  FREERIDE_IN_NONE = 0,
  FREERIDE_IN_CREATE = 1,
  FREERIDE_IN_INIT = 2,
  FREERIDE_IN_START = 3,
  FREERIDE_IN_STEP = 4,
  FREERIDE_IN_PAUSE = 5,
  FREERIDE_IN_STOP = 6,
  FREERIDE_IN_LOAD = 7,
  FREERIDE_IN_SAVE = 8,   /* freeride.state/1 */
  FREERIDE_IN_RESTORE = 9 /* freeride.state/1, under the init lease */
};

#define FREERIDE_METRICS 8u
typedef struct freeride_metric {
  char name[24]; /* NUL-terminated */
  double value;
} freeride_metric;

typedef struct freeride_answer_page {
  freeride_page_header header; /*   0 */
  uint32_t sequence;   /*  32: futex word: one more after every change of state but to RUNNING, a lease's first step, a
                          pause */
  uint32_t state;      /*  36: FREERIDE_STATE_* */
  uint32_t transition; /*  40: FREERIDE_IN_* */
  uint32_t result;     /*  44: freeride_status of the last transition that failed; 0 = none */
  uint64_t lease_id;   /*  48: lease of the present or last step */
  uint64_t transition_ns;      /*  56: when the present transition was entered */
  uint64_t last_paused_ns;     /*  64: the paper's last paused timestamp: when the runner last stopped executing */
  uint64_t last_paused_cpu_ns; /*  72: the process's CPU clock then; of a program: executed outside of leases */
  uint64_t steps;              /*  80: steps finished */
  uint64_t step_ns;            /*  88: wall time inside steps, all */
  uint64_t lease_step_ns;      /*  96: the part of it before the deadline of its lease */
  uint64_t predicted_ns;       /* 104: what the next step is expected to take; 0 = not known */
  uint64_t skipped;            /* 112: leases in which no step fitted */
  uint64_t create_ns;          /* 120: how long CreateSideTask took */
  uint64_t init_ns;            /* 128 */
  uint64_t first_step_ns;      /* 136: entry of the first step of the present lease, for latency measurement */
  uint64_t pause_seen_ns;      /* 144: when the runner noticed that its lease had ended */
  uint64_t finished;           /* 152: 1 = the task says that its work is done */
  char message[256];           /* 160: why a transition failed, or the task's last words */
  freeride_metric metrics[FREERIDE_METRICS]; /* 416: the task's own figures (loss, residual, images) */
  uint64_t saved_lease;                      /* 672: the last save lease that it has answered; 0 = none */
  uint64_t restored;                         /* 680: 1 = it went on from a saved state */
} freeride_answer_page;

/* ---- shim page: written by every process of a program that has the shim of libcuda.so.1, read by whoever tells why
 * the program makes no progress. It is a file of FREERIDE_SHIM_BYTES zeroes, without the header of the other pages. All
 * that is on it is a claim. Only one thing is decided by it: a program's init lease ends before its time when `held`
 * says so ---- */

#define FREERIDE_SHIM_MAGIC 0x204d494853525246ull /* "FRRSHIM " */
#define FREERIDE_SHIM_VERSION 1u
#define FREERIDE_SHIM_BYTES 4096u
#define FREERIDE_SHIM_NAMES 48u

enum { FREERIDE_SHIM_NAME_FREE = 0, FREERIDE_SHIM_NAME_TAKEN = 1, FREERIDE_SHIM_NAME_WRITTEN = 2 };

/* A function of the driver that the shim does not know. */
typedef struct freeride_shim_name {
  uint32_t state; /*  0: FREERIDE_SHIM_NAME_* */
  char name[52];  /*  4: NUL-terminated; cut where it is longer */
  uint64_t calls; /* 56 */
} freeride_shim_name;

/* Numbers only grow, by atomic additions, but for those that say otherwise. */
typedef struct freeride_shim_page {
  uint64_t magic;            /*   0: stored by the first process; 0: none has been there */
  uint32_t version;          /*   8: FREERIDE_SHIM_VERSION */
  uint32_t processes;        /*  12: that have loaded the shim */
  uint64_t submissions;      /*  16: that passed the gate */
  uint64_t waits;            /*  24: submissions that waited at the gate for a lease */
  uint64_t waited_ns;        /*  32: sum of that */
  uint64_t captured;         /*  40: submissions that a stream capture recorded; they pass */
  uint64_t refused;          /*  48: submissions that were answered with an error, for want of a lease page */
  uint64_t host_functions;   /*  56: submitted to streams; they pass */
  uint64_t measured;         /*  64: submissions that were timed */
  uint64_t measured_ns;      /*  72: sum of how long those were on the GPU */
  uint64_t longest_ns;       /*  80: the longest that was measured (largest value seen) */
  char longest_name[64];     /*  88: of that, NUL-terminated */
  uint64_t leases;           /* 152: under which something passed */
  uint64_t lease_longest_ns; /* 160: of the recent leases, the longest (last value) */
  uint64_t too_long;         /* 168: submissions that an open lease was too short for */
  uint64_t too_long_ns;      /* 176: what such a one is expected to take (last value) */
  char too_long_name[64];    /* 184: of that */
  uint64_t let_in;           /* 248: longer than every lease, and tried at the begin of one */
  uint64_t stalled;          /* 256: times the work on the GPU made no progress, and was counted as waiting */
  uint64_t late;             /* 264: leases after whose end work was seen on the GPU */
  uint64_t late_ns;          /* 272: sum of how long after it */
  uint64_t late_most_ns;     /* 280: the longest of them (largest value seen) */
  uint64_t full_most_ns;     /* 288: the longest wait for the queue (largest value seen) */
  uint64_t export_tables;    /* 296: tables of functions that the driver was asked for */
  uint64_t unlisted;         /* 304: unknown names for which `names` had no place */
  uint64_t full;             /* 312: submissions that waited because the queue was at its bound */
  uint64_t full_ns;          /* 320: sum of that */
  uint64_t marks;            /* 328: events recorded to see how far a stream is */
  uint64_t held;             /* 336: submissions that began to wait for a lease; some wait still */
  uint64_t reserved0[21];    /* 344 */
  freeride_shim_name names[FREERIDE_SHIM_NAMES]; /* 512, 64 bytes each */
} freeride_shim_page;

/* ---- saved state: a header and `size` bytes. From the runner to the worker through a pipe, and kept by the worker in
 * a file that the next runner reads ---- */

/* Of the bytes after the header. A worker from when it was 64 MiB refuses larger ones, and the task goes on. */
#define FREERIDE_STATE_MOST_BYTES (1ull << 29)

typedef struct freeride_saved_state {
  uint64_t magic;    /*   0 */
  uint32_t major;    /*   8: FREERIDE_PAGES_MAJOR */
  uint32_t version;  /*  12: of the bytes, the plugin's own */
  uint64_t lease_id; /*  16: the save lease that it answers */
  uint64_t steps;    /*  24: that the task has made, over all its runs */
  uint64_t size;     /*  32: bytes that follow */
  int32_t status;    /*  40: freeride_status; not 0: nothing was saved, the bytes say why */
  uint32_t present;  /*  44: 1 = the bytes are a state; 0 = the plugin keeps none */
  char plugin[64];   /*  48: NUL-terminated: who saved it */
  char instance[64]; /* 112: NUL-terminated: the task's, so that a later task of its name does not go on from it */
} freeride_saved_state;

/* ---- profile record: a header and `samples` samples. From the runner to the worker through the same pipe, once, when
 * a profile has ended well. A claim, like everything a runner says ---- */

#define FREERIDE_PROFILE_MOST_SAMPLES 4000u /* the whole record fits into a pipe */
enum {
  FREERIDE_PROFILE_STEP = 1,  /* a whole RunNextStep */
  FREERIDE_PROFILE_PIECE = 2, /* from one yield point to the next */
  FREERIDE_PROFILE_START = 3, /* StartSideTask */
  FREERIDE_PROFILE_PAUSE = 4  /* PauseSideTask */
};

typedef struct freeride_profile_record {
  uint64_t magic;     /*  0 */
  uint32_t major;     /*  8: FREERIDE_PAGES_MAJOR */
  uint32_t samples;   /* 12: that follow, in order of time */
  uint64_t stop_ns;   /* 16: how long StopSideTask took */
  uint64_t reserved0; /* 24 */
} freeride_profile_record;

typedef struct freeride_profile_sample {
  uint64_t duration_ns; /*  0 */
  uint32_t kind;        /*  8: FREERIDE_PROFILE_* */
  uint32_t piece;       /* 12: of a piece, its place in the step, from 0 */
} freeride_profile_sample;

#ifdef __cplusplus
}

static_assert(sizeof(freeride_page_header) == 32, "header");
static_assert(sizeof(freeride_shim_page) == 3584 && sizeof(freeride_shim_page) <= FREERIDE_SHIM_BYTES, "shim page");
static_assert(sizeof(freeride_learned) == 32, "learned");
static_assert(sizeof(freeride_bubble_page) == 75776 && sizeof(freeride_phase) == 96, "bubble page");
static_assert(sizeof(freeride_bell_page) == 64, "bell page");
static_assert(sizeof(freeride_sent_page) == 66880, "sent page");
static_assert(sizeof(freeride_lease_page) == 112, "lease page");
static_assert(sizeof(freeride_answer_page) == 688, "answer page");
static_assert(sizeof(freeride_saved_state) == 176, "saved state");
static_assert(sizeof(freeride_profile_record) == 32, "profile record");
static_assert(sizeof(freeride_profile_sample) == 16, "profile sample");
#endif

#endif /* FREERIDE_PAGES_H */
