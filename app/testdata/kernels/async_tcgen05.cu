// tcgen05.mma and tcgen05.cp read shared memory asynchronously, until the mbarrier of tcgen05.commit. For sm_100a.
//
// d = a b^T of bytes: a is 128 x 32, b is 16 x 32, both in core matrices of 8 rows of 16 bytes, K-major without
// swizzle.
#include "async.cuh"

constexpr int kA = 1024, kB = 128, kTile = kA + kB;  // numbers of a, of b, of both
constexpr int kRounds = 3;

DEVICE uint64_t descriptor(const void* p) {
  return shared(p) >> 4 | 128ull >> 4 << 16 | 256ull >> 4 << 32 | 1ull << 46;
}
DEVICE void alloc(unsigned* slot) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 32;" ::"r"(shared(slot)) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
DEVICE void dealloc(unsigned tmem) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 32;" ::"r"(tmem) : "memory");
}
DEVICE void before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
DEVICE void mma(unsigned tmem, const unsigned* a, const unsigned* b, bool add) {
  constexpr unsigned kShape = 2 << 4 | 16 >> 3 << 17 | 128 >> 4 << 24;  // u8 times u8 to s32, 128 x 16
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma.cta_group::1.kind::i8 [%0], %1, %2, %3, p;\n}"
               ::"r"(tmem), "l"(descriptor(a)), "l"(descriptor(b)), "r"(kShape), "r"((unsigned)add) : "memory");
}
DEVICE void copy(unsigned tmem, const unsigned* a) {
  asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], %1;" ::"r"(tmem), "l"(descriptor(a)) : "memory");
}
DEVICE void tcgen05_commit(uint64_t* bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared(bar))
               : "memory");
}
DEVICE void load8(unsigned (&v)[8], unsigned tmem) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
               : "r"(tmem + (threadIdx.x / 32 << 21)) : "memory");
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

static unsigned byte(const unsigned* in, int tile, int row, int k) {
  int at = (row / 8 * 2 + k / 16) * 128 + row % 8 * 16 + k % 16;
  return in[tile + at / 4] >> at % 4 * 8 & 255;
}
static unsigned product(const unsigned* in, int i) {
  int block = i / 2048, row = i % 2048 / 16, column = i % 16;
  unsigned sum = 0;
  for (int r = 0; r < kRounds; r++) {
    int tile = (block * kRounds + r) * kTile;
    for (int k = 0; k < 32; k++) sum += byte(in, tile, row, k) * byte(in, tile + kA, column, k);
  }
  return sum;
}

// Operands written by plain stores, one buffer.
template <Bug B> __global__ void tcgen05_store(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tile[kTile];
  __shared__ uint64_t bar;
  __shared__ unsigned slot;
  int t = threadIdx.x;
  if (t < 32) alloc(&slot);
  if (t == 0) {
    init(&bar, 1);
    fence_init();
  }
  before_sync();
  __syncthreads();
  after_sync();
  unsigned tmem = slot;
  for (int r = 0; r < kRounds; r++) {
    for (int i = t; i < kTile; i += 128) {
      tile[i] = in[(blockIdx.x * kRounds + r) * kTile + i];  // hazard: tcgen05.reuse
    }
    if (B != NO_FENCE && (B != ONE_FENCES || t < 32)) fence_proxy();
    __syncthreads();
    if (t == 0) {
      mma(tmem, tile, tile + kA, r > 0);  // hazard: tcgen05.no-fence tcgen05.one-fences
      if (B != REUSE || r == kRounds - 1) tcgen05_commit(&bar);
    }
    if (B != REUSE) wait(&bar, r % 2);
    else __syncthreads();
  }
  if (B == REUSE) wait(&bar, 0);
  after_sync();
  for (int half = 0; half < 2; half++) {
    unsigned v[8];
    load8(v, tmem + half * 8);
    for (int i = 0; i < 8; i++) out[blockIdx.x * 2048 + t * 16 + half * 8 + i] = v[i];
  }
  before_sync();
  __syncthreads();
  if (t < 32) dealloc(tmem);
}

// Two buffers with a barrier each: a thread of a fifth warp multiplies, four warps write operands and read the sum.
template <Bug B> __global__ void tcgen05_staged(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tiles[2][kTile];
  __shared__ uint64_t full[2], empty[2], all;
  __shared__ unsigned slot;
  int t = threadIdx.x;
  if (t < 32) alloc(&slot);
  if (t == 0) {
    for (int s = 0; s < 2; s++) {
      init(&full[s], 128);
      init(&empty[s], 1);
    }
    init(&all, 1);
    fence_init();
  }
  before_sync();
  __syncthreads();
  after_sync();
  unsigned tmem = slot;
  if (t < 128) {
    for (int r = 0; r < kRounds; r++) {
      unsigned* tile = tiles[r % 2];
      wait(&empty[r % 2], r / 2 % 2 ^ 1);
      for (int i = t; i < kTile; i += 128) {
        tile[i] = in[(blockIdx.x * kRounds + r) * kTile + i];  // hazard: tcgen05-staged.early
      }
      fence_proxy();
      arrive(&full[r % 2]);
    }
    wait(&all, 0);
    after_sync();
    for (int half = 0; half < 2; half++) {
      unsigned v[8];
      load8(v, tmem + half * 8);
      for (int i = 0; i < 8; i++) out[blockIdx.x * 2048 + t * 16 + half * 8 + i] = v[i];
    }
  } else if (t == 128) {
    for (int r = 0; r < kRounds; r++) {
      wait(&full[r % 2], r / 2 % 2);
      after_sync();
      mma(tmem, tiles[r % 2], tiles[r % 2] + kA, r > 0);  // hazard: tcgen05-staged.early
      if (B == EARLY) arrive(&empty[r % 2]);
      else tcgen05_commit(&empty[r % 2]);
    }
    tcgen05_commit(&all);
  }
  __syncwarp();
  before_sync();
  __syncthreads();
  if (t < 32) dealloc(tmem);
}

// A copy to tensor memory.
template <Bug B> __global__ void tcgen05_copy(const unsigned* in, unsigned* out) {
  __shared__ alignas(1024) unsigned tile[kA];
  __shared__ uint64_t bar;
  __shared__ unsigned slot;
  int t = threadIdx.x;
  if (t < 32) alloc(&slot);
  if (t == 0) {
    init(&bar, 1);
    fence_init();
  }
  for (int i = t; i < kA; i += 128) tile[i] = in[blockIdx.x * kA + i];
  if (B != NO_FENCE) fence_proxy();
  before_sync();
  __syncthreads();
  after_sync();
  unsigned tmem = slot, v[8];
  if (t == 0) {
    copy(tmem, tile);  // hazard: tcgen05-copy.no-fence
    tcgen05_commit(&bar);
  }
  if (B != REUSE) wait(&bar, 0);
  __syncthreads();
  tile[t] = t;  // hazard: tcgen05-copy.reuse
  if (B == REUSE) wait(&bar, 0);
  __syncthreads();
  after_sync();
  load8(v, tmem);
  for (int i = 0; i < 8; i++) out[blockIdx.x * kA + t * 8 + i] = v[i] + tile[127 - t];
  before_sync();
  __syncthreads();
  if (t < 32) dealloc(tmem);
}
static unsigned copied(const unsigned* in, int i) {
  int block = i / kA, row = i % kA / 8, column = i % 8;
  return in[block * kA + (row / 8 * 2 + column / 4) * 32 + row % 8 * 4 + column % 4] + 127 - row;
}

static const Case cases[] = {
    {"tcgen05", tcgen05_store<NONE>, 2, 128, 4096, product},
    {"tcgen05.no-fence", tcgen05_store<NO_FENCE>, 2, 128, 4096, product},
    {"tcgen05.one-fences", tcgen05_store<ONE_FENCES>, 2, 128, 4096, product},
    {"tcgen05.reuse", tcgen05_store<REUSE>, 2, 128, 4096, product},
    {"tcgen05-staged", tcgen05_staged<NONE>, 2, 160, 4096, product},
    {"tcgen05-staged.early", tcgen05_staged<EARLY>, 2, 160, 4096, product},
    {"tcgen05-copy", tcgen05_copy<NONE>, 2, 128, 2048, copied},
    {"tcgen05-copy.no-fence", tcgen05_copy<NO_FENCE>, 2, 128, 2048, copied},
    {"tcgen05-copy.reuse", tcgen05_copy<REUSE>, 2, 128, 2048, copied},
};

int main(int argc, char** argv) { return run_named(cases, argc, argv); }
