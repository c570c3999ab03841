#include "acting/rank_slot.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>

#include "acting/fake_pages_test_support.hpp"

using namespace freeride;
using namespace freeride::worker;
using namespace freeride::worker::testing;

namespace {

/// While it lives: before `at`, which lies on memory that nobody may read, is read for the first time, `what` happens.
class BeforeRead {
 public:
  BeforeRead(const void* at, std::function<void()> what) {
    const auto size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    page_ = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) / size * size);
    what_ = std::move(what);
    struct sigaction action {};
    action.sa_handler = [](int) {
      mprotect(page_, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_READ);
      what_();
    };
    sigaction(SIGSEGV, &action, &before_);
    REQUIRE(mprotect(page_, size, PROT_NONE) == 0);
  }
  ~BeforeRead() { sigaction(SIGSEGV, &before_, nullptr); }
  BeforeRead(const BeforeRead&) = delete;
  BeforeRead& operator=(const BeforeRead&) = delete;

 private:
  static inline void* page_ = nullptr;
  static inline std::function<void()> what_;
  struct sigaction before_ {};
};

}  // namespace

TEST_CASE("a bubble's record that is overwritten while it is read is not reported", "[rank]") {
  constexpr int64_t kNow = 1000 * kNsPerSec;
  FakeRank rank;
  rank.page().bubbles = 600;
  const auto source = rank.source(1);
  EventRing events;
  RankSlot slot(source, nullptr);
  for (int i = 0; i < 2; ++i) {
    rank.begin(kNow - 10 * kNsPerMs);
    rank.end(kNow - 5 * kNsPerMs);
  }
  {
    // The worker is not given a core for 1024 bubbles and more; they were short ones.
    const BeforeRead before(&source->page->history[600], [&] {
      for (uint32_t i = 0; i < FREERIDE_HISTORY; ++i) {
        rank.begin(kNow - kNsPerMs);
        rank.end(kNow - kNsPerMs);
      }
    });
    slot.read();
    slot.collect(Transitions(), kNow, events);
  }
  ActEvent event;
  while (events.pop(event)) CHECK(event.kind != ActEvent::Kind::kBubbleEnd);
  // What comes afterwards is.
  rank.begin(kNow);
  rank.end(kNow);
  slot.read();
  slot.collect(Transitions(), kNow, events);
  bool reported = false;
  while (events.pop(event)) reported = reported || event.kind == ActEvent::Kind::kBubbleEnd;
  CHECK(reported);
}
