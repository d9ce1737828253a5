// Shared memory of other blocks of the cluster: who may access it when, and what orders the accesses. For sm_90 and
// later.
#include "async.cuh"

// Rank 0 sums numbers of all four blocks.
template <Bug B> __global__ void __cluster_dims__(4, 1, 1) sum(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  int t = threadIdx.x;
  values[t] = in[blockIdx.x * 128 + t];
  cluster_sync();
  if (cluster_rank() == 0) {
    unsigned v = 0;
    for (int r = 0; r < 4; r++) {
      v += remote_load(remote(&values[127 - t], r));  // hazard: sum.no-end
    }
    out[blockIdx.x / 4 * 128 + t] = v;
  }
  if (B != NO_END) cluster_sync();
}
static unsigned cluster_sum(const unsigned* in, int i) {
  unsigned v = 0;
  for (int r = 0; r < 4; r++) v += in[(i / 128 * 4 + r) * 128 + 127 - i % 128];
  return v;
}

// Each block writes to the next one's memory, with a barrier before and one after that is split in arrive and wait. No
// block is accessed after that, so none needs a barrier at the end.
template <Bug B> __global__ void __cluster_dims__(4, 1, 1) push(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  int t = threadIdx.x;
  if (B == NO_MIDDLE || B == RELAXED) values[t] = 0;
  if (B != NO_START) cluster_sync();
  unsigned v = in[blockIdx.x * 128 + t];
  remote_store(remote(&values[t], (cluster_rank() + 1) % 4), v);  // hazard: push.*
  if (B == RELAXED) cluster_arrive_relaxed();
  else if (B != NO_MIDDLE) cluster_arrive();
  unsigned own = v * 5;
  if (B != NO_MIDDLE) cluster_wait();
  out[blockIdx.x * 128 + t] = own + values[127 - t];  // hazard: push.no-middle push.relaxed
  if (B == NO_MIDDLE) cluster_sync();
}
static unsigned from_previous(const unsigned* in, int i) {
  int block = i / 128, from = block / 4 * 4 + (block + 3) % 4;
  return in[i] * 5 + in[from * 128 + 127 - i % 128];
}

// Both blocks load half of a tile for both. The barriers are published as in CUTLASS: a fence for their initialisation
// and a relaxed arrival.
template <Bug B> __global__ void __cluster_dims__(2, 1, 1) multicast(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[256];
  __shared__ uint64_t full;
  int t = threadIdx.x, rank = cluster_rank();
  if (t == 0) {
    init(&full, 1);  // hazard: multicast.no-start
    fence_init();
    arrive_expect(&full, 1024);
  }
  if (B != NO_START) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if (t == 0) {
    bulk_multicast(tile + rank * 128, in + blockIdx.x * 128, 512, &full, 3);  // hazard: multicast.no-start
  }
  wait(&full, 0);
  out[blockIdx.x * 256 + t] = tile[t] + rank;
  out[blockIdx.x * 256 + 128 + t] = tile[t + 128] + rank;
}
static unsigned pair(const unsigned* in, int i) { return in[i / 512 * 256 + i % 256] + i / 256 % 2; }

// A pipeline of two stages shared by two blocks: each loads half of every stage for both, and the readers of both
// arrive at both blocks' "empty" barriers. kCutlass: with the scopes as in CUTLASS, which are the default ones.
template <Bug B, bool kCutlass> __global__ void __cluster_dims__(2, 1, 1) ring(const unsigned* in, unsigned* out) {
  constexpr int kStages = 2, kTiles = 6;
  __shared__ alignas(128) unsigned stages[kStages][128];
  __shared__ uint64_t full[kStages], empty[kStages];
  int t = threadIdx.x, warp = t / 32, lane = t % 32, rank = cluster_rank();
  if (t == 0) {
    for (int s = 0; s < kStages; s++) {
      init(&full[s], 1);
      init(&empty[s], 8);
    }
    fence_init();
  }
  cluster_sync();
  in += blockIdx.x / 2 * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  if (warp == 4) {
    if (lane == 0) {
      for (int i = 0; i < kTiles; i++) {
        int s = i % kStages;
        if (kCutlass) wait(&empty[s], i / kStages % 2 ^ 1);
        else wait_cluster(&empty[s], i / kStages % 2 ^ 1);
        arrive_expect(&full[s], 512);
        bulk_multicast(&stages[s][rank * 64], in + i * 128 + rank * 64, 256, &full[s], 3);  // hazard: ring.no-syncwarp
      }
    }
    __syncwarp();
  } else {
    for (int i = 0; i < kTiles; i++) {
      int s = i % kStages;
      wait(&full[s], i / kStages % 2);
      unsigned v = stages[s][127 - t];  // hazard: ring.no-syncwarp
      if (B != NO_SYNCWARP) __syncwarp();
      if (lane < 2) {
        unsigned bar = remote(&empty[s], lane);
        if (kCutlass) {
          asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
        } else {
          remote_arrive(bar);  // hazard: ring.no-end
        }
      }
      out[i * 128 + t] = v + rank;
    }
    __syncwarp();
  }
  if (B != NO_END) cluster_sync();
}
static unsigned shared_tiles(const unsigned* in, int i) {
  int block = i / 768, at = i % 768;
  return in[block / 2 * 768 + at / 128 * 128 + 127 - at % 128] + block % 2;
}

// st.async: the bytes complete the receiver's barrier. The receiver waits for all, so no barrier is needed at the end.
template <Bug B> __global__ void __cluster_dims__(2, 1, 1) st_async(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  __shared__ uint64_t full;
  int t = threadIdx.x, peer = cluster_rank() ^ 1;
  if (t == 0) {
    init(&full, 1);  // hazard: st-async.no-start
    fence_init();
    arrive_expect(&full, 512);
  }
  if (B != NO_START) cluster_sync();
  else __syncthreads();
  store_async(remote(&values[t], peer), in[blockIdx.x * 128 + t], remote(&full, peer));  // hazard: st-async.no-start
  wait_cluster(&full, 0);
  out[blockIdx.x * 128 + t] = values[127 - t];
}
static unsigned from_peer(const unsigned* in, int i) { return in[(i / 128 ^ 1) * 128 + 127 - i % 128]; }

// A bulk copy to the other block's memory. Its source belongs to the copy until the receiver, whose barrier the copy
// completes, has said so.
template <Bug B> __global__ void __cluster_dims__(2, 1, 1) send(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[128], inbox[128];
  __shared__ uint64_t full, sent;
  int t = threadIdx.x, peer = cluster_rank() ^ 1;
  if (t == 0) {
    init(&full, 1);
    init(&sent, 1);
    fence_init();
    arrive_expect(&full, 512);
  }
  tile[t] = in[blockIdx.x * 128 + t];
  if (B != NO_FENCE) fence_proxy();
  cluster_sync();
  if (t == 0) bulk_send(remote(inbox, peer), tile, 512, remote(&full, peer));  // hazard: send.no-fence send.no-wait
  wait_cluster(&full, 0);
  unsigned v = inbox[127 - t];
  if (B == NO_WAIT) {
    out[blockIdx.x * 128 + t] = v + tile[127 - t] + 1;
    return;
  }
  if (t == 0) remote_arrive(remote(&sent, peer));
  if (B != REUSE) wait_cluster(&sent, 0);
  __syncthreads();
  tile[t] += 1;  // hazard: send.reuse
  __syncthreads();
  if (B == REUSE) wait_cluster(&sent, 0);
  out[blockIdx.x * 128 + t] = v + tile[127 - t];
}  // hazard: send.no-wait
static unsigned sent(const unsigned* in, int i) {
  return in[(i / 128 ^ 1) * 128 + 127 - i % 128] + in[i / 128 * 128 + 127 - i % 128] + 1;
}

// Rank 1 reads rank 0's memory, and then arrives at a barrier that one thread of rank 0 waits for: memory lives until
// the last thread of its block has ended.
template <Bug B> __global__ void __cluster_dims__(2, 1, 1) done(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  __shared__ uint64_t read;
  int t = threadIdx.x, rank = cluster_rank();
  if (t == 0) {
    init(&read, 1);
    fence_init();
  }
  values[t] = in[blockIdx.x * 128 + t];
  cluster_sync();
  if (rank == 0) {
    if (t == 0 && B != NO_WAIT) wait_cluster(&read, 0);
    return;
  }
  unsigned v = remote_load(remote(&values[127 - t], 0));  // hazard: done.no-wait done.no-sync
  if (B != NO_SYNC) __syncthreads();
  if (t == 0) remote_arrive(remote(&read, 0));  // hazard: done.no-wait
  out[blockIdx.x / 2 * 128 + t] = v + values[t];
}
static unsigned both(const unsigned* in, int i) {
  return in[i / 128 * 256 + 127 - i % 128] + in[i / 128 * 256 + 128 + i % 128];
}

// Rank 1 announces its start through global memory, and rank 0 then writes to its shared memory.
__device__ unsigned started[8];
template <Bug B> __global__ void __cluster_dims__(2, 1, 1) start_flag(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[128];
  int t = threadIdx.x, rank = cluster_rank();
  unsigned* flag = &started[blockIdx.x / 2];
  if (rank == 1) {
    if (t == 0) asm volatile("st.release.gpu.u32 [%0], 1;" ::"l"(flag) : "memory");
  } else {
    if (B != NO_START) {
      unsigned v;
      do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
      while (v == 0);
    }
    remote_store(remote(&values[t], 1), in[blockIdx.x * 128 + t]);  // hazard: start-flag.no-start
  }
  cluster_sync();
  if (rank == 1) out[blockIdx.x / 2 * 128 + t] = values[127 - t];
}
static unsigned of_first(const unsigned* in, int i) { return in[i / 128 * 256 + 127 - i % 128]; }

static const Case cases[] = {
    {"sum", sum<NONE>, 8, 128, 256, cluster_sum},
    {"sum.no-end", sum<NO_END>, 8, 128, 256, cluster_sum},
    {"push", push<NONE>, 8, 128, 1024, from_previous},
    {"push.no-start", push<NO_START>, 8, 128, 1024, from_previous},
    {"push.no-middle", push<NO_MIDDLE>, 8, 128, 1024, from_previous},
    {"push.relaxed", push<RELAXED>, 8, 128, 1024, from_previous},
    {"multicast", multicast<NONE>, 4, 128, 1024, pair},
    {"multicast.no-start", multicast<NO_START>, 4, 128, 1024, pair},
    {"ring", ring<NONE, false>, 4, 160, 3072, shared_tiles},
    {"ring.no-syncwarp", ring<NO_SYNCWARP, false>, 4, 160, 3072, shared_tiles},
    {"ring.no-end", ring<NO_END, false>, 4, 160, 3072, shared_tiles},
    {"ring-cutlass", ring<NONE, true>, 4, 160, 3072, shared_tiles},
    {"st-async", st_async<NONE>, 4, 128, 512, from_peer},
    {"st-async.no-start", st_async<NO_START>, 4, 128, 512, from_peer},
    {"send", send<NONE>, 4, 128, 512, sent},
    {"send.no-fence", send<NO_FENCE>, 4, 128, 512, sent},
    {"send.reuse", send<REUSE>, 4, 128, 512, sent},
    {"send.no-wait", send<NO_WAIT>, 4, 128, 512, sent},
    {"done", done<NONE>, 4, 128, 256, both},
    {"done.no-wait", done<NO_WAIT>, 4, 128, 256, both},
    {"done.no-sync", done<NO_SYNC>, 4, 128, 256, both},
    {"start-flag", start_flag<NONE>, 4, 128, 256, of_first},
    {"start-flag.no-start", start_flag<NO_START>, 4, 128, 256, of_first},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
