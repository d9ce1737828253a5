// Kernels of three classes for BenchmarkTranslated: a matrix product as in textbooks, a stencil and an elementwise
// function, all in float32. `speed CLASS` checks the results and prints the CPU time of the launches in seconds.
// Build: fisub nvcc -O3 -o speed speed.cu
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#define CHECK(call)                                                                    \
  do {                                                                                 \
    if (cudaError_t e = (call)) {                                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e));                \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

constexpr int kTile = 16;

// c = a * b; all are (n, n), row-major, and n is a multiple of kTile.
__global__ void product(const float* a, const float* b, float* c, int n) {
  __shared__ float as[kTile][kTile], bs[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y, col = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += kTile) {
    as[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + col];
    __syncthreads();
    for (int i = 0; i < kTile; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}

// A step of Jacobi's method for Laplace's equation: b is the mean of the four neighbours in a; both are (n, n). Points
// at the edge are copied.
__global__ void stencil(const float* a, float* b, int n) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  const bool edge = x == 0 || y == 0 || x == n - 1 || y == n - 1;
  const float* p = a + y * n + x;
  b[y * n + x] = edge ? *p : 0.25f * (p[-1] + p[1] + p[-n] + p[n]);
}

// y = silu(x) * b, elementwise; n numbers.
__global__ void elementwise(const float* x, const float* b, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / (1 + __expf(-x[i])) * b[i];
}

// launch calls a kernel of the class on the upper left part of (n, n) matrices with n = kTile * blocks.
void launch(const char* what, const float* a, const float* b, float* c, int blocks) {
  const int n = kTile * blocks;
  const dim3 grid(blocks, blocks), block(kTile, kTile);
  if (!strcmp(what, "product")) product<<<grid, block>>>(a, b, c, n);
  if (!strcmp(what, "stencil")) stencil<<<grid, block>>>(a, c, n);
  if (!strcmp(what, "elementwise")) elementwise<<<blocks * blocks, kTile * kTile>>>(a, b, c, n * n);
  CHECK(cudaDeviceSynchronize());
}

// expected returns element (row, col) of the result.
double expected(const char* what, const std::vector<float>& a, const std::vector<float>& b, int n, int row, int col) {
  const int i = row * n + col;
  double sum = 0;
  if (!strcmp(what, "elementwise")) return a[i] / (1 + exp(-double(a[i]))) * b[i];
  if (!strcmp(what, "stencil")) {
    const bool edge = row == 0 || col == 0 || row == n - 1 || col == n - 1;
    return edge ? a[i] : 0.25 * (double(a[i - 1]) + a[i + 1] + a[i - n] + a[i + n]);
  }
  for (int k = 0; k < n; k++) sum += double(a[row * n + k]) * b[k * n + col];
  return sum;
}

int main(int argc, char** argv) {
  const char* what = argc == 2 ? argv[1] : "";
  const bool known = !strcmp(what, "product") || !strcmp(what, "stencil") || !strcmp(what, "elementwise");
  if (!known) return printf("usage: speed product|stencil|elementwise\n"), 2;
  const bool is_product = !strcmp(what, "product");
  const int blocks = is_product ? 16 : 64, n = kTile * blocks, times = is_product ? 4 : 16;
  const size_t bytes = sizeof(float) * n * n;
  std::vector<float> a(n * n), b(n * n), c(n * n);
  for (int i = 0; i < n * n; i++) a[i] = (i * 37 % 101 - 50) / 25.0f, b[i] = (i * 53 % 97 - 48) / 24.0f;
  float *da, *db, *dc;
  CHECK(cudaMalloc(&da, bytes));
  CHECK(cudaMalloc(&db, bytes));
  CHECK(cudaMalloc(&dc, bytes));
  CHECK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
  launch(what, da, db, dc, 1);       // the virtual GPU checks the first launch for races
  launch(what, da, db, dc, blocks);  // and maybe the first one of this size
  const clock_t begun = clock();
  for (int i = 0; i < times; i++) launch(what, da, db, dc, blocks);
  const double seconds = double(clock() - begun) / CLOCKS_PER_SEC;
  CHECK(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n * n; i += 1013) {
    const double want = expected(what, a, b, n, i / n, i % n);
    if (!(fabs(c[i] - want) <= 1e-3 + 1e-4 * fabs(want))) return printf("%d: got %g, want %g\n", i, c[i], want), 1;
  }
  printf("%.6f\n", seconds);
}
