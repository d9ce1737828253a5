// Interface between the runtime library in host/ and Go.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/hooks.h"

// vg_install loads the runtime and driver libraries and installs Go's functions. It returns NULL or an error text that
// the caller frees.
char *vg_install(const char *path, const char *driver, int order); // order: check the order of operations

// Functions of the runtime library, fisub_vgpu_unawaited and so on.
int vg_unawaited(const char **kernel);
int vg_pending(const char **name, const char **text);
void *vg_stream(void);

// Allocation functions for tvm-ffi.
int vg_alloc(uint64_t *address, size_t size);
int vg_release(uint64_t address);

// Device memory is inaccessible while host code runs, except while the device works. The first access by host code is
// recorded; then the region is made accessible and the access succeeds.
//
// Regions are far apart. Their addresses depend only on the earlier allocations of the process. A region takes no
// memory until it is touched.
enum { VG_TENSOR, VG_OWN, VG_OPEN, VG_KINDS }; // arguments of a call; the submission's own; also for host code
enum { VG_POISON = 0xff };                      // fills VG_OWN; other memory is zero
enum { VG_INTEGER_POISON = 0x7f };              // fills outputs of integers
void *vg_map(size_t bytes, int kind);           // NULL: out of memory
void vg_unmap(void *p);

// vg_map_file maps part of a file privately over pages of a region; a page takes memory once it is written to. It
// returns 0 if the pages cannot be mapped.
int vg_map_file(void *p, size_t bytes, int fd, int64_t offset);

// vg_copy copies n bytes, which may overlap, between memory of host or device. It returns NULL, or an address that is
// not accessible.
void *vg_copy(void *to, const void *from, size_t n);

// vg_zero sets n bytes of device memory to 0. Whole pages of large memory are mapped again: they take no memory until
// they are written to.
void vg_zero(void *p, size_t n);

// vg_unwritten marks memory as unwritten. It returns the distance from a byte to its shadow, which becomes 1 when the
// byte is written, or 0 if the memory has no shadow.
int64_t vg_unwritten(void *p, size_t size);

// vg_guard replaces the guarded memory: whole pages of VG_OPEN that are inaccessible while host code runs or, unless
// closed, read-only. An access to it is recorded, like one to device memory.
typedef struct {
  uint64_t from, to;
  bool closed;
} vg_guarded;
void vg_guard(const vg_guarded *all, int n);

void vg_host_begins(void);
void vg_host_ends(void);
void vg_device_begins(void);
void vg_device_ends(void);

// The first access to inaccessible memory since the last call of vg_used. Frames are innermost first.
typedef struct {
  void *address, *frames[16];
  int n, write; // write: 1, 0, or -1 if unknown
} vg_use;
int vg_used(vg_use *use); // 0: no such access
