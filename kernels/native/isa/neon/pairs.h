// Pairs of int8 times two int16; see attention.h.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

struct Pairs { int16x8_t first[2], second[2]; };
struct PairFactor { int16x4_t v; };
EDGE_INLINE Pairs split_pairs(int8x16_t low, int8x16_t high) {
  const int8x16_t first = vuzp1q_s8(low, high), second = vuzp2q_s8(low, high);
  return {{vmovl_s8(vget_low_s8(first)), vmovl_high_s8(first)}, {vmovl_s8(vget_low_s8(second)), vmovl_high_s8(second)}};
}
EDGE_INLINE Pairs load_pairs(const int8_t* p) { return split_pairs(vld1q_s8(p), vld1q_s8(p + 16)); }
EDGE_INLINE Pairs load_half_pairs(const int8_t* p) { return split_pairs(vld1q_s8(p), vdupq_n_s8(0)); }
EDGE_INLINE PairFactor load_factor(const int16_t* p) {
  int32_t two;
  memcpy(&two, p, sizeof(two));
  return {vreinterpret_s16_s32(vdup_n_s32(two))};
}
EDGE_INLINE i32x16 zero_sums() { return broadcast_i32(0); }
EDGE_INLINE void multiply_add(i32x16& sums, const Pairs& x, const PairFactor& f) {
  unrolled<2>([&](auto i) EDGE_INLINE_LAMBDA {
    int32x4_t &low = sums.v[2 * i], &high = sums.v[2 * i + 1];
    low = vmlal_lane_s16(low, vget_low_s16(x.first[i]), f.v, 0);
    high = vmlal_high_lane_s16(high, x.first[i], f.v, 0);
    low = vmlal_lane_s16(low, vget_low_s16(x.second[i]), f.v, 1);
    high = vmlal_high_lane_s16(high, x.second[i], f.v, 1);
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge
