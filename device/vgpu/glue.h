// Between the runtime library in host/ and Go.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "host/hooks.h"

// vg_install loads the libraries of the runtime and the driver and gives it Go's functions; the result is an error's text, to be freed, or NULL.
char *vg_install(const char *path, const char *driver);

// vg_unawaited is fisub_vgpu_unawaited of the runtime library.
int vg_unawaited(const char **kernel);

// As tvm-ffi wants them.
int vg_alloc(uint64_t *address, size_t size);
int vg_release(uint64_t address);

// Memory of the device, which a host's code cannot use: it is closed while host code runs, except while the device
// works. A host's use of it is kept, opens what it has used, and goes on.
//
// Each region lies by itself, far from others, at an address that is the same whenever the process has allocated the same before.
// It takes no memory before it is touched.
enum { VG_TENSOR, VG_OWN, VG_OPEN, VG_KINDS }; // of the call; of the submission; what the host's code may use too
enum { VG_POISON = 0xff };                      // what memory of the submission is filled with; other is zeros
void *vg_map(size_t bytes, int kind);           // NULL: there is no memory
void vg_unmap(void *p);

// vg_map_file maps part of a file privately over pages of a region; a page takes memory once it is written to. It returns 0 if the
// pages cannot be mapped.
int vg_map_file(void *p, size_t bytes, int fd, int64_t offset);

// vg_unwritten says that nothing was written to memory. The result is how far from each byte its shadow lies, which becomes 1 when
// the byte is written to; 0 where there is none.
int64_t vg_unwritten(void *p, size_t size);

void vg_host_begins(void);
void vg_host_ends(void);
void vg_device_begins(void);
void vg_device_ends(void);

// The first use of closed memory since the last call, by the innermost frames first.
typedef struct {
  void *address, *frames[16];
  int n, write; // write: 1, 0, or -1 where it is not known
} vg_use;
int vg_used(vg_use *use); // 0: there was none
