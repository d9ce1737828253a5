// Checks and times configs of the prefill kernel; scripts/tune/prefill builds and calls it:
//
//   prefill check            every case against a float64 reference on the GPU, with every config; exit status 1 if one is wrong
//   prefill time FILE ROUNDS  times every config on the workloads of FILE, a line each: uuid, tokens, sequences, cu_seqlens
//
// Times: zero twice the L2, wait, call, wait. The configs take turns. In each turn a config is called four times; the
// first call does not count, because it fetches the code. A time is taken from CUPTI's kernel record; the figure is
// the median.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "prefill_configs.cuh"
#include "records.cuh"

using gdn::Arguments;
using gdn::kDim;

// ---- reference, in float64: four threads per row of a state ----

__global__ void __launch_bounds__(128) reference_kernel(Arguments x, float* new_state, float* output, bool f32) {
  const int64_t head = blockIdx.x / 4;  // n * 8 + hv
  const int hv = head % 8, row = blockIdx.x % 4 * 32 + threadIdx.x / 4, part = threadIdx.x % 4;
  const int64_t n = head / 8, begin = x.cu_seqlens[n], end = x.cu_seqlens[n + 1];
  double s[32];
  const int64_t at = (head * kDim + row) * kDim + part;
#pragma unroll
  for (int i = 0; i < 32; ++i) s[i] = x.state != nullptr && end > begin ? x.state[at + 4 * i] : 0.0;
  const double rate = exp(double(x.a_log[hv])), bias = x.dt_bias[hv];
  for (int64_t t = begin; t < end; ++t) {
    const double z = double(__bfloat162float(x.a[t * 8 + hv])) + bias;
    double decay = exp(-rate * (z > 30 ? z : log1p(exp(z))));
    double beta = 1 / (1 + exp(-double(__bfloat162float(x.b[t * 8 + hv]))));
    const __nv_bfloat16 *k = x.k + (t * 4 + hv / 2) * kDim + part, *q = x.q + (t * 4 + hv / 2) * kDim + part;
    double sk = 0, o = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) sk += s[i] * __bfloat162float(k[4 * i]);
    sk += __shfl_xor_sync(~0u, sk, 1), sk += __shfl_xor_sync(~0u, sk, 2);
    const double delta = beta * (__bfloat162float(x.v[(t * 8 + hv) * kDim + row]) - decay * sk);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = decay * s[i] + delta * __bfloat162float(k[4 * i]);
      o += s[i] * __bfloat162float(q[4 * i]);
    }
    o += __shfl_xor_sync(~0u, o, 1), o += __shfl_xor_sync(~0u, o, 2);
    if (part == 0) output[(t * 8 + hv) * kDim + row] = static_cast<float>(x.scale * o);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) new_state[at + 4 * i] = static_cast<float>(s[i]);
}

// Errors of a result. Magnitudes and errors are bits of non-negative floats; contest and bad count elements. The
// contest's tolerance is an error of 0.01, absolute or relative.
struct Errors {
  unsigned largest, error, contest, bad;  // bad: not finite although the reference is
  unsigned part;  // largest error beyond the rounding of outputs, as a fraction of the tolerance
};

__device__ float as_float(float x) { return x; }
__device__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__global__ void compare_kernel(const T* got, const float* want, size_t n, Errors* e) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    const float w = want[i], y = as_float(got[i]);
    if (!isfinite(w)) continue;
    if (!isfinite(y)) {
      atomicAdd(&e->bad, 1);
      continue;
    }
    const float d = fabsf(y - w);
    atomicMax(&e->largest, __float_as_uint(fabsf(w)));
    // Outputs may additionally be off by their rounding to bfloat16.
    atomicMax(&e->error, __float_as_uint(sizeof(T) == 2 ? fmaxf(0.0f, d - fabsf(w) / 128) : d));
    if (d > 0.01f && d / (fabsf(w) + 1e-8f) > 0.01f) atomicAdd(&e->contest, 1);
    const float unrounded = sizeof(T) == 2 ? fmaxf(0.0f, d - fabsf(w) / 256) : d;
    atomicMax(&e->part, __float_as_uint(100 * unrounded / fmaxf(1.0f, fabsf(w))));
  }
}

__global__ void sum_kernel(const unsigned* p, size_t n, unsigned long long* sum) {
  unsigned long long own = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    own += (i * 0x9e3779b97f4a7c15ull | 1) * (p[i] ^ 0x5bd1e995u);
  }
  atomicAdd(sum, own);
}

// ---- inputs ----

enum Keys { kUnit, kCorrelated, kSame, kAlternating, kSparse, kZeros, kRaw, kOneChannel };
enum Gates { kSynth, kSlow, kExtreme, kResets, kAlternate };
struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  float state = 0.25f;  // standard deviation; negative: no state; above 1000: deviation of one row only
  float scale = 0.08838834764831845f;
  Keys keys = kUnit;
  float correlation = 0;
  Gates gates = kSynth;
  float beta = 0;  // 0: b is normal; otherwise b is beta or -beta
  float v = 1, q = 1;
  float spread = 0;  // standard deviation of the logarithm of each channel's scale
  float part = 1;    // largest allowed error, as a fraction of the contest's tolerance
  float gate = 2e-3f;  // largest allowed error, as a fraction of the largest value or of 1
  bool relative = false;  // the reference itself grows: only check errors relative to the largest value
};

__device__ float uniform(uint64_t i, uint64_t stream) {
  uint64_t z = i * 0x9e3779b97f4a7c15ull + stream * 0xbf58476d1ce4e5b9ull + 0x94d049bb133111ebull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return (static_cast<float>(z >> 40) + 0.5f) * (1.0f / 16777216);
}
__device__ float normal(uint64_t i, uint64_t stream) {
  return sqrtf(-2 * logf(uniform(2 * i, stream))) * cospif(2 * uniform(2 * i + 1, stream));
}

template <typename T>
__global__ void fill_normal(T* p, size_t n, float deviation, uint64_t stream) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    p[i] = T(deviation * normal(i, stream));
  }
}

// v has the shape (rows, 1024); each channel gets its own deviation.
__global__ void spread_channels(__nv_bfloat16* v, size_t n, float spread, uint64_t stream) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    v[i] = __float2bfloat16(__bfloat162float(v[i]) * expf(spread * normal(i % 1024, stream)));
  }
}

__global__ void fill_keys(__nv_bfloat16* k, int64_t rows, Keys keys, float correlation, uint64_t stream) {
  const int64_t row = blockIdx.x * int64_t(blockDim.x / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const int64_t token = row / 4;
  float x[4], sum = 0;
  for (int i = 0; i < 4; ++i) {
    const int c = lane * 4 + i;
    const float common = normal(row % 4 * kDim + c, stream + 1000), own = normal(row * kDim + c, stream);
    x[i] = own;
    if (keys == kCorrelated) x[i] = sqrtf(1 - correlation) * own + sqrtf(correlation) * common;
    if (keys == kSame) x[i] = common;
    if (keys == kAlternating) x[i] = token % 2 ? -common : common;
    if (keys == kSparse) x[i] = c == (token * 7) % kDim;
    if (keys == kOneChannel) x[i] = c == 5;
    sum += x[i] * x[i];
  }
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  const float scale = keys == kRaw ? 1.0f : keys == kZeros && token % 3 ? 0.0f : rsqrtf(sum);
  for (int i = 0; i < 4; ++i) k[row * kDim + lane * 4 + i] = __float2bfloat16(x[i] * scale);
}

__global__ void fill_gates(__nv_bfloat16* a, __nv_bfloat16* b, int64_t n, Gates gates, float beta, uint64_t stream) {
  const float extremes[] = {30, -30, 100, -100, 20, -8, 0, 3};
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t token = i / 8;
    float x = normal(i, stream);
    if (gates == kExtreme && uniform(i, stream + 3) < 0.5f) x = extremes[int(8 * uniform(i, stream + 4)) % 8];
    if (gates == kSlow) x = -12;
    if (gates == kResets) x = token % 32 == 0 || token % 32 == 15 || token % 32 == 16 || token % 32 == 31 ? 100 : -12;
    if (gates == kAlternate) x = token % 2 ? 100 : -30;
    a[i] = __float2bfloat16(x);
    const float y = normal(i, stream + 1);
    b[i] = __float2bfloat16(beta == 0 ? y : y < 0.8f ? beta : -beta);
  }
}

// Tensors with guards around each. Outputs are NaN before a call.
struct Tensors {
  Arguments x;
  std::vector<std::pair<unsigned char*, size_t>> inputs, outputs;
  ~Tensors() {
    for (auto* list : {&inputs, &outputs})
      for (auto& p : *list) cudaFree(p.first - kGuard);
  }
  static constexpr size_t kGuard = 4096;
  template <typename T>
  T* make(size_t n, bool output) {
    unsigned char* p;
    const size_t bytes = (n * sizeof(T) + 15) / 16 * 16;
    CHECK(cudaMalloc(&p, bytes + 2 * kGuard));
    CHECK(cudaMemset(p, 0xff, bytes + 2 * kGuard));
    (output ? outputs : inputs).push_back({p + kGuard, bytes});
    return reinterpret_cast<T*>(p + kGuard);
  }
  // Checksum of all inputs with their guards, and of the guards of outputs.
  unsigned long long sum() {
    unsigned long long *d, h;
    CHECK(cudaMalloc(&d, 8));
    CHECK(cudaMemset(d, 0, 8));
    for (auto& p : inputs) sum_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(p.first - kGuard), (p.second + 2 * kGuard) / 4, d);
    for (auto& p : outputs) {
      sum_kernel<<<4, 256>>>(reinterpret_cast<unsigned*>(p.first - kGuard), kGuard / 4, d);
      sum_kernel<<<4, 256>>>(reinterpret_cast<unsigned*>(p.first + p.second), kGuard / 4, d);
    }
    CHECK(cudaMemcpy(&h, d, 8, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d));
    return h;
  }
  unsigned long long result() {
    unsigned long long *d, h;
    CHECK(cudaMalloc(&d, 8));
    CHECK(cudaMemset(d, 0, 8));
    for (auto& p : outputs) sum_kernel<<<1024, 256>>>(reinterpret_cast<unsigned*>(p.first), p.second / 4, d);
    CHECK(cudaMemcpy(&h, d, 8, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d));
    return h;
  }
  void poison() {
    for (auto& p : outputs) CHECK(cudaMemset(p.first, 0xff, p.second));
  }
};

static void make(Tensors& m, const Case& c, uint64_t seed) {
  Arguments& x = m.x;
  std::vector<int64_t> cu = {0};
  for (int64_t n : c.lengths) cu.push_back(cu.back() + n);
  const size_t T = x.tokens = cu.back(), N = x.sequences = c.lengths.size();
  const uint64_t s = seed * 100;
  __nv_bfloat16 *q = m.make<__nv_bfloat16>(T * 512, false), *k = m.make<__nv_bfloat16>(T * 512, false),
                *v = m.make<__nv_bfloat16>(T * 1024, false), *a = m.make<__nv_bfloat16>(T * 8, false),
                *b = m.make<__nv_bfloat16>(T * 8, false);
  float *a_log = m.make<float>(8, false), *dt = m.make<float>(8, false), *state = m.make<float>(N * 131072, false);
  int64_t* cu_d = m.make<int64_t>(N + 1, false);
  if (T > 0) {
    fill_normal<<<4096, 256>>>(q, T * 512, c.q, s + 1);
    fill_normal<<<4096, 256>>>(v, T * 1024, c.v, s + 2);
    if (c.spread > 0) spread_channels<<<4096, 256>>>(v, T * 1024, c.spread, s + 7);
    fill_keys<<<static_cast<unsigned>(T), 128>>>(k, T * 4, c.keys, c.correlation, s + 3);
    fill_gates<<<1024, 256>>>(a, b, T * 8, c.gates, c.beta, s + 10);
  }
  if (N > 0) {
    fill_normal<<<4096, 256>>>(state, N * 131072, c.state > 1000 ? 0.25f : c.state, s + 5);
    if (c.state > 1000) fill_normal<<<1, 128>>>(state + 3 * 16384 + 9 * kDim, kDim, c.state, s + 6);
  }
  float h[16];
  for (int i = 0; i < 8; ++i) {
    const double u = (i * 5 % 8 + 0.5) / 8;
    h[i] = c.gates == kSynth ? std::log(1 + 15 * u) : c.gates == kExtreme ? (i % 2 ? 5.0f : -5.0f) : c.gates == kSlow ? -4.0f : 0.0f;
    h[8 + i] = c.gates == kSynth ? std::log(std::exp(std::exp(std::log(0.001) + u * std::log(100.0))) - 1) : c.gates == kExtreme ? 20.0f * (i % 3 - 1) : 0.0f;
  }
  CHECK(cudaMemcpy(a_log, h, 32, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(dt, h + 8, 32, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(cu_d, cu.data(), cu.size() * 8, cudaMemcpyHostToDevice));
  x.q = q, x.k = k, x.v = v, x.a = a, x.b = b, x.a_log = a_log, x.dt_bias = dt, x.cu_seqlens = cu_d;
  x.state = c.state < 0 ? nullptr : state;
  x.scale = c.scale;
  x.output = m.make<__nv_bfloat16>(T * 1024, true);
  x.new_state = m.make<float>(N * 131072, true);
}

static float value(unsigned bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static int check(const Case& c, uint64_t seed) {
  Tensors m;
  make(m, c, seed);
  const size_t T = m.x.tokens, N = m.x.sequences;
  float *state, *output;
  CHECK(cudaMalloc(&state, N * 131072 * 4 + 4));
  CHECK(cudaMalloc(&output, T * 1024 * 4 + 4));
  if (N > 0) reference_kernel<<<static_cast<unsigned>(N * 32), 128>>>(m.x, state, output, false);
  CHECK(cudaDeviceSynchronize());
  const unsigned long long before = m.sum();
  unsigned long long first = 0;
  int wrong = 0;
  std::printf("%-34s T %7zu N %5zu ", c.name.c_str(), T, N);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::vector<Variant> variants = all_configs();
  for (size_t i = 0; i < variants.size(); ++i) {
    if (!variants[i].same_bits && !variants[i].suits(T, N)) continue;  // the other configs are correct for any call
    unsigned long long sums[2];
    for (int again = 0; again < 2; ++again) {
      m.poison();
      CHECK(cudaDeviceSynchronize());
      if (N > 0) CHECK(variants[i].launch(m.x, again ? stream : nullptr));
      CHECK(cudaDeviceSynchronize());
      sums[again] = m.result();
    }
    if (i == 0) first = sums[0];
    Errors *d, e[2];
    CHECK(cudaMalloc(&d, sizeof e));
    CHECK(cudaMemset(d, 0, sizeof e));
    compare_kernel<<<2048, 256>>>(m.x.new_state, state, N * 131072, d);
    compare_kernel<<<2048, 256>>>(m.x.output, output, T * 1024, d + 1);
    CHECK(cudaMemcpy(e, d, sizeof e, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d));
    bool ok = sums[0] == sums[1] && (sums[0] == first || !variants[i].same_bits) && m.sum() == before;
    for (const Errors& y : e) {
      ok = ok && y.bad == 0 && value(y.error) <= c.gate * std::max(1.0f, value(y.largest)) && (c.relative || (y.contest == 0 && value(y.part) <= c.part));
    }
    if (i == 0 || !ok) {
      std::printf("%s", ok ? "ok   " : "WRONG");
      for (int j = 0; j < 2; ++j) {
        std::printf("%s %.1e of %.1e fail %u bad %u, %.3f of the tolerance", j == 0 ? " state" : " | output", value(e[j].error),
                    value(e[j].largest), e[j].contest, e[j].bad, value(e[j].part));
      }
    }
    if (!ok) {
      std::printf(" [%s%s%s%s]\n    ", variants[i].name, sums[0] != sums[1] ? ", repeats differ" : "",
                  sums[0] != first ? ", bits differ from the first config's" : "", m.sum() != before ? ", inputs or guards changed" : "");
      ++wrong;
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(state));
  CHECK(cudaFree(output));
  return wrong;
}

static std::vector<Case> cases(bool large) {
  std::vector<Case> all;
  const auto add = [&](std::string name, std::vector<int64_t> lengths) -> Case& {
    all.push_back({});
    all.back().name = name, all.back().lengths = lengths;
    return all.back();
  };
  for (int64_t n : {1, 2, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 134, 255, 256, 257, 525, 1377, 2107, 5637, 8192}) {
    add("length " + std::to_string(n), {n});
  }
  add("two, one short", {5637, 72});
  add("six ragged", {31, 63, 93, 123, 150, 500});
  add("57 ones", std::vector<int64_t>(57, 1));
  std::vector<int64_t> ragged;
  int64_t left = 8192;
  for (int i = 0; i < 56; ++i) ragged.push_back(1 + (i * 7919) % 285), left -= ragged.back();
  ragged.push_back(left);
  add("57 ragged", ragged);
  std::vector<int64_t> one_long(34, 130);
  one_long[20] = 3900;
  add("one long, 33 short", one_long);
  add("64 equal", std::vector<int64_t>(64, 32));
  add("65 equal", std::vector<int64_t>(65, 32));
  add("300", std::vector<int64_t>(300, 45));
  add("512 (ranked)", std::vector<int64_t>(512, 3));
  add("513 (not ranked)", std::vector<int64_t>(513, 3));
  add("empty first", {0, 40, 7});
  add("empty in the middle", {40, 0, 0, 7});
  add("empty last", {40, 7, 0});
  add("empty, many", {0, 0, 33, 0, 64, 0, 0, 1, 0, 0, 0, 0, 0, 0, 90, 0, 0, 5, 0, 0, 0, 0});
  add("all empty (T = 0)", {0, 0, 0});
  add("no sequences", {});
  const std::vector<int64_t> mix = {70, 1, 33, 200};
  add("state None", mix).state = -1;
  add("state zeros", mix).state = 0;
  add("state 0.01", mix).state = 0.01f;
  add("state 1", mix).state = 1;
  add("state 10", mix).state = 10;
  add("state 100", mix).state = 100;
  add("one row of the state 1e4", mix).state = 1e4f;
  add("one row of the state 1e5", mix).state = 1e5f;
  for (float s : {1.0f, -0.5f, 1e-3f}) add("scale " + std::to_string(s), mix).scale = s;
  add("gates extreme", {500, 33, 64}).gates = kExtreme;
  add("decay near 1", {8192}).gates = kSlow;
  add("decay to 0 at 0, 15, 16, 31", {200, 77}).gates = kResets;
  add("decay 0 and 1 in turn", {200, 77}).gates = kAlternate;
  for (float b : {20.0f, 100.0f}) {
    Case& c = add("beta 0 or 1, b " + std::to_string(int(b)), {300, 50});
    c.beta = b, c.gates = kSlow;
  }
  for (float rho : {0.6f, 0.9f, 0.99f}) {
    Case& c = add("keys correlated " + std::to_string(rho), {1500, 100});
    c.keys = kCorrelated, c.correlation = rho, c.gates = kSlow;
    Case& d = add("the same, beta 1", {1500, 100});
    d.keys = kCorrelated, d.correlation = rho, d.gates = kSlow, d.beta = 20;
  }
  // Like the study's inputs: values with a deviation of 2.6 on average and of 12 in one channel.
  for (Gates gates : {kSynth, kSlow}) {
    for (float rho : {0.6f, 0.9f}) {
      for (float beta : {0.0f, 20.0f}) {
        for (float spread : {0.7f, 0.0f}) {
          const std::string name = "hard keys " + std::to_string(rho).substr(0, 3) + (gates == kSlow ? ", slow" : "") + (beta > 0 ? ", beta 0 or 1" : "");
          Case& c = add(spread > 0 ? name : "the same, channels alike", {1500, 100});
          c.keys = kCorrelated, c.correlation = rho, c.gates = gates, c.beta = beta, c.state = 0.3f, c.part = 0.25f;
          c.v = spread > 0 ? 2 : 2.6f, c.spread = spread;
        }
      }
    }
  }
  const auto keys = [&](std::string name, Keys k) {
    Case& c = add(name, {300, 65});
    c.keys = k, c.gates = kSlow, c.beta = 20, c.gate = 5e-3f;
  };
  keys("keys identical", kSame), keys("keys alternate in sign", kAlternating), keys("keys orthogonal", kSparse);
  keys("keys zero, two of three", kZeros), keys("keys of one channel", kOneChannel);
  Case& raw = add("keys not normalised", {6, 12, 1});
  raw.keys = kRaw, raw.relative = true;
  add("values 0", mix).v = 0;
  add("values 1000", mix).v = 1000;
  add("values 1e-38", mix).v = 1e-38f;
  add("queries 0", mix).q = 0;
  add("queries 100 (some above the limit)", mix).q = 100;
  Case& large_q = add("queries 1e6", mix);
  large_q.q = 1e6f, large_q.relative = true;
  if (large) {
    add("offsets above 2^31: tokens", std::vector<int64_t>(300, 7000));
    add("offsets above 2^31: states", std::vector<int64_t>(16400, 2));
  }
  return all;
}

static int time_configs(const char* file, int rounds, const char* filter) {
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  const size_t flush_bytes = 2 * static_cast<size_t>(gpu.l2CacheSize);
  void* flush;
  CHECK(cudaMalloc(&flush, flush_bytes));
  CHECK_CUPTI(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed));
  CHECK_CUPTI(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  const std::vector<Variant> variants = all_configs();
  constexpr int kRepeats = 4;
  std::printf("# %s, sm_%d%d, L2 %d bytes, cold: twice that zeroed before each call, CUPTI kernel time, us, median of %d\n", gpu.name, gpu.major,
              gpu.minor, gpu.l2CacheSize, rounds * (kRepeats - 1));
  std::printf("tokens\tsequences\tlongest\tvariant\tmedian\tq1\tq3\tuuid\n");
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string uuid;
    int64_t T, N, at, before = 0, longest = 0;
    words >> uuid >> T >> N >> at;
    const std::string shape = std::to_string(T) + "/" + std::to_string(N);
    if (filter != nullptr && (std::string(" ") + filter + " ").find(" " + shape + " ") == std::string::npos) continue;
    Case c;
    for (int64_t i = 0; i < N; ++i) {
      words >> at;
      c.lengths.push_back(at - before), longest = std::max(longest, at - before), before = at;
    }
    Tensors m;
    make(m, c, 1);
    CHECK(cudaDeviceSynchronize());
    CHECK_CUPTI(cuptiActivityFlushAll(1));
    records.clear();
    std::vector<size_t> order;
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < variants.size(); ++i) {
        const size_t which = (i + round) % variants.size();
        if (!variants[which].suits(T, N)) continue;
        for (int r = 0; r < kRepeats; ++r) {
          CHECK(cudaMemsetAsync(flush, 0, flush_bytes, nullptr));
          CHECK(cudaDeviceSynchronize());
          CHECK(variants[which].launch(m.x, nullptr));
          CHECK(cudaDeviceSynchronize());
          order.push_back(which);
        }
      }
    }
    CHECK_CUPTI(cuptiActivityFlushAll(1));
    std::sort(records.begin(), records.end());
    if (records.size() != order.size()) {
      std::fprintf(stderr, "%zu records for %zu calls\n", records.size(), order.size());
      return 1;
    }
    for (size_t which = 0; which < variants.size(); ++which) {
      std::vector<double> us;
      for (size_t i = 0; i < order.size(); ++i) {
        if (order[i] == which && i % kRepeats != 0) us.push_back(records[i].duration / 1e3);
      }
      if (us.empty()) continue;
      std::sort(us.begin(), us.end());
      std::printf("%lld\t%lld\t%lld\t%s\t%.2f\t%.2f\t%.2f\t%s\n", (long long)T, (long long)N, (long long)longest, variants[which].name,
                  us[us.size() / 2], us[us.size() / 4], us[us.size() * 3 / 4], uuid.c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}

// Shows how the time of a short sequence depends on caches: all cold, code warm, code and data warm.
static int where(int variant) {
  CHECK_CUPTI(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed));
  CHECK_CUPTI(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  void* flush;
  CHECK(cudaMalloc(&flush, 128 << 20));
  for (int64_t tokens : {6, 33, 134}) {
    Case c;
    c.lengths = {tokens};
    Tensors m, other;
    make(m, c, 1);
    make(other, c, 2);
    const Variant v = all_configs()[variant];
    const auto median = [&](bool cold, bool code) {
      CHECK(cudaDeviceSynchronize());
      CHECK_CUPTI(cuptiActivityFlushAll(1));
      records.clear();
      for (int i = 0; i < 15; ++i) {
        if (cold) CHECK(cudaMemset(flush, 0, 128 << 20));
        CHECK(cudaDeviceSynchronize());
        if (code) CHECK(v.launch(other.x, nullptr));
        CHECK(cudaDeviceSynchronize());
        CHECK(v.launch(m.x, nullptr));
        CHECK(cudaDeviceSynchronize());
      }
      CHECK_CUPTI(cuptiActivityFlushAll(1));
      std::sort(records.begin(), records.end());
      std::vector<double> us;
      for (size_t i = code ? 1 : 0; i < records.size(); i += code ? 2 : 1) us.push_back(records[i].duration / 1e3);
      std::sort(us.begin(), us.end());
      return us[us.size() / 2];
    };
    std::printf("where %s T %lld: cold %.2f, code warm %.2f, all warm %.2f\n", v.name, (long long)tokens, median(true, false),
                median(true, true), median(false, false));
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc >= 2 && std::string(argv[1]) == "check") {
    int wrong = 0, n = 0;
    for (const Case& c : cases(argc > 2)) wrong += check(c, ++n);
    std::printf("%d cases, %zu configs, %d wrong\n", n, all_configs().size(), wrong);
    return wrong != 0;
  }
  if (argc >= 4 && std::string(argv[1]) == "time") return time_configs(argv[2], std::atoi(argv[3]), argc > 4 ? argv[4] : nullptr);
  if (argc >= 3 && std::string(argv[1]) == "where") return where(std::atoi(argv[2]));
  if (argc >= 5 && std::string(argv[1]) == "once") {  // for a profiler: once VARIANT DEVIATION_OF_VALUES LENGTH...
    Case c;
    c.v = static_cast<float>(std::atof(argv[3]));
    for (int i = 4; i < argc; ++i) c.lengths.push_back(std::atoll(argv[i]));
    Tensors m;
    make(m, c, 1);
    CHECK(cudaDeviceSynchronize());
    CHECK(all_configs()[std::atoi(argv[2])].launch(m.x, nullptr));
    CHECK(cudaDeviceSynchronize());
    return 0;
  }
  std::fprintf(stderr, "usage: prefill check [large] | time FILE ROUNDS [\"T/N T/N ...\"]\n");
  return 2;
}
