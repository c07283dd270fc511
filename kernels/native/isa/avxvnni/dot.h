// Int8Dot of this instruction set; see int8_dot.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct Int8Dot : OffsetActivation {
  using Broadcast = __m256i;
  using Weights = __m256i;
  using Accumulator = __m256i;
  static constexpr int kRegisters = 2;
  static constexpr int kRows = 6, kPanels = 1, kStreamRows = 6;
  static constexpr int kTwoPanelRows = 2;  // sums and weights of more leave the sixteen registers

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm256_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int part) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(tile) + part);
  }
  static EDGE_INLINE Accumulator zero() { return _mm256_setzero_si256(); }
  // In assembly as above; {vex} because these CPUs have no EVEX form.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    asm("%{vex%} vpdpbusd %[w], %[a], %[sum]" : [sum] "+x"(sum) : [a] "x"(a), [w] "x"(w));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm256_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator low, Accumulator high) { return {low, high}; }
};

}  // namespace EDGE_VARIANT
}  // namespace edge
