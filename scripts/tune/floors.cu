// Measures limits of this machine's GPU, sm_90 or later. scripts/tune/all builds and runs it; it takes a few seconds.
//
//     cupti=$CUDA_HOME/extras/CUPTI
//     nvcc -std=c++17 -O2 -arch=sm_90a -I$cupti/include -L$cupti/lib64 -lcupti scripts/tune/floors.cu -o floors
//     LD_LIBRARY_PATH=$cupti/lib64 ./floors > floors.tsv
//
// - launch: the time of an empty kernel from CUPTI's kernel record, and between two events around it; the host's time
//   per launch of 500 launches in a row, until the last launch returns and until the last kernel has ended. CUPTI is
//   off for all figures but the first.
// - shared: the latency of a dependent 4-byte load from shared memory by one warp, with 1, 2 and 32 words per bank.
// - mma: mma.sync m16n8k16, bfloat16 with float32 sums: the latency of a dependent one, and the rate per SM while all
//   SMs run one block each, by warps per block and independent chains per warp. The chains of a warp share A and B.
//
// Cycles are cycles of the SM's clock. low and high are the ends of the median's interval of 95 %.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "records.cuh"

static constexpr int kRepeats = 31;  // of a figure, after three that do not count

static void print(const std::string& figure, const char* unit, std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const auto n = static_cast<int>(x.size());
  const int below = std::max(0, static_cast<int>(std::floor((n - 1.96 * std::sqrt(n)) / 2)));
  const double median = (x[(n - 1) / 2] + x[n / 2]) / 2;
  std::printf("%s\t%s\t%d\t%.3f\t%.3f\t%.3f\n", figure.c_str(), unit, n, median, x[below], x[n - 1 - below]);
}

// ---- launch ----

__global__ void empty_kernel() {}

static void launch() {
  constexpr int kSingle = 203, kRow = 500;  // a row fits into the queue of launches
  cudaEvent_t from, to;
  CHECK(cudaEventCreate(&from));
  CHECK(cudaEventCreate(&to));
  std::vector<double> between, enqueued, ended;
  for (int i = 0; i < kSingle; ++i) {
    CHECK(cudaEventRecord(from));
    empty_kernel<<<1, 32>>>();
    CHECK(cudaEventRecord(to));
    CHECK(cudaEventSynchronize(to));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, from, to));
    if (i >= 3) between.push_back(ms * 1e3);
  }
  for (int i = 0; i < kRepeats + 3; ++i) {
    using Clock = std::chrono::steady_clock;
    const auto us = [](Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count() / kRow; };
    const auto start = Clock::now();
    for (int j = 0; j < kRow; ++j) empty_kernel<<<1, 32>>>();
    const auto last = Clock::now();
    CHECK(cudaDeviceSynchronize());
    const auto end = Clock::now();
    if (i >= 3) {
      enqueued.push_back(us(last - start));
      ended.push_back(us(end - start));
    }
  }
  CHECK(cudaGetLastError());
  CHECK_CUPTI(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed));
  CHECK_CUPTI(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  for (int i = 0; i < kSingle; ++i) {
    empty_kernel<<<1, 32>>>();
    CHECK(cudaDeviceSynchronize());
  }
  CHECK_CUPTI(cuptiActivityFlushAll(1));
  CHECK_CUPTI(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  if (records.size() != kSingle) {
    std::fprintf(stderr, "floors: %zu kernel records, expected %d\n", records.size(), kSingle);
    std::exit(1);
  }
  std::vector<double> recorded;  // us
  for (int i = 3; i < kSingle; ++i) recorded.push_back(static_cast<double>(records[i].duration) / 1e3);
  print("launch, empty kernel, CUPTI", "us", recorded);
  print("launch, empty kernel, events", "us", between);
  print("launch, in a row, until the last launch returns", "us per launch", enqueued);
  print("launch, in a row, until the last kernel has ended", "us per launch", ended);
}

// ---- shared memory ----

static constexpr int kLoads = 32, kLoadTurns = 64;

// Each word has the address of the next word of the same bank. Lane l starts in bank l / ways.
__global__ void shared_kernel(int ways, int64_t* cycles, uint32_t* sink) {
  __shared__ uint32_t next[1024];
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(next));
  for (uint32_t i = threadIdx.x; i < 1024; i += 32) next[i] = base + (i + 32) % 1024 * 4;
  __syncthreads();
  uint32_t at = base + (threadIdx.x / ways + threadIdx.x % ways * 32) * 4;
  const int64_t start = clock64();
#pragma unroll 1
  for (int turn = 0; turn < kLoadTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at)::"memory");
  }
  const int64_t end = clock64();
  sink[threadIdx.x] = at;
  if (threadIdx.x == 0) *cycles = end - start;
}

// ---- mma.sync ----

static constexpr int kMmas = 8, kMmaTurns = 64;  // of a chain
static constexpr int kWholeSM = 120 * 1024;      // shared memory, so that each block has an SM for itself

template <int kChains>
__global__ void mma_kernel(uint32_t a, uint32_t b, int64_t* cycles, float* sink) {
  const uint32_t one = threadIdx.x & 1 ? a : b;
  float sum[kChains][4] = {};
  __syncthreads();
  const int64_t start = clock64();
#pragma unroll 1
  for (int turn = 0; turn < kMmaTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %4, %5}, {%6, %5}, {%0, %1, %2, %3};"
            : "+f"(sum[c][0]), "+f"(sum[c][1]), "+f"(sum[c][2]), "+f"(sum[c][3])
            : "r"(a), "r"(b), "r"(one));
      }
    }
  }
  float total = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) total += sum[c][0] + sum[c][1] + sum[c][2] + sum[c][3];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = total;  // waits for the sums, before the clock is read
  __syncthreads();
  const int64_t end = clock64();
  if (threadIdx.x == 0) cycles[blockIdx.x] = end - start;
}

static int64_t* cycles;
static float* sink;

// Returns the mean over blocks of a block's cycles, for each of kRepeats launches.
template <typename Launch>
static std::vector<double> measure(int blocks, Launch launch) {
  std::vector<double> found;
  std::vector<int64_t> each(blocks);
  for (int i = 0; i < kRepeats + 3; ++i) {
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(each.data(), cycles, blocks * sizeof(int64_t), cudaMemcpyDeviceToHost));
    double sum = 0;
    for (const int64_t x : each) sum += static_cast<double>(x);
    if (i >= 3) found.push_back(sum / blocks);
  }
  return found;
}

static void each(std::vector<double>& x, double (*f)(double, double), double by) {
  for (double& v : x) v = f(v, by);
}

static void shared() {
  for (const int ways : {1, 2, 32}) {
    auto x = measure(1, [&] { shared_kernel<<<1, 32>>>(ways, cycles, reinterpret_cast<uint32_t*>(sink)); });
    each(x, [](double v, double by) { return v / by; }, kLoads * kLoadTurns);
    print("shared, dependent load, " + std::to_string(ways) + "-way", "cycles", x);
  }
}

template <int kChains>
static void mma(int sms, const std::vector<int>& warps) {
  CHECK(cudaFuncSetAttribute(mma_kernel<kChains>, cudaFuncAttributeMaxDynamicSharedMemorySize, kWholeSM));
  for (const int w : warps) {
    const int blocks = w == 1 ? 1 : sms;
    const uint32_t a = 0x3f803f80, b = 0x3c003c00;  // two bfloat16 of 1, and of 2^-7
    auto x = measure(blocks, [&] { mma_kernel<kChains><<<blocks, w * 32, kWholeSM>>>(a, b, cycles, sink); });
    if (w == 1) {
      each(x, [](double v, double by) { return v / by; }, kMmas * kMmaTurns);
      print("mma, dependent", "cycles", x);
      continue;
    }
    each(x, [](double v, double by) { return by / v; }, 2.0 * 16 * 8 * 16 * kMmas * kMmaTurns * kChains * w);
    print("mma, warps " + std::to_string(w) + ", chains " + std::to_string(kChains), "FLOP per cycle and SM", x);
  }
}

int main() {
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  CHECK(cudaMalloc(&cycles, gpu.multiProcessorCount * sizeof(int64_t)));
  CHECK(cudaMalloc(&sink, gpu.multiProcessorCount * 512 * sizeof(float)));
  int runtime;
  CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("# %s, sm_%d%d, %d SMs, CUDA %d.%d; low and high: the median's interval of 95 %%\n", gpu.name, gpu.major,
              gpu.minor, gpu.multiProcessorCount, runtime / 1000, runtime % 1000 / 10);
  std::printf("figure\tunit\tn\tmedian\tlow\thigh\n");
  launch();
  shared();
  mma<1>(gpu.multiProcessorCount, {1, 4, 8, 12, 16});
  mma<2>(gpu.multiProcessorCount, {4, 8, 12, 16});
  mma<3>(gpu.multiProcessorCount, {4, 8, 12, 16});
  mma<4>(gpu.multiProcessorCount, {4, 8, 12, 16});
  mma<6>(gpu.multiProcessorCount, {4, 8, 12, 16});
  mma<8>(gpu.multiProcessorCount, {4, 8, 12, 16});
}
