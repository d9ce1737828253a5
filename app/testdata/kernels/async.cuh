// What the programs async_*.cu share: wrappers of PTX instructions, and a main that runs one kernel by name, checks its
// output against the host's and prints "NAME right" or the first difference. async.txt lists what the virtual GPU has
// to find in each. A name without a dot is a right kernel; NAME.MISTAKE is the same kernel with one mistake, and a
// comment "hazard: NAME.MISTAKE" marks the lines that the finding may name.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

// The mistakes.
enum Bug {
  NONE, NO_FENCE, FENCE_FIRST, ISSUER_FENCE, ONE_FENCES, REUSE, NO_WAIT, OTHER_WAITS, NO_COMMIT, READ_ONLY, TOO_FEW,
  LATE_WAIT, REFILL, NO_SYNCWARP, VOTE, MATCH, REDUX, ELECT, FENCE_ONLY, RELAXED, NO_INIT, NO_SYNC, TWICE, INVALIDATED,
  OVERWRITTEN, NO_START, NO_MIDDLE, NO_END, EARLY, CONSUMER
};

#define DEVICE static __device__ __forceinline__

DEVICE unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// mbarriers
DEVICE void init(uint64_t* bar, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)), "r"(count) : "memory");
}
DEVICE void inval(uint64_t* bar) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(bar)) : "memory");
}
DEVICE void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory");
}
DEVICE void arrive_expect(uint64_t* bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)), "r"(bytes) : "memory");
}
DEVICE bool try_wait(uint64_t* bar, unsigned parity) {
  unsigned done;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
               : "=r"(done) : "r"(shared(bar)), "r"(parity) : "memory");
  return done;
}
DEVICE void wait(uint64_t* bar, unsigned parity) {
  while (!try_wait(bar, parity)) {
  }
}
DEVICE void wait_cluster(uint64_t* bar, unsigned parity) {
  unsigned done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(shared(bar)), "r"(parity) : "memory");
  } while (!done);
}

// Bulk copies
DEVICE void bulk_load(void* to, const void* from, unsigned bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared(to)), "l"(from), "r"(bytes), "r"(shared(bar)) : "memory");
}
DEVICE void bulk_multicast(void* to, const void* from, unsigned bytes, uint64_t* bar, uint16_t mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1], %2, [%3], %4;" ::"r"(shared(to)), "l"(from), "r"(bytes), "r"(shared(bar)), "h"(mask)
               : "memory");
}
DEVICE void bulk_store(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared(from)), "r"(bytes)
               : "memory");
}
DEVICE void bulk_add(unsigned* to, const unsigned* from, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared(from)), "r"(bytes) : "memory");
}
// bulk_send copies to the shared memory of another block; both addresses are of the window shared::cluster.
DEVICE void bulk_send(unsigned to, const void* from, unsigned bytes, unsigned bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "r"(shared(from)), "r"(bytes), "r"(bar) : "memory");
}
DEVICE void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> DEVICE void wait_group() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Tensor copies of a tile at column x, row y
DEVICE void tensor_load(void* to, const CUtensorMap* map, int x, int y, uint64_t* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(shared(to)), "l"(map), "r"(x), "r"(y), "r"(shared(bar)) : "memory");
}
DEVICE void tensor_store(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"(shared(from)) : "memory");
}
DEVICE void tensor_add(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(shared(from)) : "memory");
}

// Copies of 4 and 16 bytes that are not bulk copies
DEVICE void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared(to)), "l"(from) : "memory");
}
DEVICE void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEVICE void copy_arrive(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared(bar)) : "memory");
}

// Named barriers
DEVICE void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// One lane of the warp gets true.
DEVICE bool elect() {
  unsigned elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected)::"memory");
  return elected;
}

// Accesses with an order
DEVICE void store_release(unsigned* p, unsigned v) {
  asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEVICE void store_relaxed(unsigned* p, unsigned v) {
  asm volatile("st.relaxed.cta.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
DEVICE unsigned load_acquire(const unsigned* p) {
  unsigned v;
  asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
DEVICE void add_release(unsigned* p, unsigned v) {
  asm volatile("red.release.cta.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Clusters
DEVICE unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DEVICE unsigned remote(const void* p, unsigned rank) {
  unsigned a;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared(p)), "r"(rank));
  return a;
}
DEVICE unsigned remote_load(unsigned a) {
  unsigned v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
DEVICE void remote_store(unsigned a, unsigned v) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
DEVICE void remote_arrive(unsigned bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEVICE void store_async(unsigned a, unsigned v, unsigned bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(a), "r"(v), "r"(bar)
               : "memory");
}
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The input of all kernels has kInput numbers, and so has the output.
constexpr int kInput = 1 << 14;
// Tensor maps are of in and out as matrices with rows of kWidth numbers, and have boxes of kBoxX by kBoxY.
constexpr int kWidth = 64, kBoxX = 32, kBoxY = 16;

struct Maps {
  CUtensorMap in, out;
};

typedef void Kernel(const unsigned* in, unsigned* out);
typedef void TensorKernel(const Maps maps, const unsigned* in, unsigned* out, CUtensorMap* scratch);

struct Case {
  const char* name;
  Kernel* kernel;
  TensorKernel* tensor;
  int blocks, threads, n;
  unsigned (*want)(const unsigned* in, int i);

  Case(const char* name, Kernel* kernel, int blocks, int threads, int n, unsigned (*want)(const unsigned*, int))
      : name(name), kernel(kernel), tensor(nullptr), blocks(blocks), threads(threads), n(n), want(want) {}
  Case(const char* name, TensorKernel* tensor, int blocks, int threads, int n, unsigned (*want)(const unsigned*, int))
      : name(name), kernel(nullptr), tensor(tensor), blocks(blocks), threads(threads), n(n), want(want) {}
};

#define CHECK(call)                                                                          \
  do {                                                                                       \
    cudaError_t error = call;                                                                \
    if (error != cudaSuccess) {                                                              \
      printf("%s %s at %s:%d\n", name, cudaGetErrorName(error), __FILE__, __LINE__);         \
      return 2;                                                                              \
    }                                                                                        \
  } while (0)

static CUresult encode(CUtensorMap* map, unsigned* p) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode;
  cudaDriverEntryPointQueryResult found;
  if (!encode && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, 0, &found)) {
    return CUDA_ERROR_NOT_FOUND;
  }
  cuuint64_t size[] = {kWidth, kInput / kWidth}, pitch[] = {kWidth * 4};
  cuuint32_t box[] = {kBoxX, kBoxY}, step[] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, p, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static int run(const Case& c) {
  const char* name = c.name;
  static unsigned host[kInput], got[kInput];
  for (int i = 0; i < kInput; i++) host[i] = (i * 2654435761u >> 12) % 1000 + 1;
  unsigned *in, *out;
  CHECK(cudaMalloc(&in, sizeof host));
  CHECK(cudaMalloc(&out, sizeof host));
  CHECK(cudaMemcpy(in, host, sizeof host, cudaMemcpyDefault));
  CHECK(cudaMemset(out, 0, sizeof host));
  if (c.tensor) {
    Maps maps;
    CUtensorMap* scratch;
    CHECK(cudaMalloc(&scratch, c.blocks * sizeof *scratch));
    if (encode(&maps.in, in) || encode(&maps.out, out)) return printf("%s: no tensor map\n", name), 2;
    c.tensor<<<c.blocks, c.threads>>>(maps, in, out, scratch);
  } else {
    c.kernel<<<c.blocks, c.threads>>>(in, out);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDefault));
  for (int i = 0; i < c.n; i++) {
    unsigned want = c.want(host, i);
    if (got[i] != want) return printf("%s wrong: %u at %d, want %u\n", name, got[i], i, want), 1;
  }
  printf("%s right\n", name);
  return 0;
}

template <int N> static int run_named(const Case (&cases)[N], int argc, char** argv) {
  for (const Case& c : cases) {
    if (argc < 2) printf("%s\n", c.name);
    if (argc > 1 && !strcmp(c.name, argv[1])) return run(c);
  }
  if (argc > 1) printf("no kernel %s\n", argv[1]);
  return argc > 1 ? 2 : 0;
}
