// Launches the PTX that Triton made of triton_kernels.py, with the same shapes, through the driver's interface.
//
//     fisub nvcc triton_launch.cu -lcuda -o triton_launch && fisub emu --profile --counters FILE ./triton_launch FOLDER
//
// FOLDER has KERNEL.ptx, as triton_kernels.py's launches leave it in Triton's cache.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

template <class F>
static F* driver(F*, const char* name) {
  void* f = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &f, 13000, cudaEnableDefault, &found) != cudaSuccess || !f)
    std::fprintf(stderr, "%s: not found\n", name), std::exit(1);
  return reinterpret_cast<F*>(f);
}
#define DRIVER(name) driver(static_cast<decltype(&name)>(nullptr), #name)

static void check(CUresult r, const char* what) {
  if (r != CUDA_SUCCESS) std::fprintf(stderr, "%s: error %d\n", what, r), std::exit(1);
}

static CUdeviceptr memory(size_t bytes, const void* from = nullptr) {
  void* p = nullptr;
  if (cudaMalloc(&p, bytes) != cudaSuccess || (from ? cudaMemcpy(p, from, bytes, cudaMemcpyDefault) : cudaMemset(p, 0, bytes)) != cudaSuccess)
    std::fprintf(stderr, "no memory\n"), std::exit(1);
  return reinterpret_cast<CUdeviceptr>(p);
}

static void launch(const std::string& folder, const char* name, unsigned x, unsigned y, unsigned shared, std::vector<void*> args) {
  std::ifstream file(folder + "/" + name + ".ptx");
  std::stringstream text;
  text << file.rdbuf();
  CUmodule module;
  CUfunction kernel;
  check(DRIVER(cuModuleLoadData)(&module, text.str().c_str()), name);
  check(DRIVER(cuModuleGetFunction)(&kernel, module, name), name);
  CUdeviceptr scratch = 0; // two pointers that Triton appends
  args.push_back(&scratch);
  args.push_back(&scratch);
  check(DRIVER(cuLaunchKernel)(kernel, x, y, 1, 128, 1, 1, shared, nullptr, args.data(), nullptr), name);
  if (cudaDeviceSynchronize() != cudaSuccess) std::fprintf(stderr, "%s: failed\n", name), std::exit(1);
}

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : ".";
  cudaFree(nullptr); // makes the context
  CUdeviceptr a = memory(1 << 20), b = memory(1 << 20), c = memory(1 << 20), d = memory(1 << 20), e = memory(1 << 20);
  int n = 5000, columns = 1000, rows = 500;
  launch(folder, "vector_add", 5, 1, 0, {&a, &b, &c, &n});
  launch(folder, "softmax", 16, 1, 16, {&a, &c, &columns});
  launch(folder, "layer_norm", 16, 1, 2048, {&a, &b, &d, &c, &columns});
  launch(folder, "matmul", 2, 2, 24576, {&a, &b, &c});
  std::vector<int> index(rows);
  for (int i = 0; i < rows; i++) index[i] = i * 37 % 256;
  CUdeviceptr list = memory(rows * sizeof(int), index.data());
  launch(folder, "gather", 8, 1, 0, {&a, &list, &c, &rows});
  float scale = 0.0883883f;
  launch(folder, "decode_kernel", 8, 8, 256, {&a, &b, &c, &d, &list, &e, &list, &e, &scale, &b, &e});
}
