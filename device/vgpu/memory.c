//go:build linux && cgo

#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "glue.h"

// The arena is an address range that is the same in every process: by default no library, heap, stack or data of Go's
// race detector is there. It has one part for each kind of memory. A region goes to the first place of its part with
// GAP free bytes on both sides, more than a 32-bit offset spans, or LITTLE_GAP if no such place is left. Its address
// thus depends only on the earlier allocations of the process. The shadow of the arena follows directly after it.
//
// If the range is taken, the arena is elsewhere, and addresses differ from run to run. If there is not enough address
// space for it (ulimit -v), each region is a separate mapping between two inaccessible pages, without a shadow.
#define ARENA ((char *)0x400000000000)
#define ARENA_SIZE (8ull << 40)
#define GAP (17ull << 30)
#define LITTLE_GAP (272ull << 20)
#define PAGE 4096ull
static const size_t parts[VG_KINDS + 1] = {0, 3ull << 40, 6ull << 40, ARENA_SIZE};
static char *arena; // NULL: not enough address space

// Descriptors of regions are never freed, only reused: the signal handler walks the list without the lock.
typedef struct region {
  struct region *next; // sorted by address
  char *base;          // NULL: unmapped
  size_t size;
  int kind;
  volatile int open; // its memory is accessible
} region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static region *regions, *spare;
static int host_runs, device_works, closed;
static vg_guarded *guards;
static int nguards;
static vg_use first;
static int used;
enum { GAPS = 64 };
static char *gaps[GAPS]; // pages between regions that were made accessible
static int ngaps;
static struct sigaction before;

enum { NONE = PROT_NONE, OPEN = PROT_READ | PROT_WRITE };
enum { RESERVED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static void reserve(void) {
  static int tried;
  if (tried) return;
  tried = 1;
  char *p = mmap(ARENA, 2 * ARENA_SIZE, NONE, RESERVED | MAP_FIXED_NOREPLACE, -1, 0);
  if (p == MAP_FAILED) p = mmap(NULL, 2 * ARENA_SIZE, NONE, RESERVED, -1, 0);
  if (p != MAP_FAILED) arena = p;
}

static int inside(const char *p) { return arena && p >= arena && p < arena + ARENA_SIZE; }

static void guard(int on) {
  for (int i = 0; i < nguards; i++)
    mprotect((void *)guards[i].from, guards[i].to - guards[i].from, !on ? OPEN : guards[i].closed ? NONE : PROT_READ);
}

static void set_open(region *r, int open) {
  if (r->base == NULL || r->kind == VG_OPEN || r->open == open) return;
  r->open = open;
  mprotect(r->base, r->size, open ? OPEN : NONE);
}

static void close_gaps(void) {
  for (int i = 0; i < ngaps && i < GAPS; i++) mprotect(gaps[i], PAGE, NONE);
  ngaps = 0;
}

// protect makes regions inaccessible while only the host's code runs. When the device begins to work, large regions stay
// so until the first access, because a change takes long.
enum { LARGE = 1 << 20 };
static void protect(void) {
  int close = host_runs > 0 && device_works == 0;
  if (close == closed && host_runs > 0) return;
  closed = close;
  close_gaps();
  for (region *r = regions; r; r = r->next)
    if (close || host_runs == 0 || r->size < LARGE) set_open(r, !close);
  guard(close);
}

void vg_guard(const vg_guarded *all, int n) {
  pthread_mutex_lock(&lock);
  if (closed) guard(0);
  free(guards);
  guards = malloc((size_t)(n + 1) * sizeof *guards);
  if (guards == NULL) abort();
  if (n) memcpy(guards, all, (size_t)n * sizeof *guards);
  nguards = n;
  if (closed) guard(1);
  pthread_mutex_unlock(&lock);
}

// Set while vg_copy runs: where to continue after an access to inaccessible memory.
static __thread sigjmp_buf *volatile copying;
static __thread void *volatile inaccessible;

static void on_fault(int signal, siginfo_t *info, void *context) {
  char *at = info->si_addr, *from = NULL;
  size_t size = PAGE;
  for (region *r = regions; r && info->si_code == SEGV_ACCERR; r = r->next)
    if (r->base && at >= r->base && at < r->base + r->size) from = r->base, size = r->size, r->open = 1;
  if (from == NULL && closed && info->si_code == SEGV_ACCERR && inside(at)) { // in a gap
    from = at - (uintptr_t)at % PAGE;
    int i = __sync_fetch_and_add(&ngaps, 1);
    if (i < GAPS) gaps[i] = from;
  }
  if (from) {
    if (closed && !__sync_lock_test_and_set(&used, 1)) {
      first.address = at;
      first.write = -1;
#ifdef __x86_64__
      first.write = (int)(((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1);
#endif
      first.n = backtrace(first.frames, sizeof first.frames / sizeof *first.frames);
    }
    mprotect(from, size, OPEN);
    return;
  }
  if (copying) {
    inaccessible = at;
    siglongjmp(*copying, 1);
  }
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else
    sigaction(signal, &before, NULL); // the earlier handler runs when the instruction is retried
}

// room returns the first address for size bytes with a gap on both sides, or NULL. It sets behind to the region before
// it, or NULL.
static char *room(size_t size, int kind, size_t gap, region **behind) {
  char *from = arena + parts[kind] + gap, *end = arena + parts[kind + 1];
  *behind = NULL;
  for (region *r = regions; r && r->base < end; r = r->next) {
    if (from + size + gap <= r->base) break;
    if (r->base >= arena + parts[kind]) from = r->base + r->size + gap;
    *behind = r;
  }
  return (size_t)(end - from) > size && end - from > 0 ? from : NULL;
}

// poison fills memory with VG_POISON. Large memory is mapped from one file and takes no memory until it is written to.
enum { SHEET = 4 << 20 };
static void poison(char *p, size_t size) {
  static int fd = -1;
  if (fd < 0 && size >= LARGE && (fd = memfd_create("poison", MFD_CLOEXEC)) >= 0) {
    char *s = ftruncate(fd, SHEET) ? MAP_FAILED : mmap(NULL, SHEET, OPEN, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) abort();
    memset(s, VG_POISON, SHEET);
    munmap(s, SHEET);
  }
  while (fd >= 0 && size >= LARGE) {
    size_t n = size < SHEET ? size & ~(PAGE - 1) : SHEET;
    if (mmap(p, n, OPEN, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED) abort();
    p += n, size -= n;
  }
  memset(p, VG_POISON, size);
}

void *vg_map(size_t bytes, int kind) {
  size_t size = (bytes / PAGE + 1) * PAGE; // at least one zero byte behind it, to end strings
  region *behind = NULL, *r = NULL;
  pthread_mutex_lock(&lock);
  reserve();
  close_gaps();
  char *p = arena ? room(size, kind, GAP, &behind) : NULL;
  if (arena && p == NULL) p = room(size, kind, LITTLE_GAP, &behind);
  if (p && mmap(p, size, OPEN, RESERVED | MAP_FIXED, -1, 0) == MAP_FAILED) p = NULL;
  if (p == NULL && !arena) {
    p = mmap(NULL, size + 2 * PAGE, NONE, RESERVED, -1, 0);
    if (p == MAP_FAILED || mprotect(p + PAGE, size, OPEN)) p = NULL;
    else p += PAGE;
    for (region *q = regions; p && q && q->base < p; q = q->next) behind = q;
  }
  if (p) {
    if ((r = spare)) spare = r->next;
    else if ((r = calloc(1, sizeof *r)) == NULL) abort();
    r->size = size, r->kind = kind, r->base = p, r->open = 1;
    r->next = behind ? behind->next : regions;
    *(behind ? &behind->next : &regions) = r;
    if (kind == VG_OWN) poison(p, bytes);
    if (closed) set_open(r, 0);
  }
  pthread_mutex_unlock(&lock);
  return p;
}

void vg_unmap(void *p) {
  pthread_mutex_lock(&lock);
  region **at = &regions, *r;
  while ((r = *at) && r->base != p) at = &r->next;
  if (r) {
    *at = r->next;
    r->base = NULL;
    if (arena) {
      mmap(p, r->size, NONE, RESERVED | MAP_FIXED, -1, 0);
      mmap((char *)p + ARENA_SIZE, r->size, NONE, RESERVED | MAP_FIXED, -1, 0);
    } else {
      munmap((char *)p - PAGE, r->size + 2 * PAGE);
    }
    r->next = spare;
    spare = r;
  }
  pthread_mutex_unlock(&lock);
}

int vg_map_file(void *p, size_t bytes, int fd, int64_t offset) {
  if (((uintptr_t)p | bytes | (uintptr_t)offset) % PAGE) return 0;
  pthread_mutex_lock(&lock);
  int done = !closed && mmap(p, bytes, OPEN, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, fd, offset) != MAP_FAILED;
  pthread_mutex_unlock(&lock);
  return done;
}

void *vg_copy(void *to, const void *from, size_t n) {
  sigjmp_buf back;
  if (sigsetjmp(back, 1) == 0) {
    copying = &back;
    memmove(to, from, n);
    copying = NULL;
    return NULL;
  }
  copying = NULL;
  // The address of an access beyond the processor's address space is unknown.
  return inaccessible ? inaccessible : (uintptr_t)from >> 47 ? (void *)from : to;
}

void vg_zero(void *p, size_t n) {
  char *from = p, *first = (char *)(((uintptr_t)p + PAGE - 1) & ~(PAGE - 1)), *last = (char *)(((uintptr_t)p + n) & ~(PAGE - 1));
  int fresh = 0;
  if (n >= LARGE) {
    pthread_mutex_lock(&lock);
    region *r = regions;
    while (r && !(r->base && from >= r->base && from + n <= r->base + r->size)) r = r->next;
    if (r) {
      set_open(r, 1);
      fresh = mmap(first, (size_t)(last - first), OPEN, RESERVED | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    pthread_mutex_unlock(&lock);
  }
  memset(from, 0, fresh ? (size_t)(first - from) : n);
  if (fresh) memset(last, 0, (size_t)(from + n - last));
}

int64_t vg_unwritten(void *p, size_t size) {
  if (!inside(p)) return 0;
  uintptr_t from = (uintptr_t)p & ~(PAGE - 1), to = ((uintptr_t)p + size + PAGE - 1) & ~(PAGE - 1);
  void *shadow = mmap((char *)from + ARENA_SIZE, to - from, OPEN, RESERVED | MAP_FIXED, -1, 0);
  return shadow == MAP_FAILED ? 0 : (int64_t)ARENA_SIZE;
}

// handle_faults makes on_fault the handler of SIGSEGV. The program may have set one since the last call: it gets the
// signals that are not on_fault's.
static void handle_faults(void) {
  struct sigaction now;
  sigaction(SIGSEGV, NULL, &now);
  if (now.sa_sigaction == on_fault) return;
  void *frame;
  backtrace(&frame, 1); // loads libgcc now: the handler could not
  before = now;
  memset(&now, 0, sizeof now);
  now.sa_sigaction = on_fault;
  now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigfillset(&now.sa_mask);
  sigaction(SIGSEGV, &now, NULL);
}

static void count(int *what, int by) {
  pthread_mutex_lock(&lock);
  *what += by;
  if (by > 0 && host_runs > 0) handle_faults();
  protect();
  pthread_mutex_unlock(&lock);
}
void vg_host_begins(void) { count(&host_runs, 1); }
void vg_host_ends(void) { count(&host_runs, -1); }
void vg_device_begins(void) { count(&device_works, 1); }
void vg_device_ends(void) { count(&device_works, -1); }

int vg_used(vg_use *use) {
  if (!used) return 0;
  *use = first;
  used = 0;
  return 1;
}
