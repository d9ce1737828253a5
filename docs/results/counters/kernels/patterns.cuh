// Elements of an array in shared memory that the lanes of a warp access: lane l accesses element at(l) if active(l).
// kSize is the size of the array.
#pragma once

struct AllActive {
  static __device__ bool active(int) { return true; }
};

template <int kStride>
struct Stride : AllActive {
  static constexpr int kSize = 31 * kStride + 1;
  static __device__ int at(int lane) { return lane * kStride; }
};

struct Broadcast : AllActive {
  static constexpr int kSize = 8;
  static __device__ int at(int) { return 5; }
};

// Both lanes of a pair access the same element.
struct PairsSame : AllActive {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane / 2; }
};

// Lanes l and l + 16 access the same element.
struct HalvesSame : AllActive {
  static constexpr int kSize = 16;
  static __device__ int at(int lane) { return lane % 16; }
};

// All lanes of a quarter-warp access the same element. The four elements are in the same banks.
struct QuartersConflict : AllActive {
  static constexpr int kSize = 3 * 32 + 1;
  static __device__ int at(int lane) { return lane / 8 * 32; }
};

// Lanes l, l + 8, l + 16 and l + 24 access different elements in the same banks. No conflict within a quarter-warp for
// elements of 128 bits.
struct QuartersRepeat : AllActive {
  static constexpr int kSize = 3 * 32 + 8;
  static __device__ int at(int lane) { return lane / 8 * 32 + lane % 8; }
};

struct Reversed : AllActive {
  static constexpr int kSize = 32;
  static __device__ int at(int lane) { return 31 - lane; }
};

struct Permuted : AllActive {
  static constexpr int kSize = 256;
  static __device__ int at(int lane) { return (lane * 77 + 13) % 256; }
};

template <int kLanes>
struct FirstLanes {
  static constexpr int kSize = 32;
  static __device__ int at(int lane) { return lane; }
  static __device__ bool active(int lane) { return lane < kLanes; }
};

struct OddLanes {
  static constexpr int kSize = 32;
  static __device__ int at(int lane) { return lane; }
  static __device__ bool active(int lane) { return lane % 2; }
};

// Lanes 3, 11, 19 and 27, all in the same banks for elements of 128 bits.
struct FourLanes {
  static constexpr int kSize = 32;
  static __device__ int at(int lane) { return lane; }
  static __device__ bool active(int lane) { return lane % 8 == 3; }
};
