// What BlockLanes of the sets with ymm registers have in common; see block_lanes.h of portable.
#pragma once

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

struct BlockHalves {
  static constexpr int kParts = 2;
  static constexpr int kRows = kTileChannels / kParts;
  static constexpr int kTileRows = 6;
  static constexpr int kPairRows = 0;
  using Bytes = __m256i;
  using Floats = __m256;

  static EDGE_INLINE Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)); }
  static EDGE_INLINE void store(uint8_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), v); }
  static EDGE_INLINE Bytes low(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static EDGE_INLINE Bytes high(Bytes v) { return low(_mm256_srli_epi16(v, 4)); }
  template <int From>
  static EDGE_INLINE Bytes with_bits(Bytes code, Bytes above, char mask) {
    const Bytes moved = From < 4 ? _mm256_slli_epi16(above, From < 4 ? 4 - From : 0) : _mm256_srli_epi16(above, From < 4 ? 0 : From - 4);
    return _mm256_or_si256(code, _mm256_and_si256(moved, _mm256_set1_epi8(mask)));
  }
  static EDGE_INLINE Bytes look_up(const uint8_t* table, Bytes code) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table))), code);
  }
  static EDGE_INLINE Bytes flip(Bytes v) { return _mm256_xor_si256(v, _mm256_set1_epi8(-128)); }

  static EDGE_INLINE Floats zero() { return _mm256_setzero_ps(); }
  static EDGE_INLINE Floats broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static EDGE_INLINE Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static EDGE_INLINE void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  static EDGE_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static EDGE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static EDGE_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
  static EDGE_INLINE Floats halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))); }
  static EDGE_INLINE __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)); }
  static EDGE_INLINE Floats unsigned_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(p))); }
  static EDGE_INLINE Floats signed_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(p))); }
  static EDGE_INLINE Floats exponents(const uint8_t* p) {
    const __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(p)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(0.5f));
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge
