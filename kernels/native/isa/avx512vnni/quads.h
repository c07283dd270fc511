// Pairs of 16 neighbours and the pairs that follow: fours of them.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// out[i] = {first[i], second[i]}, i in 0..15, of two bytes each.
EDGE_INLINE void join_pairs(const int8_t* first, const int8_t* second, int8_t* out) {
  alignas(64) static const int16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i low = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(first)));
  const __m512i both = _mm512_inserti64x4(low, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(second)), 1);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

// The low and the high bytes of 32 numbers.
EDGE_INLINE void split_bytes(const int16_t* numbers, uint8_t* low, uint8_t* high) {
  const __m512i n = _mm512_loadu_si512(numbers);
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(low), _mm512_cvtepi16_epi8(n));
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(high), _mm512_cvtepi16_epi8(_mm512_srli_epi16(n, 8)));
}

}  // namespace EDGE_VARIANT
}  // namespace edge
