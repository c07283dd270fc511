// The words of codes; see code_rows.h of vnni.
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

// The 4-byte words of eight weight rows.
struct CodeWords {
  static constexpr int kParts = 2;         // that make a panel
  static constexpr int kMostRows = 3;      // the sums of more leave the sixteen registers
  static constexpr int kTwoPanelRows = 1;  // see Int8Dot
  __m256i v;

  static EDGE_INLINE CodeWords zero() { return {_mm256_setzero_si256()}; }
  static EDGE_INLINE CodeWords load(const uint8_t* tile, int part) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(tile) + part)};
  }
  static EDGE_INLINE CodeWords broadcast(const int8_t* word) { return {_mm256_set1_epi32(load_four(word))}; }
  static EDGE_INLINE CodeWords spread(const uint8_t* bytes, int part) {
    const __m256i byte = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(bytes + 8 * part)));
    return {_mm256_or_si256(byte, _mm256_slli_epi32(byte, 16))};
  }
  EDGE_INLINE CodeWords low_bits() const { return {_mm256_and_si256(v, _mm256_set1_epi16(15))}; }
  EDGE_INLINE CodeWords high_bits() const { return {_mm256_srli_epi16(v, 4)}; }
  EDGE_INLINE CodeWords values() const {
    const __m256i book = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kCodebook)));
    return {_mm256_shuffle_epi8(book, _mm256_and_si256(v, _mm256_set1_epi8(15)))};
  }
  EDGE_INLINE CodeWords times(CodeWords other) const { return {_mm256_mullo_epi16(v, other.v)}; }
  EDGE_INLINE CodeWords plus(CodeWords other) const { return {_mm256_add_epi16(v, other.v)}; }
  EDGE_INLINE CodeWords beside(CodeWords high) const {
    return {_mm256_blend_epi16(v, _mm256_slli_epi32(high.v, 16), 0xAA)};
  }
  EDGE_INLINE void add_dot(CodeWords values, const int8_t* four) {
    const __m256i a = _mm256_set1_epi32(load_four(four));
    asm("%{vex%} vpdpbusd %[a], %[values], %[sum]" : [sum] "+x"(v) : [a] "x"(a), [values] "x"(values.v));
  }
  EDGE_INLINE void add_products(CodeWords a, CodeWords b) {
    asm("%{vex%} vpdpwssd %[b], %[a], %[sum]" : [sum] "+x"(v) : [a] "x"(a.v), [b] "x"(b.v));
  }
};

EDGE_INLINE i32x16 panel_words(const CodeWords (&parts)[2]) { return {parts[0].v, parts[1].v}; }

}  // namespace EDGE_VARIANT
}  // namespace edge
