// What a hook does around one batch of point-to-point messages, and in which order.
#pragma once

#include <array>
#include <cstdint>

namespace freeride::policy {

/// One batch as a rank sees it right before posting it.
struct Batch {
  bool hook_on = false;
  bool sends = false;
  bool receives = false;
  bool needed_at_once = false;  ///< the received data is what the training's stream needs next
  bool sources_hooked = false;  ///< every source counts what it sends, on a page that this rank can see
  bool posted_early = false;    ///< it is known that training goes on with other work before it waits for this batch
  bool one_source = false;      ///< all that it receives comes from one rank
};

enum class BatchStep : uint8_t {
  kProduce,    ///< raise the sent counter of every destination
  kHold,       ///< training's stream waits until every source's counter says that the data exists
  kHoldApart,  ///< the batch, on a stream of its own, waits until the counter says that its *first* message exists
  kPost,       ///< the batch itself, whole
};

struct BatchPlan {
  std::array<BatchStep, 3> steps{};
  uint8_t count = 0;

  const BatchStep* begin() const { return steps.data(); }
  const BatchStep* end() const { return steps.data() + count; }
  bool holds() const;
  bool holds_apart() const;
};

/// The steps for `batch`, in stream order. Three rules keep training from waiting for itself:
///   - Counters first: the neighbour may hold until it sees them (1F1B's batches send one way and receive the other).
///   - No hold where a receive is posted before its data is needed: the stream's work behind it may be what the
///     neighbour needs (a ring that posts its receive first).
///   - No hold for a source that does not count.
/// hooks/tests/model checks them against the calls of real schedules, and shows that breaking one deadlocks.
///
/// What is posted early is held apart: training's stream continues. The library's queue waits for the hold where it
/// would have waited for the message itself, which cannot be there sooner. This is done only for a batch that sends
/// nothing and has one source: then the hold delays nothing that could continue without it. The hold is for the first
/// message only, since the sender may make the second one after the first has arrived.
///
/// The caller must release the counters of a rank that switches off or dies. If a write that was still pending
/// overwrites a released counter, the caller must release it again. Pure; any thread.
BatchPlan plan_batch(const Batch& batch);

/// Whether training's stream is held where it waits for a batch that was posted early. It would have waited there for
/// the messages themselves, so this delays nothing. Pure; any thread.
bool holds_at_wait(const Batch& batch);

}  // namespace freeride::policy
