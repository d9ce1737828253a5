// Which config of decode.cuh serves which batch sizes, by architecture. docs/performance.md has the measurements.
#pragma once

#include "decode.cuh"

namespace gdn {

struct Choice {
  int64_t from;  // smallest batch size that it serves
  void (*launch)(const Arguments&, cudaStream_t);
};

// sm_90, chosen by scripts/tune on an H200. Lanes a row, rows a lane, warps.
inline constexpr Choice kTableSm90[] = {
    {1, launch<Config<32, 2, 8, Order::kFree, Load::kEvictHalf>>},
    {2, launch<Config<8, 2, 4, Order::kFree, Load::kEvictQuarter>>},
    {8, launch<Config<8, 2, 4, Order::kFree, Load::kEvictHalf, Store::kStreaming>>},
    {16, launch<Config<16, 4, 4, Order::kFree, Load::kEvictHalf, Store::kStreaming>>},
    {32, launch<Config<16, 8, 2, Order::kFree, Load::kEvictHalf>>},
    {48, launch<Config<32, 16, 2, Order::kPinned, Load::kEvictHalf>>},
    {64, launch<Config<32, 16, 2, Order::kPinned, Load::kEvictHalf, Store::kStreaming>>},
    {128, launch<Config<32, 16, 1, Order::kPinned>>},
};

// sm_100 starts from sm_90's: no B200 has been measured.
inline constexpr const auto& kTableSm100 = kTableSm90;

// The table of the architecture that this is compiled for; the contest compiles for one at a time.
#ifdef __CUDA_ARCH_LIST__
inline constexpr int kArchs[] = {__CUDA_ARCH_LIST__};
inline constexpr const auto& kTable = kArchs[0] >= 1000 ? kTableSm100 : kTableSm90;
#else
inline constexpr const auto& kTable = kTableSm90;
#endif

}  // namespace gdn
