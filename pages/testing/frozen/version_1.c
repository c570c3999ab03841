#define _GNU_SOURCE
#include "version_1.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pages_1_0.h"

#define FIELD(kind, type, name) \
  { kind, #name, offsetof(type, name), sizeof(((type*)0)->name) }
#define OF_BUBBLE(name) FIELD(VERSION_1_BUBBLE, freeride_bubble_page, name)
#define OF_SENT(name) FIELD(VERSION_1_SENT, freeride_sent_page, name)
#define OF_LEASE(name) FIELD(VERSION_1_LEASE, freeride_lease_page, name)
#define OF_ANSWER(name) FIELD(VERSION_1_ANSWER, freeride_answer_page, name)
const struct version_1_field version_1_fields[] = {OF_BUBBLE(job),
                                                   OF_BUBBLE(device),
                                                   OF_BUBBLE(framework),
                                                   OF_BUBBLE(rank),
                                                   OF_BUBBLE(stage),
                                                   OF_BUBBLE(stages),
                                                   OF_BUBBLE(replica),
                                                   OF_BUBBLE(replicas),
                                                   OF_BUBBLE(pid),
                                                   OF_BUBBLE(state_word),
                                                   OF_BUBBLE(begin_ns),
                                                   OF_BUBBLE(wake),
                                                   OF_BUBBLE(hook_state),
                                                   OF_BUBBLE(iteration),
                                                   OF_BUBBLE(waits),
                                                   OF_BUBBLE(relearned),
                                                   OF_BUBBLE(usable_bytes),
                                                   OF_BUBBLE(bubbles),
                                                   OF_BUBBLE(compute_ns),
                                                   OF_BUBBLE(learned),
                                                   OF_BUBBLE(history),
                                                   OF_BUBBLE(iterations),
                                                   OF_SENT(ranks),
                                                   OF_SENT(rank),
                                                   OF_SENT(sent),
                                                   OF_LEASE(sequence),
                                                   OF_LEASE(order),
                                                   OF_LEASE(kind),
                                                   OF_LEASE(lease_id),
                                                   OF_LEASE(deadline_ns),
                                                   OF_LEASE(opened_ns),
                                                   OF_LEASE(grace_ns),
                                                   OF_LEASE(hang_ns),
                                                   OF_LEASE(begin_ns),
                                                   OF_ANSWER(sequence),
                                                   OF_ANSWER(state),
                                                   OF_ANSWER(transition),
                                                   OF_ANSWER(result),
                                                   OF_ANSWER(lease_id),
                                                   OF_ANSWER(transition_ns),
                                                   OF_ANSWER(last_paused_ns),
                                                   OF_ANSWER(last_paused_cpu_ns),
                                                   OF_ANSWER(steps),
                                                   OF_ANSWER(step_ns),
                                                   OF_ANSWER(lease_step_ns),
                                                   OF_ANSWER(predicted_ns),
                                                   OF_ANSWER(skipped),
                                                   OF_ANSWER(create_ns),
                                                   OF_ANSWER(init_ns),
                                                   OF_ANSWER(first_step_ns),
                                                   OF_ANSWER(pause_seen_ns),
                                                   OF_ANSWER(finished),
                                                   OF_ANSWER(message),
                                                   OF_ANSWER(metrics),
                                                   {VERSION_1_BUBBLE, NULL, 0, 0}};

static const struct {
  uint64_t magic;
  size_t bytes;
} kinds[] = {{FREERIDE_BUBBLE_MAGIC, sizeof(freeride_bubble_page)},
             {FREERIDE_SENT_MAGIC, sizeof(freeride_sent_page)},
             {FREERIDE_LEASE_MAGIC, sizeof(freeride_lease_page)},
             {FREERIDE_ANSWER_MAGIC, sizeof(freeride_answer_page)}};

size_t version_1_bytes(enum version_1_kind kind) {
  return kinds[kind].bytes;
}

int version_1_make(enum version_1_kind kind, const char* path) {
  const int fd = path == NULL ? memfd_create("version 1", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                              : open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return -1;
  const freeride_page_header header = {kinds[kind].magic, FREERIDE_PAGES_MAJOR, FREERIDE_PAGES_MINOR, kinds[kind].bytes,
                                       0x1010};
  if (ftruncate(fd, (off_t)kinds[kind].bytes) == 0 && pwrite(fd, &header, sizeof(header), 0) == sizeof(header) &&
      (path != NULL || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)) {
    return fd;
  }
  close(fd);
  return -1;
}

const char* version_1_refuses(enum version_1_kind kind, int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return "no descriptor";
  if (kind != VERSION_1_SENT) {
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) return "not sealed";
  }
  if (info.st_size < (off_t)kinds[kind].bytes) return "too short";
  if (info.st_size > 16 << 20) return "too long";
  freeride_page_header header;
  if (pread(fd, &header, sizeof(header), 0) != sizeof(header)) return "unreadable";
  if (header.magic != kinds[kind].magic) return "wrong magic";
  if (header.major != FREERIDE_PAGES_MAJOR) return "another major";
  if (header.size_bytes < kinds[kind].bytes || header.size_bytes > (uint64_t)info.st_size) return "lies about its size";
  return header.incarnation == 0 ? "incarnation 0" : NULL;
}

static void* map(enum version_1_kind kind, int fd) {
  void* page = mmap(NULL, kinds[kind].bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return page == MAP_FAILED ? NULL : page;
}

/* What the field begins with when it is filled in. */
static size_t content(const struct version_1_field* field, char* bytes) {
  const uint64_t place = field->offset + 1; /* little-endian, as all pages are */
  if (field->size > sizeof(place)) return (size_t)(stpcpy(bytes, field->name) - bytes) + 1;
  memcpy(bytes, &place, field->size);
  return field->size;
}

int version_1_fill(enum version_1_kind kind, int fd) {
  char* const page = map(kind, fd);
  if (page == NULL) return -1;
  for (const struct version_1_field* field = version_1_fields; field->name != NULL; ++field) {
    if (field->kind == kind) content(field, page + field->offset);
  }
  return munmap(page, kinds[kind].bytes);
}

const char* version_1_misses(enum version_1_kind kind, int fd) {
  const char* missed = NULL;
  for (const struct version_1_field* field = version_1_fields; field->name != NULL && missed == NULL; ++field) {
    char wanted[64], got[64];
    if (field->kind != kind) continue;
    const size_t size = content(field, wanted);
    if (pread(fd, got, size, (off_t)field->offset) != (ssize_t)size || memcmp(got, wanted, size) != 0) {
      missed = field->name;
    }
  }
  return missed;
}

int version_1_join(int fd, uint32_t local_rank, uint32_t pid, uint64_t start_time, uint32_t count) {
  freeride_sent_page* const page = map(VERSION_1_SENT, fd);
  if (page == NULL) return -1;
  page->rank[local_rank].pid = pid;
  page->rank[local_rank].start_time = start_time;
  for (uint32_t other = 0; other < FREERIDE_MAX_RANKS; ++other) page->sent[local_rank][other] = count;
  __atomic_store_n(&page->rank[local_rank].status, FREERIDE_RANK_HOOKED, __ATOMIC_RELEASE);
  if (page->ranks < local_rank + 1) page->ranks = local_rank + 1;
  return munmap(page, sizeof(*page));
}

uint32_t version_1_counter(int fd, uint32_t source, uint32_t destination) {
  freeride_sent_page* const page = map(VERSION_1_SENT, fd);
  if (page == NULL) return FREERIDE_POISON;
  const uint32_t count = __atomic_load_n(&page->sent[source][destination], __ATOMIC_ACQUIRE);
  munmap(page, sizeof(*page));
  return count;
}
