// Asynchronous copies between global and shared memory: cp.async, bulk copies, and two-dimensional tensor copies.
#include <cuda.h>

#include "common.cuh"

constexpr int kBlocks = 4, kThreads = 128;

__device__ void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ void expect_bytes(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ void wait_barrier(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra wait;\n"
      "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Each thread copies kBytes to an address kPitch bytes after that of the thread before, and reads them again.
template <int kBytes, int kPitch>
__global__ void copy_async(const char* in, uint32_t* out) {
  __shared__ alignas(16) char tile[kThreads * kPitch];
  uint32_t to = shared_address(tile + threadIdx.x * kPitch);
  const char* from = in + thread_number() * kBytes;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  out[thread_number()] = *reinterpret_cast<uint32_t*>(tile + (threadIdx.x ^ 1) * kPitch);
}

// Through the L2 only. Threads at or after n write zeros instead.
__global__ void copy_async_global(const char* in, uint32_t* out, int n) {
  __shared__ alignas(16) char tile[kThreads * 16];
  uint32_t to = shared_address(tile + threadIdx.x * 16);
  const char* from = in + thread_number() * 16;
  int bytes = thread_number() < n ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  out[thread_number()] = *reinterpret_cast<uint32_t*>(tile + (threadIdx.x ^ 1) * 16);
}

// Rows of 64 bytes are copied by four threads each; their addresses in shared memory are permuted, as for ldmatrix.
__global__ void copy_async_swizzled(const char* in, uint32_t* out) {
  __shared__ alignas(16) char tile[kThreads * 16];
  int row = threadIdx.x / 4, part = threadIdx.x % 4;
  uint32_t to = shared_address(tile + row * 64 + (part ^ row / 2 % 4) * 16);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(in + thread_number() * 16) : "memory");
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[thread_number()] = *reinterpret_cast<uint32_t*>(tile + (threadIdx.x ^ 1) * 16);
}

__global__ void bulk_load(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(128) uint32_t tile[1024];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    init_barrier(&barrier);
    expect_bytes(&barrier, sizeof(tile));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(tile)), "l"(in + blockIdx.x * 1024), "r"(4096), "r"(shared_address(&barrier))
                 : "memory");
  }
  __syncthreads();
  wait_barrier(&barrier, 0);
  out[thread_number()] = tile[threadIdx.x] + tile[threadIdx.x + 128];
}

__global__ void bulk_store(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(128) uint32_t tile[kThreads];
  tile[threadIdx.x] = in[thread_number()];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + blockIdx.x * kThreads),
                 "r"(shared_address(tile)), "r"(kThreads * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Adds a tile to global memory.
__global__ void bulk_reduce(const float* in, float* out) {
  __shared__ alignas(128) float tile[kThreads];
  tile[threadIdx.x] = in[thread_number()];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(out),
                 "r"(shared_address(tile)), "r"(kThreads * 4) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// A box of 16 rows of 32 words. Its first element is (x, y) for block 0, and 24 columns further for each block.
constexpr int kColumns = 96, kRows = 40, kBoxColumns = 32, kBoxRows = 16;

enum class Box { kInside, kPartlyOutside };

template <Box>
__global__ void tensor_load(const __grid_constant__ CUtensorMap map, uint32_t* out, int x, int y) {
  __shared__ alignas(128) uint32_t tile[kBoxRows * kBoxColumns];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    init_barrier(&barrier);
    expect_bytes(&barrier, sizeof(tile));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(shared_address(tile)), "l"(&map), "r"(x + static_cast<int>(blockIdx.x) * 24), "r"(y),
                 "r"(shared_address(&barrier)) : "memory");
  }
  __syncthreads();
  wait_barrier(&barrier, 0);
  out[thread_number()] = tile[threadIdx.x] + tile[threadIdx.x + 384];
}

template <Box>
__global__ void tensor_store(const __grid_constant__ CUtensorMap map, const uint32_t* in, int x, int y) {
  __shared__ alignas(128) uint32_t tile[kBoxRows * kBoxColumns];
#pragma unroll 1
  for (int i = threadIdx.x; i < kBoxRows * kBoxColumns; i += kThreads) tile[i] = in[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                 "r"(x + static_cast<int>(blockIdx.x) * 32), "r"(y), "r"(shared_address(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// Two stages: while one is summed, the other is loaded.
__global__ void bulk_pipeline(const float* in, float* out) {
  __shared__ alignas(128) float stages[2][256];
  __shared__ uint64_t barriers[2];
  auto load = [&](int i) {
    expect_bytes(&barriers[i % 2], 1024);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(stages[i % 2])), "l"(in + (blockIdx.x * 6 + i) * 256), "r"(1024),
                 "r"(shared_address(&barriers[i % 2])) : "memory");
  };
  if (threadIdx.x == 0) {
    init_barrier(&barriers[0]);
    init_barrier(&barriers[1]);
    load(0);
    load(1);
  }
  __syncthreads();
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 6; ++i) {
    wait_barrier(&barriers[i % 2], i / 2 % 2);
    sum += stages[i % 2][threadIdx.x] * stages[i % 2][threadIdx.x + 128];
    __syncthreads();
    if (threadIdx.x == 0 && i + 2 < 6) load(i + 2);
  }
  out[thread_number()] = sum;
}

static CUtensorMap tensor_map(void* data) {
  void* function;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
  CUtensorMap map;
  cuuint64_t sizes[] = {kColumns, kRows}, pitches[] = {kColumns * 4};
  cuuint32_t box[] = {kBoxColumns, kBoxRows}, steps[] = {1, 1};
  CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, data, sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", status);
    std::exit(1);
  }
  return map;
}

int main() {
  float* in = floats(8192);
  float* out = zeros<float>(8192);
  auto* bytes = reinterpret_cast<char*>(in);
  auto* words = reinterpret_cast<uint32_t*>(in);
  auto* out_words = reinterpret_cast<uint32_t*>(out);
  CUtensorMap in_map = tensor_map(in), out_map = tensor_map(out);
  copy_async<4, 4><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<8, 8><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<16, 16><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<4, 128><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<8, 64><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<16, 128><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async<16, 144><<<kBlocks, kThreads>>>(bytes, out_words);
  copy_async_global<<<kBlocks, kThreads>>>(bytes, out_words, 437);
  copy_async_swizzled<<<kBlocks, kThreads>>>(bytes, out_words);
  bulk_load<<<kBlocks, kThreads>>>(words, out_words);
  bulk_store<<<kBlocks, kThreads>>>(words, out_words);
  bulk_reduce<<<kBlocks, kThreads>>>(in, out);
  tensor_load<Box::kInside><<<kBlocks, kThreads>>>(in_map, out_words, 0, 8);
  tensor_load<Box::kPartlyOutside><<<kBlocks, kThreads>>>(in_map, out_words, 20, 32);
  tensor_store<Box::kInside><<<2, kThreads>>>(out_map, words, 0, 8);
  tensor_store<Box::kPartlyOutside><<<2, kThreads>>>(out_map, words, 40, 32);
  bulk_pipeline<<<kBlocks, kThreads>>>(in, out);
  return finish();
}
