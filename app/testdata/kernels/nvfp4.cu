// d = a b^T of 256 x 256 x 256 numbers of 4 bits (e2m1) with a scale (e4m3) for every 16 along the depth: nvfp4. For
// sm_100a. Each of four blocks multiplies 128 x 128. The program compares its result with the host's, bit by bit.
#include "async.cuh"

constexpr int kSize = 256, kTile = 128, kDepth = 64, kSteps = kSize / kDepth;
constexpr int kTileBytes = kTile * kSize / 2, kScaleBytes = kTile * kSize / 16;

enum Mistake { RIGHT, SCALES, COMMIT, DESCRIPTOR };

// Rows of 128 bytes with the swizzle of 128 bytes; groups of eight rows are `stride` bytes apart.
DEVICE uint64_t matrix(const void* p, unsigned stride) {
  return shared(p) >> 4 | 1ull << 16 | (uint64_t)(stride >> 4) << 32 | 1ull << 46 | 2ull << 61;
}
// 32 rows of 16 bytes without swizzle.
DEVICE uint64_t scales(const void* p) { return shared(p) >> 4 | 8ull << 16 | 8ull << 32 | 1ull << 46; }

DEVICE void copy_scales(unsigned tmem, const void* p) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(tmem), "l"(scales(p)) : "memory");
}
DEVICE void multiply(unsigned d, uint64_t a, uint64_t b, unsigned scale_a, unsigned scale_b, bool add) {
  constexpr unsigned kShape = 1 << 7 | 1 << 10 | kTile >> 3 << 17 | kTile >> 4 << 24;  // e2m1, scales of e4m3
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
               "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%0], %1, %2, %3, [%4], [%5], p;\n}"
               ::"r"(d), "l"(a), "l"(b), "r"(kShape), "r"(scale_a), "r"(scale_b), "r"((unsigned)add) : "memory");
}

template <Mistake M>
__global__ void nvfp4(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                      const uint8_t* scales_a, const uint8_t* scales_b, float* out) {
  extern __shared__ __align__(1024) uint8_t memory[];
  uint8_t *a = memory, *b = a + kTileBytes, *sa = b + kTileBytes, *sb = sa + kScaleBytes;
  __shared__ uint64_t full, done;
  __shared__ unsigned slot;
  int t = threadIdx.x, row = blockIdx.y * kTile, column = blockIdx.x * kTile;
  if (t < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 256;" ::"r"(shared(&slot)) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  }
  if (t == 0) {
    init(&full, 1);
    init(&done, 1);
    fence_init();
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  unsigned d = slot, scale_a = d + kTile, scale_b = scale_a + 4 * kSteps;
  if (t == 0) {
    arrive_expect(&full, 2 * kTileBytes + 2 * kScaleBytes);
    tensor_load(a, &map_a, 0, row, &full);
    tensor_load(b, &map_b, 0, column, &full);
    bulk_load(sa, scales_a + blockIdx.y * kScaleBytes, kScaleBytes, &full);
    bulk_load(sb, scales_b + blockIdx.x * kScaleBytes, kScaleBytes, &full);
    wait(&full, 0);
    for (int s = 0; s < kSteps; s++) {
      copy_scales(scale_a + 4 * s, sa + 512 * s);
      copy_scales(scale_b + 4 * s, sb + 512 * s);
      unsigned stride = M == DESCRIPTOR ? 2048 : 1024;
      multiply(d, matrix(a + 32 * s, stride), matrix(b + 32 * s, stride), scale_a + 4 * s, scale_b + 4 * s, s > 0);
    }
    if (M != COMMIT) {
      asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared(&done))
                   : "memory");
    }
  }
  wait(&done, 0);  // mistake: commit
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  for (int c = 0; c < kTile; c += 8) {
    unsigned v[8];
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                 : "r"(d + c + (t / 32 << 21)) : "memory");
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    for (int i = 0; i < 8; i++) out[(row + t) * kSize + column + c + i] = __uint_as_float(v[i]);
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  if (t < 32) asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 256;" ::"r"(d) : "memory");
}

// A matrix on the host and on the GPU. Scales are stored for 128 rows and a depth of 64: of 32 rows with 16 bytes, row r
// has the four scales of rows r, r + 32, r + 64 and r + 96.
struct Operand {
  uint8_t codes[kSize * kSize / 2], scales[kSize * kSize / 16];
  uint8_t *gpu_codes, *gpu_scales;
  CUtensorMap map;

  float value(int row, int k) const {
    static const float of[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned code = codes[(row * kSize + k) / 2] >> (k % 2 * 4) & 15, scale = scales[row * (kSize / 16) + k / 16];
    float v = of[code & 7] * (scale == 0x30 ? 0.5f : scale == 0x38 ? 1 : 2);
    return code & 8 ? -v : v;
  }
};

static int make(Operand& o, unsigned seed, bool plain) {
  const char* name = "nvfp4";
  static uint8_t blocked[sizeof o.scales];
  for (auto& c : o.codes) c = (seed = seed * 1664525 + 1013904223) >> 24;
  for (auto& s : o.scales) s = 0x30 + 8 * (((seed = seed * 1664525 + 1013904223) >> 24) % 3);  // 1/2, 1, 2
  for (int r = 0; r < kSize; r++) {
    for (int k = 0; k < kSize / 16; k++) {
      int to = r / 128 * 2048 + k / 4 * 512 + r % 32 * 16 + r % 128 / 32 * 4 + k % 4;
      blocked[plain ? r * (kSize / 16) + k : to] = o.scales[r * (kSize / 16) + k];
    }
  }
  CHECK(cudaMalloc(&o.gpu_codes, sizeof o.codes));
  CHECK(cudaMalloc(&o.gpu_scales, sizeof o.scales));
  CHECK(cudaMemcpy(o.gpu_codes, o.codes, sizeof o.codes, cudaMemcpyDefault));
  CHECK(cudaMemcpy(o.gpu_scales, blocked, sizeof o.scales, cudaMemcpyDefault));
  PFN_cuTensorMapEncodeTiled_v12000 encode;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, 0, &found));
  cuuint64_t size[] = {kSize, kSize}, pitch[] = {kSize / 2};
  cuuint32_t box[] = {kSize, kTile}, step[] = {1, 1};
  return encode(&o.map, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, 2, o.gpu_codes, size, pitch, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <Mistake M> static int run(const char* name) {
  static Operand a, b;
  static float got[kSize * kSize];
  float* out;
  if (make(a, 1, M == SCALES) || make(b, 2, false)) return 2;
  CHECK(cudaMalloc(&out, sizeof got));
  int bytes = 2 * kTileBytes + 2 * kScaleBytes;
  CHECK(cudaFuncSetAttribute(nvfp4<M>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  nvfp4<M><<<dim3(2, 2), 128, bytes>>>(a.map, b.map, a.gpu_scales, b.gpu_scales, out);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDefault));
  for (int i = 0; i < kSize; i++) {
    for (int j = 0; j < kSize; j++) {
      float want = 0;
      for (int k = 0; k < kSize; k++) want += a.value(i, k) * b.value(j, k);
      if (got[i * kSize + j] == want) continue;
      return printf("%s wrong: %g at row %d, column %d, want %g\n", name, got[i * kSize + j], i, j, want), 1;
    }
  }
  return printf("%s right\n", name), 0;
}

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "nvfp4";
  if (!strcmp(name, "nvfp4")) return run<RIGHT>(name);
  if (!strcmp(name, "scales")) return run<SCALES>(name);
  if (!strcmp(name, "commit")) return run<COMMIT>(name);
  if (!strcmp(name, "descriptor")) return run<DESCRIPTOR>(name);
  return printf("no kernel %s\n", name), 2;
}
