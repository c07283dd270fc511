// The sixteen lanes of vec.h, four q registers.
#pragma once

#include <arm_neon.h>
#include "lanes_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct f32x16 { float32x4_t v[4]; };
struct i32x16 { int32x4_t v[4]; };

// The expression for i = 0..3, written out as in `unrolled`; the result has type T.
#define EDGE_QUARTERS(T, expression)                                           \
  const auto quarter = [&](auto i) EDGE_INLINE_LAMBDA { return (expression); }; \
  return T{{quarter(Index<0>{}), quarter(Index<1>{}), quarter(Index<2>{}), quarter(Index<3>{})}}

EDGE_INLINE f32x16 broadcast(float x) {
  const float32x4_t same = vdupq_n_f32(x);
  return {{same, same, same, same}};
}
EDGE_INLINE f32x16 zero() { return broadcast(0.0f); }
EDGE_INLINE f32x16 load(const float* p) { EDGE_QUARTERS(f32x16, vld1q_f32(p + 4 * i)); }
EDGE_INLINE f32x16 load_partial(const float* p, int n) {
  float lanes[kLanes] = {};
  memcpy(lanes, p, 4 * static_cast<size_t>(n));
  return load(lanes);
}
EDGE_INLINE void store(float* p, f32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1q_f32(p + 4 * i, a.v[i]); });
}
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) {
  float lanes[kLanes];
  store(lanes, a);
  memcpy(p, lanes, 4 * static_cast<size_t>(n));
}

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vaddq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vsubq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vmulq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vdivq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { EDGE_QUARTERS(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Selected, because fmax and fmin treat NaN and -0 in their own way.
EDGE_INLINE float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
EDGE_INLINE float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, max(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, min(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 abs(f32x16 a) { EDGE_QUARTERS(f32x16, vabsq_f32(a.v[i])); }
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  EDGE_QUARTERS(f32x16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
// Sixteen bytes in lane order.
EDGE_INLINE uint8x16_t narrow_u8(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  return vcombine_u8(vmovn_u16(vcombine_u16(vmovn_u32(a), vmovn_u32(b))), vmovn_u16(vcombine_u16(vmovn_u32(c), vmovn_u32(d))));
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) {
  alignas(16) static const uint8_t kBits[kLanes] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t greater = narrow_u8(vcgtq_f32(a.v[0], b.v[0]), vcgtq_f32(a.v[1], b.v[1]),
                                       vcgtq_f32(a.v[2], b.v[2]), vcgtq_f32(a.v[3], b.v[3]));
  const uint8x16_t bits = vandq_u8(greater, vld1q_u8(kBits));
  return static_cast<uint32_t>(vaddv_u8(vget_low_u8(bits))) | static_cast<uint32_t>(vaddv_u8(vget_high_u8(bits))) << 8;
}

EDGE_INLINE i32x16 load_i32(const void* p) {  // 64 bytes, any alignment
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)));
}
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) {
  int32_t lanes[kLanes] = {};
  memcpy(lanes, p, 4 * static_cast<size_t>(n));
  return load_i32(lanes);
}
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1q_s32(p + 4 * i, a.v[i]); });
}
EDGE_INLINE i32x16 broadcast_i32(int32_t x) {
  const int32x4_t same = vdupq_n_s32(x);
  return {{same, same, same, same}};
}
EDGE_INLINE uint32x4_t u32(int32x4_t x) { return vreinterpretq_u32_s32(x); }  // wraps where GCC lets vaddq_s32 not
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) {
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u32(vaddq_u32(u32(a.v[i]), u32(b.v[i]))));
}
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) {
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u32(vsubq_u32(u32(a.v[i]), u32(b.v[i]))));
}
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { EDGE_QUARTERS(i32x16, veorq_s32(a.v[i], b.v[i])); }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) { EDGE_QUARTERS(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(bits))); }
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) { EDGE_QUARTERS(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(-bits))); }
EDGE_INLINE i32x16 bits_of(f32x16 a) { EDGE_QUARTERS(i32x16, vreinterpretq_s32_f32(a.v[i])); }
EDGE_INLINE f32x16 float_of_bits(i32x16 a) { EDGE_QUARTERS(f32x16, vreinterpretq_f32_s32(a.v[i])); }
// Saturating narrow to int8 / int16.
EDGE_INLINE int16x8_t narrow_i16(int32x4_t low, int32x4_t high) {
  return vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
}
EDGE_INLINE int8x16_t narrow_i8(i32x16 a) {
  return vcombine_s8(vqmovn_s16(narrow_i16(a.v[0], a.v[1])), vqmovn_s16(narrow_i16(a.v[2], a.v[3])));
}
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) { vst1q_s8(p, narrow_i8(a)); }
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  vst1q_s16(p, narrow_i16(a.v[0], a.v[1]));
  vst1q_s16(p + 8, narrow_i16(a.v[2], a.v[3]));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { EDGE_QUARTERS(f32x16, vcvtq_f32_s32(a.v[i])); }
EDGE_INLINE f32x16 from_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return from_i32({{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}});
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) {
  EDGE_QUARTERS(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))); });
}
// Round half to even. Out of range or NaN: INT32_MIN (the instruction gives INT32_MAX above, 0 for NaN).
EDGE_INLINE i32x16 round_even(f32x16 a) {
  EDGE_QUARTERS(i32x16, vbslq_s32(vcltq_f32(a.v[i], vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN)));
}
EDGE_INLINE f32x16 round_even_f32(f32x16 a) { EDGE_QUARTERS(f32x16, vrndnq_f32(a.v[i])); }

#undef EDGE_QUARTERS

EDGE_INLINE float reduce_add(f32x16 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
EDGE_INLINE float reduce_max(f32x16 a) {
  float32x4_t four = max(max(a.v[0], a.v[2]), max(a.v[1], a.v[3]));
  four = max(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max(four, vextq_f32(four, four, 1)), 0);
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
  if constexpr (Distance == 8) return {{a.v[2], a.v[3], a.v[0], a.v[1]}};
  if constexpr (Distance == 4) return {{a.v[1], a.v[0], a.v[3], a.v[2]}};
  f32x16 out;
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA {
    if constexpr (Distance == 2) out.v[i] = vextq_f32(a.v[i], a.v[i], 2);
    else out.v[i] = vrev64q_f32(a.v[i]);
  });
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
