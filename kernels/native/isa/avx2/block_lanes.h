// BlockLanes of this instruction set; see block_lanes.h of portable.
#pragma once

#include "isa/avx2/block_halves.h"

namespace edge {
namespace EDGE_VARIANT {

struct BlockLanes : BlockHalves {
  static constexpr bool kSignedBytes = true;

  template <int Class>
  struct Sum {
    __m256i v;
    static constexpr int kPairs = Class == 4 ? 8 : Class == 5 ? 4 : Class == 6 ? 2 : 1;  // columns whose int16 sums do not overflow
    __m256i pairs;         // their sums; `v` is not yet there before the first are complete
    const int32_t* begin;  // what it begins with, times 2^shift
    int shift;             // below 0: it begins with 0
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { begin = below, shift = Shift; }
    EDGE_INLINE void start() { shift = -1; }
    // In assembly: GCC loads activations long before it needs them, and has no registers left.
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      using Four = int32_t __attribute__((aligned(1), may_alias));
      const Four& a = *reinterpret_cast<const Four*>(four);
      const __m256i ones = _mm256_set1_epi16(1);
      __m256i t;
      if constexpr (Class == 8) {
        asm("vpbroadcastd %[a], %[t]\n\t"
            "vpsignb %[w], %[t], %[t]\n\t"
            "vpmaddubsw %[t], %[magnitude], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]"
            : [t] "=&x"(t) : [a] "m"(a), [w] "x"(w), [magnitude] "x"(_mm256_abs_epi8(w)), [ones] "xm"(ones));
      } else if constexpr (T % kPairs == 0) {
        asm("vpbroadcastd %[a], %[pairs]\n\t"
            "vpmaddubsw %[pairs], %[w], %[pairs]" : [pairs] "=&x"(pairs) : [a] "m"(a), [w] "x"(w));
      } else {
        asm("vpbroadcastd %[a], %[t]\n\t"
            "vpmaddubsw %[t], %[w], %[t]\n\t"
            "vpaddw %[t], %[pairs], %[pairs]" : [pairs] "+x"(pairs), [t] "=&x"(t) : [a] "m"(a), [w] "x"(w));
      }
      if constexpr (T % kPairs == kPairs - 1) {
        if constexpr (Class != 8) asm("vpmaddwd %[ones], %[pairs], %[t]" : [t] "=x"(t) : [pairs] "x"(pairs), [ones] "xm"(ones));
        if constexpr (T >= kPairs) asm("vpaddd %[t], %[v], %[v]" : [v] "+x"(v) : [t] "x"(t));
        else v = shift < 0 ? t : _mm256_add_epi32(_mm256_slli_epi32(_mm256_set1_epi32(*begin), shift), t);
      }
    }
    EDGE_INLINE Floats floats() const { return _mm256_cvtepi32_ps(v); }
  };
};

}  // namespace EDGE_VARIANT
}  // namespace edge
