// The same with CUDA's own C++: cuda::barrier, cuda::pipeline, cuda::memcpy_async, cuda::ptx and cooperative groups.
// For sm_90 and later.
#include "async.cuh"
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/ptx>
#include <utility>

#pragma nv_diag_suppress static_var_with_dynamic_init

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
using barrier = cuda::barrier<cuda::thread_scope_block>;

// Loads a tile, adds one and stores it, as in NVIDIA's programming guide.
template <Bug B> __global__ void add_one(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  __shared__ barrier bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) cuda::memcpy_async(tile, in + blockIdx.x * 512, cuda::aligned_size_t<16>(sizeof tile), bar);
  auto token = bar.arrive();
  bar.wait(std::move(token));
  for (int i = threadIdx.x; i < 512; i += blockDim.x) tile[i] += 1;
  if (B != NO_FENCE) ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    // hazard: add-one.*
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * 512, tile, sizeof tile);
    ptx::cp_async_bulk_commit_group();
    if (B != NO_WAIT) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}  // hazard: add-one.no-wait
static unsigned plus1(const unsigned* in, int i) { return in[i] + 1; }

// The bytes are announced with the arrival of one thread.
template <Bug B> __global__ void tx(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[256];
  __shared__ barrier bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 128);  // hazard: tx.no-sync
  if (B != NO_SYNC) __syncthreads();
  for (int round = 0; round < 3; round++) {
    barrier::arrival_token token;
    if (t == 0) {
      auto size = cuda::aligned_size_t<16>(sizeof tile);
      cuda::device::memcpy_async_tx(tile, in + (blockIdx.x * 3 + round) * 256, size, bar);
      token = cuda::device::barrier_arrive_tx(bar, 1, sizeof tile);  // hazard: tx.no-sync
    } else {
      token = bar.arrive();  // hazard: tx.no-sync
    }
    bar.wait(std::move(token));  // hazard: tx.no-sync
    unsigned a = tile[255 - t], b = tile[127 - t];
    out[(blockIdx.x * 3 + round) * 256 + t] = a + 1;
    out[(blockIdx.x * 3 + round) * 256 + 128 + t] = b + 1;
    __syncthreads();
  }
}
static unsigned mirrored256(const unsigned* in, int i) { return in[i / 256 * 256 + 255 - i % 256] + 1; }

// A pipeline of two stages of all threads.
template <Bug B> __global__ void block_pipeline(const unsigned* in, unsigned* out) {
  constexpr int kTiles = 5;
  __shared__ alignas(128) unsigned stages[2][128];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  int t = threadIdx.x;
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  for (int i = 0, ahead = 0; i < kTiles; i++) {
    for (; ahead < kTiles && ahead < i + 2; ahead++) {
      pipe.producer_acquire();
      // hazard: block-pipeline.early
      cuda::memcpy_async(block, stages[ahead % 2], in + ahead * 128, cuda::aligned_size_t<16>(512), pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    if (B == EARLY) pipe.consumer_release();
    out[i * 128 + t] = stages[i % 2][127 - t] + 1;  // hazard: block-pipeline.early
    if (B != EARLY) pipe.consumer_release();
  }
}
static unsigned mirrored128(const unsigned* in, int i) { return in[i / 128 * 128 + 127 - i % 128] + 1; }

// A pipeline of which one warp is the producer.
__global__ void roles(const unsigned* in, unsigned* out) {
  constexpr int kTiles = 5;
  __shared__ alignas(128) unsigned stages[2][128];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  int t = threadIdx.x;
  bool loads = t >= 128;
  auto pipe = cuda::make_pipeline(block, &state, loads ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer);
  in += blockIdx.x * kTiles * 128;
  out += blockIdx.x * kTiles * 128;
  for (int i = 0; i < kTiles; i++) {
    if (loads) {
      pipe.producer_acquire();
      cuda::memcpy_async(warp, stages[i % 2], in + i * 128, cuda::aligned_size_t<16>(512), pipe);
      pipe.producer_commit();
    } else {
      pipe.consumer_wait();
      out[i * 128 + t] = stages[i % 2][127 - t] + 1;
      pipe.consumer_release();
    }
  }
}

// A pipeline of each thread for itself, so that a barrier has to follow before others' copies are read.
template <Bug B> __global__ void thread_pipeline(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned tile[512];
  auto pipe = cuda::make_pipeline();
  int t = threadIdx.x;
  pipe.producer_acquire();
  // hazard: thread-pipeline.no-sync
  cuda::memcpy_async(tile + t * 4, in + blockIdx.x * 512 + t * 4, cuda::aligned_size_t<16>(16), pipe);
  pipe.producer_commit();
  pipe.consumer_wait();
  if (B != NO_SYNC) __syncthreads();
  for (int i = t; i < 512; i += 128) {
    out[blockIdx.x * 512 + i] = tile[511 - i] + 1;  // hazard: thread-pipeline.no-sync
  }
  pipe.consumer_release();
}
static unsigned mirrored512(const unsigned* in, int i) { return in[i / 512 * 512 + 511 - i % 512] + 1; }

// Copies of a whole block: two under way, and the wait for the older one.
__global__ void group_copy(const unsigned* in, unsigned* out) {
  __shared__ alignas(128) unsigned stages[2][128];
  auto block = cg::this_thread_block();
  int t = threadIdx.x;
  in += blockIdx.x * 512;
  out += blockIdx.x * 512;
  cg::memcpy_async(block, stages[0], in, cuda::aligned_size_t<16>(512));
  for (int i = 0; i < 4; i++) {
    if (i < 3) {
      cg::memcpy_async(block, stages[(i + 1) % 2], in + (i + 1) * 128, cuda::aligned_size_t<16>(512));
      cg::wait_prior<1>(block);
    } else {
      cg::wait(block);
    }
    out[i * 128 + t] = stages[i % 2][127 - t] + 1;
    block.sync();
  }
}

// Counts in shared memory of all blocks of the cluster, from NVIDIA's programming guide.
template <Bug B> __global__ void __cluster_dims__(4, 1, 1) histogram(const unsigned* in, unsigned* out) {
  __shared__ unsigned counts[64];
  auto cluster = cg::this_cluster();
  int t = threadIdx.x;
  if (t < 64) counts[t] = 0;
  cluster.sync();
  for (int i = t; i < 512; i += 128) {
    unsigned bin = in[blockIdx.x * 512 + i] % 256;
    atomicAdd(cluster.map_shared_rank(counts, bin / 64) + bin % 64, 1);  // hazard: cluster-histogram.no-end
  }
  if (B != NO_END) cluster.sync();
  if (t < 64) atomicAdd(&out[cluster.block_rank() * 64 + t], counts[t]);  // hazard: cluster-histogram.no-end
}
static unsigned count(const unsigned* in, int i) {
  unsigned n = 0;
  for (int k = 0; k < 4096; k++) n += in[k] % 256 == i;
  return n;
}

// A prefix sum of 16 lanes in shared memory.
template <Bug B> __global__ void tile_scan(const unsigned* in, unsigned* out) {
  __shared__ unsigned sums[64];
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int t = threadIdx.x, lane = tile.thread_rank();
  sums[t] = in[blockIdx.x * 64 + t];
  tile.sync();
  for (int d = 1; d < 16; d *= 2) {
    unsigned v = lane >= d ? sums[t - d] : 0;  // hazard: tile-scan.no-syncwarp
    if (B != NO_SYNCWARP) tile.sync();
    sums[t] += v;  // hazard: tile-scan.no-syncwarp
    tile.sync();
  }
  out[blockIdx.x * 64 + t] = sums[t];
}
static unsigned prefix16(const unsigned* in, int i) {
  unsigned sum = 0;
  for (int k = i / 16 * 16; k <= i; k++) sum += in[k];
  return sum;
}

// One warp hands numbers to another by an atomic.
template <Bug B> __global__ void atomic_flag(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[32], ready;
  int lane = threadIdx.x % 32;
  cuda::atomic_ref<unsigned, cuda::thread_scope_block> flag(ready);
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    values[lane] = in[blockIdx.x * 32 + lane] + 1;  // hazard: atomic-flag.*
    if (B != NO_SYNCWARP) __syncwarp();
    if (lane == 0) flag.store(1, B == RELAXED ? cuda::memory_order_relaxed : cuda::memory_order_release);
  } else {
    while (flag.load(cuda::memory_order_acquire) != 1) {
    }
    out[blockIdx.x * 32 + lane] = values[31 - lane];  // hazard: atomic-flag.*
  }
}
static unsigned mirrored32(const unsigned* in, int i) { return in[i / 32 * 32 + 31 - i % 32] + 1; }

// cuda::barrier as a split barrier, over several phases.
template <Bug B> __global__ void phases(const unsigned* in, unsigned* out) {
  __shared__ unsigned values[2][128];
  __shared__ barrier bar;
  int t = threadIdx.x;
  if (t == 0) init(&bar, 128);
  values[0][t] = values[1][t] = 0;
  __syncthreads();
  for (int round = 0; round < 4; round++) {
    int at = (blockIdx.x * 4 + round) * 128;
    unsigned v = in[at + t], early = 0;
    values[round % 2][t] = v;  // hazard: phases.early
    auto token = bar.arrive();
    if (B == EARLY) early = values[round % 2][127 - t];  // hazard: phases.early
    unsigned own = v * 3;
    bar.wait(std::move(token));
    out[at + t] = own + (B == EARLY ? early : values[round % 2][127 - t]);
  }
}
static unsigned mixed(const unsigned* in, int i) { return in[i] * 3 + in[i / 128 * 128 + 127 - i % 128]; }

static const Case cases[] = {
    {"add-one", add_one<NONE>, 4, 128, 2048, plus1},
    {"add-one.no-fence", add_one<NO_FENCE>, 4, 128, 2048, plus1},
    {"add-one.no-wait", add_one<NO_WAIT>, 4, 128, 2048, plus1},
    {"tx", tx<NONE>, 4, 128, 3072, mirrored256},
    {"tx.no-sync", tx<NO_SYNC>, 4, 128, 3072, mirrored256},
    {"block-pipeline", block_pipeline<NONE>, 4, 128, 2560, mirrored128},
    {"block-pipeline.early", block_pipeline<EARLY>, 4, 128, 2560, mirrored128},
    {"roles", roles, 4, 160, 2560, mirrored128},
    {"thread-pipeline", thread_pipeline<NONE>, 4, 128, 2048, mirrored512},
    {"thread-pipeline.no-sync", thread_pipeline<NO_SYNC>, 4, 128, 2048, mirrored512},
    {"group-copy", group_copy, 4, 128, 2048, mirrored128},
    {"cluster-histogram", histogram<NONE>, 8, 128, 256, count},
    {"cluster-histogram.no-end", histogram<NO_END>, 8, 128, 256, count},
    {"tile-scan", tile_scan<NONE>, 4, 64, 256, prefix16},
    {"tile-scan.no-syncwarp", tile_scan<NO_SYNCWARP>, 4, 64, 256, prefix16},
    {"atomic-flag", atomic_flag<NONE>, 4, 64, 128, mirrored32},
    {"atomic-flag.no-syncwarp", atomic_flag<NO_SYNCWARP>, 4, 64, 128, mirrored32},
    {"atomic-flag.relaxed", atomic_flag<RELAXED>, 4, 64, 128, mirrored32},
    {"phases", phases<NONE>, 4, 128, 2048, mixed},
    {"phases.early", phases<EARLY>, 4, 128, 2048, mixed},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
