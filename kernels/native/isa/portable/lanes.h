// The sixteen lanes of vec.h, plain loops, vectorised by the compiler as far as the base ISA allows.
#pragma once

#include "lanes_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct f32x16 { float v[kLanes]; };
struct i32x16 { int32_t v[kLanes]; };

// f(i) for each lane; the result array has lane type T.
#define EDGE_LANES(T, expression)                     \
  T out;                                              \
  for (int i = 0; i < kLanes; ++i) out.v[i] = (expression); \
  return out

EDGE_INLINE f32x16 zero() { EDGE_LANES(f32x16, 0.0f); }
EDGE_INLINE f32x16 broadcast(float x) { EDGE_LANES(f32x16, x); }
EDGE_INLINE f32x16 load(const float* p) { EDGE_LANES(f32x16, p[i]); }
EDGE_INLINE f32x16 load_partial(const float* p, int n) { EDGE_LANES(f32x16, i < n ? p[i] : 0.0f); }
EDGE_INLINE void store(float* p, f32x16 a) { memcpy(p, a.v, sizeof(a.v)); }
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] + b.v[i]); }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] - b.v[i]); }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] * b.v[i]); }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] / b.v[i]); }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { EDGE_LANES(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
EDGE_INLINE f32x16 abs(f32x16 a) { EDGE_LANES(f32x16, __builtin_fabsf(a.v[i])); }
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  EDGE_LANES(f32x16, a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  return mask;
}

EDGE_INLINE i32x16 load_i32(const void* p) {  // 64 bytes, any alignment
  i32x16 out;
  memcpy(out.v, p, sizeof(out.v));
  return out;
}
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) { EDGE_LANES(i32x16, i < n ? p[i] : 0); }
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) { memcpy(p, a.v, sizeof(a.v)); }
EDGE_INLINE i32x16 broadcast_i32(int32_t x) { EDGE_LANES(i32x16, x); }
EDGE_INLINE uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }  // wraps where int32_t must not
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) + u32(b.v[i]))); }
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) - u32(b.v[i]))); }
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, a.v[i] ^ b.v[i]); }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) {
  EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) << bits));
}
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) { EDGE_LANES(i32x16, a.v[i] >> bits); }
EDGE_INLINE i32x16 bits_of(f32x16 a) {
  i32x16 out;
  memcpy(out.v, a.v, sizeof(out.v));
  return out;
}
EDGE_INLINE f32x16 float_of_bits(i32x16 a) {
  f32x16 out;
  memcpy(out.v, a.v, sizeof(out.v));
  return out;
}
EDGE_INLINE int32_t clamp_i32(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }
// Saturating narrow to int8 / int16.
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(clamp_i32(a.v[i], -128, 127));
}
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(clamp_i32(a.v[i], -32768, 32767));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { EDGE_LANES(f32x16, static_cast<float>(a.v[i])); }
EDGE_INLINE f32x16 from_i8(const int8_t* p) { EDGE_LANES(f32x16, static_cast<float>(p[i])); }

EDGE_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7FFFu;
  float out;
  if (magnitude >= 0x7C00u) {  // inf; NaN, made quiet
    const uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
    const uint32_t bits = sign | 0x7F800000u | quiet | (magnitude & 0x3FFu) << 13;
    memcpy(&out, &bits, 4);
    return out;
  }
  if (magnitude < 0x400u) {  // zero, subnormal: magnitude * 2^-24 is exact
    out = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -out : out;
  }
  const uint32_t bits = sign | ((magnitude << 13) + (112u << 23));
  memcpy(&out, &bits, 4);
  return out;
}
// Round half to even, as vcvtps2ph.
EDGE_INLINE uint16_t float_to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to inf
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by adding 0.5
    float scaled;
    memcpy(&scaled, &magnitude, 4);
    scaled += 0.5f;  // ulp of [0.5, 1) is 2^-24
    uint32_t rounded;
    memcpy(&rounded, &scaled, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3F000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xFFFu + odd) >> 13);
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) { EDGE_LANES(f32x16, half_to_float(p[i])); }
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
}
// Round half to even. Out of range or NaN: INT32_MIN.
EDGE_INLINE int32_t round_even_scalar(float x) {
  return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(__builtin_rintf(x)) : INT32_MIN;
}
EDGE_INLINE i32x16 round_even(f32x16 a) { EDGE_LANES(i32x16, round_even_scalar(a.v[i])); }
EDGE_INLINE f32x16 round_even_f32(f32x16 a) { EDGE_LANES(f32x16, __builtin_rintf(a.v[i])); }

#undef EDGE_LANES

EDGE_INLINE float reduce_add(f32x16 a) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] + a.v[i + step];
  return a.v[0];
}
EDGE_INLINE float reduce_max(f32x16 a) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  return a.v[0];
}

// reduce_add of four into p[0..3].
EDGE_INLINE void reduce_add_4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* p) {
  p[0] = reduce_add(a), p[1] = reduce_add(b), p[2] = reduce_add(c), p[3] = reduce_add(d);
}

// Sixteen and sixteen that are known to be int16; of others, any.
EDGE_INLINE void store_low_i16(int16_t* p, i32x16 a, i32x16 b) {
  store_i16(p, a);
  store_i16(p + kLanes, b);
}

// Lane i of the result is lane i ^ Distance.
template <int Distance>
EDGE_INLINE f32x16 swap_lanes(f32x16 a) {
  static_assert(Distance == 1 || Distance == 2 || Distance == 4 || Distance == 8);
  f32x16 out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = a.v[i ^ Distance];
  return out;
}

// Stores the lanes of a mask side by side, and whatever behind them; how many they are.
EDGE_INLINE int store_chosen(float* values, int32_t* numbers, f32x16 value, i32x16 number, uint32_t mask) {
  if (mask == (1u << kLanes) - 1) {
    store(values, value);
    store_i32(numbers, number);
    return kLanes;
  }
  alignas(64) float v[kLanes];
  alignas(64) int32_t n[kLanes];
  store(v, value);
  store_i32(n, number);
  int kept = 0;
  for (int i = 0; i < kLanes; ++i) {
    values[kept] = v[i];
    numbers[kept] = n[i];
    kept += static_cast<int>(mask >> i & 1u);
  }
  return __builtin_popcount(mask);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
