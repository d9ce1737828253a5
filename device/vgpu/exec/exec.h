// The executor of the virtual GPU runs decoded PTX on warps of 32 lanes.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "codes.h"

// An instruction. Operands (d, a, b, c, guard, want) are encoded as in codes.h.
typedef struct {
  uint16_t op;
  uint8_t flags;
  uint8_t kind;   // depends on op: a comparison, a space, a rounding
  int32_t guard;  // the predicate, -1: none
  int32_t d, a, b, c;
  int32_t x, n;   // index in extra and number of further operands
  int64_t imm;
  int32_t line;   // index of the instruction in the source
  int32_t want;   // member mask of a .sync instruction, -1: all lanes
} vg_inst;

// Machine code for n instructions, for all lanes or for those of a mask; n is 0 without. base is as in run.
typedef struct {
  void (*full)(uint8_t *const *base);
  void (*part)(uint8_t *const *base, uint32_t mask);
  int32_t n;
} vg_native;

// A function. In a frame, a 64-bit register takes 256 bytes, a narrower one 128, a predicate 4.
typedef struct {
  vg_inst *code;
  int32_t ncode;
  int32_t *extra;
  uint8_t *pool;
  int32_t frame_size;
  int32_t local_size; // bytes per lane
  int32_t stack;      // bytes of a thread's stack that a call takes
  int32_t id;
  bool calls; // it calls other functions
  int32_t *tracks; // see taint.h, or NULL
  int32_t nregs;   // PTX registers, for tracks
  vg_native *native; // by the first instruction, or NULL
} vg_func;

typedef struct {
  uint64_t base, size;
  bool readonly;
  int64_t shadow; // distance from a byte to its shadow, 1 if the byte was written; 0: all bytes count as written
  int32_t element; // bytes of an element; 0: unknown
  uint8_t *sectors; // marks of its sectors, see count.h, or NULL
} vg_range;

// What was counted at an instruction, see count.h.
typedef struct {
  uint64_t warps, threads, active; // executions by a warp, their lanes, and the lanes whose guard is true
  uint64_t divergent;              // branches whose lanes part
  // Accesses to global memory: requests, sectors, the least number that has the same bytes, lines, bytes of all lanes.
  // Bulk and tensor copies have requests and bytes only, cp.async.bulk.tensor those of boxes.
  uint64_t requests, sectors, least, lines, bytes;
  uint64_t partial;                   // boxes that are partly outside of their tensor
  // Accesses to the block's shared memory, their wavefronts, the least number that has the same bytes, and the
  // wavefronts that bank conflicts add.
  uint64_t shared, wavefronts, ideal, conflicts;
  uint64_t remote;                    // accesses to the shared memory of other blocks
  uint64_t operations;                // floating-point or integer, of tcgen05.mma
  // Distances in bytes between neighbouring lanes, if they have always been the same: VG_UNKNOWN before the first access
  // of two lanes, VG_VARIES after different distances.
  int64_t global_stride, shared_stride;
} vg_count;
#define VG_UNKNOWN 0
#define VG_VARIES INT64_MIN

// What was counted in a launch: sectors of global memory that it read, those of them that it had not written before,
// those that it wrote, and the largest number of atomic operations on one address.
typedef struct {
  uint64_t read, cold, written, chain;
} vg_totals;

enum { STOP_ASKED = 2, MAX_WORKERS = 256 };

// The index of a function and of an instruction in it.
typedef struct {
  int32_t func, pc;
} vg_location;

#define FAULT_ARGUMENTS(name, hazard, ...) struct { __VA_ARGS__ } name;
typedef struct {
  int32_t kind;
  int32_t block[3];
  int32_t thread; // number in the block, -1 - warp if the lane is unknown
  vg_location at;
  union { FAULTS(FAULT_ARGUMENTS) } args;
} vg_fault;
#undef FAULT_ARGUMENTS

// Threads of a block that wait forever at the same place for the same thing.
enum { MAX_WAITS = 8 };
typedef struct {
  vg_fault fault; // of the first thread
  int32_t threads;
  int32_t warp;   // the last one that was counted, and its lanes
  uint32_t lanes;
} vg_wait;

// Progress of a worker: its effects that other workers may notice, and proof that it waits. Each has its own cache
// line.
typedef struct {
  volatile uint64_t effects; // number of writes, arrivals at barriers and ended threads
  volatile uint64_t waiting; // 1 + the effects of all workers when its threads were proved to wait; UINT64_MAX: ended
  uint64_t pad[6];
} vg_progress;

// The heap of device malloc: size bytes at base. The first used bytes were allocated at some time; free holds lists of
// free blocks by size class.
typedef struct {
  uint8_t *base;
  uint64_t size, used;
  uint64_t free[48];
  int32_t lock;
} vg_heap;

// A launch by a kernel. params is memory of device malloc until the launch, then a copy that Go frees.
typedef struct {
  uint64_t params;
  uint32_t func, grid[3], block[3], shared;
  uint64_t stream;
  uint64_t order; // of the launch; 0: it was only prepared
} vg_child;

// A launch. The workers only read it.
typedef struct {
  vg_func **funcs;
  int32_t nfuncs, entry;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_static, shared_dynamic, shared_base;
  uint32_t stack; // bytes of a thread's stack
  uint8_t *params;
  uint32_t params_size;
  uint64_t workspace; // of a cooperative launch: its size and the grid barrier, 4 bytes each; else 0
  vg_range *ranges;   // sorted by base
  int32_t nranges;
  int32_t workers;          // number of threads that call vg_work
  int32_t resident;         // maximum number of blocks running at once on a GPU
  int32_t worker_resident;  // the same, on one worker
  int32_t strict;           // hazards that are faults
  bool async;               // the kernel may use asynchronous operations that read shared memory
  bool check_width;         // check for narrow accesses within elements
  bool check_local;         // check for reads of unwritten local memory
  bool record;              // record accesses to global memory in vg_state, while races are checked
  uint64_t races_until;     // maximum number of instructions checked for races
  int32_t *counter;         // by function: the index of its first instruction in vg_state.counters; NULL: nothing is counted
  int32_t ncounters;
  const int32_t *entries;   // by function: bytes of a kernel's parameters, -1: it is none
  uint64_t every;           // only the first and the last cluster and every n-th one run; 0: all
} vg_launch;

// If several workers have faults or hazards, the one in the first cluster is reported: all runs report the same.
typedef struct {
  bool set;         // the report has a fault
  uint32_t cluster; // of the fault
  vg_fault fault;
} vg_report;

// A span is a set of a warp's accesses: those of all lanes up to tick all, and those of some lanes up to tick upto.
typedef struct { uint32_t all, upto, lanes; } vg_span;

// Bytes of global memory that a launch has accessed in the same ways, and the place of one access (0: unknown).
typedef struct {
  uint64_t from, to;
  int32_t kinds; // USE_*
  vg_location at;
} vg_access;

// The state of a launch, common to its workers.
typedef struct {
  volatile int32_t stop;   // no further instruction is executed; STOP_ASKED: not because of a fault
  int32_t races;           // check for races; ends with the first race
  volatile int32_t serial; // only the first worker runs, while races are checked
  int32_t started;         // workers that have started
  uint64_t next;           // the next cluster to run
  uint64_t ended;          // clusters that have ended
  uint64_t executed;
  uint64_t *counts;        // by op, or NULL
  vg_count *counters;      // by instruction
  vg_totals totals;
  uint64_t *released;      // by cluster: time of its last release to other clusters, see races.h; or NULL
  vg_span *spans;          // by cluster and warp: the released accesses; or NULL
  vg_progress *progress;   // by worker
  vg_heap *heap;           // of device malloc, NULL if no kernel uses it
  vg_child *children;      // launches by the kernel, which runs on one worker; Go frees them
  uint64_t nchildren, launches, handles; // launches: of them, those that were launched; handles: streams and events
  vg_access *accesses;     // sorted by address; Go frees them
  uint64_t naccesses;
  bool fenced;             // some thread has executed a fence or a release
  volatile int32_t lock;   // of fault and hazards
  vg_report fault, hazards[HAZARD_COUNT];
  vg_wait waits[MAX_WAITS]; // of a deadlock; the first one is fault
  int32_t nwaits;
  volatile uint32_t first[MAX_WORKERS]; // by worker: the first cluster in which it may still fault
} vg_state;

// The result of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col. host/driver.c has the same definition. CUTLASS clears
// bit 21 of the second word of small tensors' maps, for a fault of older drivers: that of the magic number is 0.
#define VG_TENSOR_MAP 0x70616d726f4d6e74ull
typedef struct {
  uint64_t address, magic, strides[4]; // in bytes, of dimensions 1 to 4
  uint32_t dims[5];                    // minus one
  uint16_t box[5];                     // im2col: channels of a pixel, and pixels
  uint8_t steps[5], type, rank, interleave, swizzle, atom, fill, im2col; // atom: CUtensorMapSwizzle - 3, of 128 bytes
  int16_t lower[3], upper[3];          // im2col: corners of the pixels, relative to the tensor's, innermost first
} vg_tensor_map;

// A texture or surface object, whose handle is its address. host/texture.h makes them. The memory need not exist any
// more: each texel is checked as a load is.
#define VG_TEXTURE 0x65727574786574ull
#define VG_SURFACE 0x65636166727573ull
typedef struct {
  uint64_t magic, address, row, slice; // bytes from one row, and from one slice or layer, to the next
  uint32_t size[3];                    // in elements; the third: depth, layers, or faces of cubes
  uint8_t dims, layered, cube, linear_memory; // dims: of a layer
  uint8_t bytes, channels, type;       // of an element; type: a cudaChannelFormatKind
  uint8_t mode[3], linear, normalized, floats; // cudaTextureAddressMode, filter, coordinates, integers read as 0 to 1
  float border[4];
} vg_texture;

// vg_work runs blocks of the launch until none is left or one faults. Several threads may call it at once.
void vg_work(const vg_launch *l, vg_state *s, int wide);
