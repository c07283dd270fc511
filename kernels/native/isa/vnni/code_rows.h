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

#include <code_words.h>
#include <expanded.h>

namespace edge {
namespace EDGE_VARIANT {

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

}  // namespace EDGE_VARIANT
}  // namespace edge
