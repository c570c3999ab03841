/* FreeRide's training hook, C API. C11 and C++; for trainers in C and C++, and under the Python package.
 *
 * A training rank attaches once. It marks when it waits for a neighbour and when it continues, and says when an
 * iteration has ended. The library learns the lengths and keeps the rank's bubble page. A thread of the library hands
 * the page to the worker of the rank's device, whenever that worker is there.
 *
 * Promises to the trainer:
 *  - No function throws, exits, raises a signal, or blocks for longer than its comment says.
 *  - Every function accepts NULL, and does nothing then.
 *  - Memory use is fixed at attach.
 *  - After an error of its own the hook switches itself off. It clears the state word, releases whoever waits for its
 *    counters, and says so once on stderr. Every later call returns at once.
 *  - After fork() the child's copy of the handle is dead: calls with it do nothing, and nothing of the parent's is
 *    touched. The child may attach for itself.
 *
 * Threads. [one] marks functions for the one thread that drives the training loop. Marks from another thread than the
 * one that made the first mark of the iteration are ignored. [any] functions may be called from any thread.
 */
#ifndef FREERIDE_HOOK_H
#define FREERIDE_HOOK_H

#include <stdint.h>

#include "freeride/pages.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FREERIDE_HOOK_API __attribute__((visibility("default")))
#else
#define FREERIDE_HOOK_API
#endif

typedef struct freeride_hook freeride_hook;

enum {
  FREERIDE_HOOK_SENT = 1,           /* join the job's sent page: the rank's peers may wait for its counters */
  FREERIDE_HOOK_EXTERNAL_MARKS = 2, /* somebody else, such as a GPU, writes the state word: see freeride_hook_page() */
  FREERIDE_HOOK_CUDA = 4 /* the two above, done by CUDA streams: see freeride_hook_stream_batch(). Attach on a thread
                            whose current context is the training's */
};

/* Who the rank is. Texts are copied; those longer than 63 bytes are cut. */
typedef struct freeride_hook_config {
  uint32_t struct_size;  /* sizeof(freeride_hook_config) of the caller */
  uint32_t flags;        /* FREERIDE_HOOK_* */
  const char* job;       /* the same on all ranks; required */
  const char* device;    /* GPU UUID or "cpu-N"; names the worker's socket; without '/'. Required, but for
                            FREERIDE_HOOK_CUDA: NULL is then the current context's device */
  const char* framework; /* free text for people, or NULL */
  const char* run_dir;   /* where workers' sockets are; NULL: $FREERIDE_RUN_DIR, else the programs' default */
  uint32_t rank;
  uint32_t stage; /* from 0, less than stages */
  uint32_t stages;
  uint32_t replica; /* from 0, less than replicas */
  uint32_t replicas;
  uint32_t local_rank; /* slot on the sent page: less than FREERIDE_MAX_RANKS, another one for each rank of the host.
                          With FREERIDE_HOOK_CUDA a wish: any value does, and a slot that is taken is replaced */
} freeride_hook_config;

/* [any] Makes the rank's page and the helper thread. The handle stays valid until the process ends. A second attach in
 * a process returns the first handle, whatever its config says, until that handle is detached.
 *
 * Returns NULL if FREERIDE_HOOK=0 switches the hook off. Also returns NULL, after one line on stderr, if the config
 * makes no sense or there is no memory. Then train without the hook. Without a worker it succeeds: the page is handed
 * over when one appears. Blocks for some milliseconds; with FREERIDE_HOOK_SENT at most 300. */
FREERIDE_HOOK_API freeride_hook* freeride_hook_attach(const freeride_hook_config* config);

/* [one] The rank now waits for a neighbour: training does not use the device until mark_end. Takes about 1 µs (some
 * stores and one futex wake) and never blocks. A begin within a bubble is ignored, so the first end closes the bubble.
 * Ignored with external marks. */
FREERIDE_HOOK_API void freeride_hook_mark_begin(freeride_hook* hook);
/* [one] Training continues. As cheap. Ignored outside a bubble. */
FREERIDE_HOOK_API void freeride_hook_mark_end(freeride_hook* hook);
/* [one] An iteration has ended. All ranks of a job must agree on what an iteration is (usually the optimizer's step).
 * Learns the lengths, which takes some microseconds for tens of waits, and under a millisecond for 1024. Ignored with
 * external marks, since the state word has the iteration. */
FREERIDE_HOOK_API void freeride_hook_iteration_end(freeride_hook* hook);

/* [any] Switches the hook off: no leases from now on, and its counters are released. `reason` is one line for people,
 * or NULL. Only the first call prints it. Iterations are still counted. Never blocks. */
FREERIDE_HOOK_API void freeride_hook_disable(freeride_hook* hook, const char* reason);
/* [any] Switches the hook on again from the next iteration's end, unless an error switched it off. With
 * FREERIDE_HOOK_CUDA neighbours then hold receives from this rank again. Counters of freeride_hook_produce() stay
 * released. Returns 1 if the hook will be on, else 0. */
FREERIDE_HOOK_API int freeride_hook_enable(freeride_hook* hook);
/* [any] Like disable(), for an error in what surrounds the library: enable() does not undo it. Prints `reason` once. */
FREERIDE_HOOK_API void freeride_hook_fail(freeride_hook* hook, const char* reason);
/* [any] The training has ended in good order. Also done by exit(). Joins the helper thread, which does nothing that
 * blocks. */
FREERIDE_HOOK_API void freeride_hook_detach(freeride_hook* hook);

/* [any] FREERIDE_HOOK_* of pages.h (STARTING, ACTIVE, DISABLED, GONE); GONE for NULL and in a forked child. */
FREERIDE_HOOK_API uint32_t freeride_hook_state(const freeride_hook* hook);
/* [any] Says what the page cannot show of why the rank has no bubbles, as a number of the table that
 * freeride_hook_explain() reads; 0: nothing any more. It is believed while no wait was marked; "few_iterations" later,
 * too. Only the last call counts. */
FREERIDE_HOOK_API void freeride_hook_note(freeride_hook* hook, uint32_t why);
/* [any] Why the rank's bubbles cannot be used now, or that they can: one number of a closed set, never 0. For NULL and
 * in a forked child that of "ended". Looks at up to 1024 lengths; blocks for no longer than another such call. */
FREERIDE_HOOK_API uint32_t freeride_hook_why(freeride_hook* hook);
/* [any] The name of such a number, and a sentence that says what to do; "" for one that is not known. Both are static;
 * either pointer may be NULL. Returns 1 where the rank has no bubble that could be used and somebody may have to do
 * something, else 0. Numbers are those of FreeRide's policy/rank_why.hpp and never change their meaning. */
FREERIDE_HOOK_API int freeride_hook_explain(uint32_t why, const char** name, const char** text);
/* [any] 1 while a worker has the page and has accepted it. */
FREERIDE_HOOK_API int freeride_hook_connected(const freeride_hook* hook);
/* [any] Says how many bytes of the device's memory side tasks could have had during the last iteration, at its
 * tightest moment. 0: not known. A hint for people: on a GPU the worker finds out by itself. */
FREERIDE_HOOK_API void freeride_hook_set_usable_bytes(freeride_hook* hook, uint64_t bytes);
/* [any] Says that training was refused `bytes` of the device's memory. A worker then evicts side tasks that stand in
 * the way, which takes some tenths of a second. Try again meanwhile, and say 0 when you have the memory or give up.
 * Returns 1 if a worker is there that may do so. libfreeride_cudart.so does this around cudaMalloc. */
FREERIDE_HOOK_API int freeride_hook_want_memory(freeride_hook* hook, uint64_t bytes);
/* [any] The rank's page, valid until the process ends; NULL for NULL. With FREERIDE_HOOK_EXTERNAL_MARKS the caller (its
 * GPU) writes `state_word` and nothing else. That is FREERIDE_STATE(iteration, wait) at a begin, and
 * FREERIDE_STATE(iteration, 0) at an end, with iterations from 0. The helper thread looks at it and does the rest. */
FREERIDE_HOOK_API freeride_bubble_page* freeride_hook_page(freeride_hook* hook);

/* ---- idle phases: rollouts, checkpoints, evaluations, loaders that stall; with a pipeline or without ---- */

enum {
  FREERIDE_IDLE_OPEN = 1, /* nobody knows how long it lasts: nothing is learned of its length */
  FREERIDE_IDLE_FOUND = 2 /* training has not asked for it, say a part of a checkpoint: it ends no iteration */
};

/* [any] From here on, or once `stream` has come to this place, training leaves its device alone until idle_end().
 * `name` says why, such as "rollout", "save": at most 31 bytes of UTF-8, and 16 names in a process. `expected_ns`: how
 * long it lasts, where that is known; 0: it is learned, by name. `flags`: FREERIDE_IDLE_*. `stream`: of a CUstream or
 * cudaStream_t, with FREERIDE_HOOK_CUDA; work of other streams must be over. Without that flag `stream` is ignored, and
 * training's work must be over.
 *
 * Where nobody ends iterations, each begin of the name that came first ends one; where waits are marked, only in the
 * thread that marks them.
 *
 * Returns a number for idle_end(). Returns 0, for which idle_end() does nothing, where there is no phase: the hook is
 * off, or, said once on stderr, one is under way (this one is part of it, whichever thread began it) or the name is
 * unusable. Never blocks. */
FREERIDE_HOOK_API uint64_t freeride_hook_idle_begin(freeride_hook* hook, const char* name, int64_t expected_ns,
                                                    uint32_t flags, void* stream);
/* [any] Training is about to use its device again. A side task gives it back after the step under way. An iteration's
 * end, and a mark or message of the pipeline's, end a phase, too, which is said once. Other work, such as a forward
 * pass, is not seen. Never blocks. */
FREERIDE_HOOK_API void freeride_hook_idle_end(freeride_hook* hook, uint64_t phase);
/* [any] The number of the phase that is under way; 0: none. */
FREERIDE_HOOK_API uint64_t freeride_hook_idle_phase(const freeride_hook* hook);

/* ---- sent counters (FREERIDE_HOOK_SENT) ---- */

enum { FREERIDE_SENT_REACHED = 0, FREERIDE_SENT_RELEASED = 1, FREERIDE_SENT_TIMEOUT = -1, FREERIDE_SENT_NONE = -2 };

/* [any] Says that one more message for local rank `destination` is ready, and wakes it. Returns the counter's new
 * value; 0 without a sent page. */
FREERIDE_HOOK_API uint32_t freeride_hook_produce(freeride_hook* hook, uint32_t destination);
/* [any] Blocks until one of these is true, and returns it:
 *  - REACHED: local rank `source` has produced `count` messages for this rank;
 *  - RELEASED: the counters of `source` were released, because it died, left or switched off. Receive as without a
 * hook;
 *  - TIMEOUT: timeout_ns have passed.
 * Returns NONE at once if there is no sent page. */
FREERIDE_HOOK_API int freeride_hook_wait_sent(freeride_hook* hook, uint32_t source, uint32_t count, int64_t timeout_ns);
/* ---- CUDA streams (FREERIDE_HOOK_CUDA) ----
 *
 * A NCCL receive that waits spins on the GPU, which is then busy with waiting. So the stream is held before the receive
 * is posted, until the sender's stream has said that the data exists. The stream marks begin and end of that wait. */

enum {
  FREERIDE_HOLD_NEVER = 0, /* these receives are posted before their data is needed */
  FREERIDE_HOLD = 1,
  FREERIDE_HOLD_LATER = 2 /* the caller doesn't know yet: not now, and nothing is learned from this iteration */
};
enum {
  FREERIDE_HELD_PLAIN = 0,
  FREERIDE_HELD_STREAM = 1,
  FREERIDE_HELD_MEASURED = 3 /* not held: call freeride_hook_stream_received() where the stream has waited for it */
};

/* [one] Call right before a batch of sends and receives is posted (before ncclGroupStart). `stream` is the stream on
 * which the data is made and used: a CUstream or cudaStream_t. `destinations` and `sources` are ranks of the job, with
 * one entry for each message, in order. Two ranks must count the messages between them alike, from the first one on.
 * `hold` is FREERIDE_HOLD_*. Do not hold what is posted early: that would delay the stream's work behind it.
 *
 * Writes the destinations' counters in stream order. With FREERIDE_HOLD the stream marks a bubble, waits for
 * the sources' counters and clears the mark, if every source is hooked and on this host.
 *
 * The calling thread never waits. Returns FREERIDE_HELD_* and never an error: after one the hook is off, and nobody
 * waits for it.
 *
 * The helper thread ends a hold after eight times its learned length, but not before a second, and after a minute at
 * most. From other threads than the first one messages are counted, and nothing is held. */
FREERIDE_HOOK_API int freeride_hook_stream_batch(freeride_hook* hook, void* stream, const uint32_t* destinations,
                                                 uint32_t destination_count, const uint32_t* sources,
                                                 uint32_t source_count, int hold);
/* [one] The same for a batch that only receives and is posted ahead of its need, with training's work in between. Call
 * it right before the batch is posted on `apart`, a stream of yours for receives from this one source. A batch from
 * several sources is counted, and not held. Let `apart` wait for training's stream first, as a receive does that is
 * posted there. Holds `apart` until the first of the messages exists; training's stream continues. Returns a number
 * for freeride_hook_stream_wait(), or 0. */
FREERIDE_HOOK_API uint64_t freeride_hook_stream_post_early(freeride_hook* hook, void* apart, const uint32_t* sources,
                                                           uint32_t source_count);
/* [one] Call right before training's stream is made to wait for such a batch. Marks and holds it as
 * freeride_hook_stream_batch() does, and returns the same. */
FREERIDE_HOOK_API int freeride_hook_stream_wait(freeride_hook* hook, void* stream, uint64_t early);
/* [one] Call right before a collective is posted on `stream`. `members` are the ranks of the job that take part,
 * without this one. `awaited` are those members without whom the collective cannot finish here: a broadcast's source,
 * and for an all-reduce all of them. Every member must say the same of a collective. Two members must call it for their
 * common collectives in the same order within an iteration.
 *
 * `needed_at_once`: the stream's next work waits for the collective. Then the stream is marked and held, as by
 * freeride_hook_stream_batch(), until the awaited ranks have come to it, too. Otherwise it is only counted that this
 * rank has come. Only for small collectives: a large one is work. Returns FREERIDE_HELD_*. */
FREERIDE_HOOK_API int freeride_hook_stream_meet(freeride_hook* hook, void* stream, const uint32_t* members,
                                                uint32_t member_count, const uint32_t* awaited, uint32_t awaited_count,
                                                int needed_at_once);
/* [one] freeride_hook_iteration_end(), in stream order. */
FREERIDE_HOOK_API void freeride_hook_stream_iteration_end(freeride_hook* hook, void* stream);
/* [one] freeride_hook_iteration_end(), or on `stream` freeride_hook_stream_iteration_end(), for a rank that knows from
 * others how many iterations have ended: at least `count` have then. Numbers that this leaves out are of no iteration.
 * Returns how many have ended; 0 after an error. */
FREERIDE_HOOK_API uint64_t freeride_hook_count_iterations(freeride_hook* hook, void* stream, uint64_t count);
/* [one] May be called before messages to and from these ranks are posted. 1: one of them has ended an iteration before
 * these messages, and this rank has not: call freeride_hook_stream_iteration_end() first. For a rank that makes no
 * optimizer's step, once or always. */
FREERIDE_HOOK_API int freeride_hook_stream_behind(freeride_hook* hook, const uint32_t* destinations,
                                                  uint32_t destination_count, const uint32_t* sources,
                                                  uint32_t source_count);

/* ---- ranks on other hosts ----
 *
 * A receive from another host is held until the helper thread lets it go: shortly before its data usually exists, by
 * what was learned in iterations in which nothing is held, or sooner where the sender's hint, one UDP datagram, comes.
 * Without all of the following such receives are posted as without the hook. */

/* [one] Opens this rank's socket for hints, on `port` of all addresses, or any if 0, with FREERIDE_HOOK_CUDA attached.
 * Returns its port, for the others to know; 0 if there is none, which is said on stderr. Does not block. */
FREERIDE_HOOK_API uint32_t freeride_hook_remote_open(freeride_hook* hook, uint32_t port);

typedef struct freeride_remote_peer {
  uint32_t rank;       /* in the job */
  uint32_t port;       /* of its hints' socket; 0: it gets none */
  const char* address; /* a number, IPv4 or IPv6 */
} freeride_remote_peer;
/* [one] Which ranks are on other hosts, at most 64; texts are copied. `key`: 16 bytes that all ranks of the job know
 * and nobody else, NULL for no hints; `epoch`: of the same origin. Only the first call counts, from the present
 * iteration on. All ranks should have begun to count iterations with the same one. Does not block. */
FREERIDE_HOOK_API void freeride_hook_remote_join(freeride_hook* hook, const uint8_t* key, uint64_t epoch,
                                                 const freeride_remote_peer* peers, uint32_t count);
/* [one] freeride_hook_stream_batch() for a caller that knows how many bytes the batch receives, as which a wait for
 * another host is recognised again; 0: not known. May return FREERIDE_HELD_MEASURED. */
FREERIDE_HOOK_API int freeride_hook_stream_exchange(freeride_hook* hook, void* stream, const uint32_t* destinations,
                                                    uint32_t destination_count, const uint32_t* sources,
                                                    uint32_t source_count, int hold, uint64_t receive_bytes);
/* [one] After `stream` was made to wait for a batch that was FREERIDE_HELD_MEASURED, each time. */
FREERIDE_HOOK_API void freeride_hook_stream_received(freeride_hook* hook, void* stream);

/* By how much iterations are longer than plain ones, percent, with the 95 % interval. */
typedef struct freeride_arm_cost {
  uint64_t periods;  /* of iterations that tell of it */
  uint32_t measured; /* 0: too few so far, and the rest is 0 */
  uint32_t reserved0;
  double increase_pct, ci95_low_pct, ci95_high_pct;
} freeride_arm_cost;
typedef struct freeride_remote_report {
  uint64_t measured;   /* waits, in plain iterations */
  uint64_t held;       /* waits */
  uint64_t by_hint;    /* of them, those that a hint ended */
  uint64_t by_ceiling; /* and those that lasted until the ceiling */
  uint64_t hints_sent, hints_taken;
  uint64_t hints_refused;        /* datagrams that are no hint of this job for this rank */
  uint64_t plain_iterations;     /* learned from */
  uint64_t holdable_ns;          /* time until the data existed in their remote waits */
  uint32_t joined;               /* 1 after freeride_hook_remote_join() */
  uint32_t off;                  /* 1: holds cost too much, and are made no longer */
  freeride_arm_cost held_cost;   /* held iterations without leases */
  freeride_arm_cost leased_cost; /* held iterations with leases */
} freeride_remote_report;
/* [any] All 0 without freeride_hook_remote_open(). */
FREERIDE_HOOK_API void freeride_hook_remote_report(freeride_hook* hook, freeride_remote_report* report);

/* One hold, for measurements. Times are CLOCK_MONOTONIC, ns. */
typedef struct freeride_remote_hold {
  uint64_t iteration, count; /* count: of the awaited message, among those from that rank */
  uint32_t wait, peer;
  int64_t begin_ns;   /* the stream's mark was seen; 0: it was not */
  int64_t ceiling_ns; /* longest, from then on */
  int64_t hint_ns;    /* the hint was seen; 0: it was not */
  int64_t posted_ns;  /* the hold ended */
} freeride_remote_hold;
/* [one] For measurements: takes the last holds, at most 1024 are kept, the oldest first; returns how many. */
FREERIDE_HOOK_API uint32_t freeride_hook_remote_holds(freeride_hook* hook, freeride_remote_hold* holds, uint32_t most);
/* [one] For measurements, on all ranks in the same iteration: from the next one on all iterations are plain (0), held
 * without leases (1), held with leases (2), or as planned (-1). */
FREERIDE_HOOK_API void freeride_hook_remote_arm(freeride_hook* hook, int arm);
/* [one] For measurements: hints count as if they came so much later, as if so many of a thousand had been lost, as if
 * all had been forged. With `show`, the own messages for other hosts that the stream has come to are counted at
 * sent[r][r] of the sent page, r the local rank, for an observer. */
FREERIDE_HOOK_API void freeride_hook_remote_faults(freeride_hook* hook, int64_t late_ns, uint32_t lose_per_mille,
                                                   int forge, int show);

/* [any] `event` is about to be recorded on `stream`; `stream` is about to wait for `event` (cudaEventRecord,
 * cudaStreamWaitEvent). libfreeride_cudart.so calls these before torch's own calls. Where `event` comes behind a hold,
 * `stream` is made to wait for what the hold waits for, first: a stream that waits for an event would keep the GPU from
 * side tasks. Without these calls side tasks harvest less; training is the same. */
FREERIDE_HOOK_API void freeride_hook_event_recorded(freeride_hook* hook, void* event, void* stream);
FREERIDE_HOOK_API void freeride_hook_event_awaited(freeride_hook* hook, void* event, void* stream);

/* What became of the batches that receive. */
typedef struct freeride_stream_counters {
  uint64_t plain;  /* not held: the source is unknown, not hooked or elsewhere, or the data was there */
  uint64_t stream; /* held */
  uint64_t broken; /* holds that were ended because they lasted too long */
  uint64_t
      followers; /* streams that were made to wait for a hold, since they were about to wait for an event behind it */
} freeride_stream_counters;
/* [any] All 0 without FREERIDE_HOOK_CUDA. */
FREERIDE_HOOK_API void freeride_hook_stream_counters(freeride_hook* hook, freeride_stream_counters* counters);

/* [any] The sent page's path, "" without one; valid as long as the handle. */
FREERIDE_HOOK_API const char* freeride_hook_sent_path(const freeride_hook* hook);

#ifdef __cplusplus
}
#endif

#endif /* FREERIDE_HOOK_H */
