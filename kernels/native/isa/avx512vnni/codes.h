// Codes of 4 bits as weights, by this instruction set; see w4.h.
#pragma once

#include "codes_base.h"

namespace edge {
namespace EDGE_VARIANT {

// Multiplier and shift of sixteen rows, ready for their 4-byte words.
struct CodeSteps {
  __m512i multiplier;  // in both 16-bit halves
  __m512i offset;      // multiplier * shift in every byte

  explicit EDGE_INLINE CodeSteps(const uint8_t* steps) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(steps)));
    const __m512i both = _mm512_or_si512(byte, _mm512_slli_epi32(byte, 16));
    multiplier = _mm512_and_si512(both, _mm512_set1_epi16(15));
    const __m512i product = _mm512_mullo_epi16(multiplier, _mm512_srli_epi16(both, 4));
    offset = _mm512_or_si512(product, _mm512_slli_epi16(product, 8));
  }
  // The weights of one tile, of codes in the low halves of bytes; what the high halves hold does not matter.
  EDGE_INLINE __m512i weights(__m512i codes) const {
    const __m512i book = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
    const __m512i value = _mm512_shuffle_epi8(book, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
    return _mm512_sub_epi8(_mm512_mullo_epi16(value, multiplier), offset);
  }
};

// The eight tiles of a group.
EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  const CodeSteps of(steps);
  for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
    const __m512i both = _mm512_loadu_si512(codes + pair * kTileBytes);
    _mm512_storeu_si512(tiles + 2 * pair * kTileBytes, of.weights(both));
    _mm512_storeu_si512(tiles + (2 * pair + 1) * kTileBytes, of.weights(_mm512_srli_epi16(both, 4)));
  }
}

// The entry's column of a panel of tiles as floats, in units of kRaisedUnit.
EDGE_INLINE f32x16 raised_column(const int8_t* tiles, ResidualEntry at) {
  const int8_t* tile = tiles + at.tile();
  const __m512i to_top = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kToTop + at.byte())));
  return from_i32({_mm512_shuffle_epi8(_mm512_loadu_si512(tile), to_top)});
}

// Column c of a group. Its codes become words of 0 .. 15, and 0 is 0 in the codebook too.
EDGE_INLINE f32x16 code_column(const uint8_t* steps, const uint8_t* codes, int64_t c) {
  const uint8_t* pair = codes + c / (2 * kTileDepth) * kTileBytes;
  const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(8 * (c % kTileDepth) + c / kTileDepth % 2 * 4));
  const __m512i book = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
  const __m512i low = _mm512_set1_epi32(15);
  const __m512i step = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(steps)));
  const __m512i value = _mm512_shuffle_epi8(book, _mm512_and_si512(_mm512_srl_epi32(_mm512_loadu_si512(pair), bits), low));
  return from_i32({_mm512_madd_epi16(_mm512_sub_epi32(value, _mm512_srli_epi32(step, 4)), _mm512_and_si512(step, low))});
}

}  // namespace EDGE_VARIANT
}  // namespace edge
