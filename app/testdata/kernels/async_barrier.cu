// Barriers of all kinds inside a block, and between blocks through global memory: what one lane publishes for its warp,
// and the life of an mbarrier. For sm_90 and later.
#include "async.cuh"

constexpr unsigned kAll = 0xffffffff;

// between is what stands between the accesses of the lanes of a warp and the one lane that signals for them. Only
// __syncwarp orders memory.
template <Bug B> DEVICE void between(unsigned v) {
  unsigned used = 0;
  if (B == NONE) __syncwarp();
  if (B == VOTE) used = __ballot_sync(kAll, v > 3);
  if (B == MATCH) used = __match_any_sync(kAll, v);
  if (B == REDUX) used = __reduce_add_sync(kAll, v);
  if (B == FENCE_ONLY) __threadfence();
  asm volatile("" ::"r"(used) : "memory");
}

// One warp loads, four warps read: a ring of stages with a barrier for "full" and one for "empty" each. One lane of
// each reading warp arrives at "empty".
template <Bug B> __global__ void pipeline(const unsigned* in, unsigned* out) {
  constexpr int kStages = 4, kTiles = 10;
  __shared__ alignas(128) unsigned stages[kStages][128];
  __shared__ uint64_t full[kStages], empty[kStages];
  int t = threadIdx.x, warp = t / 32, lane = t % 32;
  if (t == 0) {
    for (int s = 0; s < kStages; s++) {
      init(&full[s], 1);
      init(&empty[s], 4);
    }
    fence_init();
  }
  __syncthreads();
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  if (warp == 4) {
    if (lane == 0) {
      for (int i = 0; i < kTiles; i++) {
        int s = i % kStages;
        wait(&empty[s], i / kStages % 2 ^ 1);
        arrive_expect(&full[s], 512);
        bulk_load(stages[s], in + i * 128, 512, &full[s]);  // hazard: pipeline.*
      }
    }
    return;
  }
  for (int i = 0; i < kTiles; i++) {
    int s = i % kStages;
    wait(&full[s], i / kStages % 2);
    unsigned v = stages[s][127 - t];  // hazard: pipeline.*
    between<B>(v);
    if (B == ELECT ? elect() : lane == 0) arrive(&empty[s]);
    out[i * 128 + t] = v + 1;
  }
}
static unsigned mirrored(const unsigned* in, int i) { return in[i / 128 * 128 + 127 - i % 128] + 1; }

// The same, but every reading thread arrives.
__global__ void pipeline_threads(const unsigned* in, unsigned* out) {
  constexpr int kStages = 2, kTiles = 6;
  __shared__ alignas(128) unsigned stages[kStages][128];
  __shared__ uint64_t full[kStages], empty[kStages];
  int t = threadIdx.x;
  if (t == 128) {
    for (int s = 0; s < kStages; s++) {
      init(&full[s], 1);
      init(&empty[s], 128);
    }
    fence_init();
  }
  __syncthreads();
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  if (t < 128) {
    for (int i = 0; i < kTiles; i++) {
      wait(&full[i % kStages], i / kStages % 2);
      unsigned v = stages[i % kStages][127 - t];
      arrive(&empty[i % kStages]);
      out[i * 128 + t] = v + 1;
    }
  } else if (elect()) {
    for (int i = 0; i < kTiles; i++) {
      if (i >= kStages) wait(&empty[i % kStages], (i / kStages - 1) % 2);
      arrive_expect(&full[i % kStages], 512);
      bulk_load(stages[i % kStages], in + i * 128, 512, &full[i % kStages]);
    }
  }
}

// The loading warp uses cp.async of all its lanes instead of a bulk copy.
__global__ void pipeline_cp_async(const unsigned* in, unsigned* out) {
  constexpr int kStages = 2, kTiles = 6;
  __shared__ alignas(128) unsigned stages[kStages][128];
  __shared__ uint64_t full[kStages], empty[kStages];
  int t = threadIdx.x, warp = t / 32, lane = t % 32;
  if (t < kStages) {
    init(&full[t], 32);
    init(&empty[t], 4);
    fence_init();
  }
  __syncthreads();
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  for (int i = 0; i < kTiles; i++) {
    int s = i % kStages;
    if (warp == 4) {
      wait(&empty[s], i / kStages % 2 ^ 1);
      copy16(&stages[s][lane * 4], in + i * 128 + lane * 4);
      copy_arrive(&full[s]);
    } else {
      wait(&full[s], i / kStages % 2);
      unsigned v = stages[s][127 - t];
      __syncwarp();
      if (lane == 0) arrive(&empty[s]);
      out[i * 128 + t] = v + 1;
    }
  }
  if (warp == 4) copy_wait_all();
}

// Without roles, as Triton compiles a loop: all threads wait for a stage and read it, and after a barrier of the block
// one of them loads another tile into it.
template <Bug B> __global__ void loop(const unsigned* in, unsigned* out) {
  constexpr int kStages = 3, kTiles = 8;
  __shared__ alignas(128) unsigned stages[kStages][128];
  __shared__ uint64_t full[kStages];
  int t = threadIdx.x;
  if (t < kStages) init(&full[t], 1);
  __syncthreads();
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  auto load = [&](int i) {
    arrive_expect(&full[i % kStages], 512);
    bulk_load(stages[i % kStages], in + i * 128, 512, &full[i % kStages]);
  };
  for (int i = 0; i < kStages; i++) {
    if (t == 0) load(i);
  }
  for (int i = 0; i < kTiles; i++) {
    wait(&full[i % kStages], i / kStages % 2);
    if (B == EARLY) __syncthreads();
    unsigned v = stages[i % kStages][127 - t];  // hazard: loop.early
    out[i * 128 + t] = v + 1;
    if (B != EARLY) __syncthreads();
    if (t == 0 && i + kStages < kTiles) load(i + kStages);  // hazard: loop.early
  }
}

// A persistent kernel: the barrier changes its phase with each tile, and the results leave through two stages.
__global__ void persistent(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[2][128], result[2][128];
  __shared__ uint64_t full[2];
  int t = threadIdx.x, turn = 0;
  unsigned phase = 0;
  if (t == 0) {
    init(&full[0], 1);
    init(&full[1], 1);
    fence_init();
    arrive_expect(&full[0], 512);
    bulk_load(tile[0], in + blockIdx.x * 128, 512, &full[0]);
  }
  __syncthreads();
  for (int i = blockIdx.x; i < 30; i += gridDim.x) {
    int next = i + gridDim.x;
    if (t == 0 && next < 30) {
      arrive_expect(&full[turn ^ 1], 512);
      bulk_load(tile[turn ^ 1], in + next * 128, 512, &full[turn ^ 1]);
    }
    wait(&full[turn], phase);
    if (t == 0) wait_read<1>();
    __syncthreads();
    result[turn][t] = tile[turn][127 - t] + 1;
    fence_proxy();
    __syncthreads();
    if (t == 0) {
      bulk_store(out + i * 128, result[turn], 512);
      commit();
    }
    phase ^= turn;
    turn ^= 1;
  }
  if (t == 0) wait_read<0>();
}

// The life of an mbarrier: initialised, used, invalidated, its bytes used as data, initialised again.
template <Bug B> __global__ void life(const unsigned* in, unsigned* out) {
  __shared__ alignas(8) unsigned words[2];
  uint64_t* bar = reinterpret_cast<uint64_t*>(words);
  int t = threadIdx.x;
  unsigned sum = 0;
  if (B != NO_INIT && t == 0) {
    init(bar, 64);  // hazard: life.no-sync
    fence_init();
  }
  if (B != NO_SYNC) __syncthreads();
  arrive(bar);                                           // hazard: life.no-sync life.no-init
  for (int i = 0; i < 100 && !try_wait(bar, 0); i++) {}  // hazard: life.no-sync
  __syncthreads();
  if (B != TWICE) {
    if (t == 0) inval(bar);
    __syncthreads();
    if (B == INVALIDATED) arrive(bar);  // hazard: life.invalidated
    if (t < 2) words[t] = in[blockIdx.x * 2 + t];
    __syncthreads();
    sum = words[0] + words[1];
    __syncthreads();
  } else {
    sum = in[blockIdx.x * 2] + in[blockIdx.x * 2 + 1];
  }
  if (B != OVERWRITTEN && t == 0) {
    init(bar, 64);  // hazard: life.twice
    fence_init();
  }
  __syncthreads();
  arrive(bar);  // hazard: life.overwritten
  for (int i = 0; i < 100 && !try_wait(bar, 0); i++) {}
  out[blockIdx.x * 64 + t] = sum + t;
}
static unsigned pair_sum(const unsigned* in, int i) { return in[i / 64 * 2] + in[i / 64 * 2 + 1] + i % 64; }

// Two warps write, two warps read: double buffers with named barriers, bar.arrive and bar.sync.
template <Bug B> __global__ void named(const unsigned* in, unsigned* out) {
  __shared__ unsigned buffers[2][64];
  int t = threadIdx.x;
  in += blockIdx.x * 512;
  out += blockIdx.x * 512;
  for (int i = 0; i < 8; i++) {
    int s = i % 2;
    if (t < 64) {
      if (i >= 2) bar_sync(3 + s, 128);
      buffers[s][t] = in[i * 64 + t];  // hazard: named.early
      bar_arrive(1 + s, 128);
    } else {
      bar_sync(1 + s, 128);
      if (B == EARLY && i < 6) bar_arrive(3 + s, 128);
      out[i * 64 + t - 64] = buffers[s][127 - t] + 1;  // hazard: named.early
      if (B != EARLY && i < 6) bar_arrive(3 + s, 128);
    }
  }
}
static unsigned mirrored64(const unsigned* in, int i) { return in[i / 64 * 64 + 63 - i % 64] + 1; }

// Every thread arrives, works on its own, and waits for its token before it reads what others wrote.
template <Bug B> __global__ void split(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  __shared__ uint64_t bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 128);
  values[t] = 0;
  __syncthreads();
  unsigned v = in[blockIdx.x * 128 + t];
  values[t] = v;  // hazard: split.early
  uint64_t token;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(shared(&bar)) : "memory");
  unsigned early = 0;
  if (B == EARLY) early = values[127 - t];  // hazard: split.early
  unsigned own = v * 3, done = 0;
  while (!done) {
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared(&bar)), "l"(token) : "memory");
  }
  out[blockIdx.x * 128 + t] = own + (B == EARLY ? early : values[127 - t]);
}
static unsigned mixed(const unsigned* in, int i) { return in[i] * 3 + in[i / 128 * 128 + 127 - i % 128]; }

// One warp hands 32 numbers to another through a flag in shared memory.
template <Bug B> __global__ void flag(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32], ready;
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ready = 0;
  if (threadIdx.x < 32) values[lane] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    unsigned v = in[blockIdx.x * 32 + lane] + 1;
    values[lane] = v;  // hazard: flag.*
    if (B == RELAXED || B == CONSUMER) __syncwarp();
    else between<B>(v);
    if (B == ELECT ? elect() : lane == 0) {
      if (B == RELAXED || B == FENCE_ONLY) store_relaxed(&ready, 1);
      else store_release(&ready, 1);
    }
  } else {
    if (lane == 0) {
      while (load_acquire(&ready) != 1) {
      }
    }
    if (B != CONSUMER) __syncwarp();
    out[blockIdx.x * 32 + lane] = values[31 - lane];  // hazard: flag.*
  }
}
static unsigned mirrored32(const unsigned* in, int i) { return in[i / 32 * 32 + 31 - i % 32] + 1; }

// The flag is a counter: one lane adds for its warp, by red or atom, or each lane for itself.
enum How { RED, ATOM, EACH };
template <Bug B, How kHow> __global__ void counter(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32], ready;
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    values[lane] = in[blockIdx.x * 32 + lane] + 1;  // hazard: flag-add.* flag-atom.*
    if (kHow != EACH && B == NONE) __syncwarp();
    unsigned before;
    if (kHow == EACH) {
      add_release(&ready, 1);
    } else if (lane == 0 && kHow == RED) {
      add_release(&ready, 32);
    } else if (lane == 0) {
      asm volatile("atom.release.cta.exch.b32 %0, [%1], 32;" : "=r"(before) : "l"(&ready) : "memory");
    }
  } else {
    while (load_acquire(&ready) != 32) {
    }
    out[blockIdx.x * 32 + lane] = values[31 - lane];  // hazard: flag-add.* flag-atom.*
  }
}

// Half a warp hands over its numbers: the others are not in the mask.
__global__ void flag_half(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32], ready[2];
  int lane = threadIdx.x % 32;
  if (threadIdx.x < 2) ready[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    values[lane] = in[blockIdx.x * 32 + lane] + 1;
    if (lane < 16) __syncwarp(0xffff);
    else __syncwarp(0xffff0000);
    if (lane % 16 == 0) store_release(&ready[lane / 16], 1);
  } else {
    int half = lane / 16 ^ 1;
    while (load_acquire(&ready[half]) != 1) {
    }
    out[blockIdx.x * 32 + lane] = values[31 - lane];
  }
}

// From the first warp through the second to the third: by flags, where different lanes of the second warp take and give
// (kBarrier: from the first to the second by a named barrier).
template <Bug B, bool kBarrier> __global__ void chain(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32], ready[2];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < 2) ready[threadIdx.x] = 0;
  __syncthreads();
  if (warp == 0) {
    values[lane] = in[blockIdx.x * 32 + lane] + 1;  // hazard: chain.no-syncwarp
    __syncwarp();
    if (kBarrier) bar_sync(1, 64);
    else if (lane == 0) store_release(&ready[0], 1);
  } else if (warp == 1) {
    if (kBarrier) {
      bar_sync(1, 64);
    } else if (lane == 0) {
      while (load_acquire(&ready[0]) != 1) {
      }
    }
    if (B != NO_SYNCWARP) __syncwarp();
    if (lane == 1) store_release(&ready[1], 1);
  } else {
    while (load_acquire(&ready[1]) != 1) {
    }
    out[blockIdx.x * 32 + lane] = values[31 - lane];  // hazard: chain.no-syncwarp
  }
}

// A block of one warp needs no more than __syncwarp between the initialisation of a barrier and its use.
template <Bug B> __global__ void warp_init(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[128];
  __shared__ uint64_t full;
  int lane = threadIdx.x;
  if (lane == 0) {
    init(&full, 1);  // hazard: warp-init.no-syncwarp
    fence_init();
    arrive_expect(&full, 512);
    bulk_load(tile, in + blockIdx.x * 128, 512, &full);
  }
  if (B != NO_SYNCWARP) __syncwarp();
  wait(&full, 0);  // hazard: warp-init.no-syncwarp
  for (int i = lane; i < 128; i += 32) out[blockIdx.x * 128 + i] = tile[127 - i] + 1;
}

// Half of the threads leave after the first phase and no longer count.
__global__ void drop(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[2][128];
  __shared__ uint64_t bar;
  int t = threadIdx.x, base = blockIdx.x * 128;
  if (t == 0) init(&bar, 128);
  __syncthreads();
  values[0][t] = in[base + t];
  if (t >= 64) {
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(shared(&bar)) : "memory");
    return;
  }
  arrive(&bar);
  wait(&bar, 0);
  values[1][t] = values[0][127 - t];
  values[1][t + 64] = values[0][63 - t];
  arrive(&bar);
  wait(&bar, 1);
  out[base + t] = values[1][t ^ 1] + 1;
  out[base + 64 + t] = values[1][64 + t ^ 1] + 1;
}
static unsigned swapped(const unsigned* in, int i) { return in[i / 128 * 128 + 127 - (i % 128 ^ 1)] + 1; }

// The flag is a volatile number, and the order comes from fences of the lane that sets it and of all that read it.
__global__ void flag_fence(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32];
  __shared__ volatile unsigned ready;
  int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    values[lane] = in[blockIdx.x * 32 + lane] + 1;
    __syncwarp();
    if (lane == 0) {
      __threadfence_block();
      ready = 1;
    }
  } else {
    while (ready != 1) {
    }
    __threadfence_block();
    out[blockIdx.x * 32 + lane] = values[31 - lane];
  }
}

// An inclusive prefix sum of each warp in shared memory.
template <Bug B> __global__ void scan(const unsigned* in, unsigned* out) {
  __shared__ unsigned sums[64];
  int t = threadIdx.x, lane = t % 32;
  sums[t] = in[blockIdx.x * 64 + t];
  __syncwarp();
  for (int d = 1; d < 32; d *= 2) {
    unsigned v = lane >= d ? sums[t - d] : 0;  // hazard: scan.*
    between<B>(v);
    sums[t] += v;  // hazard: scan.*
    __syncwarp();
  }
  out[blockIdx.x * 64 + t] = sums[t];
}
static unsigned prefix(const unsigned* in, int i) {
  unsigned sum = 0;
  for (int k = i / 32 * 32; k <= i; k++) sum += in[k];
  return sum;
}

// A spin lock that lanes of one warp and of other warps take.
template <Bug B> __global__ void lock(const unsigned* in, unsigned* out) {
  __shared__ unsigned locked, total;
  int t = threadIdx.x;
  if (t == 0) locked = total = 0;
  __syncthreads();
  for (bool done = false; !done;) {
    if (atomicCAS(&locked, 0, 1) == 0) {
      if (B != RELAXED) __threadfence_block();
      total += in[blockIdx.x * 64 + t];  // hazard: lock.relaxed
      if (B != RELAXED) __threadfence_block();
      atomicExch(&locked, 0);
      done = true;
    }
  }
  __syncthreads();
  out[blockIdx.x * 64 + t] = total;
}
static unsigned total64(const unsigned* in, int i) {
  unsigned sum = 0;
  for (int k = 0; k < 64; k++) sum += in[i / 64 * 64 + k];
  return sum;
}

// The last block to finish sums the numbers of all. kFenceFirst: every thread's fence, then the barrier, as it is often
// written; else the barrier, then the fence of the thread that counts the blocks.
__device__ unsigned finished;
template <Bug B, bool kFenceFirst> __global__ void last_block(const unsigned* in, unsigned* out) {
  __shared__ bool last;
  int t = threadIdx.x;
  unsigned* partial = out + 4096;
  partial[blockIdx.x * 128 + t] = in[blockIdx.x * 128 + t] * 2;  // hazard: last-block.*
  if (kFenceFirst && B != RELAXED) __threadfence();
  if (B != NO_SYNC) __syncthreads();
  if (t == 0) {
    if (!kFenceFirst && B != RELAXED) __threadfence();
    last = atomicAdd(&finished, 1) == gridDim.x - 1;
    if (B != RELAXED) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  unsigned sum = 0;
  for (int b = 0; b < gridDim.x; b++) {
    sum += partial[b * 128 + 127 - t];  // hazard: last-block.*
  }
  out[t] = sum;
}
static unsigned block_sum(const unsigned* in, int i) {
  unsigned sum = 0;
  for (int b = 0; b < 6; b++) sum += in[b * 128 + 127 - i] * 2;
  return sum;
}

// Blocks take turns, in order, as in a sum whose order is fixed.
__device__ unsigned turn;
template <Bug B> __global__ void turns(const unsigned* in, unsigned* out) {
  int t = threadIdx.x;
  if (t == 0) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(&turn) : "memory");
    while (now != blockIdx.x);
  }
  __syncthreads();
  out[t] = out[t] * 2 + in[blockIdx.x * 128 + t];  // hazard: turns.no-sync
  if (B != NO_SYNC) __syncthreads();
  if (t == 0) asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(&turn), "r"(blockIdx.x + 1) : "memory");
}
static unsigned in_turn(const unsigned* in, int i) {
  unsigned v = 0;
  for (int b = 0; b < 4; b++) v = v * 2 + in[b * 128 + i];
  return v;
}

static const Case cases[] = {
    {"pipeline", pipeline<NONE>, 3, 160, 3840, mirrored},
    {"pipeline.no-syncwarp", pipeline<NO_SYNCWARP>, 3, 160, 3840, mirrored},
    {"pipeline.vote", pipeline<VOTE>, 3, 160, 3840, mirrored},
    {"pipeline.match", pipeline<MATCH>, 3, 160, 3840, mirrored},
    {"pipeline.redux", pipeline<REDUX>, 3, 160, 3840, mirrored},
    {"pipeline.elect", pipeline<ELECT>, 3, 160, 3840, mirrored},
    {"pipeline-threads", pipeline_threads, 3, 160, 2304, mirrored},
    {"pipeline-cp-async", pipeline_cp_async, 3, 160, 2304, mirrored},
    {"loop", loop<NONE>, 2, 128, 2048, mirrored},
    {"loop.early", loop<EARLY>, 2, 128, 2048, mirrored},
    {"persistent", persistent, 4, 128, 3840, mirrored},
    {"life", life<NONE>, 4, 64, 256, pair_sum},
    {"life.no-init", life<NO_INIT>, 4, 64, 256, pair_sum},
    {"life.no-sync", life<NO_SYNC>, 4, 64, 256, pair_sum},
    {"life.twice", life<TWICE>, 4, 64, 256, pair_sum},
    {"life.invalidated", life<INVALIDATED>, 4, 64, 256, pair_sum},
    {"life.overwritten", life<OVERWRITTEN>, 4, 64, 256, pair_sum},
    {"named", named<NONE>, 4, 128, 2048, mirrored64},
    {"named.early", named<EARLY>, 4, 128, 2048, mirrored64},
    {"split", split<NONE>, 4, 128, 512, mixed},
    {"split.early", split<EARLY>, 4, 128, 512, mixed},
    {"flag", flag<NONE>, 4, 64, 128, mirrored32},
    {"flag.no-syncwarp", flag<NO_SYNCWARP>, 4, 64, 128, mirrored32},
    {"flag.vote", flag<VOTE>, 4, 64, 128, mirrored32},
    {"flag.match", flag<MATCH>, 4, 64, 128, mirrored32},
    {"flag.redux", flag<REDUX>, 4, 64, 128, mirrored32},
    {"flag.elect", flag<ELECT>, 4, 64, 128, mirrored32},
    {"flag.fence-only", flag<FENCE_ONLY>, 4, 64, 128, mirrored32},
    {"flag.relaxed", flag<RELAXED>, 4, 64, 128, mirrored32},
    {"flag.consumer", flag<CONSUMER>, 4, 64, 128, mirrored32},
    {"flag-add", counter<NONE, RED>, 4, 64, 128, mirrored32},
    {"flag-add.no-syncwarp", counter<NO_SYNCWARP, RED>, 4, 64, 128, mirrored32},
    {"flag-atom", counter<NONE, ATOM>, 4, 64, 128, mirrored32},
    {"flag-atom.no-syncwarp", counter<NO_SYNCWARP, ATOM>, 4, 64, 128, mirrored32},
    {"flag-each", counter<NONE, EACH>, 4, 64, 128, mirrored32},
    {"flag-half", flag_half, 4, 64, 128, mirrored32},
    {"chain", chain<NONE, false>, 4, 96, 128, mirrored32},
    {"chain.no-syncwarp", chain<NO_SYNCWARP, false>, 4, 96, 128, mirrored32},
    {"chain-barrier", chain<NONE, true>, 4, 96, 128, mirrored32},
    {"warp-init", warp_init<NONE>, 4, 32, 512, mirrored},
    {"warp-init.no-syncwarp", warp_init<NO_SYNCWARP>, 4, 32, 512, mirrored},
    {"drop", drop, 4, 128, 512, swapped},
    {"flag-fence", flag_fence, 4, 64, 128, mirrored32},
    {"scan", scan<NONE>, 4, 64, 256, prefix},
    {"scan.no-syncwarp", scan<NO_SYNCWARP>, 4, 64, 256, prefix},
    {"scan.vote", scan<VOTE>, 4, 64, 256, prefix},
    {"lock", lock<NONE>, 4, 64, 256, total64},
    {"lock.relaxed", lock<RELAXED>, 4, 64, 256, total64},
    {"last-block", last_block<NONE, false>, 6, 128, 128, block_sum},
    {"last-block-fence-first", last_block<NONE, true>, 6, 128, 128, block_sum},
    {"last-block.relaxed", last_block<RELAXED, false>, 6, 128, 128, block_sum},
    {"last-block.no-sync", last_block<NO_SYNC, true>, 6, 128, 128, block_sum},
    {"turns", turns<NONE>, 4, 128, 128, in_turn},
    {"turns.no-sync", turns<NO_SYNC>, 4, 128, 128, in_turn},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
