// A libcupti.so for tests with fakecuda.c: it hands out, in the layouts of the version that FAKE_CUPTI_VERSION names, what
// the fake driver did. FAKE_CUPTI names what goes wrong.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fakecuda.h"

enum { INVALID_OPERATION = 7, MAX_LIMIT_REACHED = 12, NOT_INITIALIZED = 15, INSUFFICIENT_PRIVILEGES = 35, MULTIPLE_SUBSCRIBERS = 39 };

typedef void (*requested)(uint8_t **, size_t *, size_t *);
typedef void (*completed)(void *, uint32_t, uint8_t *, size_t, size_t);

static requested request;
static completed complete;
static int enabled[64], subscribed;
static size_t seen, dropped;

static int wrong(const char *what) {
  const char *set = getenv("FAKE_CUPTI");
  return set != NULL && strcmp(set, what) == 0;
}

static uint32_t version(void) {
  const char *v = getenv("FAKE_CUPTI_VERSION");
  return v != NULL ? (uint32_t)atoi(v) : 130001;
}

static size_t size_of(uint32_t kind) {
  switch (kind) {
    case 1: return version() >= 26 ? 96 : 88;        // Memcpy6, Memcpy5
    case 2: return 88;                               // Memset4
    case 10: return version() >= 130000 ? 216 : 208; // Kernel10, Kernel9
    default: return 40;                              // API
  }
}

int cuptiGetVersion(uint32_t *v) { return *v = version(), 0; }
int cuptiGetTimestamp(uint64_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return *t = now.tv_sec * 1000000000ull + now.tv_nsec, 0;
}
int cuptiGetResultString(int result, const char **name) {
  *name = result == INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
          : result == MULTIPLE_SUBSCRIBERS  ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                            : NULL;
  return *name != NULL ? 0 : 1;
}
int cuptiSubscribe(void **s, void *callback, void *user) {
  (void)user;
  if (wrong("subscribed") || subscribed || callback == NULL) return MULTIPLE_SUBSCRIBERS;
  return *s = &subscribed, subscribed = 1, 0;
}
int cuptiUnsubscribe(void *s) { return subscribed = 0, s == &subscribed ? 0 : INVALID_OPERATION; }
int cuptiActivityRegisterCallbacks(requested r, completed c) { return request = r, complete = c, 0; }
int cuptiActivityEnable(int kind) {
  if (wrong("privileges") && kind == 10) return INSUFFICIENT_PRIVILEGES;
  struct fake_record *unused;
  seen = fake_records(&unused); // what comes from now on
  return enabled[kind] = 1, 0;
}
int cuptiActivityDisable(int kind) { return enabled[kind] = 0, 0; }

static void put(uint8_t *at, size_t offset, const void *value, size_t n) { memcpy(at + offset, value, n); }

static void write(uint8_t *at, const struct fake_record *r) {
  uint64_t start = wrong("zero") ? 0 : r->start, end = wrong("zero") ? 0 : wrong("backwards") ? r->start - 1 : r->end;
  uint32_t stranger = r->correlation + 1000000, correlation = wrong("strangers") && r->kind == 10 ? stranger : r->correlation;
  uint16_t registers = 40;
  int32_t grid[3] = {1, 2, 3}, block[3] = {32, 4, 1}, shared[2] = {1024, 2048};
  uint32_t local = 16;
  memset(at, 0xcc, size_of(r->kind));
  put(at, 0, &r->kind, 4);
  switch (r->kind) {
    case 1:
      put(at, 4, &r->value, 1), put(at, 8, &r->bytes, 8), put(at, 16, &start, 8), put(at, 24, &end, 8), put(at, 44, &correlation, 4);
      break;
    case 2:
      put(at, 4, &r->value, 4), put(at, 8, &r->bytes, 8), put(at, 16, &start, 8), put(at, 24, &end, 8), put(at, 44, &correlation, 4);
      break;
    case 10:
      put(at, 6, &registers, 2), put(at, 16, &start, 8), put(at, 24, &end, 8), put(at, 52, grid, 12), put(at, 64, block, 12);
      put(at, 76, shared, 8), put(at, 84, &local, 4), put(at, 92, &correlation, 4), put(at, 104, &r->name, 8);
      break;
    default:
      put(at, 4, &r->value, 4), put(at, 8, &r->start, 8), put(at, 16, &r->end, 8), put(at, 28, &r->thread, 4), put(at, 32, &correlation, 4);
  }
}

// Only a few records go into a buffer, so that there are many buffers.
int cuptiActivityFlushAll(uint32_t flag) {
  struct fake_record *records;
  size_t n = fake_records(&records);
  if (complete == NULL) return INVALID_OPERATION;
  if (wrong("drops") && flag == 0) dropped = 3;
  while (seen < n) {
    uint8_t *buffer;
    size_t size, most, used = 0;
    request(&buffer, &size, &most);
    if (buffer == NULL || size < 1 << 20 || most != 0) return NOT_INITIALIZED;
    for (int i = 0; i < 10 && seen < n; seen++) {
      if (!enabled[records[seen].kind]) continue;
      write(buffer + used, &records[seen]);
      used += size_of(records[seen].kind);
      i++;
    }
    complete(NULL, 0, buffer, size, used);
  }
  return 0;
}
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
  uint8_t *next = *record == NULL ? buffer : (uint8_t *)*record + size_of(*(uint32_t *)*record);
  if (next >= buffer + valid) return MAX_LIMIT_REACHED;
  return *record = next, 0;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *n) {
  (void)context, (void)stream;
  return *n = dropped, dropped = 0, 0;
}
