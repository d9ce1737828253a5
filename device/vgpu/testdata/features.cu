// One kernel for each thing that kernels of the contest are made of, each with 64 threads and p, 64 numbers that are
// their own index. See TestFeatures for what they leave in it.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cub/block/block_reduce.cuh>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

namespace cg = cooperative_groups;

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__global__ void scalars(int* p) {
  int lane, x;
  float f;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(x) : "r"(lane), "r"(5), "r"(3));
  asm("prmt.b32 %0, %1, %2, 0x3210;" : "=r"(x) : "r"(x), "r"(-1));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(3.0f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(f));
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
  asm volatile("bar.sync 0;");
  p[threadIdx.x] = x + static_cast<int>(f * 8000);
}

__global__ void copies(int* p) {
  __shared__ __align__(16) int s[64];
  int4 v;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(s + threadIdx.x)), "l"(p + threadIdx.x));
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;");
  asm volatile("ld.global.nc.L1::no_allocate.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p + threadIdx.x / 4 * 4));
  __syncthreads();
  asm volatile("red.global.add.s32 [%0], %1;" ::"l"(p + threadIdx.x), "r"(s[63 - threadIdx.x] + v.x) : "memory");
}

__global__ void products(int* p) {
  __shared__ __align__(16) __half s[512];
  for (int i = threadIdx.x; i < 512; i += 64) s[i] = __float2half(1.0f);
  __syncthreads();
  unsigned a[4];
  float c[4] = {0, 1, 2, 3};
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared_address(s + threadIdx.x % 32 * 8)));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%4, %5}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));
  p[threadIdx.x] += static_cast<int>(c[0] + c[3]);
}

__global__ void bulk(int* p) {
  __shared__ __align__(128) int s[64];
  __shared__ __align__(8) unsigned long long ready;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.proxy.async.shared::cta;" ::"r"(shared_address(&ready)));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(shared_address(&ready)));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(shared_address(s)),
                 "l"(p), "r"(shared_address(&ready)));
  }
  __syncthreads();
  asm volatile("{.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
      shared_address(&ready)));
  p[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void pairs(int* p) {
#if __CUDA_ARCH__ >= 1000
  float2 a = {2, 3}, d = __ffma2_rn(a, a, a);
  unsigned long long x, y = static_cast<unsigned long long>(__float_as_uint(d.y)) << 32 | __float_as_uint(d.x);
  asm volatile("griddepcontrol.wait;");
  asm("fma.rn.f32x2 %0, %1, %1, %1;" : "=l"(x) : "l"(y));
  asm volatile("griddepcontrol.launch_dependents;");
  p[threadIdx.x] += static_cast<int>(__uint_as_float(x >> 32) + __uint_as_float(static_cast<unsigned>(x)));
#endif
}

__global__ void pipelines(int* p) {
  __shared__ int s[64];
  __pipeline_memcpy_async(s + threadIdx.x, p + threadIdx.x, 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x ^ 1];
}

__global__ void library_pipelines(int* p) {
  __shared__ int s[64];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> state;
  auto block = cg::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  pipe.producer_acquire();
  cuda::memcpy_async(block, s, p, cuda::aligned_size_t<4>(sizeof s), pipe);
  pipe.producer_commit();
  pipe.consumer_wait();
  p[threadIdx.x] = s[threadIdx.x ^ 2];
  pipe.consumer_release();
}

__global__ void library_barriers(int* p) {
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  __shared__ int s[64];
  if (threadIdx.x == 0) init(&bar, 64);
  __syncthreads();
  s[threadIdx.x] = p[threadIdx.x];
  bar.arrive_and_wait();
  cuda::std::array<int, 2> a = {s[threadIdx.x ^ 1], s[threadIdx.x ^ 3]};
  cuda::atomic_ref<int, cuda::thread_scope_device>(p[threadIdx.x]).fetch_add(a[0] + a[1], cuda::memory_order_relaxed);
}

__global__ void groups(int* p) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int sum = cg::reduce(warp, p[threadIdx.x], cg::plus<int>()), most = cg::reduce(warp, p[threadIdx.x], cg::greater<int>());
  cg::this_thread_block().sync();
  p[threadIdx.x] = sum + most + (warp.any(threadIdx.x == 40) ? 10000 : 0);
}

// Of 8 blocks, each of which waits for all.
__global__ void grid(int* p) {
  if (threadIdx.x == 0) atomicAdd(p, 1);
  cg::this_grid().sync();
  if (threadIdx.x == 1) atomicAdd(p + 1, *static_cast<volatile int*>(p));
}

// Of 4 blocks in clusters of two, each of which writes what the other one has.
__global__ void __cluster_dims__(2) clusters(int* p) {
  __shared__ int s;
  auto both = cg::this_cluster();
  if (threadIdx.x == 0) s = blockIdx.x;
  both.sync();
  if (threadIdx.x == 0) p[blockIdx.x] = *both.map_shared_rank(&s, both.block_rank() ^ 1) + 100;
  both.sync();
}

// Launched with attributes: of 2 blocks that are one cluster, and programmatic.
__global__ void attributes(int* p) {
  cudaGridDependencySynchronize();
  __shared__ int s;
  if (threadIdx.x == 0) p[blockIdx.x] = cg::this_cluster().num_blocks() * 10 + __isShared(&s) + (__isGlobal(&s) ? 100 : 0);
  cudaTriggerProgrammaticLaunchCompletion();
}

__global__ void fragments(int* p) {
  using namespace nvcuda::wmma;
  __shared__ __align__(32) __half s[256];
  __shared__ __align__(32) float out[256];
  for (int i = threadIdx.x; i < 256; i += 64) s[i] = __float2half(i % 16);
  __syncthreads();
  if (threadIdx.x < 32) {
    fragment<matrix_a, 16, 16, 16, __half, row_major> a;
    fragment<matrix_b, 16, 16, 16, __half, col_major> b;
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(c, 1.0f);
    load_matrix_sync(a, s, 16);
    load_matrix_sync(b, s, 16);
    mma_sync(c, a, b, c);
    store_matrix_sync(out, c, 16, mem_row_major);
  }
  __syncthreads();
  p[threadIdx.x] += static_cast<int>(out[threadIdx.x * 3]);
}

__global__ void cub_sum(int* p) {
  using Reduce = cub::BlockReduce<int, 64>;
  __shared__ typename Reduce::TempStorage s;
  int sum = Reduce(s).Sum(p[threadIdx.x]);
  if (threadIdx.x == 0) p[0] = sum;
}

static void run(tvm::ffi::TensorView t, int64_t which) {
  int* p = static_cast<int*>(t.data_ptr());
  switch (which) {
  case 0: scalars<<<1, 64>>>(p); break;
  case 1: copies<<<1, 64>>>(p); break;
  case 2: products<<<1, 64>>>(p); break;
  case 3: bulk<<<1, 64>>>(p); break;
  case 4: pairs<<<1, 64>>>(p); break;
  case 5: pipelines<<<1, 64>>>(p); break;
  case 6: library_pipelines<<<1, 64>>>(p); break;
  case 7: library_barriers<<<1, 64>>>(p); break;
  case 8: groups<<<1, 64>>>(p); break;
  case 9: {
    void* args[] = {&p};
    cudaLaunchCooperativeKernel(reinterpret_cast<void*>(grid), dim3(8), dim3(64), args, 0, nullptr);
  } break;
  case 10: clusters<<<4, 64>>>(p); break;
  case 11: {
    cudaLaunchAttribute a[2];
    a[0].id = cudaLaunchAttributeClusterDimension;
    a[0].val.clusterDim.x = 2;
    a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
    a[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(2);
    c.blockDim = dim3(64);
    c.attrs = a;
    c.numAttrs = 2;
    cudaLaunchKernelEx(&c, attributes, p);
  } break;
  case 12: fragments<<<1, 64>>>(p); break;
  case 13: cub_sum<<<1, 64>>>(p); break;
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
