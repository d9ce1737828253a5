// The configs of table.cuh. layout.cuh describes their fields.
#pragma once

namespace gdn {

// One tile in a block: the fastest recurrence, for few sequences.
struct OneTile {
  static constexpr int kTiles = 1, kTilesPerChain = 1, kOutputs = 1;
  static constexpr int kLoaders = 4, kPreparers = 4, kStages = 4, kIdleWarps = 1;
};

// The same with the chain warp alone on its scheduler.
struct OneTileAlone : OneTile {
  static constexpr int kIdleWarps = 2;
};

struct TwoTiles {
  static constexpr int kTiles = 2, kTilesPerChain = 1, kOutputs = 2;
  static constexpr int kLoaders = 4, kPreparers = 4, kStages = 4, kIdleWarps = 0;
};

// Merged: more rows a second, longer chunks.
struct FourTiles {
  static constexpr int kTiles = 4, kTilesPerChain = 1, kOutputs = 0;
  static constexpr int kLoaders = 4, kPreparers = 4, kStages = 4, kIdleWarps = 0;
};

// With as many warps as EightTiles, for a mixed launch.
struct FourTilesFewWarps : FourTiles {
  static constexpr int kLoaders = 2, kPreparers = 2;
};

// The most rows a second, for many sequences.
struct EightTiles {
  static constexpr int kTiles = 8, kTilesPerChain = 2, kOutputs = 0;
  static constexpr int kLoaders = 2, kPreparers = 2, kStages = 3, kIdleWarps = 0;
};

}  // namespace gdn
