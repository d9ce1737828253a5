// The executor of the virtual GPU: decoded PTX over warps of 32 lanes.
#pragma once
#include <stdint.h>

#include "codes.h"

// One instruction.
typedef struct {
  uint16_t op;
  uint8_t flags;
  uint8_t kind;   // of op: a comparison, a space, a rounding
  int32_t guard;  // place of the predicate, -1: none
  int32_t d, a, b, c;
  int32_t x, n;   // first and number of further operands in extra
  int64_t imm;
  int32_t line;   // index of the place in the source
  int32_t want;   // place of the member mask of a .sync instruction, -1: all lanes
} vg_inst;

// One function. Registers of 32 bits and less take 128 bytes of a frame, those of 64 bits 256, predicates 4.
typedef struct {
  vg_inst *code;
  int32_t ncode;
  int32_t *extra;
  uint8_t *pool;
  int32_t frame_size;
  int32_t local_size; // bytes for each lane
  int32_t id;
  int32_t calls; // it calls others
} vg_func;

typedef struct {
  uint64_t base, size;
  int32_t id;
  int32_t readonly;
  int64_t shadow; // how far from each byte the one lies that is 1 when it was written to; 0: all of it was
} vg_range;

enum { STOP_ASKED = 2, MAX_WORKERS = 256 };

typedef struct {
  int32_t kind, write, size, lane;
  int32_t block[3], thread[3];
  int32_t func, pc;
  uint64_t address, limit;
  int32_t waiting;    // threads that wait, of FAULT_DEADLOCK and FAULT_SPIN
  int32_t other_func, other_pc;
  // Of FAULT_RACE, whose size is 1 if the other is of another cluster. If the lanes of a warp are not told apart, lane is -1,
  // and other_thread is -1 - warp.
  int32_t other_write, other_thread;
} vg_fault;

// What a worker has done that others may notice, and proof that it waits. Each has a cache line.
typedef struct {
  volatile uint64_t effects; // writes, arrivals at barriers, ended threads
  volatile uint64_t waiting; // 1 + the effects of all workers for which its threads cannot go on; UINT64_MAX: it has ended
  uint64_t pad[6];
} vg_progress;

// The heap of device malloc: size bytes at base, of which used are in use or were; free lists by size class.
typedef struct {
  uint8_t *base;
  uint64_t size, used;
  uint64_t free[48];
  int32_t lock;
} vg_heap;

typedef struct {
  vg_func **funcs;
  int32_t nfuncs, entry;
  uint32_t grid[3], block[3], cluster[3];
  uint32_t shared_static, shared_dynamic, shared_base;
  uint8_t *params;
  uint32_t params_size;
  uint64_t workspace; // of a cooperative launch: its size and the barrier of the grid, 4 bytes each; else 0
  vg_range *ranges; // sorted by base
  int32_t nranges;
  int32_t resident; // most blocks at once on one worker
  int32_t strict;   // hazards that are faults
  int32_t local;    // reads of local memory that nothing was written to are looked for
  int32_t races;    // races are looked for, until so many instructions are executed
  uint64_t races_until;
  // If not 0: the first worker works alone while races are looked for, with at most this many blocks at once.
  volatile int32_t solo;
  uint64_t *told;   // of each cluster, when it has last told others something
  // shared between workers
  volatile int32_t stop; // no further instruction is executed; STOP_ASKED where that is no fault's doing
  int32_t faulted;
  uint64_t next;
  vg_fault fault;
  uint64_t executed;
  uint64_t *counts; // of each op, or NULL
  int32_t hazard[HAZARD_COUNT]; // 1: hazards has one
  vg_fault hazards[HAZARD_COUNT];
  int32_t workers;         // threads that call vg_work
  vg_progress *progress;   // of each worker
  vg_heap *heap;           // of device malloc, NULL if no kernel calls it
  // Of several workers' faults and hazards the one in the first cluster is told, so that it is the same in every run.
  volatile int32_t lock, joined; // workers that have begun
  uint32_t fault_task, hazard_task[HAZARD_COUNT];
  volatile uint32_t first[MAX_WORKERS]; // of each worker, the first cluster that it may fault in yet
} vg_launch;

// What cuTensorMapEncodeTiled of the runtime library makes: as in host/runtime.c.
#define VG_TENSOR_MAP 0x70616d726f736e74ull
typedef struct {
  uint64_t magic, address, strides[4]; // in bytes, of dimensions 1 to 4
  uint32_t dims[5];                    // less one
  uint16_t box[5];
  uint8_t steps[5], type, rank, interleave, swizzle, fill;
} vg_tensor_map;

// vg_work runs blocks of the launch until none is left or one has faulted; several threads may do so at once.
void vg_work(vg_launch *l, int wide);
