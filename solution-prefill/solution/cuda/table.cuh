// Which shape of prefill.cuh serves which call. docs/performance.md has the measurements.
#pragma once

#include "prefill.cuh"

namespace gdn {

struct Choice {
  int64_t sequences, tokens;  // the least of both that it serves
  cudaError_t (*launch)(const Arguments&, int blocks, cudaStream_t);
};

// The last row that fits is taken. From a run of scripts/tune/prefill on an H200; no B200 has been measured. A shape is
// tiles, output warps, loaders, preparers, stages, tiles of a chain warp.
inline constexpr Choice kTable[] = {
    {1, 0, launch<Shape<1, 1, 4, 4, 4>>},
    {3, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {3, 600, launch<Shape<1, 1, 4, 4, 4>>},
    {4, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {5, 2500, launch<Shape<1, 1, 4, 4, 4>>},
    {9, 0, launch<Shape<2, 2, 4, 4, 4>>},
    {16, 0, launch<Shape<4, 0, 4, 4, 4>>},
    {40, 0, launch<Shape<8, 0, 2, 2, 3, 2>>},
};

}  // namespace gdn
