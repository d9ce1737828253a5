// Bulk stores, bulk reductions and tensor stores: who reads the shared memory until when, and which fence has to come
// before. For sm_90 and later.
#include "async.cuh"

// The first output of a tile of a block, and of number i of a box of a tensor map.
DEVICE int first(int tile, int size) { return tile * size; }
__host__ __device__ static int in_box(int block, int i) {
  return (block / 2 * kBoxY + i / kBoxX) * kWidth + block % 2 * kBoxX + i % kBoxX;
}

// Two rounds through one tile.
template <Bug B> __global__ void store(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  int t = threadIdx.x;
  for (int round = 0; round < 2; round++) {
    int base = first(blockIdx.x * 2 + round, 512);
    if (B == FENCE_FIRST) fence_proxy();
    for (int i = t; i < 512; i += 128) {
      tile[i] = in[base + i] * 2;  // hazard: store.reuse store.other-waits store.no-commit
    }
    if (B != NO_FENCE && B != FENCE_FIRST && B != ISSUER_FENCE && (B != ONE_FENCES || t == 0)) fence_proxy();
    __syncthreads();
    if (t == 0) {
      if (B == ISSUER_FENCE) fence_proxy();
      // hazard: store.no-fence store.fence-first store.one-fences store.no-wait store.no-commit
      bulk_store(out + base, tile, sizeof tile);
      if (B != NO_COMMIT) commit();
      if (B != REUSE && B != OTHER_WAITS && (B != NO_WAIT || round == 0)) wait_read<0>();
    }
    if (B == OTHER_WAITS && t == 32) wait_read<0>();
    __syncthreads();
  }
  if (t == 0 && (B == REUSE || B == OTHER_WAITS)) wait_read<0>();
}  // hazard: store.no-wait store.no-commit
static unsigned twice(const unsigned* in, int i) { return in[i] * 2; }

// The epilogue of a persistent kernel: two stages, of which one is being stored while the other is written.
template <Bug B> __global__ void staged(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned stages[2][256];
  int t = threadIdx.x;
  for (int round = 0; round < 6; round++) {
    int base = first(blockIdx.x * 6 + round, 256);
    unsigned* stage = stages[round % 2];
    if (t == 0 && B != LATE_WAIT) wait_read<B == TOO_FEW ? 2 : 1>();
    __syncthreads();
    if (t == 0 && B == LATE_WAIT) wait_read<1>();
    stage[t] = in[base + t] + 5;                // hazard: staged.too-few staged.late-wait
    stage[t + 128] = in[base + t + 128] + 5;    // hazard: staged.too-few staged.late-wait
    fence_proxy();
    __syncthreads();
    if (t == 0) {
      bulk_store(out + base, stage, 1024);
      commit();
    }
  }
  if (t == 0) wait_read<0>();
}
static unsigned plus5(const unsigned* in, int i) { return in[i] + 5; }

// Loaded, changed and stored in the same tile.
template <Bug B> __global__ void in_place(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  __shared__ uint64_t full;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  for (int round = 0; round < 3; round++) {
    int base = first(blockIdx.x * 3 + round, 512);
    if (t == 0) {
      if (B != REFILL) wait_read<0>();
      arrive_expect(&full, sizeof tile);
      bulk_load(tile, in + base, sizeof tile, &full);  // hazard: in-place.refill
    }
    wait(&full, round % 2);
    for (int i = t; i < 512; i += 128) tile[i] = tile[i] * 3 + 1;
    if (B != NO_FENCE) fence_proxy();
    __syncthreads();
    if (t == 0) {
      bulk_store(out + base, tile, sizeof tile);  // hazard: in-place.no-fence
      commit();
    }
  }
  if (t == 0) wait_group<0>();
}
static unsigned times3(const unsigned* in, int i) { return in[i] * 3 + 1; }

// What was stored is read again by the same block.
template <Bug B> __global__ void readback(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[256];
  int t = threadIdx.x, base = first(blockIdx.x, 512);
  tile[t] = in[base + t] + 1;
  tile[t + 128] = in[base + t + 128] + 1;
  fence_proxy();
  __syncthreads();
  if (t == 0) {
    bulk_store(out + base, tile, sizeof tile);
    commit();
    if (B == READ_ONLY) wait_read<0>();
    else wait_group<0>();
  }
  __syncthreads();
  for (int i = t; i < 256; i += 128) {
    unsigned v = out[base + 255 - i];  // hazard: readback.read-only
    out[base + 256 + i] = v * 2;
  }
}
static unsigned mirrored(const unsigned* in, int i) {
  int base = i / 512 * 512, at = i % 512;
  return at < 256 ? in[i] + 1 : (in[base + 511 - at] + 1) * 2;
}

// All blocks add their tiles to the same output.
template <Bug B> __global__ void add(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned partial[256];
  int t = threadIdx.x;
  for (int round = 0; round < 2; round++) {
    int base = first(blockIdx.x * 2 + round, 256);
    partial[t] = in[base + t];              // hazard: add.reuse
    partial[t + 128] = in[base + t + 128];  // hazard: add.reuse
    if (B != NO_FENCE) fence_proxy();
    __syncthreads();
    if (t == 0) {
      bulk_add(out, partial, sizeof partial);  // hazard: add.no-fence add.no-wait
      commit();
      if (B != REUSE && (B != NO_WAIT || round == 0)) wait_read<0>();
    }
    __syncthreads();
  }
  if (t == 0 && B == REUSE) wait_read<0>();
}  // hazard: add.no-wait
static unsigned column_sum(const unsigned* in, int i) {
  unsigned sum = 0;
  for (int row = 0; row < 16; row++) sum += in[row * 256 + i];
  return sum;
}

// Counts by atomics on shared memory.
template <Bug B> __global__ void histogram(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned counts[128];
  int t = threadIdx.x, base = first(blockIdx.x, 1024);
  counts[t] = 0;
  __syncthreads();
  for (int i = t; i < 1024; i += 128) atomicAdd(&counts[in[base + i] % 128], 1);
  if (B != NO_FENCE) fence_proxy();
  __syncthreads();
  if (t == 0) {
    bulk_add(out, counts, sizeof counts);  // hazard: histogram.no-fence
    commit();
    wait_read<0>();
  }
}
static unsigned count(const unsigned* in, int i) {
  unsigned n = 0;
  for (int k = 0; k < 4096; k++) n += in[k] % 128 == i;
  return n;
}

// Filled by cp.async, which is not a bulk copy: it writes like a store.
template <Bug B> __global__ void cp_async(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  int t = threadIdx.x, base = first(blockIdx.x, 512);
  copy16(tile + t * 4, in + base + t * 4);
  if (B == FENCE_FIRST) fence_proxy();
  copy_wait_all();
  if (B == NONE) fence_proxy();
  __syncthreads();
  if (t == 0) {
    bulk_store(out + base, tile, sizeof tile);  // hazard: cp-async.*
    commit();
    wait_group<0>();
  }
}
static unsigned same(const unsigned* in, int i) { return in[i]; }

// Four warps write, a fifth one stores, and named barriers hand the tile over and back.
template <Bug B> __global__ void handoff(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  int t = threadIdx.x;
  for (int round = 0; round < 3; round++) {
    int base = first(blockIdx.x * 3 + round, 512);
    if (t < 128) {
      if (round) bar_sync(2, 160);
      for (int i = t; i < 512; i += 128) {
        tile[i] = in[base + i] + 5;  // hazard: handoff.early
      }
      if (B != NO_FENCE) fence_proxy();
      bar_arrive(1, 160);
    } else {
      bar_sync(1, 160);
      if (elect()) {
        bulk_store(out + base, tile, sizeof tile);  // hazard: handoff.no-fence handoff.early
        commit();
        if (B != EARLY) wait_read<0>();
      }
      __syncwarp();
      if (round < 2) bar_arrive(2, 160);
    }
  }
  if (B == EARLY && t == 128) wait_read<0>();
}

// The same with mbarriers, at which each writing thread arrives after its fence.
template <Bug B> __global__ void handoff_mbarrier(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  __shared__ uint64_t full, empty;
  int t = threadIdx.x;
  if (t == 0) {
    init(&full, 128);
    init(&empty, 1);
    fence_init();
  }
  __syncthreads();
  for (int round = 0; round < 3; round++) {
    int base = first(blockIdx.x * 3 + round, 512);
    if (t < 128) {
      if (round) wait(&empty, round - 1 & 1);
      for (int i = t; i < 512; i += 128) {
        tile[i] = in[base + i] + 5;  // hazard: handoff-mbarrier.early
      }
      if (B != NO_FENCE) fence_proxy();
      arrive(&full);
    } else if (t == 128) {
      wait(&full, round & 1);
      bulk_store(out + base, tile, sizeof tile);  // hazard: handoff-mbarrier.*
      commit();
      if (B == EARLY) arrive(&empty);
      wait_read<0>();
      if (B != EARLY) arrive(&empty);
    }
  }
}

// While one part of a tile is being stored, threads read that part, and write bytes next to it without a fence.
__global__ void neighbours(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[1024];
  int t = threadIdx.x, base = first(blockIdx.x, 1024);
  unsigned* mine = tile + t * 8;  // 4 numbers for the store, 4 beside them
  for (int i = 0; i < 4; i++) mine[i] = in[base + t * 8 + i] + 1;
  fence_proxy();
  for (int i = 4; i < 8; i++) mine[i] = 0;
  bulk_store(out + base + t * 8, mine, 16);
  commit();
  for (int i = 4; i < 8; i++) mine[i] = mine[i - 4] + 2;
  wait_read<0>();
  mine[0] += 3;
  out[base + t * 8 + 4] = mine[0];
  for (int i = 5; i < 8; i++) out[base + t * 8 + i] = mine[i];
}
static unsigned halves(const unsigned* in, int i) {
  if (i % 8 < 4) return in[i] + 1;
  return in[i - 4] + (i % 8 == 4 ? 4 : 3);
}

// Global memory that the block itself has written is loaded by a bulk copy.
__global__ void through_global(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  __shared__ uint64_t full;
  int t = threadIdx.x, base = first(blockIdx.x, 1024);
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  for (int i = t; i < 512; i += 128) out[base + i] = in[base + i] + 1;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    arrive_expect(&full, sizeof tile);
    bulk_load(tile, out + base, sizeof tile, &full);
  }
  wait(&full, 0);
  for (int i = t; i < 512; i += 128) out[base + 512 + i] = tile[511 - i] * 2;
}
static unsigned doubled(const unsigned* in, int i) {
  int base = i / 1024 * 1024, at = i % 1024;
  return at < 512 ? in[i] + 1 : (in[base + 1023 - at] + 1) * 2;
}

// stmatrix, a named barrier of four of the five warps, and a tensor store by one lane of the first.
template <Bug B> __global__ void stmatrix(const __grid_constant__ Maps maps, const unsigned* in, unsigned* out,
                                          CUtensorMap*) {
  __shared__ alignas(128) unsigned tile[kBoxX * kBoxY];
  int t = threadIdx.x, warp = t / 32, lane = t % 32;
  if (warp == 4) return;
  unsigned v[4];
  for (int j = 0; j < 4; j++) v[j] = in[in_box(blockIdx.x, warp * 128 + j * 32 + lane)] + 7;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared(tile + t * 4)),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
  if (B != NO_FENCE && (B != ONE_FENCES || warp == 0)) fence_proxy();
  bar_sync(1, 128);
  if (warp == 0 && elect()) {
    // hazard: stmatrix.no-fence stmatrix.one-fences
    tensor_store(&maps.out, blockIdx.x % 2 * kBoxX, blockIdx.x / 2 * kBoxY, tile);
    commit();
    wait_read<0>();
  }
}
static unsigned plus7(const unsigned* in, int i) { return in[i] + 7; }

// Boxes of a tensor map, one after another.
template <Bug B> __global__ void tensor(const __grid_constant__ Maps maps, const unsigned* in, unsigned* out,
                                        CUtensorMap*) {
  __shared__ alignas(128) unsigned tile[kBoxX * kBoxY];
  int t = threadIdx.x;
  for (int round = 0; round < 2; round++) {
    int box = blockIdx.x * 2 + round;
    for (int i = t; i < kBoxX * kBoxY; i += 128) {
      tile[i] = in[in_box(box, i)] + 7;  // hazard: tensor.reuse
    }
    if (B != NO_FENCE) fence_proxy();
    __syncthreads();
    if (t == 0) {
      tensor_store(&maps.out, box % 2 * kBoxX, box / 2 * kBoxY, tile);  // hazard: tensor.no-fence tensor.no-wait
      commit();
      if (B != REUSE && (B != NO_WAIT || round == 0)) wait_read<0>();
    }
    __syncthreads();
  }
  if (t == 0 && B == REUSE) wait_read<0>();
}  // hazard: tensor.no-wait

// A box loaded, changed in place and stored, and at last added once more.
template <Bug B> __global__ void tensor_in_place(const __grid_constant__ Maps maps, const unsigned* in, unsigned* out,
                                                 CUtensorMap*) {
  __shared__ alignas(128) unsigned tile[kBoxX * kBoxY];
  __shared__ uint64_t full;
  int t = threadIdx.x, x = blockIdx.x % 2 * kBoxX, y = blockIdx.x / 2 * kBoxY;
  if (t == 0) {
    init(&full, 1);
    fence_init();
  }
  __syncthreads();
  if (t == 0) {
    arrive_expect(&full, sizeof tile);
    tensor_load(tile, &maps.in, x, y, &full);
  }
  wait(&full, 0);
  for (int i = t; i < kBoxX * kBoxY; i += 128) tile[i] *= 2;
  if (B != NO_FENCE) fence_proxy();
  __syncthreads();
  if (t == 0) {
    tensor_store(&maps.out, x, y, tile);  // hazard: tensor-in-place.no-fence
    commit();
    wait_group<0>();
    tensor_add(&maps.out, x, y, tile);  // hazard: tensor-in-place.no-wait
    commit();
    if (B != NO_WAIT) wait_read<0>();
  }
}  // hazard: tensor-in-place.no-wait
static unsigned times4(const unsigned* in, int i) { return in[i] * 4; }

// A tensor map that the kernel itself writes to global memory.
template <Bug B> __global__ void map(const __grid_constant__ Maps maps, const unsigned* in, unsigned* out,
                                     CUtensorMap* scratch) {
  __shared__ alignas(128) unsigned tile[kBoxX * kBoxY];
  __shared__ uint64_t full;
  int t = threadIdx.x, x = blockIdx.x % 2 * kBoxX, y = blockIdx.x / 2 * kBoxY;
  CUtensorMap* map = scratch + blockIdx.x;
  if (t == 0) {
    init(&full, 1);
    fence_init();
    *map = maps.in;
    if (B != NO_FENCE) {
      asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
      asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    }
    arrive_expect(&full, sizeof tile);
    tensor_load(tile, map, x, y, &full);  // hazard: map.no-fence
  }
  __syncthreads();
  wait(&full, 0);
  for (int i = t; i < kBoxX * kBoxY; i += 128) out[in_box(blockIdx.x, i)] = tile[i];
}

static const Case cases[] = {
    {"store", store<NONE>, 4, 128, 4096, twice},
    {"store.no-fence", store<NO_FENCE>, 4, 128, 4096, twice},
    {"store.fence-first", store<FENCE_FIRST>, 4, 128, 4096, twice},
    {"store.one-fences", store<ONE_FENCES>, 4, 128, 4096, twice},
    {"store.issuer-fence", store<ISSUER_FENCE>, 4, 128, 4096, twice},
    {"store.reuse", store<REUSE>, 4, 128, 4096, twice},
    {"store.other-waits", store<OTHER_WAITS>, 4, 128, 4096, twice},
    {"store.no-commit", store<NO_COMMIT>, 4, 128, 4096, twice},
    {"store.no-wait", store<NO_WAIT>, 4, 128, 4096, twice},
    {"staged", staged<NONE>, 4, 128, 6144, plus5},
    {"staged.too-few", staged<TOO_FEW>, 4, 128, 6144, plus5},
    {"staged.late-wait", staged<LATE_WAIT>, 4, 128, 6144, plus5},
    {"in-place", in_place<NONE>, 4, 128, 6144, times3},
    {"in-place.refill", in_place<REFILL>, 4, 128, 6144, times3},
    {"in-place.no-fence", in_place<NO_FENCE>, 4, 128, 6144, times3},
    {"readback", readback<NONE>, 4, 128, 2048, mirrored},
    {"readback.read-only", readback<READ_ONLY>, 4, 128, 2048, mirrored},
    {"add", add<NONE>, 8, 128, 256, column_sum},
    {"add.reuse", add<REUSE>, 8, 128, 256, column_sum},
    {"add.no-fence", add<NO_FENCE>, 8, 128, 256, column_sum},
    {"add.no-wait", add<NO_WAIT>, 8, 128, 256, column_sum},
    {"histogram", histogram<NONE>, 4, 128, 128, count},
    {"histogram.no-fence", histogram<NO_FENCE>, 4, 128, 128, count},
    {"cp-async", cp_async<NONE>, 4, 128, 2048, same},
    {"cp-async.no-fence", cp_async<NO_FENCE>, 4, 128, 2048, same},
    {"cp-async.fence-first", cp_async<FENCE_FIRST>, 4, 128, 2048, same},
    {"handoff", handoff<NONE>, 4, 160, 6144, plus5},
    {"handoff.no-fence", handoff<NO_FENCE>, 4, 160, 6144, plus5},
    {"handoff.early", handoff<EARLY>, 4, 160, 6144, plus5},
    {"handoff-mbarrier", handoff_mbarrier<NONE>, 4, 160, 6144, plus5},
    {"handoff-mbarrier.no-fence", handoff_mbarrier<NO_FENCE>, 4, 160, 6144, plus5},
    {"handoff-mbarrier.early", handoff_mbarrier<EARLY>, 4, 160, 6144, plus5},
    {"neighbours", neighbours, 4, 128, 4096, halves},
    {"through-global", through_global, 4, 128, 4096, doubled},
    {"stmatrix", stmatrix<NONE>, 4, 160, 2048, plus7},
    {"stmatrix.no-fence", stmatrix<NO_FENCE>, 4, 160, 2048, plus7},
    {"stmatrix.one-fences", stmatrix<ONE_FENCES>, 4, 160, 2048, plus7},
    {"tensor", tensor<NONE>, 4, 128, 4096, plus7},
    {"tensor.no-fence", tensor<NO_FENCE>, 4, 128, 4096, plus7},
    {"tensor.reuse", tensor<REUSE>, 4, 128, 4096, plus7},
    {"tensor.no-wait", tensor<NO_WAIT>, 4, 128, 4096, plus7},
    {"tensor-in-place", tensor_in_place<NONE>, 4, 128, 2048, times4},
    {"tensor-in-place.no-fence", tensor_in_place<NO_FENCE>, 4, 128, 2048, times4},
    {"tensor-in-place.no-wait", tensor_in_place<NO_WAIT>, 4, 128, 2048, times4},
    {"map", map<NONE>, 4, 128, 2048, same},
    {"map.no-fence", map<NO_FENCE>, 4, 128, 2048, same},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
