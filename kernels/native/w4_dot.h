// W4 of few rows with a dot product instruction: codes are multiplied as they are, not expanded to INT8 weights.
//
// For 32 columns, a half being sixteen of them, in int16 and modulo 2^16:
//
//   sum[half] = -shift * (the sum of the half's activations) + value . activation
//   dot += multiplier * sum[0] + multiplier * sum[1]
//
// vpdpbusd takes the values of the codebook as its unsigned bytes, so activations are signed here. No value is more than 16
// from the shift: |sum| <= 16 * 16 * 127 < 2^15. (A multiplier of 0 goes with any shift; then nothing counts.)
//
//   CodeRow         what few rows become before they meet codes
//   multiply_codes  the product; of more rows, with codes that are expanded
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

#if defined(__AVX512VNNI__)

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

#elif defined(__AVXVNNI__)

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

#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// The values become signed, with zeros up to a whole group; the two sums of a group are of its halves.
struct CodeRow : CodeRowLayout {
  static constexpr int64_t kMostRows = CodeWords::kMostRows;  // of a call that has such rows
  static constexpr int kTwoPanelRows = CodeWords::kTwoPanelRows;
  static void complete(uint8_t* row, int64_t blocks) {
    const int64_t columns = blocks * kTileDepth;
    memset(row + columns, 0x80, static_cast<size_t>(sums_at(blocks) - columns));
    uint8_t* sums = row + sums_at(blocks);
    const __m256i offset = _mm256_set1_epi8(-128);
    for (int64_t c = 0; c < columns; c += kCodeGroup, sums += sizeof(int32_t)) {
      auto* group = reinterpret_cast<__m256i_u*>(row + c);
      const __m256i values = _mm256_loadu_si256(group), eights = _mm256_sad_epu8(values, _mm256_setzero_si256());
      const __m256i halves = _mm256_add_epi64(eights, _mm256_srli_si256(eights, 8));
      const int first = 16 * 128 - _mm256_extract_epi32(halves, 0), second = 16 * 128 - _mm256_extract_epi32(halves, 4);
      const int16_t both[2] = {static_cast<int16_t>(first), static_cast<int16_t>(second)};
      memcpy(sums, both, sizeof both);
      _mm256_storeu_si256(group, _mm256_xor_si256(values, offset));
    }
  }
};

// total += R rows x one group of a panel. row: the first row's columns of the group; sums: that row's sums of the group.
template <int R>
EDGE_INLINE void add_group(const int8_t* row, const int8_t* sums, int64_t stride, const CodePanel& panel, int64_t group,
                           CodeWords (&total)[R][CodeWords::kParts]) {
  constexpr int kHalf = kBlocksPerGroup / 2;
  const uint8_t* codes = panel.codes + group * kCodeGroupBytes;
  panel.prefetch(group);
  unrolled<CodeWords::kParts>([&](auto part) EDGE_INLINE_LAMBDA {
    CodeWords sum[R][2];
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { sum[r][0] = sum[r][1] = CodeWords::zero(); });
    unrolled<kHalf>([&](auto pair) EDGE_INLINE_LAMBDA {
      const CodeWords both = CodeWords::load(codes + pair * kTileBytes, part);
      const CodeWords first = both.values(), second = both.high_bits().values();
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const int8_t* at = row + r * stride + 2 * pair * kTileDepth;
        sum[r][pair / (kHalf / 2)].add_dot(first, at);
        sum[r][pair / (kHalf / 2)].add_dot(second, at + kTileDepth);
      });
    });
    const CodeWords steps = CodeWords::spread(panel.steps + group * kTileChannels, part);
    const CodeWords multiplier = steps.low_bits(), shift = steps.high_bits();
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const CodeWords below = shift.times(CodeWords::broadcast(sums + r * stride));
      total[r][part].add_products(sum[r][0].beside(sum[r][1]).plus(below), multiplier);
    });
  });
}

template <int R, int P>
EDGE_INLINE void multiply_as_they_are(const uint8_t* a, int64_t stride, const CodePanel (&panels)[P], i32x16 (&dot)[R][P]) {
  const auto* row = reinterpret_cast<const int8_t*>(a);
  const int8_t* sums = row + CodeRow::sums_at(panels[0].blocks);
  CodeWords total[P][R][CodeWords::kParts];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<CodeWords::kParts>([&](auto part) EDGE_INLINE_LAMBDA { total[p][r][part] = CodeWords::zero(); });
    });
  });
  for (int64_t group = 0; group < panels[0].groups; ++group, sums += sizeof(int32_t), row += kCodeGroup)
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { add_group<R>(row, sums, stride, panels[p], group, total[p]); });
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { dot[r][p] = panel_words(total[p][r]); });
  });
}

template <int R, int Unroll, int P>
EDGE_INLINE void multiply_codes(const uint8_t* a, int64_t stride, const CodePanel (&panels)[P], i32x16 (&dot)[R][P]) {
  if constexpr (R <= CodeRow::kMostRows) multiply_as_they_are<R>(a, stride, panels, dot);
  else multiply_expanded<R, Unroll>(a, stride, panels[0], dot);
}

#elif !defined(EDGE_DIRECT_CODES)

// All rows meet codes that are expanded, and stay as they are.
struct CodeRow {
  static constexpr int64_t kMostRows = 0;
  static constexpr int kTwoPanelRows = 0;
  static EDGE_INLINE int64_t columns(int64_t blocks) { return blocks * kTileDepth; }
  static EDGE_INLINE void complete(Int8Dot::Activation*, int64_t) {}
};

template <int R, int Unroll>
EDGE_INLINE void multiply_codes(const Int8Dot::Activation* a, int64_t stride, const CodePanel (&panels)[1],
                                i32x16 (&dot)[R][1]) {
  multiply_expanded<R, Unroll>(a, stride, panels[0], dot);
}

#endif

}  // namespace EDGE_VARIANT
}  // namespace edge
