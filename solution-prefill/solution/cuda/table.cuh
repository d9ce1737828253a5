// Which shape of prefill.cuh serves which call. docs/performance.md has the measurements.
#pragma once

#include "prefill.cuh"

namespace gdn {

struct Choice {
  int64_t sequences, tokens;  // the least of both that it serves
  cudaError_t (*launch)(const Arguments&, int blocks, cudaStream_t);
};

// The last row that fits is taken. From runs of scripts/tune/prefill on an H200; no B200 has been measured. A shape is
// tiles, output warps, loaders, preparers, stages, tiles of a chain warp, warps left out.
inline constexpr Choice kTable[] = {
    {1, 0, launch_few},
    {1, 15, launch<Shape<1, 1, 4, 4, 4>>},
    {1, 400, launch<Shape<1, 1, 4, 4, 4, 1, 2>>},
    {3, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {3, 600, launch<Shape<1, 1, 4, 4, 4>>},
    {4, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {5, 2500, launch<Shape<1, 1, 4, 4, 4>>},
    {9, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {16, 0, launch<Shape<4, 0, 4, 4, 4>>},
    {23, 4096, launch_mixed<Shape<4, 0, 2, 2, 4>, Shape<8, 0, 2, 2, 3, 2>, 2>},
    {46, 0, launch<Shape<8, 0, 2, 2, 3, 2>>},
};

}  // namespace gdn
