// The words of codes; see code_rows.h of vnni.
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

// The 4-byte words of sixteen weight rows.
struct CodeWords {
  static constexpr int kParts = 1;         // that make a panel
  static constexpr int kMostRows = 2;      // more are as fast with codes that are expanded
  static constexpr int kTwoPanelRows = 2;  // see Int8Dot
  __m512i v;

  static EDGE_INLINE CodeWords zero() { return {_mm512_setzero_si512()}; }
  static EDGE_INLINE CodeWords load(const uint8_t* tile, int) { return {_mm512_loadu_si512(tile)}; }
  static EDGE_INLINE CodeWords broadcast(const int8_t* word) { return {_mm512_set1_epi32(load_four(word))}; }
  // Of bytes, one for each row: in both halves of its word.
  static EDGE_INLINE CodeWords spread(const uint8_t* bytes, int) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(bytes)));
    return {_mm512_or_si512(byte, _mm512_slli_epi32(byte, 16))};
  }
  EDGE_INLINE CodeWords low_bits() const { return {_mm512_and_si512(v, _mm512_set1_epi16(15))}; }
  EDGE_INLINE CodeWords high_bits() const { return {_mm512_srli_epi16(v, 4)}; }
  // The values of codes in the low halves of bytes; what the high halves hold does not matter.
  EDGE_INLINE CodeWords values() const {
    const __m512i book = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kCodebook)));
    return {_mm512_shuffle_epi8(book, _mm512_and_si512(v, _mm512_set1_epi8(15)))};
  }
  EDGE_INLINE CodeWords times(CodeWords other) const { return {_mm512_mullo_epi16(v, other.v)}; }
  EDGE_INLINE CodeWords plus(CodeWords other) const { return {_mm512_add_epi16(v, other.v)}; }
  // The low halves of both in one word each.
  EDGE_INLINE CodeWords beside(CodeWords high) const {
    return {_mm512_mask_blend_epi16(0xAAAAAAAA, v, _mm512_slli_epi32(high.v, 16))};
  }
  // In assembly: see Int8Dot::dot.
  EDGE_INLINE void add_dot(CodeWords values, const int8_t* four) {
    using Four = int32_t __attribute__((aligned(1), may_alias));
    asm("vpdpbusd %[a]%{1to16%}, %[values], %[sum]"
        : [sum] "+v"(v)
        : [a] "m"(*reinterpret_cast<const Four*>(four)), [values] "v"(values.v));
  }
  EDGE_INLINE void add_products(CodeWords a, CodeWords b) {
    asm("vpdpwssd %[b], %[a], %[sum]" : [sum] "+v"(v) : [a] "v"(a.v), [b] "v"(b.v));
  }
};

EDGE_INLINE i32x16 panel_words(const CodeWords (&parts)[1]) { return {parts[0].v}; }

}  // namespace EDGE_VARIANT
}  // namespace edge
