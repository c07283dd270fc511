// Pairs of int8 times two int16; see attention.h.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

struct Pairs { int16_t first[kLanes], second[kLanes]; };
struct PairFactor { int16_t first, second; };
EDGE_INLINE Pairs load_pairs(const int8_t* p, int lanes = kLanes) {
  Pairs out = {};
  for (int i = 0; i < lanes; ++i) {
    out.first[i] = p[2 * i];
    out.second[i] = p[2 * i + 1];
  }
  return out;
}
EDGE_INLINE Pairs load_half_pairs(const int8_t* p) { return load_pairs(p, kLanes / 2); }
EDGE_INLINE PairFactor load_factor(const int16_t* p) { return {p[0], p[1]}; }
EDGE_INLINE i32x16 zero_sums() { return broadcast_i32(0); }
EDGE_INLINE void multiply_add(i32x16& sums, const Pairs& x, const PairFactor& f) {
  for (int i = 0; i < kLanes; ++i) sums.v[i] += x.first[i] * f.first + x.second[i] * f.second;
}

}  // namespace EDGE_VARIANT
}  // namespace edge
