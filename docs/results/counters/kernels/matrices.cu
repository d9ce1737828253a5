// Matrix products with tensor cores: mma.sync, wmma, and wgmma with operands in shared memory.
#include <cuda_fp16.h>
#include <mma.h>

#include "common.cuh"

using namespace nvcuda;

constexpr int kBlocks = 4, kSteps = 8;

// One warp per block: kSteps products of fragments straight from global memory. a and b have two and four words per
// lane and step, in the order of the fragments.
__global__ void mma_f16(const uint4* a, const uint2* b, float4* d) {
  float4 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    uint4 x = a[k * 32 + threadIdx.x];
    uint2 y = b[k * 32 + threadIdx.x];
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w) : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  }
  d[thread_number()] = c;
}

__global__ void mma_f16_sums(const uint4* a, const uint2* b, uint2* d) {
  uint2 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    uint4 x = a[k * 32 + threadIdx.x];
    uint2 y = b[k * 32 + threadIdx.x];
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(c.x), "+r"(c.y) : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  }
  d[thread_number()] = c;
}

__global__ void mma_bf16(const uint4* a, const uint2* b, float4* d) {
  float4 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    uint4 x = a[k * 32 + threadIdx.x];
    uint2 y = b[k * 32 + threadIdx.x];
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w) : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  }
  d[thread_number()] = c;
}

__global__ void mma_tf32(const uint4* a, const uint2* b, float4* d) {
  float4 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    uint4 x = a[k * 32 + threadIdx.x];
    uint2 y = b[k * 32 + threadIdx.x];
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w) : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  }
  d[thread_number()] = c;
}

__global__ void mma_s8(const uint4* a, const uint2* b, int4* d) {
  int4 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    uint4 x = a[k * 32 + threadIdx.x];
    uint2 y = b[k * 32 + threadIdx.x];
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c.x), "+r"(c.y), "+r"(c.z), "+r"(c.w) : "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(y.x), "r"(y.y));
  }
  d[thread_number()] = c;
}

__global__ void mma_f64(const double* a, const double* b, double2* d) {
  double2 c = {};
#pragma unroll 1
  for (int k = 0; k < kSteps; ++k) {
    double x = a[k * 32 + threadIdx.x], y = b[k * 32 + threadIdx.x];
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c.x), "+d"(c.y) : "d"(x), "d"(y));
  }
  d[thread_number()] = c;
}

// Two 16 x 16 x 16 products per warp, from tiles in shared memory, with sums of type float.
__global__ void wmma_shared(const half* in, float* out) {
  __shared__ alignas(32) half a[16 * 16], b[16 * 16];
  for (int i = threadIdx.x; i < 256; i += 32) {
    a[i] = in[i];
    b[i] = in[i + 256];
  }
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(out + blockIdx.x * 256, fc, 16, wmma::mem_row_major);
}

// A 16 x 16 x 64 product per warp, from global memory, with sums of type half.
__global__ void wmma_half(const half* a, const half* b, half* out) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, half> fc;
  wmma::fill_fragment(fc, __float2half(0.0f));
#pragma unroll 1
  for (int k = 0; k < 64; k += 16) {
    wmma::load_matrix_sync(fa, a + k, 64);
    wmma::load_matrix_sync(fb, b + k * 16, 16);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(out + blockIdx.x * 256, fc, 16, wmma::mem_row_major);
}

// d = a b^T of 64 x 64 x 16: both operands in shared memory, in core matrices of 8 rows of 16 bytes, without swizzle.
// Row m, column k is at (m / 8 * 2 + k / 8) * 64 + m % 8 * 8 + k % 8.
__device__ uint64_t core_descriptor(const half* p) {
  return shared_address(p) >> 4 | 128ull >> 4 << 16 | 256ull >> 4 << 32;
}

#define WGMMA_N64(d, operands, ...)                                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "  \
               "%11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "    \
               "%30, %31}, " operands                                                                               \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),    \
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),           \
                 "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),         \
                 "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),         \
                 "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                                              \
               : __VA_ARGS__                                                                                        \
               : "memory")

// One warpgroup per block, two products of the same operands.
__global__ void wgmma_shared(const half* in, float* out) {
  __shared__ alignas(128) half a[64 * 16], b[64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) {
    int at = (i / 16 / 8 * 2 + i % 16 / 8) * 64 + i / 16 % 8 * 8 + i % 8;
    a[at] = in[i];
    b[at] = in[i + 1024];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float d[32] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  WGMMA_N64(d, "%32, %33, 1, 1, 1, 0, 0;", "l"(core_descriptor(a)), "l"(core_descriptor(b)));
  WGMMA_N64(d, "%32, %33, 1, 1, 1, 0, 0;", "l"(core_descriptor(a)), "l"(core_descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += d[i];
  out[thread_number()] = sum;
}

// The first operand in registers.
__global__ void wgmma_registers(const uint4* in, const half* in_b, float* out) {
  __shared__ alignas(128) half b[64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) {
    b[(i / 16 / 8 * 2 + i % 16 / 8) * 64 + i / 16 % 8 * 8 + i % 8] = in_b[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  uint4 a = in[threadIdx.x];
  __syncthreads();
  float d[32] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  WGMMA_N64(d, "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;", "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w),
            "l"(core_descriptor(b)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += d[i];
  out[thread_number()] = sum;
}

int main() {
  auto* in = filled<half>(8192, [](int i) { return __float2half((i * 2654435761u >> 24) / 256.0f); });
  auto* doubles = filled<double>(1024, [](int i) { return i / 1024.0; });
  float* out = zeros<float>(8192);
  auto* a = reinterpret_cast<uint4*>(in);
  auto* b = reinterpret_cast<uint2*>(in);
  mma_f16<<<kBlocks, 32>>>(a, b, reinterpret_cast<float4*>(out));
  mma_f16_sums<<<kBlocks, 32>>>(a, b, reinterpret_cast<uint2*>(out));
  mma_bf16<<<kBlocks, 32>>>(a, b, reinterpret_cast<float4*>(out));
  mma_tf32<<<kBlocks, 32>>>(a, b, reinterpret_cast<float4*>(out));
  mma_s8<<<kBlocks, 32>>>(a, b, reinterpret_cast<int4*>(out));
  mma_f64<<<kBlocks, 32>>>(doubles, doubles + 256, reinterpret_cast<double2*>(out));
  wmma_shared<<<kBlocks, 32>>>(in, out);
  wmma_half<<<kBlocks, 32>>>(in, in + 1024, reinterpret_cast<half*>(out));
  wgmma_shared<<<kBlocks, 128>>>(in, out);
  wgmma_registers<<<kBlocks, 128>>>(a, in, out);
  return finish();
}
