// Int8Dot of this instruction set; see int8_dot.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct Int8Dot : OffsetActivation {
  using Broadcast = __m512i;
  using Weights = __m512i;
  using Accumulator = __m512i;
  static constexpr int kRegisters = 1;
  static constexpr int kRows = 6, kPanels = 4, kStreamRows = 12, kTwoPanelRows = 12;

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm512_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return _mm512_loadu_si512(tile); }
  static EDGE_INLINE Accumulator zero() { return _mm512_setzero_si512(); }
  // In assembly: GCC copies the accumulator before and after the intrinsic, which costs more than half of the speed.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    asm("vpdpbusd %[w], %[a], %[sum]" : [sum] "+v"(sum) : [a] "v"(a), [w] "v"(w));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm512_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator only, Accumulator) { return {only}; }
};

}  // namespace EDGE_VARIANT
}  // namespace edge
