// ldmatrix and stmatrix, with rows in different banks and in the same banks.
#include "common.cuh"

constexpr int kBlocks = 4;

// Reads kCount 8 x 8 matrices whose rows are kPitch bytes apart.
template <int kCount, bool kTransposed, int kPitch>
__global__ void load_matrices(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint8_t tile[32 * kPitch];
  int lane = threadIdx.x;
  auto* words = reinterpret_cast<uint32_t*>(tile);
#pragma unroll 1
  for (int i = lane; i < 8 * kPitch; i += 32) words[i] = in[i];
  __syncthreads();
  uint32_t address = shared_address(tile + lane % (8 * kCount) * kPitch), r[4] = {};
  if constexpr (kCount == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address));
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
  } else if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
  }
  out[thread_number()] = r[0] ^ r[1] ^ r[2] ^ r[3];
}

// All rows of the four matrices are the same one.
__global__ void load_matrices_same_row(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t words[32];
  int lane = threadIdx.x;
  words[lane] = in[lane];
  __syncthreads();
  uint32_t r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(words)));
  out[thread_number()] = r[0] ^ r[1] ^ r[2] ^ r[3];
}

// Writes kCount 8 x 8 matrices whose rows are kPitch bytes apart, and reads them as rows of 16 bytes.
template <int kCount, bool kTransposed, int kPitch>
__global__ void store_matrices(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint8_t tile[8 * kCount * kPitch];
  int lane = threadIdx.x;
  uint32_t address = shared_address(tile + lane % (8 * kCount) * kPitch);
  uint32_t a = in[lane], b = in[lane + 32], c = in[lane + 64], d = in[lane + 96];
  if constexpr (kCount == 1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(address), "r"(a) : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
  } else if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                 "r"(b), "r"(c), "r"(d) : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d) : "memory");
  }
  __syncthreads();
  uint4 v = *reinterpret_cast<uint4*>(tile + lane % (8 * kCount) * kPitch);
  out[thread_number()] = v.x ^ v.y ^ v.z ^ v.w;
}

int main() {
  auto* in = reinterpret_cast<uint32_t*>(floats(4096));
  uint32_t* out = zeros<uint32_t>(4096);
  load_matrices<1, false, 16><<<kBlocks, 32>>>(in, out);
  load_matrices<2, false, 16><<<kBlocks, 32>>>(in, out);
  load_matrices<4, false, 16><<<kBlocks, 32>>>(in, out);
  load_matrices<4, true, 16><<<kBlocks, 32>>>(in, out);
  load_matrices<1, false, 128><<<kBlocks, 32>>>(in, out);
  load_matrices<4, false, 32><<<kBlocks, 32>>>(in, out);
  load_matrices<4, false, 64><<<kBlocks, 32>>>(in, out);
  load_matrices<4, false, 128><<<kBlocks, 32>>>(in, out);
  load_matrices<4, true, 128><<<kBlocks, 32>>>(in, out);
  load_matrices<4, false, 144><<<kBlocks, 32>>>(in, out);
  load_matrices_same_row<<<kBlocks, 32>>>(in, out);
  store_matrices<1, false, 16><<<kBlocks, 32>>>(in, out);
  store_matrices<2, false, 16><<<kBlocks, 32>>>(in, out);
  store_matrices<4, false, 16><<<kBlocks, 32>>>(in, out);
  store_matrices<4, true, 16><<<kBlocks, 32>>>(in, out);
  store_matrices<4, false, 128><<<kBlocks, 32>>>(in, out);
  store_matrices<4, false, 144><<<kBlocks, 32>>>(in, out);
  return finish();
}
