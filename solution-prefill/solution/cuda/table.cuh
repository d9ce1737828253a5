// Which config of the prefill kernel serves which call. docs/performance.md has the measurements.
#pragma once

#include "configs.cuh"
#include "few.cuh"
#include "launch.cuh"

namespace gdn {

struct Choice {
  int64_t sequences, tokens;  // the least of both that it serves
  cudaError_t (*launch)(const Arguments&, int blocks, cudaStream_t);
};

// The last row that fits is taken. From runs of scripts/tune/prefill on an H200; no B200 has been measured.
inline constexpr Choice kTable[] = {
    {1, 0, launch_few},
    {1, 15, launch<OneTile>},
    {1, 400, launch<OneTileAlone>},
    {3, 0, launch<TwoTiles>},
    {3, 600, launch<OneTile>},
    {4, 0, launch<TwoTiles>},
    {5, 2500, launch<OneTile>},
    {9, 0, launch<TwoTiles>},
    {16, 0, launch<FourTiles>},
    {23, 4096, launch_mixed<FourTilesFewWarps, EightTiles, 2>},
    {46, 0, launch<EightTiles>},
};

}  // namespace gdn
