// Checks and times configs of the decode kernel; scripts/tune/run builds and calls it: tune DIR ROUNDS BATCH...
//
// Cold: zero twice the L2, wait, call, wait. Warm: the call after the same call. Each variant is called four times in
// a row; the first call does not count, because it fetches the code. Then the next variant follows, and so on for
// ROUNDS rounds. Each round uses the tensors at another of eight places, because their addresses change a figure by 1
// to 3 %. A time is taken from CUPTI's kernel record, from start to end. The figure is the mean of the middle half of
// the times, in ns, which varies less than the median, because the timer ticks every 32 ns.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "records.cuh"
#include "tune.cuh"

using gdn::Arguments;

// ---- kernels to compare with ----

__global__ void empty_kernel() {}

// Copies the state; each warp copies kVectors * 512 consecutive bytes.
template <int kVectors, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) copy_kernel(const float4* __restrict__ from, float4* __restrict__ to) {
  const size_t base = (static_cast<size_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * (32 * kVectors) + threadIdx.x % 32;
  float4 x[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = from[base + 32 * i];
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[base + 32 * i] = x[i];
  }
}

template <int kVectors, int kWarps>
void launch_copy(const Arguments& x, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(x.batch * gdn::kHeadsV * gdn::kDim / (kVectors * kWarps));
  copy_kernel<kVectors, kWarps><<<blocks, kWarps * 32, 0, stream>>>(reinterpret_cast<const float4*>(x.state),
                                                                    reinterpret_cast<float4*>(x.new_state));
}

void launch_empty(const Arguments&, cudaStream_t stream) { empty_kernel<<<1, 32, 0, stream>>>(); }

static bool is_config(const Variant& v) { return v.source[0] != 0; }

// ---- reference, in float64: one thread per row ----

__global__ void reference_kernel(Arguments x, double* new_state, double* output) {
  const size_t row = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const size_t head = row / gdn::kDim;
  const int hv = head % gdn::kHeadsV;
  const float* s = x.state + row * gdn::kDim;
  const __nv_bfloat16 *k = x.k + head / 2 * gdn::kDim, *q = x.q + head / 2 * gdn::kDim;
  const double z = double(__bfloat162float(x.a[head])) + x.dt_bias[hv];
  const double decay = exp(-exp(double(x.a_log[hv])) * (z > 20 ? z : log1p(exp(z))));
  const double beta = 1 / (1 + exp(-double(__bfloat162float(x.b[head]))));
  double sk = 0, out = 0;
  for (int i = 0; i < gdn::kDim; ++i) {
    sk += double(s[i]) * __bfloat162float(k[i]);
  }
  const double delta = beta * (__bfloat162float(x.v[row]) - decay * sk);
  for (int i = 0; i < gdn::kDim; ++i) {
    const double next = decay * s[i] + delta * __bfloat162float(k[i]);
    new_state[row * gdn::kDim + i] = next;
    out += next * __bfloat162float(q[i]);
  }
  output[row] = x.scale * out;
}

// ---- inputs ----

static double uniform() {
  static uint64_t seed = 0x9e3779b97f4a7c15u;
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(seed >> 11) / 9007199254740992.0;
}

static double normal() { return std::sqrt(-2 * std::log(uniform() + 1e-300)) * std::cos(6.283185307179586 * uniform()); }

static float* random_f32(size_t n, double scale) {
  std::vector<float> h(n);
  for (float& x : h) x = static_cast<float>(scale * normal());
  float* d;
  CHECK(cudaMalloc(&d, n * sizeof(float)));
  CHECK(cudaMemcpy(d, h.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  return d;
}

static __nv_bfloat16* random_bf16(size_t n, double scale) {
  std::vector<__nv_bfloat16> h(n);
  for (auto& x : h) x = __float2bfloat16(static_cast<float>(scale * normal()));
  __nv_bfloat16* d;
  CHECK(cudaMalloc(&d, n * sizeof(__nv_bfloat16)));
  CHECK(cudaMemcpy(d, h.data(), n * sizeof(__nv_bfloat16), cudaMemcpyHostToDevice));
  return d;
}

// Returns a copy of a tensor at another address.
template <typename T>
static T* copied(const T* from, size_t n) {
  T* d;
  CHECK(cudaMalloc(&d, n * sizeof(T)));
  CHECK(cudaMemcpy(d, from, n * sizeof(T), cudaMemcpyDeviceToDevice));
  return d;
}

static Arguments moved(const Arguments& x, size_t most) {
  Arguments y = x;
  y.q = copied(x.q, most * 512);
  y.k = copied(x.k, most * 512);
  y.v = copied(x.v, most * 1024);
  y.a = copied(x.a, most * 8);
  y.b = copied(x.b, most * 8);
  y.a_log = copied(x.a_log, 8);
  y.dt_bias = copied(x.dt_bias, 8);
  y.state = copied(x.state, most * 131072);
  y.output = copied(x.output, most * 1024);
  y.new_state = copied(x.new_state, most * 131072);
  return y;
}

// Removes variants with a wrong result: a state off by more than 1e-5 of (its size + 0.01), an output by more than
// 2^-7 of its size.
static void drop_wrong(std::vector<Variant>& variants, Arguments x) {
  const size_t rows = x.batch * gdn::kHeadsV * gdn::kDim, elements = rows * gdn::kDim;
  double *state, *output;
  CHECK(cudaMalloc(&state, elements * sizeof(double)));
  CHECK(cudaMalloc(&output, rows * sizeof(double)));
  reference_kernel<<<static_cast<unsigned>(rows / 128), 128>>>(x, state, output);
  CHECK(cudaDeviceSynchronize());
  std::vector<double> want_state(elements), want_output(rows);
  std::vector<float> old(elements), got_state(elements);
  std::vector<__nv_bfloat16> got_output(rows);
  CHECK(cudaMemcpy(want_state.data(), state, elements * sizeof(double), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(want_output.data(), output, rows * sizeof(double), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(old.data(), x.state, elements * sizeof(float), cudaMemcpyDeviceToHost));
  std::vector<Variant> right;
  for (const Variant& v : variants) {
    CHECK(cudaMemset(x.new_state, 0xff, elements * sizeof(float)));
    CHECK(cudaMemset(x.output, 0xff, rows * sizeof(__nv_bfloat16)));
    v.launch(x, nullptr);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(got_state.data(), x.new_state, elements * sizeof(float), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got_output.data(), x.output, rows * sizeof(__nv_bfloat16), cudaMemcpyDeviceToHost));
    bool ok = true;
    if (!is_config(v)) {
      ok = v.launch == launch_empty || std::memcmp(got_state.data(), old.data(), elements * sizeof(float)) == 0;
    } else {
      for (size_t i = 0; ok && i < elements; ++i) {
        ok = std::fabs(got_state[i] - want_state[i]) <= 1e-5 * (std::fabs(want_state[i]) + 0.01);
      }
      for (size_t i = 0; ok && i < rows; ++i) {
        ok = std::fabs(__bfloat162float(got_output[i]) - want_output[i]) <= std::fabs(want_output[i]) / 128 + 1e-6;
      }
    }
    if (ok) {
      right.push_back(v);
    } else {
      std::printf("WRONG %s\n", v.name);
    }
  }
  variants = right;
  CHECK(cudaFree(state));
  CHECK(cudaFree(output));
}

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: tune DIR ROUNDS BATCH...\n");
    return 2;
  }
  const std::string dir = argv[1];
  const int rounds = std::atoi(argv[2]);
  std::vector<int> batches;
  for (int i = 3; i < argc; ++i) batches.push_back(std::atoi(argv[i]));
  const int most = *std::max_element(batches.begin(), batches.end());
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  const size_t flush_bytes = 2 * static_cast<size_t>(gpu.l2CacheSize);
  void* flush;
  CHECK(cudaMalloc(&flush, flush_bytes));

  Arguments x;
  x.batch = most;
  x.q = random_bf16(most * 512, 0.09);
  x.k = random_bf16(most * 512, 0.09);
  x.v = random_bf16(most * 1024, 1);
  x.a = random_bf16(most * 8, 1);
  x.b = random_bf16(most * 8, 1);
  x.a_log = random_f32(8, 0.5);
  x.dt_bias = random_f32(8, 1);
  x.state = random_f32(static_cast<size_t>(most) * 131072, 0.1);
  x.scale = 0.08838834764831845f;
  CHECK(cudaMalloc(&x.output, most * 1024 * sizeof(__nv_bfloat16)));
  CHECK(cudaMalloc(&x.new_state, static_cast<size_t>(most) * 131072 * sizeof(float)));

  std::vector<Variant> variants = {
      {"empty", "", launch_empty},
      {"copy-1x1", "", launch_copy<1, 1>}, {"copy-1x2", "", launch_copy<1, 2>}, {"copy-1x4", "", launch_copy<1, 4>},
      {"copy-1x8", "", launch_copy<1, 8>}, {"copy-2x1", "", launch_copy<2, 1>}, {"copy-2x4", "", launch_copy<2, 4>},
      {"copy-2x8", "", launch_copy<2, 8>}, {"copy-4x1", "", launch_copy<4, 1>}, {"copy-4x2", "", launch_copy<4, 2>},
      {"copy-4x4", "", launch_copy<4, 4>}, {"copy-4x8", "", launch_copy<4, 8>}, {"copy-8x1", "", launch_copy<8, 1>},
      {"copy-8x2", "", launch_copy<8, 2>}, {"copy-8x4", "", launch_copy<8, 4>}, {"copy-8x8", "", launch_copy<8, 8>},
  };
  for (const Variant& v : all_configs()) variants.push_back(v);
  const size_t asked = variants.size();
  x.batch = std::min(most, 5);
  drop_wrong(variants, x);

  CHECK_CUPTI(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed));
  CHECK_CUPTI(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  constexpr int kRepeats = 4, kPlaces = 8;
  std::vector<Arguments> places = {x};
  while (places.size() < kPlaces) places.push_back(moved(x, most));
  std::vector<std::vector<double>> figures[2];  // cold, warm; by batch and variant
  for (const bool warm : {false, true}) {
    std::FILE* out = std::fopen((dir + (warm ? "/warm.tsv" : "/cold.tsv")).c_str(), "w");
    if (!out) {
      std::perror(dir.c_str());
      return 1;
    }
    std::fprintf(out, "# %s, sm_%d%d, L2 %d bytes, %s, %d places, CUPTI kernel time, ns, mean of the middle half\n", gpu.name, gpu.major,
                 gpu.minor, gpu.l2CacheSize, warm ? "warm L2" : "cold L2: twice its size zeroed before each call", kPlaces);
    std::fprintf(out, "batch\tvariant\tns\tq1\tmedian\tq3\tn\tover_copy\n");
    for (const int batch : batches) {
      records.clear();
      for (int round = -1; round < rounds; ++round) {
        x = places[(round + kPlaces) % kPlaces];
        x.batch = batch;
        for (const Variant& v : variants) {
          for (int i = 0; i < kRepeats; ++i) {
            if (!warm) CHECK(cudaMemsetAsync(flush, 0, flush_bytes));
            CHECK(cudaDeviceSynchronize());
            v.launch(x, nullptr);
            CHECK(cudaDeviceSynchronize());
          }
        }
      }
      CHECK_CUPTI(cuptiActivityFlushAll(1));
      std::sort(records.begin(), records.end());
      const size_t per_round = variants.size() * kRepeats;
      if (records.size() != per_round * (rounds + 1)) {
        std::fprintf(stderr, "tune: %zu kernel records, expected %zu\n", records.size(), per_round * (rounds + 1));
        return 1;
      }
      std::vector<std::vector<double>> times(variants.size());
      for (size_t i = per_round; i < records.size(); ++i) {
        if (i % kRepeats != 0) times[i % per_round / kRepeats].push_back(static_cast<double>(records[i].duration));
      }
      std::vector<double> figure;
      double copy = 1e300;
      for (size_t v = 0; v < variants.size(); ++v) {
        auto& t = times[v];
        std::sort(t.begin(), t.end());
        double sum = 0;
        const size_t from = t.size() / 4, to = t.size() - t.size() / 4;
        for (size_t i = from; i < to; ++i) sum += t[i];
        figure.push_back(sum / static_cast<double>(to - from));
        if (!is_config(variants[v]) && variants[v].launch != launch_empty) copy = std::min(copy, figure[v]);
      }
      for (size_t v = 0; v < variants.size(); ++v) {
        const auto& t = times[v];
        std::fprintf(out, "%d\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%zu\t%.3f\n", batch, variants[v].name, figure[v], t[t.size() / 4],
                     t[t.size() / 2], t[t.size() - 1 - t.size() / 4], t.size(), figure[v] / copy);
      }
      figures[warm].push_back(figure);
    }
    std::fclose(out);
  }

  std::FILE* table = std::fopen((dir + "/table.cuh").c_str(), "w");
  if (!table) {
    std::perror(dir.c_str());
    return 1;
  }
  for (size_t b = 0; b < batches.size(); ++b) {
    const auto &cold = figures[0][b], &warm = figures[1][b];
    double fastest = 1e300, copy = 1e300;
    for (size_t v = 0; v < variants.size(); ++v) {
      if (is_config(variants[v])) fastest = std::min(fastest, cold[v]);
      else if (variants[v].launch != launch_empty) copy = std::min(copy, cold[v]);
    }
    size_t best = variants.size();
    for (size_t v = 0; v < variants.size(); ++v) {
      if (is_config(variants[v]) && cold[v] <= 1.005 * fastest && (best == variants.size() || warm[v] < warm[best])) best = v;
    }
    std::fprintf(table, "    {%d, launch<%s>},  // %.2f us cold, %.2f us warm, %.3f of the best copy\n", batches[b],
                 variants[best].source, cold[best] / 1000, warm[best] / 1000, cold[best] / copy);
  }
  std::fclose(table);
  std::printf("%s: %zu of %zu kernels right, figures in %s\n", gpu.name, variants.size(), asked, dir.c_str());
  return variants.size() == asked ? 0 : 1;
}
