// Kernels as authors write them, without matrices: rows, sums, scans, sparse rows, sorting.
#include <cuda_fp16.h>

#include "common.cuh"

__global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = thread_number();
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void gelu_quads(const float4* in, float4* out, int n) {
  auto gelu = [](float v) { return 0.5f * v * (1 + tanhf(0.79788456f * (v + 0.044715f * v * v * v))); };
  int i = thread_number();
  if (i >= n) return;
  float4 v = in[i];
  out[i] = make_float4(gelu(v.x), gelu(v.y), gelu(v.z), gelu(v.w));
}

__global__ void scale_half2(const half2* in, half2* out, float factor, int n) {
  for (int i = thread_number(); i < n; i += gridDim.x * blockDim.x) {
    float2 v = __half22float2(in[i]);
    out[i] = __floats2half2_rn(v.x * factor, v.y * factor);
  }
}

// Quantises rows of 256 floats to bytes, with one scale per row. One warp per row.
__global__ void quantize_rows(const float* in, int8_t* out, float* scales) {
  int row = thread_number() / 32, lane = lane_number();
  float values[8], largest = 0;
  for (int j = 0; j < 8; ++j) {
    values[j] = in[row * 256 + j * 32 + lane];
    largest = fmaxf(largest, fabsf(values[j]));
  }
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  if (lane == 0) scales[row] = largest / 127;
  for (int j = 0; j < 8; ++j) out[row * 256 + j * 32 + lane] = __float2int_rn(values[j] * 127 / largest);
}

__device__ float warp_sum(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(~0u, v, step);
  return v;
}

// The sum of all threads of a block, in every thread.
__device__ float block_sum(float v) {
  __shared__ float sums[32];
  v = warp_sum(v);
  if (lane_number() == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  v = lane_number() < blockDim.x / 32 ? sums[lane_number()] : 0;
  v = warp_sum(v);
  v = __shfl_sync(~0u, v, 0);
  __syncthreads();
  return v;
}

__global__ void reduce(const float* in, float* out, int n) {
  float sum = 0;
  for (int i = thread_number(); i < n; i += gridDim.x * blockDim.x) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}

// One block per row of n elements.
__global__ void softmax_rows(const float* in, float* out, int n) {
  __shared__ float values[32];
  in += blockIdx.x * n;
  out += blockIdx.x * n;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) largest = fmaxf(largest, in[i]);
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  if (lane_number() == 0) values[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < blockDim.x / 32; ++i) largest = fmaxf(largest, values[i]);
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(in[i] - largest);
  sum = block_sum(sum);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = expf(in[i] - largest) / sum;
}

__global__ void layer_norm(const float* in, const float* gain, float* out, int n) {
  in += blockIdx.x * n;
  out += blockIdx.x * n;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float v = in[i];
    sum += v;
    squares += v * v;
  }
  float mean = block_sum(sum) / n;
  float scale = rsqrtf(block_sum(squares) / n - mean * mean + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = (in[i] - mean) * scale * gain[i];
}

// Inclusive sums within each block.
__global__ void scan_block(const float* in, float* out) {
  __shared__ float sums[256];
  int t = threadIdx.x;
  sums[t] = in[thread_number()];
  __syncthreads();
  for (int step = 1; step < 256; step *= 2) {
    float v = t >= step ? sums[t - step] : 0;
    __syncthreads();
    sums[t] += v;
    __syncthreads();
  }
  out[thread_number()] = sums[t];
}

// A sort of 256 elements per block.
__global__ void bitonic_sort(float* values) {
  __shared__ float v[256];
  int t = threadIdx.x;
  v[t] = values[thread_number()];
  __syncthreads();
  for (int size = 2; size <= 256; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      int other = t ^ step;
      if (other > t) {
        bool up = (t & size) == 0;
        float a = v[t], b = v[other];
        if ((a > b) == up) {
          v[t] = b;
          v[other] = a;
        }
      }
      __syncthreads();
    }
  }
  values[thread_number()] = v[t];
}

// Rows of different lengths, one thread per row.
__global__ void sparse_rows(const int* starts, const int* columns, const float* values, const float* x, float* y,
                            int n) {
  int row = thread_number();
  if (row >= n) return;
  float sum = 0;
  for (int i = starts[row]; i < starts[row + 1]; ++i) sum += values[i] * x[columns[i]];
  y[row] = sum;
}

// The five-point stencil on 64 x 64 elements, without shared memory.
__global__ void stencil(const float* in, float* out) {
  int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
  if (x == 0 || y == 0 || x == 63 || y == 63) return;
  int i = y * 64 + x;
  out[i] = 0.25f * (in[i - 1] + in[i + 1] + in[i - 64] + in[i + 64]) - in[i];
}

// A convolution with 7 weights, with a border on both sides in shared memory.
__global__ void convolution(const float* in, const float* weights, float* out) {
  __shared__ float tile[256 + 6];
  int i = thread_number();
  tile[threadIdx.x] = in[i];
  if (threadIdx.x < 6) tile[threadIdx.x + 256] = in[i + 256];
  __syncthreads();
  float sum = 0;
  for (int j = 0; j < 7; ++j) sum += tile[threadIdx.x + j] * weights[j];
  out[i] = sum;
}

__global__ void count_values(const uint8_t* in, int* counts, int n) {
  __shared__ int local[256];
  local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = thread_number(); i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[in[i]], 1);
  __syncthreads();
  if (local[threadIdx.x]) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

// Rows of 64 halves of a table, chosen by token. 8 lanes copy a row.
__global__ void embedding(const int* tokens, const uint4* rows, uint4* out, int n) {
  int i = thread_number();
  if (i < n * 8) out[i] = rows[tokens[i / 8] * 8 + i % 8];
}

// Pairs of elements, 32 apart, are rotated by an angle that depends on the position.
__global__ void rotate_pairs(half* x, const float2* angles, int n) {
  int i = thread_number(), row = i / 32, pair = i % 32;
  if (row >= n) return;
  float2 angle = angles[row * 32 + pair];
  float a = __half2float(x[row * 64 + pair]), b = __half2float(x[row * 64 + pair + 32]);
  x[row * 64 + pair] = __float2half(a * angle.x - b * angle.y);
  x[row * 64 + pair + 32] = __float2half(a * angle.y + b * angle.x);
}

int main() {
  float* in = floats(8192);
  float* out = zeros<float>(8192);
  auto* quads = reinterpret_cast<float4*>(in);
  auto* halves = filled<half2>(4096, [](int i) { return __float2half2_rn(i / 4096.0f); });
  auto* bytes = filled<uint8_t>(8192, [](int i) { return (i * 2654435761u >> 24) & (i * 40503u >> 8); });
  int* starts = filled<int>(257, [](int i) { return i * 8 + i % 7; });
  int* columns = filled<int>(4096, [](int i) { return permuted(i, 4096); });
  int* tokens = filled<int>(64, [](int i) { return permuted(i, 64); });
  saxpy<<<4, 256>>>(1000, 2.0f, in, out);
  gelu_quads<<<4, 128>>>(quads, reinterpret_cast<float4*>(out), 500);
  scale_half2<<<2, 128>>>(halves, reinterpret_cast<half2*>(out), 0.5f, 1000);
  quantize_rows<<<4, 128>>>(in, reinterpret_cast<int8_t*>(out), out + 4096);
  reduce<<<4, 256>>>(in, out, 5000);
  softmax_rows<<<4, 128>>>(in, out, 1000);
  layer_norm<<<4, 256>>>(in, in + 4096, out, 1024);
  scan_block<<<4, 256>>>(in, out);
  bitonic_sort<<<4, 256>>>(out);
  sparse_rows<<<2, 128>>>(starts, columns, in, in + 4096, out, 250);
  stencil<<<dim3(2, 8), dim3(32, 8)>>>(in, out);
  convolution<<<4, 256>>>(in, in + 4096, out);
  count_values<<<4, 256>>>(bytes, reinterpret_cast<int*>(out), 8000);
  embedding<<<4, 128>>>(tokens, reinterpret_cast<uint4*>(halves), reinterpret_cast<uint4*>(out), 60);
  rotate_pairs<<<4, 256>>>(reinterpret_cast<half*>(halves), reinterpret_cast<float2*>(in), 30);
  return finish();
}
