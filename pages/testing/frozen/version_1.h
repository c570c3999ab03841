/* A process of version 1.0, for tests: makes, checks and fills in pages as one did, by the frozen pages_1_0.h alone.
 * C, in a file of its own, so that its structures and today's of the same names never meet. A number that it fills in
 * is the field's place on the page plus 1, anything larger begins with the field's name: who reads that by another
 * layout gets it right only if no field has moved. */
#ifndef FREERIDE_PAGES_FROZEN_VERSION_1_H
#define FREERIDE_PAGES_FROZEN_VERSION_1_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum version_1_kind { VERSION_1_BUBBLE, VERSION_1_SENT, VERSION_1_LEASE, VERSION_1_ANSWER };

struct version_1_field {
  enum version_1_kind kind;
  const char* name;
  size_t offset, size;
};
/* Every field of version 1.0 but headers and reserved space; the last one's name is NULL. */
extern const struct version_1_field version_1_fields[];

/* The size of a page. */
size_t version_1_bytes(enum version_1_kind kind);
/* Makes a page: with `path` NULL a sealed memfd, whose descriptor the caller closes, else a file there. -1: errno. */
int version_1_make(enum version_1_kind kind, const char* path);
/* What a reader of version 1.0 has against this page (static text); NULL: it maps it. */
const char* version_1_refuses(enum version_1_kind kind, int fd);
/* Fills in every field; 0, or -1. */
int version_1_fill(enum version_1_kind kind, int fd);
/* The first field that a reader of version 1.0 does not find filled in (static text); NULL: it finds them all. */
const char* version_1_misses(enum version_1_kind kind, int fd);
/* A rank takes a slot of a sent page and counts as many messages for everybody; 0, or -1. */
int version_1_join(int fd, uint32_t local_rank, uint32_t pid, uint64_t start_time, uint32_t count);
/* What a rank of version 1.0 has got from another one; 0xffffffff also where it cannot look. */
uint32_t version_1_counter(int fd, uint32_t source, uint32_t destination);

#ifdef __cplusplus
}
#endif

#endif /* FREERIDE_PAGES_FROZEN_VERSION_1_H */
