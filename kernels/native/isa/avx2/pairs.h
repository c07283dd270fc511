// Pairs of int8 times two int16; see attention.h.
#pragma once

#include "vec.h"
#include <pair_product.h>

namespace edge {
namespace EDGE_VARIANT {

struct Pairs { __m256i lo, hi; };
struct PairFactor { __m256i v; };
EDGE_INLINE __m256i widen_pairs(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
EDGE_INLINE Pairs load_pairs(const int8_t* p) { return {widen_pairs(p), widen_pairs(p + 16)}; }
EDGE_INLINE Pairs load_half_pairs(const int8_t* p) { return {widen_pairs(p), _mm256_setzero_si256()}; }
EDGE_INLINE PairFactor load_factor(const int16_t* p) {
  PairFactor f;
  asm("vpbroadcastd %[p], %[f]" : [f] "=x"(f.v) : [p] "m"(*reinterpret_cast<const int16_t(*)[2]>(p)));
  return f;
}
EDGE_INLINE i32x16 zero_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
EDGE_INLINE void multiply_add(i32x16& sums, const Pairs& x, const PairFactor& f) {
  multiply_add(sums.lo, x.lo, f.v);
  multiply_add(sums.hi, x.hi, f.v);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
