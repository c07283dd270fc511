// Int8Dot of this instruction set; see int8_dot.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

// (a with the sign of w) * |w| by vpmaddubsw: a pair of products is at most 2 * 127 * 127 < 2^15, so nothing saturates.
struct Int8Dot : SignedActivation {
  using Broadcast = __m256i;
  struct Weights { const __m256i_u* value; __m256i magnitude; };  // the value is read where it lies
  using Accumulator = __m256i;
  static constexpr int kRegisters = 2;
  static constexpr int kRows = 6, kPanels = 1, kStreamRows = 6;
  static constexpr int kTwoPanelRows = 2;  // sums and weights of more leave the sixteen registers

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm256_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int part) {
    const auto* value = reinterpret_cast<const __m256i_u*>(tile) + part;
    return {value, _mm256_abs_epi8(_mm256_loadu_si256(value))};
  }
  static EDGE_INLINE Accumulator zero() { return _mm256_setzero_si256(); }
  // In assembly: twelve sums and their operands just fit sixteen registers, and GCC reorders until they do not.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, const Weights& w) {
    __m256i t;
    asm("vpsignb %[w], %[a], %[t]\n\t"
        "vpmaddubsw %[t], %[magnitude], %[t]\n\t"  // int16: pairs
        "vpmaddwd %[ones], %[t], %[t]\n\t"         // int32: fours
        "vpaddd %[t], %[sum], %[sum]"
        : [sum] "+x"(sum), [t] "=&x"(t)
        : [a] "x"(a), [w] "m"(*w.value), [magnitude] "x"(w.magnitude), [ones] "xm"(_mm256_set1_epi16(1)));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm256_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator low, Accumulator high) { return {low, high}; }
};

}  // namespace EDGE_VARIANT
}  // namespace edge
