// The shapes of the prefill kernel that prefill.cu checks and times.
#pragma once

#include <vector>

#include "prefill.cuh"

struct Variant {
  const char* name;
  bool same_bits;  // as the first
  bool (*suits)(int64_t tokens, int64_t sequences);
  cudaError_t (*launch)(const gdn::Arguments&, cudaStream_t);
};

inline int blocks_at_once() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

template <int... kShape>
cudaError_t launch_shape(const gdn::Arguments& x, cudaStream_t stream) {
  return gdn::launch<gdn::Shape<kShape...>>(x, blocks_at_once(), stream);
}

inline cudaError_t launch_mixture(const gdn::Arguments& x, cudaStream_t stream) {
  return gdn::launch_mixed<gdn::Shape<4, 0, 2, 2, 4>, gdn::Shape<8, 0, 2, 2, 3, 2>, 2>(x, blocks_at_once(), stream);
}

inline cudaError_t launch_few(const gdn::Arguments& x, cudaStream_t stream) { return gdn::launch_few(x, blocks_at_once(), stream); }

inline std::vector<Variant> all_shapes() {
  return {
      {"1-1-4-4-4", true, [](int64_t, int64_t n) { return n <= 16; }, launch_shape<1, 1, 4, 4, 4>},
      {"1-1-4-4-4-1-2", true, [](int64_t, int64_t n) { return n <= 16; }, launch_shape<1, 1, 4, 4, 4, 1, 2>},
      {"2-2-4-4-4", true, [](int64_t, int64_t n) { return n <= 24; }, launch_shape<2, 2, 4, 4, 4>},
      {"4-0-4-4-4", true, [](int64_t, int64_t n) { return n > 2; }, launch_shape<4, 0, 4, 4, 4>},
      {"8-0-2-2-3x2", true, [](int64_t, int64_t n) { return n > 12; }, launch_shape<8, 0, 2, 2, 3, 2>},
      {"few", false, [](int64_t t, int64_t) { return t > 0 && t <= gdn::kFew; }, launch_few},
      {"4-0-2-2-4 twice, 8-0-2-2-3x2", true, [](int64_t, int64_t n) { return n > 12; }, launch_mixture},
  };
}
