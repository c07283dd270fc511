// BlockLanes of this instruction set; see block_lanes.h of portable.
#pragma once

#include "isa/avx2/block_halves.h"

namespace edge {
namespace EDGE_VARIANT {

struct BlockLanes : BlockHalves {
  static constexpr bool kSignedBytes = false;

  template <int Class>
  struct Sum {
    __m256i v;
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { v = _mm256_slli_epi32(_mm256_set1_epi32(*below), Shift); }
    EDGE_INLINE void start() { v = _mm256_setzero_si256(); }
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      const __m256i a = _mm256_set1_epi32(load_four(four));
      asm("%{vex%} vpdpbusd %[a], %[w], %[v]" : [v] "+x"(v) : [a] "x"(a), [w] "x"(w));
    }
    EDGE_INLINE Floats floats() const { return _mm256_cvtepi32_ps(v); }
  };
};

}  // namespace EDGE_VARIANT
}  // namespace edge
