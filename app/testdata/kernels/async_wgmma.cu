// wgmma reads its operands from shared memory asynchronously. For sm_90a.
//
// d = a b^T of bytes: a is 64 x 32, b is 8 x 32, both in core matrices of 8 rows of 16 bytes, K-major without swizzle:
// row m, byte k is at (m / 8 * 2 + k / 16) * 128 + m % 8 * 16 + k % 16.
#include "async.cuh"

constexpr int kA = 512, kB = 64, kTile = kA + kB;  // numbers of a, of b, of both
constexpr int kRounds = 4;

DEVICE uint64_t descriptor(const void* p) { return shared(p) >> 4 | 128ull >> 4 << 16 | 256ull >> 4 << 32; }
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
DEVICE void wgmma(int (&d)[4], const unsigned* a, const unsigned* b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 {%0, %1, %2, %3}, %4, %5, 1;"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b)) : "memory");
}
DEVICE void write_result(unsigned* out, const int (&d)[4]) {
  int t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
  for (int i = 0; i < 4; i++) out[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}

static unsigned byte(const unsigned* in, int tile, int row, int k) {
  int at = (row / 8 * 2 + k / 16) * 128 + row % 8 * 16 + k % 16;
  return in[tile + at / 4] >> at % 4 * 8 & 255;
}
static unsigned product(const unsigned* in, int i) {
  int block = i / 512, row = i % 512 / 8, column = i % 8;
  unsigned sum = 0;
  for (int r = 0; r < kRounds; r++) {
    int tile = (block * kRounds + r) * kTile;
    for (int k = 0; k < 32; k++) sum += byte(in, tile, row, k) * byte(in, tile + kA, column, k);
  }
  return sum;
}

// Operands written by plain stores, one buffer.
template <Bug B> __global__ void wgmma_store(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tile[kTile];
  int d[4] = {}, t = threadIdx.x;
  for (int r = 0; r < kRounds; r++) {
    for (int i = t; i < kTile; i += 128) {
      tile[i] = in[(blockIdx.x * kRounds + r) * kTile + i];  // hazard: wgmma.reuse
    }
    if (B != NO_FENCE && (B != ONE_FENCES || t < 32)) fence_proxy();
    __syncthreads();
    wgmma_fence();
    wgmma(d, tile, tile + kA);  // hazard: wgmma.no-fence wgmma.one-fences
    wgmma_commit();
    if (B != REUSE) wgmma_wait<0>();
    __syncthreads();
  }
  if (B == REUSE) wgmma_wait<0>();
  write_result(out + blockIdx.x * 512, d);
}

// Two buffers, and one product under way while the next operands are written.
template <Bug B> __global__ void wgmma_staged(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tiles[2][kTile + 64];
  int d[4] = {}, t = threadIdx.x;
  for (int r = 0; r < kRounds; r++) {
    unsigned* tile = tiles[r % 2];
    for (int i = t; i < kTile; i += 128) {
      tile[i] = in[(blockIdx.x * kRounds + r) * kTile + i];  // hazard: wgmma-staged.too-few
    }
    fence_proxy();
    __syncthreads();
    wgmma_fence();
    wgmma(d, tile, tile + kA);
    wgmma_commit();
    wgmma_wait<B == TOO_FEW ? 2 : 1>();
    __syncthreads();
  }
  wgmma_wait<0>();
  write_result(out + blockIdx.x * 512, d);
}

// Who arrives at "empty": all threads, one lane of each warp as in DeepGEMM, or one thread for the warpgroup as in
// CUTLASS. A product is one operation of the warpgroup, and no thread reads the operands itself.
enum Arrival { THREADS, WARPS, GROUP };

// Operands that bulk copies bring, so no fence is needed: one warp loads, four multiply. kScales: with a factor for
// each row of d, which all lanes read before the product, as in DeepGEMM.
template <Bug B, Arrival kArrival, bool kScales> __global__ void wgmma_bulk(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tiles[2][kTile + 64];
  __shared__ uint64_t full[2], empty[2];
  int d[4] = {}, sum[4] = {}, t = threadIdx.x;
  if (t == 0) {
    for (int s = 0; s < 2; s++) {
      init(&full[s], 1);
      init(&empty[s], kArrival == THREADS ? 128 : kArrival == WARPS ? 4 : 1);
    }
    fence_init();
  }
  __syncthreads();
  if (t >= 128) {
    if (t > 128) return;
    for (int r = 0; r < kRounds; r++) {
      wait(&empty[r % 2], r / 2 % 2 ^ 1);
      arrive_expect(&full[r % 2], kTile * 4 + 256);
      // hazard: wgmma-bulk.early
      bulk_load(tiles[r % 2], in + (blockIdx.x * kRounds + r) * kTile, kTile * 4, &full[r % 2]);
      bulk_load(tiles[r % 2] + kTile, in + (blockIdx.x * kRounds + r) * 64, 256, &full[r % 2]);
    }
    return;
  }
  auto release = [&](int r) {
    if (kArrival == THREADS || t % (kArrival == WARPS ? 32 : 128) == 5) arrive(&empty[r % 2]);
  };
  for (int r = 0; r < kRounds; r++) {
    const unsigned *tile = tiles[r % 2], *scales = tile + kTile + t / 32 * 16 + t % 32 / 4;
    wait(&full[r % 2], r / 2 % 2);
    int scale[2] = {1, 1};
    if (kScales) {
      scale[0] = scales[0];
      scale[1] = scales[8];
    }
    for (int i = 0; i < 4; i++) d[i] = 0;
    wgmma_fence();
    wgmma(d, tile, tile + kA);  // hazard: wgmma-bulk.early
    wgmma_commit();
    if (B == EARLY) release(r);
    wgmma_wait<0>();
    if (B != EARLY) release(r);
    for (int i = 0; i < 4; i++) sum[i] += d[i] * scale[i / 2];
  }
  write_result(out + blockIdx.x * 512, sum);
}
static unsigned scaled(const unsigned* in, int i) {
  int block = i / 512, row = i % 512 / 8, column = i % 8;
  unsigned sum = 0;
  for (int r = 0; r < kRounds; r++) {
    int tile = (block * kRounds + r) * kTile;
    unsigned part = 0;
    for (int k = 0; k < 32; k++) part += byte(in, tile, row, k) * byte(in, tile + kA, column, k);
    sum += part * in[(block * kRounds + r) * 64 + row];
  }
  return sum;
}

static const Case cases[] = {
    {"wgmma", wgmma_store<NONE>, 2, 128, 1024, product},
    {"wgmma.no-fence", wgmma_store<NO_FENCE>, 2, 128, 1024, product},
    {"wgmma.one-fences", wgmma_store<ONE_FENCES>, 2, 128, 1024, product},
    {"wgmma.reuse", wgmma_store<REUSE>, 2, 128, 1024, product},
    {"wgmma-staged", wgmma_staged<NONE>, 2, 128, 1024, product},
    {"wgmma-staged.too-few", wgmma_staged<TOO_FEW>, 2, 128, 1024, product},
    {"wgmma-bulk", wgmma_bulk<NONE, THREADS, false>, 2, 160, 1024, product},
    {"wgmma-bulk.early", wgmma_bulk<EARLY, THREADS, false>, 2, 160, 1024, product},
    {"wgmma-bulk-warps", wgmma_bulk<NONE, WARPS, false>, 2, 160, 1024, product},
    {"wgmma-bulk-group", wgmma_bulk<NONE, GROUP, false>, 2, 160, 1024, product},
    {"wgmma-bulk-scales", wgmma_bulk<NONE, WARPS, true>, 2, 160, 1024, scaled},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
