// f32x16 / i32x16: the sixteen virtual lanes of every float kernel, one type per ISA with the same bits.
//
// Included by the unit of each instruction set (isa/portable/unit.h), inside the set's own namespace: the same kernel source
// compiles to AVX-512 (one zmm), AVX2 (two ymm), NEON (four q registers) or plain loops, in <lanes.h> of the set's folder. Rules
// that keep all sets bit-identical:
//   - a multiply-add in a reduction is `fma` (fused on every ISA); everything else is a separate rounding
//     (the build passes -ffp-contract=off);
//   - `reduce_add` is the one fixed tree: (l[i] + l[i+8]), then +4, +2, +1;
//   - min and max return the second operand when either is NaN, as x86 does.
// No std:: templates here: the linker could keep a copy compiled for a wider ISA than the CPU at hand.
#pragma once

#include <lanes.h>

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE f32x16 clamp(f32x16 a, f32x16 low, f32x16 high) { return min(max(a, low), high); }

// The first n lanes of a, and the others of b.
EDGE_INLINE f32x16 first_or(f32x16 a, int64_t n, f32x16 b) {
  alignas(64) static constexpr float kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select_less(load(kLane), broadcast(static_cast<float>(n)), a, b);
}

// The nearest float16, half to even; beyond its range (and for NaN) an end of it.
EDGE_INLINE f32x16 saturated_f16(f32x16 a) {
  uint16_t half[kLanes];
  to_f16(half, clamp(a, broadcast(-65504.0f), broadcast(65504.0f)));
  return from_f16(half);
}

// Partial loads of narrow types: n lanes, the rest +0. Never read past p[n-1].
EDGE_INLINE f32x16 from_i8_partial(const int8_t* p, int n) {
  int8_t lanes[kLanes] = {};
  memcpy(lanes, p, static_cast<size_t>(n));
  return from_i8(lanes);
}
EDGE_INLINE f32x16 from_f16_partial(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  memcpy(lanes, p, 2 * static_cast<size_t>(n));
  return from_f16(lanes);
}
EDGE_INLINE void store_i8_partial(int8_t* p, i32x16 a, int n) {
  int8_t lanes[kLanes];
  store_i8(lanes, a);
  memcpy(p, lanes, static_cast<size_t>(n));
}

// e^x, |relative error| < 2e-7 where the result is a normal number; 0 below it (exp(-inf) = 0), inf above, NaN kept.
// x = n ln2 + r, |r| <= ln2/2; e^r by a degree-7 polynomial; the exponent field takes n by an integer add.
EDGE_INLINE f32x16 exp(f32x16 x) {
  const f32x16 n = round_even_f32(mul(x, broadcast(0x1.715476p+0f)));
  f32x16 r = fma(n, broadcast(-0x1.62e400p-1f), x);          // ln2 high part: n * it is exact
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);                // ln2 low part
  f32x16 y = broadcast(0x1.a01a02p-13f);                     // 1/7!
  y = fma(y, r, broadcast(0x1.6c16c2p-10f));
  y = fma(y, r, broadcast(0x1.111112p-7f));
  y = fma(y, r, broadcast(0x1.555556p-5f));
  y = fma(y, r, broadcast(0x1.555556p-3f));
  y = fma(y, r, broadcast(0.5f));
  y = fma(mul(y, r), r, r);                                  // r + r^2 (...)
  y = add(y, broadcast(1.0f));
  y = float_of_bits(add_i32(bits_of(y), shift_left(round_even(n), 23)));
  y = select_less(x, broadcast(-0x1.5d589ep+6f), zero(), y);                      // below 2^-126
  return select_less(broadcast(0x1.62e42ep+6f), x, broadcast(__builtin_inff()), y);  // above FLT_MAX
}

// 1 - 2 / (e^2x + 1), |error| < 2e-7; 1 and -1 at the ends, NaN kept.
EDGE_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 two = broadcast(2.0f), one = broadcast(1.0f);
  return sub(one, div(two, add(exp(mul(x, two)), one)));
}

}  // namespace EDGE_VARIANT
}  // namespace edge
