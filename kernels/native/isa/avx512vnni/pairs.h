// Pairs of int8 times two int16; see attention.h.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

struct Pairs { __m512i v; };
struct PairFactor { __m512i v; };
EDGE_INLINE Pairs load_pairs(const int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
EDGE_INLINE Pairs load_half_pairs(const int8_t* p) {  // the upper eight are zero
  return {_mm512_zextsi256_si512(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
EDGE_INLINE PairFactor load_factor(const int16_t* p) {
  PairFactor f;
  asm("vpbroadcastd %[p], %[f]" : [f] "=v"(f.v) : [p] "m"(*reinterpret_cast<const int16_t(*)[2]>(p)));
  return f;
}
EDGE_INLINE i32x16 zero_sums() { return {_mm512_setzero_si512()}; }
EDGE_INLINE void multiply_add(i32x16& sums, const Pairs& x, const PairFactor& f) {
  asm("vpdpwssd %[x], %[f], %[sums]" : [sums] "+v"(sums.v) : [f] "v"(f.v), [x] "v"(x.v));
}

}  // namespace EDGE_VARIANT
}  // namespace edge
