// The configs of the prefill kernel that prefill.cu checks and times.
#pragma once

#include <vector>

#include "configs.cuh"
#include "few.cuh"
#include "launch.cuh"

struct Variant {
  const char* name;
  bool same_bits;  // gives the same bits as the first variant
  bool (*suits)(int64_t tokens, int64_t sequences);
  cudaError_t (*launch)(const gdn::Arguments&, cudaStream_t);
};

inline int blocks_at_once() {
  int device = 0, count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

template <class Config>
cudaError_t launch_config(const gdn::Arguments& args, cudaStream_t stream) {
  return gdn::launch<Config>(args, blocks_at_once(), stream);
}

inline cudaError_t launch_mixture(const gdn::Arguments& args, cudaStream_t stream) {
  return gdn::launch_mixed<gdn::FourTilesFewWarps, gdn::EightTiles, 2>(args, blocks_at_once(), stream);
}

inline cudaError_t launch_few(const gdn::Arguments& args, cudaStream_t stream) {
  return gdn::launch_few(args, blocks_at_once(), stream);
}

inline std::vector<Variant> all_configs() {
  return {
      {"one tile", true, [](int64_t, int64_t n) { return n <= 16; }, launch_config<gdn::OneTile>},
      {"one tile, alone", true, [](int64_t, int64_t n) { return n <= 16; }, launch_config<gdn::OneTileAlone>},
      {"two tiles", true, [](int64_t, int64_t n) { return n <= 24; }, launch_config<gdn::TwoTiles>},
      {"four tiles", true, [](int64_t, int64_t n) { return n > 2; }, launch_config<gdn::FourTiles>},
      {"eight tiles", true, [](int64_t, int64_t n) { return n > 12; }, launch_config<gdn::EightTiles>},
      {"few", false, [](int64_t t, int64_t) { return t > 0 && t <= gdn::kFewTokens; }, launch_few},
      {"four tiles twice, eight tiles", true, [](int64_t, int64_t n) { return n > 12; }, launch_mixture},
  };
}
