// Codes of 4 bits as weights, by this instruction set; see w4.h.
#pragma once

#include "codes_base.h"

namespace edge {
namespace EDGE_VARIANT {

// The same of eight rows.
struct CodeSteps {
  __m256i multiplier, offset;

  explicit EDGE_INLINE CodeSteps(const uint8_t* steps) {
    const __m256i byte = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(steps)));
    const __m256i both = _mm256_or_si256(byte, _mm256_slli_epi32(byte, 16));
    multiplier = _mm256_and_si256(both, _mm256_set1_epi16(15));
    const __m256i product = _mm256_mullo_epi16(multiplier, _mm256_srli_epi16(both, 4));
    offset = _mm256_or_si256(product, _mm256_slli_epi16(product, 8));
  }
  EDGE_INLINE __m256i weights(__m256i codes) const {
    const __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
    const __m256i value = _mm256_shuffle_epi8(book, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
    return _mm256_sub_epi8(_mm256_mullo_epi16(value, multiplier), offset);
  }
};

EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  for (int half = 0; half < 2; ++half) {
    const CodeSteps of(steps + 8 * half);
    for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(codes + pair * kTileBytes) + half);
      auto* tile = reinterpret_cast<__m256i_u*>(tiles + 2 * pair * kTileBytes) + half;
      _mm256_storeu_si256(tile, of.weights(both));
      _mm256_storeu_si256(tile + 2, of.weights(_mm256_srli_epi16(both, 4)));
    }
  }
}

// The entry's column of a panel of tiles as floats, in units of kRaisedUnit.
EDGE_INLINE f32x16 raised_column(const int8_t* tiles, ResidualEntry at) {
  const int8_t* tile = tiles + at.tile();
  const __m256i to_top = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kToTop + at.byte())));
  const auto* words = reinterpret_cast<const __m256i_u*>(tile);
  return from_i32({_mm256_shuffle_epi8(_mm256_loadu_si256(words), to_top),
                   _mm256_shuffle_epi8(_mm256_loadu_si256(words + 1), to_top)});
}

// Column c of a group. Its codes become words of 0 .. 15, and 0 is 0 in the codebook too.
EDGE_INLINE f32x16 code_column(const uint8_t* steps, const uint8_t* codes, int64_t c) {
  const uint8_t* pair = codes + c / (2 * kTileDepth) * kTileBytes;
  const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(8 * (c % kTileDepth) + c / kTileDepth % 2 * 4));
  const __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
  const __m256i low = _mm256_set1_epi32(15);
  const auto half = [&](int number) EDGE_INLINE_LAMBDA {
    const __m256i step = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(steps + 8 * number)));
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(pair) + number);
    const __m256i value = _mm256_shuffle_epi8(book, _mm256_and_si256(_mm256_srl_epi32(words, bits), low));
    return _mm256_madd_epi16(_mm256_sub_epi32(value, _mm256_srli_epi32(step, 4)), _mm256_and_si256(step, low));
  };
  return from_i32({half(0), half(1)});
}

}  // namespace EDGE_VARIANT
}  // namespace edge
