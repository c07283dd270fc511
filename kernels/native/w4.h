// W4: a panel of 4-bit codes becomes the tiles of its INT8 weight (kernels/reference/w4.py defines both).
//
//   expand_group       the eight tiles of 32 columns
//   code_column        one column of the weight, as floats
//   expand_panel       all of a panel: many rows multiply what lies in a core's cache then
//   multiply_expanded  few rows multiply each group as it is expanded (codes as they are: see w4_direct.h and w4_dot.h)
//
// Every form is exact: a product of multiplier and codebook is at most 12 * 19 < 256, so bytes multiply alone.
#pragma once

#include "int8_dot.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kBlocksPerGroup = kCodeGroup / kTileDepth;

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define EDGE_DIRECT_CODES  // see w4_direct.h
#endif

// A row of activations that meets codes as they are: behind the values, from a new line on, the negated sums of each group, two
// int16.
struct CodeRowLayout {
  static EDGE_INLINE int64_t sums_at(int64_t blocks) { return ceil_div(blocks * kTileDepth, 64) * 64; }
  static EDGE_INLINE int64_t columns(int64_t blocks) {
    return sums_at(blocks) + ceil_div(blocks, kBlocksPerGroup) * static_cast<int64_t>(sizeof(int32_t));
  }
};

#if defined(__AVX512F__)

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

#elif defined(__AVX2__)

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

#elif defined(EDGE_NEON)

EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  alignas(16) static const uint8_t kSpread[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const uint8x16_t book = vld1q_u8(kCodebook), low = vdupq_n_u8(15), every = vld1q_u8(steps);
  for (int quarter = 0; quarter < 4; ++quarter) {  // four rows
    const uint8x16_t step = vqtbl1q_u8(every, vaddq_u8(vld1q_u8(kSpread), vdupq_n_u8(static_cast<uint8_t>(4 * quarter))));
    const uint8x16_t multiplier = vandq_u8(step, low), offset = vmulq_u8(multiplier, vshrq_n_u8(step, 4));
    for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
      const uint8x16_t both = vld1q_u8(codes + pair * kTileBytes + 16 * quarter);
      const uint8x16_t first = vqtbl1q_u8(book, vandq_u8(both, low)), second = vqtbl1q_u8(book, vshrq_n_u8(both, 4));
      int8_t* tile = tiles + 2 * pair * kTileBytes + 16 * quarter;
      vst1q_s8(tile, vreinterpretq_s8_u8(vsubq_u8(vmulq_u8(first, multiplier), offset)));
      vst1q_s8(tile + kTileBytes, vreinterpretq_s8_u8(vsubq_u8(vmulq_u8(second, multiplier), offset)));
    }
  }
}

#else

EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  for (int i = 0; i < kTileBytes; ++i) {
    const int step = steps[i / kTileDepth], multiplier = step & 15, shift = step >> 4;
    for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
      const int both = codes[pair * kTileBytes + i];
      tiles[2 * pair * kTileBytes + i] = static_cast<int8_t>(multiplier * (kCodebook[both & 15] - shift));
      tiles[(2 * pair + 1) * kTileBytes + i] = static_cast<int8_t>(multiplier * (kCodebook[both >> 4] - shift));
    }
  }
}

#endif

// [byte][16], see ResidualEntry::byte: shuffles that move a byte of each word to its top, and clear the others.
alignas(64) constexpr uint8_t kToTop[kTileBytes] = {
    255, 255, 255, 0, 255, 255, 255, 4, 255, 255, 255, 8,  255, 255, 255, 12,
    255, 255, 255, 1, 255, 255, 255, 5, 255, 255, 255, 9,  255, 255, 255, 13,
    255, 255, 255, 2, 255, 255, 255, 6, 255, 255, 255, 10, 255, 255, 255, 14,
    255, 255, 255, 3, 255, 255, 255, 7, 255, 255, 255, 11, 255, 255, 255, 15};

// The entry's column of a panel of tiles as floats, in units of kRaisedUnit.
constexpr float kRaisedUnit = 0x1p-24f;
EDGE_INLINE f32x16 raised_column(const int8_t* tiles, ResidualEntry at) {
  const int8_t* tile = tiles + at.tile();
#if defined(__AVX512F__)
  const __m512i to_top = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kToTop + at.byte())));
  return from_i32({_mm512_shuffle_epi8(_mm512_loadu_si512(tile), to_top)});
#elif defined(__AVX2__)
  const __m256i to_top = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kToTop + at.byte())));
  const auto* words = reinterpret_cast<const __m256i_u*>(tile);
  return from_i32({_mm256_shuffle_epi8(_mm256_loadu_si256(words), to_top),
                   _mm256_shuffle_epi8(_mm256_loadu_si256(words + 1), to_top)});
#elif defined(EDGE_NEON)
  const uint8x16_t to_top = vld1q_u8(kToTop + at.byte());
  i32x16 words;
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA {
    words.v[i] = vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(tile + 16 * i), to_top));
  });
  return from_i32(words);
#else
  i32x16 words;
  for (int i = 0; i < kLanes; ++i) words.v[i] = tile[kTileDepth * i + at.byte() / kTileChannels] * (1 << 24);
  return from_i32(words);
#endif
}

// Column c of a group. Its codes become words of 0 .. 15, and 0 is 0 in the codebook too.
EDGE_INLINE f32x16 code_column(const uint8_t* steps, const uint8_t* codes, int64_t c) {
#if defined(__AVX512F__) || defined(__AVX2__)
  const uint8_t* pair = codes + c / (2 * kTileDepth) * kTileBytes;
  const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(8 * (c % kTileDepth) + c / kTileDepth % 2 * 4));
#endif
#if defined(__AVX512F__)
  const __m512i book = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
  const __m512i low = _mm512_set1_epi32(15);
  const __m512i step = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(steps)));
  const __m512i value = _mm512_shuffle_epi8(book, _mm512_and_si512(_mm512_srl_epi32(_mm512_loadu_si512(pair), bits), low));
  return from_i32({_mm512_madd_epi16(_mm512_sub_epi32(value, _mm512_srli_epi32(step, 4)), _mm512_and_si512(step, low))});
#elif defined(__AVX2__)
  const __m256i book = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(kCodebook)));
  const __m256i low = _mm256_set1_epi32(15);
  const auto half = [&](int number) EDGE_INLINE_LAMBDA {
    const __m256i step = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(steps + 8 * number)));
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(pair) + number);
    const __m256i value = _mm256_shuffle_epi8(book, _mm256_and_si256(_mm256_srl_epi32(words, bits), low));
    return _mm256_madd_epi16(_mm256_sub_epi32(value, _mm256_srli_epi32(step, 4)), _mm256_and_si256(step, low));
  };
  return from_i32({half(0), half(1)});
#else
  alignas(64) int8_t tiles[kBlocksPerGroup * kTileBytes];
  expand_group(steps, codes, tiles);
  return mul(raised_column(tiles, ResidualEntry(static_cast<int32_t>(c), 0.0f)), broadcast(kRaisedUnit));
#endif
}

// What is done with codes fills the window in which a core looks ahead by itself.
#if defined(EDGE_DIRECT_CODES)
constexpr int kCodePrefetchBytes = 16384;
#else
constexpr int kCodePrefetchBytes = 8192;
#endif

// The codes of a panel.
struct CodePanel {
  const uint8_t* steps;
  const uint8_t* codes;
  int64_t groups;
  int64_t blocks;  // ceil(K / 4): the last group may have fewer than eight

  CodePanel(const void* panel, int64_t groups, int64_t blocks)
      : steps(static_cast<const uint8_t*>(panel)), codes(steps + code_steps_bytes(groups)), groups(groups), blocks(blocks) {}

  // A group's share of the panels that come next, steps and codes.
  EDGE_INLINE void prefetch(int64_t group) const {
    constexpr int kBytes = kTileChannels + kCodeGroupBytes;
    const uint8_t* next = steps + kCodePrefetchBytes + group * kBytes;
    unrolled<(kBytes + 63) / 64>([&](auto line) EDGE_INLINE_LAMBDA { __builtin_prefetch(next + line * 64); });
  }
  EDGE_INLINE void expand(int64_t group, int8_t* tiles) const {
    prefetch(group);
    expand_group(steps + group * kTileChannels, codes + group * kCodeGroupBytes, tiles);
  }
  EDGE_INLINE f32x16 column(int64_t c) const {
    const int64_t group = c / kCodeGroup;
    return code_column(steps + group * kTileChannels, codes + group * kCodeGroupBytes, c % kCodeGroup);
  }
};

// The whole panel: `groups` * 8 tiles.
static inline void expand_panel(const CodePanel& panel, int8_t* tiles) {
  for (int64_t group = 0; group < panel.groups; ++group) panel.expand(group, tiles + group * kBlocksPerGroup * kTileBytes);
}

#if !defined(EDGE_DIRECT_CODES)

// As `multiply`, of a panel of codes.
template <int R, int Unroll>
EDGE_INLINE void multiply_expanded(const Int8Dot::Activation* a, int64_t stride, const CodePanel& panel, i32x16 (&dot)[R][1]) {
#if defined(EDGE_NEON)
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = broadcast_i32(0); });
  for (int64_t group = 0; group < panel.groups; ++group) {
    alignas(64) int8_t tiles[kBlocksPerGroup * kTileBytes];
    panel.expand(group, tiles);
    i32x16 part[R][1];
    multiply<R, 1, Unroll>(Int8Dot::place(const_cast<int8_t*>(a), stride, 0, group * kCodeGroup), stride, tiles, 0,
                           min_i64(kBlocksPerGroup, panel.blocks - group * kBlocksPerGroup), part);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = add_i32(dot[r][0], part[r][0]); });
  }
#else
  constexpr int kColumns = Int8Dot::kRegisters, kSums = Unroll < 4 ? Unroll : 4;
  Int8Dot::Accumulator sum[kSums][R][kColumns];
  unrolled<kSums>([&](auto u) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { sum[u][r][c] = Int8Dot::zero(); });
    });
  });
  for (int64_t group = 0; group < panel.groups; ++group) {
    alignas(64) int8_t tiles[kBlocksPerGroup * kTileBytes];
    panel.expand(group, tiles);
    const auto step = [&](auto u, int64_t block) EDGE_INLINE_LAMBDA {
      Int8Dot::Weights tile[kColumns];
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { tile[c] = Int8Dot::weights(tiles + block * kTileBytes, c); });
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const Int8Dot::Broadcast row = Int8Dot::broadcast(a + r * stride + group * kCodeGroup + block * kTileDepth);
        unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::dot(sum[u][r][c], row, tile[c]); });
      });
    };
    const int64_t left = panel.blocks - group * kBlocksPerGroup;
    if (left >= kBlocksPerGroup)
      unrolled<kBlocksPerGroup>([&](auto block) EDGE_INLINE_LAMBDA { step(Index<block % kSums>{}, block); });
    else
      for (int64_t block = 0; block < left; ++block) step(Index<0>{}, block);
  }
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<kSums - 1>([&](auto u) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::add(sum[0][r][c], sum[u + 1][r][c]); });
    });
    dot[r][0] = Int8Dot::finish(sum[0][r][0], sum[0][r][kColumns - 1]);
  });
#endif
}

#endif

}  // namespace EDGE_VARIANT
}  // namespace edge
