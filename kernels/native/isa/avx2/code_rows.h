// W4 without a dot product instruction: codes are multiplied as they are, not expanded to INT8 weights.
// 
// Values of the codebook are small and unsigned: vpmaddubsw takes them without the sign form of INT8, and int16 holds the sums
// of a whole group, 16 products a lane, since no value is more than 16 from the shift: 16 * 16 * 127 < 2^15. For a group
// 
//   lane = -shift * (the sum of its activations); eight times lane += value . activation; dot += multiplier * lane
// 
// What leaves int16 on the way comes back: int16 wraps around. (A multiplier of 0 goes with any shift; then nothing counts.)
// 
//   CodeRow         the sums of the activations, made once for each row, behind its values
//   multiply_codes  few rows: a group of codes is looked up as it is met
//   WidePanels      many rows: the panel is looked up before
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

// The two sums of a group are of the columns 0 and 1, and 2 and 3, of its tiles.
struct CodeRow : CodeRowLayout {
  static constexpr int64_t kMostRows = INT64_MAX;  // of a call that has such rows
  static constexpr int kTwoPanelRows = 0;          // arithmetic sets the pace here, not memory
  static void complete(int8_t* row, int64_t blocks) {
    int8_t* sums = row + sums_at(blocks);
    for (int64_t block = 0; block < blocks; block += kBlocksPerGroup, sums += sizeof(int32_t)) {
      alignas(32) int8_t group[kCodeGroup] = {};
      memcpy(group, row + block * kTileDepth, static_cast<size_t>(min_i64(kBlocksPerGroup, blocks - block) * kTileDepth));
      const __m256i values = _mm256_load_si256(reinterpret_cast<const __m256i*>(group));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), values);
      __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
      sum = _mm_add_epi16(sum, _mm_srli_si128(sum, 8));
      sum = _mm_sub_epi16(_mm_setzero_si128(), _mm_add_epi16(sum, _mm_srli_si128(sum, 4)));
      const int32_t both = _mm_cvtsi128_si32(sum);
      memcpy(sums, &both, sizeof both);
    }
  }
};

// Multiplier and shift of eight rows, in both 16-bit halves.
struct GroupSteps {
  __m256i multiplier, shift;

  EDGE_INLINE GroupSteps(const uint8_t* steps, int half) {
    alignas(32) static const int8_t kSpread[64] = {0,  -1, 0,  -1, 1,  -1, 1,  -1, 2,  -1, 2,  -1, 3,  -1, 3,  -1,
                                                   4,  -1, 4,  -1, 5,  -1, 5,  -1, 6,  -1, 6,  -1, 7,  -1, 7,  -1,
                                                   8,  -1, 8,  -1, 9,  -1, 9,  -1, 10, -1, 10, -1, 11, -1, 11, -1,
                                                   12, -1, 12, -1, 13, -1, 13, -1, 14, -1, 14, -1, 15, -1, 15, -1};
    const __m256i every = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(steps)));
    const __m256i step = _mm256_shuffle_epi8(every, _mm256_load_si256(reinterpret_cast<const __m256i*>(kSpread) + half));
    multiplier = _mm256_and_si256(step, _mm256_set1_epi16(15));
    shift = _mm256_srli_epi16(step, 4);
  }
};

// The values of codes in the low halves of bytes; what the high halves hold does not matter.
EDGE_INLINE __m256i book_values(__m256i codes) {
  const __m256i book = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kCodebook)));
  return _mm256_shuffle_epi8(book, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

// sum[half] += value[half] . the four activations at `a`.
// In assembly: the sums and their operands just fit sixteen registers, and GCC reorders until they do not.
EDGE_INLINE void add_four(__m256i (&sum)[2], const int8_t* a, __m256i low, __m256i high) {
  using Four = int32_t __attribute__((aligned(1), may_alias));
  __m256i four, t;
  asm("vpbroadcastd %[a], %[four]\n\t"
      "vpmaddubsw %[four], %[low], %[t]\n\t"
      "vpmaddubsw %[four], %[high], %[four]\n\t"
      "vpaddw %[t], %[first], %[first]\n\t"
      "vpaddw %[four], %[second], %[second]"
      : [first] "+x"(sum[0]), [second] "+x"(sum[1]), [t] "=&x"(t), [four] "=&x"(four)
      : [a] "m"(*reinterpret_cast<const Four*>(a)), [low] "x"(low), [high] "x"(high));
}

EDGE_INLINE __m256i load_half(const uint8_t* tile, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(tile) + half);
}

// A few rows x a panel.
template <int R>
EDGE_INLINE void multiply_looked_up(const int8_t* a, int64_t stride, const CodePanel& panel, __m256i (&dot)[R][2]) {
  const int8_t* sums = a + CodeRow::sums_at(panel.blocks);
  const uint8_t* codes = panel.codes;
  for (int64_t group = 0; group < panel.groups; ++group, sums += sizeof(int32_t), a += kCodeGroup, codes += kCodeGroupBytes) {
    panel.prefetch(group);
    const uint8_t* steps = panel.steps + group * kTileChannels;
    __m256i sum[R][2];
    unrolled<2>([&](auto half) EDGE_INLINE_LAMBDA {
      const GroupSteps of(steps, half);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        sum[r][half] = _mm256_mullo_epi16(of.shift, _mm256_set1_epi32(load_four(sums + r * stride)));
      });
    });
    const int64_t left = panel.blocks - group * kBlocksPerGroup;
    const auto add_pair = [&](auto pair) EDGE_INLINE_LAMBDA {
      const __m256i low = load_half(codes + pair * kTileBytes, 0), high = load_half(codes + pair * kTileBytes, 1);
      const __m256i first[2] = {book_values(low), book_values(high)};
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        add_four(sum[r], a + r * stride + 2 * pair * kTileDepth, first[0], first[1]);
      });
      if (2 * pair + 1 == left) return;
      const __m256i second[2] = {book_values(_mm256_srli_epi16(low, 4)), book_values(_mm256_srli_epi16(high, 4))};
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        add_four(sum[r], a + r * stride + (2 * pair + 1) * kTileDepth, second[0], second[1]);
      });
    };
    if (__builtin_expect(left >= kBlocksPerGroup, 1)) unrolled<kBlocksPerGroup / 2>(add_pair);
    else
      for (int pair = 0; 2 * pair < left; ++pair) add_pair(pair);
    unrolled<2>([&](auto half) EDGE_INLINE_LAMBDA {
      const __m256i multiplier = GroupSteps(steps, half).multiplier;
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        dot[r][half] = _mm256_add_epi32(dot[r][half], _mm256_madd_epi16(sum[r][half], multiplier));
      });
    });
  }
}

// [byte][16], see ResidualEntry::byte: shuffles that move a byte of each word to its bottom, and clear the others.
alignas(64) constexpr uint8_t kToBottom[kTileBytes] = {
    0, 255, 255, 255, 4, 255, 255, 255, 8,  255, 255, 255, 12, 255, 255, 255,
    1, 255, 255, 255, 5, 255, 255, 255, 9,  255, 255, 255, 13, 255, 255, 255,
    2, 255, 255, 255, 6, 255, 255, 255, 10, 255, 255, 255, 14, 255, 255, 255,
    3, 255, 255, 255, 7, 255, 255, 255, 11, 255, 255, 255, 15, 255, 255, 255};

// A group that is looked up: multipliers and shifts as in GroupSteps, two halves each, and eight tiles of values.
struct WideGroup {
  alignas(64) __m256i multiplier[2];
  __m256i shift[2];
  uint8_t values[kBlocksPerGroup * kTileBytes];

  EDGE_INLINE void look_up(const uint8_t* steps, const uint8_t* codes) {
    unrolled<2>([&](auto half) EDGE_INLINE_LAMBDA {
      const GroupSteps of(steps, half);
      multiplier[half] = of.multiplier;
      shift[half] = of.shift;
    });
    for (int line = 0; line < kCodeGroupBytes / 32; ++line) {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(codes) + line);
      auto* tile = reinterpret_cast<__m256i*>(values + line / 2 * 2 * kTileBytes) + line % 2;
      _mm256_store_si256(tile, book_values(both));
      _mm256_store_si256(tile + 2, book_values(_mm256_srli_epi16(both, 4)));
    }
  }

  // The entry's column of the weights, which is in this group, as floats.
  EDGE_INLINE f32x16 column(ResidualEntry at) const {
    const auto* words = reinterpret_cast<const __m256i*>(values + at.tile() % sizeof values);
    const __m256i pick = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kToBottom + at.byte())));
    const auto half = [&](int number) EDGE_INLINE_LAMBDA {
      const __m256i value = _mm256_shuffle_epi8(_mm256_load_si256(words + number), pick);
      const __m256i low_multiplier = _mm256_and_si256(multiplier[number], _mm256_set1_epi32(0xFFFF));
      return _mm256_madd_epi16(_mm256_sub_epi16(value, shift[number]), low_multiplier);
    };
    return from_i32({half(0), half(1)});
  }
};

// R rows x one group. a: the first row's columns of the group; sums: its sums of the group; each(add_tile): all its tiles.
template <int R, class Each>
EDGE_INLINE void multiply_group(const int8_t* a, const int8_t* sums, int64_t stride, const WideGroup& group, const Each& each,
                                i32x16 (&dot)[R][1]) {
  __m256i sum[R][2];
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    const __m256i both = _mm256_set1_epi32(load_four(sums + r * stride));
    unrolled<2>([&](auto half) EDGE_INLINE_LAMBDA { sum[r][half] = _mm256_mullo_epi16(group.shift[half], both); });
  });
  each([&](int64_t block) EDGE_INLINE_LAMBDA {
    const auto* tile = reinterpret_cast<const __m256i*>(group.values + block * kTileBytes);
    const __m256i low = _mm256_load_si256(tile), high = _mm256_load_si256(tile + 1);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { add_four(sum[r], a + r * stride + block * kTileDepth, low, high); });
  });
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    dot[r][0].lo = _mm256_add_epi32(dot[r][0].lo, _mm256_madd_epi16(sum[r][0], group.multiplier[0]));
    dot[r][0].hi = _mm256_add_epi32(dot[r][0].hi, _mm256_madd_epi16(sum[r][1], group.multiplier[1]));
  });
}

// R rows x a panel. The sums of a group take all registers: `dot` stays in memory (noinline), and a last group that is not
// whole has a loop of its own; else GCC spills sums.
template <int R>
__attribute__((noinline)) void multiply_groups(const int8_t* a, int64_t stride, int64_t blocks, const WideGroup* wide,
                                               i32x16 (&dot)[R][1]) {
  const int8_t* sums = a + CodeRow::sums_at(blocks);
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = broadcast_i32(0); });
  const auto next_group = [&](const auto& each) EDGE_INLINE_LAMBDA {
    multiply_group<R>(a, sums, stride, *wide++, each, dot);
    a += kCodeGroup;
    sums += sizeof(int32_t);
  };
  for (int64_t group = 0; group < blocks / kBlocksPerGroup; ++group)
    next_group([](const auto& add_tile) EDGE_INLINE_LAMBDA { unrolled<kBlocksPerGroup>(add_tile); });
  const int64_t left = blocks % kBlocksPerGroup;
  if (left == 0) return;
  next_group([&](const auto& add_tile) EDGE_INLINE_LAMBDA {
    for (int64_t block = 0; block < left; ++block) add_tile(block);
  });
}

template <int R, class Multiply>
EDGE_INLINE void sums_of(i32x16 (&dot)[R][1], Multiply&& multiply) {
  __m256i sum[R][2];
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { sum[r][0] = sum[r][1] = _mm256_setzero_si256(); });
  multiply(sum);
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = {sum[r][0], sum[r][1]}; });
}

template <int R, int Unroll>
EDGE_INLINE void multiply_codes(const int8_t* a, int64_t stride, const CodePanel (&panels)[1], i32x16 (&dot)[R][1]) {
  sums_of<R>(dot, [&](__m256i (&sum)[R][2]) EDGE_INLINE_LAMBDA {
    multiply_looked_up<R>(a, stride, panels[0], sum);
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge
