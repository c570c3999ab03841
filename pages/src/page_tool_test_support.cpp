// For tests: C++'s end of the pages that Python makes. `page_tool read|write KIND FD` prints or fills in a few fields
// of the page behind an inherited descriptor; exit code 1 and one line on stderr when the page is refused.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "freeride/pages/mapping.hpp"

namespace {

namespace pages = freeride::pages;

int refuse(const freeride::Error& error) {
  std::fprintf(stderr, "%s\n", error.text().c_str());
  return 1;
}

void show(const char* name, uint64_t value) {
  std::printf("%s=%" PRIu64 "\n", name, value);
}

int read_bubble(int fd) {
  auto page = pages::map_page<freeride_bubble_page>(fd);
  if (!page.ok()) return refuse(page.error());
  auto identity = pages::check_bubble_page(**page);
  if (!identity.ok()) return refuse(identity.error());
  std::printf("job=%s\ndevice=%s\nframework=%s\n", identity->job.c_str(), identity->device.c_str(),
              identity->framework.c_str());
  show("stage", identity->stage);
  show("incarnation", identity->incarnation);
  show("state_word", (*page)->state_word);
  show("bubbles", (*page)->bubbles);
  show("low_1024", (*page)->learned[FREERIDE_MAX_WAITS - 1].low_ns);
  show("history_last_end", (*page)->history[FREERIDE_HISTORY - 1].end_ns);
  show("iterations_last_bubble", (*page)->iterations[FREERIDE_ITERATIONS - 1].bubble_ns);
  return 0;
}

int read_lease(int fd) {
  auto page = pages::map_page<freeride_lease_page>(fd);
  if (!page.ok()) return refuse(page.error());
  pages::Lease lease;
  uint32_t sequence = 0;
  show("lease", pages::read_lease(**page, lease, sequence) ? 1 : 0);
  show("lease_id", lease.lease_id);
  show("kind", lease.kind);
  show("deadline_ns", lease.deadline_ns);
  show("begin_ns", lease.begin_ns);
  return 0;
}

int write_lease(int fd) {
  auto page = pages::map_page_writable<freeride_lease_page>(fd);
  if (!page.ok()) return refuse(page.error());
  pages::Lease lease;
  lease.order = FREERIDE_ORDER_RUN;
  lease.kind = FREERIDE_LEASE_BUBBLE;
  lease.lease_id = 11;
  lease.deadline_ns = 12;
  lease.opened_ns = 13;
  lease.grace_ns = 14;
  lease.hang_ns = 15;
  lease.begin_ns = 16;
  pages::write_lease(**page, lease);
  pages::futex_wake((*page)->sequence, FREERIDE_WAKE_RUNNER);
  return 0;
}

int write_answer(int fd) {
  auto page = pages::map_page_writable<freeride_answer_page>(fd);
  if (!page.ok()) return refuse(page.error());
  (*page)->state = FREERIDE_STATE_PAUSED;
  (*page)->steps = 21;
  (*page)->finished = 22;
  std::strcpy((*page)->message, "last words");
  std::strcpy((*page)->metrics[FREERIDE_METRICS - 1].name, "loss");
  (*page)->metrics[FREERIDE_METRICS - 1].value = 2.5;
  pages::bump_and_wake((*page)->sequence);
  return 0;
}

int read_answer(int fd) {
  auto page = pages::map_page<freeride_answer_page>(fd);
  if (!page.ok()) return refuse(page.error());
  show("sequence", (*page)->sequence);
  show("pause_seen_ns", (*page)->pause_seen_ns);
  std::printf("message=%.255s\nmetric=%.23s %g\n", (*page)->message, (*page)->metrics[0].name,
              (*page)->metrics[0].value);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string what = std::string(argv[1]) + " " + argv[2];
  const int fd = std::atoi(argv[3]);
  if (what == "read bubble") return read_bubble(fd);
  if (what == "read lease") return read_lease(fd);
  if (what == "write lease") return write_lease(fd);
  if (what == "read answer") return read_answer(fd);
  if (what == "write answer") return write_answer(fd);
  return 2;
}
