// CUDA's vector types and their make_ functions.
#ifndef FISUB_EMU_VECTOR_TYPES_H_
#define FISUB_EMU_VECTOR_TYPES_H_

#define FISUB_VECTORS(T, name, align2, align4)                                                   \
  struct name##1 { T x; };                                                                       \
  struct alignas(align2) name##2 { T x, y; };                                                    \
  struct name##3 { T x, y, z; };                                                                 \
  struct alignas(align4) name##4 { T x, y, z, w; };                                              \
  constexpr inline name##1 make_##name##1(T x) { return {x}; }                                   \
  constexpr inline name##2 make_##name##2(T x, T y) { return {x, y}; }                           \
  constexpr inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                   \
  constexpr inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

FISUB_VECTORS(signed char, char, 2, 4)
FISUB_VECTORS(unsigned char, uchar, 2, 4)
FISUB_VECTORS(short, short, 4, 8)
FISUB_VECTORS(unsigned short, ushort, 4, 8)
FISUB_VECTORS(int, int, 8, 16)
FISUB_VECTORS(unsigned, uint, 8, 16)
FISUB_VECTORS(long, long, 16, 16)
FISUB_VECTORS(unsigned long, ulong, 16, 16)
FISUB_VECTORS(long long, longlong, 16, 16)
FISUB_VECTORS(unsigned long long, ulonglong, 16, 16)
FISUB_VECTORS(float, float, 8, 16)
FISUB_VECTORS(double, double, 16, 16)
#undef FISUB_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

#endif  // FISUB_EMU_VECTOR_TYPES_H_
