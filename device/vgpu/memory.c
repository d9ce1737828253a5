//go:build linux && cgo

#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "glue.h"

// Regions are never freed, since the signal's handler walks them without the lock; their memory is.
typedef struct region {
  struct region *next;
  char *base; // NULL: another may take it
  size_t size;
} region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static region *regions;
static int host_runs, device_works, closed;
static vg_use first;
static int used;
static struct sigaction before;

static void protect(void) {
  int close = host_runs > 0 && device_works == 0;
  if (close == closed) return;
  closed = close;
  for (region *r = regions; r; r = r->next)
    if (r->base) mprotect(r->base, r->size, close ? PROT_NONE : PROT_READ | PROT_WRITE);
}

static void on_fault(int signal, siginfo_t *info, void *context) {
  char *at = info->si_addr;
  for (region *r = regions; r && info->si_code == SEGV_ACCERR; r = r->next) {
    if (at < r->base || at >= r->base + r->size) continue;
    if (!__sync_lock_test_and_set(&used, 1)) {
      first.address = at;
      first.write = -1;
#ifdef __x86_64__
      first.write = (int)(((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1);
#endif
      first.n = backtrace(first.frames, sizeof first.frames / sizeof *first.frames);
    }
    mprotect(r->base, r->size, PROT_READ | PROT_WRITE);
    return;
  }
  if (before.sa_flags & SA_SIGINFO)
    before.sa_sigaction(signal, info, context);
  else
    sigaction(signal, &before, NULL); // what it did, it does when the instruction is tried again
}

void *vg_map(size_t size) {
  size = (size + 4095) / 4096 * 4096;
  char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  pthread_mutex_lock(&lock);
  region *r = regions;
  while (r && r->base) r = r->next;
  if (r == NULL) {
    r = calloc(1, sizeof *r);
    r->next = regions;
    regions = r;
  }
  r->size = size;
  r->base = p;
  if (closed) mprotect(p, size, PROT_NONE);
  pthread_mutex_unlock(&lock);
  return p;
}
void vg_unmap(void *p) {
  pthread_mutex_lock(&lock);
  region *r = regions;
  while (r && r->base != p) r = r->next;
  if (r) {
    r->base = NULL;
    munmap(p, r->size);
  }
  pthread_mutex_unlock(&lock);
}

static void count(int *what, int by) {
  pthread_mutex_lock(&lock);
  *what += by;
  protect();
  pthread_mutex_unlock(&lock);
}
void vg_host_begins(void) {
  struct sigaction now;
  sigaction(SIGSEGV, NULL, &now);
  if (now.sa_sigaction != on_fault) {
    void *frame;
    backtrace(&frame, 1); // loads what it takes, which a handler could not
    before = now;
    memset(&now, 0, sizeof now);
    now.sa_sigaction = on_fault;
    now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigfillset(&now.sa_mask);
    sigaction(SIGSEGV, &now, NULL);
  }
  count(&host_runs, 1);
}
void vg_host_ends(void) { count(&host_runs, -1); }
void vg_device_begins(void) { count(&device_works, 1); }
void vg_device_ends(void) { count(&device_works, -1); }

int vg_used(vg_use *use) {
  if (!used) return 0;
  *use = first;
  used = 0;
  return 1;
}
