#include "freeride/pages/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "freeride/base/clock.hpp"

namespace freeride::pages {
namespace {

// A memfd with a page's bytes that a test can spoil before it is sealed.
Fd raw_page(const void* bytes, size_t size, int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(write(fd.get(), bytes, size) == static_cast<ssize_t>(size));
  if (seals != 0) REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

freeride_lease_page good_lease_page() {
  freeride_lease_page page{};
  page.header = {FREERIDE_LEASE_MAGIC, FREERIDE_PAGES_MAJOR, FREERIDE_PAGES_MINOR, sizeof(page), 7};
  return page;
}

std::string folder() {
  char name[] = "/tmp/freeride-pages-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  return name;
}

}  // namespace

TEST_CASE("a bubble page that the hook makes stays, whatever becomes of its maker's goodwill; others may not") {
  const auto made = create_page<freeride_bubble_page>(true);
  REQUIRE(made.ok());
  CHECK(check_stays(made->fd.get()).ok());
  CHECK(fallocate(made->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  // Its memory can be given back, and then there may be none.
  CHECK_FALSE(check_stays(create_page<freeride_bubble_page>(false)->fd.get()).ok());
  const Fd hollow(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(hollow.get(), 1 << 20) == 0);
  REQUIRE(fcntl(hollow.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x0010) == 0);
  CHECK(check_stays(hollow.get()).error().message.find("not there") != std::string::npos);
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK_FALSE(check_stays(null.get()).ok());
}

TEST_CASE("a created page is sealed, headed and zero") {
  auto made = create_page<freeride_bubble_page>(true);
  REQUIRE(made.ok());
  CHECK(made->page->header.magic == FREERIDE_BUBBLE_MAGIC);
  CHECK(made->page->header.incarnation != 0);
  CHECK(made->page->state_word == 0);
  CHECK(ftruncate(made->fd.get(), 10) != 0);
  CHECK(fcntl(made->fd.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  auto again = create_page<freeride_bubble_page>(true);
  CHECK(again->page->header.incarnation != made->page->header.incarnation);

  auto reader = map_page<freeride_bubble_page>(made->fd.get());
  REQUIRE(reader.ok());
  store_release(made->page->state_word, FREERIDE_STATE(3, 2));
  CHECK(FREERIDE_STATE_ITERATION(load_acquire((*reader)->state_word)) == 3);
  auto writer = map_page_writable<freeride_bubble_page>(made->fd.get());
  REQUIRE_FALSE(writer.ok());
  CHECK(writer.error().code == Code::kPermission);
}

TEST_CASE("an answer page can be written by its receiver") {
  auto made = create_page<freeride_answer_page>(false);
  REQUIRE(made.ok());
  auto writer = map_page_writable<freeride_answer_page>(made->fd.get());
  REQUIRE(writer.ok());
  store_release((*writer)->steps, uint64_t{5});
  CHECK(load_acquire(made->page->steps) == 5);
}

TEST_CASE("pages that are not what they should be are refused") {
  auto page = good_lease_page();
  CHECK(map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get()).ok());

  SECTION("not sealed") {
    auto result = map_page<freeride_lease_page>(raw_page(&page, sizeof(page), 0).get());
    CHECK(result.error().message.find("sealed") != std::string::npos);
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page), F_SEAL_GROW).get()).ok());
  }
  SECTION("too short") {
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page) - 1).get()).ok());
  }
  SECTION("empty") {
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, 0).get()).ok());
  }
  SECTION("wrong magic") {
    page.header.magic ^= 1;
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get()).ok());
  }
  SECTION("another page type") {
    CHECK_FALSE(map_page<freeride_answer_page>(raw_page(&page, sizeof(page)).get()).ok());
  }
  SECTION("another major") {
    page.header.major = 2;
    auto result = map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get());
    CHECK(result.error().code == Code::kVersion);
  }
  SECTION("a newer minor that is longer is accepted") {
    std::string longer(sizeof(page) + 64, '\0');
    page.header.minor = 9;
    page.header.size_bytes = longer.size();
    std::memcpy(longer.data(), &page, sizeof(page));
    CHECK(map_page<freeride_lease_page>(raw_page(longer.data(), longer.size()).get()).ok());
  }
  SECTION("lies about its size") {
    page.header.size_bytes = sizeof(page) + 1;
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get()).ok());
    page.header.size_bytes = 8;
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get()).ok());
  }
  SECTION("incarnation 0") {
    page.header.incarnation = 0;
    CHECK_FALSE(map_page<freeride_lease_page>(raw_page(&page, sizeof(page)).get()).ok());
  }
  SECTION("no memory file at all") {
    Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    CHECK_FALSE(map_page<freeride_lease_page>(null.get()).ok());
    CHECK_FALSE(map_page<freeride_lease_page>(-1).ok());
  }
}

TEST_CASE("a bubble page's identity is checked") {
  auto made = create_page<freeride_bubble_page>(true);
  REQUIRE(made.ok());
  auto& page = *made->page;
  CHECK_FALSE(check_bubble_page(page).ok());  // no job
  std::strcpy(page.job, "gpt");
  std::strcpy(page.device, "cpu-3");
  page.stage = 3;
  page.stages = 4;
  page.replicas = 1;
  REQUIRE(check_bubble_page(page).ok());
  CHECK(check_bubble_page(page)->stage == 3);

  SECTION("stage past the last") {
    page.stage = 4;
  }
  SECTION("no stages") {
    page.stages = 0;
  }
  SECTION("absurd stages") {
    page.stages = 0xffffffffu;
  }
  SECTION("replica past the last") {
    page.replica = 1;
  }
  SECTION("absurd rank") {
    page.rank = 0xffffffffu;
  }
  SECTION("unterminated") {
    std::memset(page.job, 'x', sizeof(page.job));
  }
  SECTION("control character") {
    page.device[1] = '\n';
  }
  CHECK_FALSE(check_bubble_page(page).ok());
}

TEST_CASE("a sent page appears whole, once, and is found by its path") {
  const std::string dir = folder();
  const std::string path = dir + "/freeride-sent-test-1";
  CHECK(open_sent_page(path).error().code == Code::kNotFound);
  {
    auto made = create_sent_page(path);
    REQUIRE(made.ok());
    CHECK(create_sent_page(path).error().code == Code::kAlreadyExists);
    auto other = open_sent_page(path);
    REQUIRE(other.ok());
    store_release((*made)->sent[1][2], 9u);
    CHECK(load_acquire((*other)->sent[1][2]) == 9);
  }
  REQUIRE(truncate(path.c_str(), 100) == 0);
  CHECK_FALSE(open_sent_page(path).ok());
  unlink(path.c_str());
  CHECK_FALSE(create_sent_page(dir + "/none/such").ok());
  rmdir(dir.c_str());
}

TEST_CASE("a lease is read whole or not at all") {
  auto made = create_page<freeride_lease_page>(true);
  REQUIRE(made.ok());
  auto reader = map_page<freeride_lease_page>(made->fd.get());
  REQUIRE(reader.ok());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t n = 1; !stop; ++n) {
      Lease lease;
      lease.order = lease.kind = static_cast<uint32_t>(n);
      lease.lease_id = lease.deadline_ns = lease.opened_ns = lease.grace_ns = lease.hang_ns = lease.begin_ns = n;
      write_lease(*made->page, lease);
    }
  });
  uint64_t seen = 0;
  bool consistent = true;
  for (int reads = 0; reads < 20000 || seen == 0; ++reads) {
    Lease lease;
    uint32_t sequence = 0;
    if (!read_lease(**reader, lease, sequence)) continue;
    const uint64_t n = lease.lease_id;
    consistent = consistent && (sequence & 1) == 0 && lease.deadline_ns == n && lease.opened_ns == n &&
                 lease.grace_ns == n && lease.hang_ns == n && lease.begin_ns == n &&
                 lease.order == static_cast<uint32_t>(n) && n >= seen;
    seen = n;
  }
  stop = true;
  writer.join();
  CHECK(consistent);

  SECTION("a writer that died in the middle means no lease, and the next writer repairs it") {
    store_release(made->page->sequence, load_relaxed(made->page->sequence) | 1u);
    Lease lease;
    lease.lease_id = 99;
    uint32_t sequence = 0;
    CHECK_FALSE(read_lease(**reader, lease, sequence, 10));
    CHECK(lease.lease_id == 0);
    CHECK(lease.kind == FREERIDE_LEASE_NONE);
    Lease next;
    next.lease_id = 100;
    write_lease(*made->page, next);
    CHECK(read_lease(**reader, lease, sequence));
    CHECK(lease.lease_id == 100);
  }
}

TEST_CASE("futexes wake across mappings, by bit, and time out") {
  auto made = create_page<freeride_lease_page>(true);
  REQUIRE(made.ok());
  auto reader = map_page<freeride_lease_page>(made->fd.get());
  REQUIRE(reader.ok());
  CHECK(futex_wait((*reader)->sequence, 1) == Wait::kChanged);
  CHECK(futex_wait((*reader)->sequence, 0, SteadyClock::now() + kNsPerMs) == Wait::kTimeout);
  CHECK(futex_wake(made->page->sequence) == 0);

  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    while (load_acquire((*reader)->sequence) == 0) {
      futex_wait((*reader)->sequence, 0, kForever, FREERIDE_WAKE_RUNNER);
    }
    woken = true;
  });
  // Waits until the thread sleeps: only then does a wake with its bit find anybody, and one with another bit must not.
  int found = 0;
  while (found == 0) {
    REQUIRE(futex_wake(made->page->sequence, FREERIDE_WAKE_SUPERVISOR) == 0);
    found = futex_wake(made->page->sequence, FREERIDE_WAKE_RUNNER);
  }
  CHECK_FALSE(woken);
  bump_and_wake(made->page->sequence);
  waiter.join();
  CHECK(woken);
}

}  // namespace freeride::pages
