// The microkernel; see int8_dot.h.
#pragma once

#include "isa/neon/multiply_rows.h"

namespace edge {
namespace EDGE_VARIANT {

// sum[2 rows][2 channels] += a[2 rows][8 columns] . w[2 channels][8 columns]
EDGE_INLINE void dot_pair(int32x4_t& sum, int8x16_t a, int8x16_t w) {
  asm volatile("smmla %[sum].4s, %[a].16b, %[w].16b" : [sum] "+w"(sum) : [a] "w"(a), [w] "w"(w));
}
// A quarter of a tile and of the next: [4 channels][4 columns] twice -> [2 channels][8 columns] twice
EDGE_INLINE void zip(int8x16_t left, int8x16_t right, int8x16_t& first, int8x16_t& second) {
  asm volatile("zip1 %[out].4s, %[left].4s, %[right].4s" : [out] "=w"(first) : [left] "w"(left), [right] "w"(right));
  asm volatile("zip2 %[out].4s, %[left].4s, %[right].4s" : [out] "=w"(second) : [left] "w"(left), [right] "w"(right));
}

// By smmla: two rows x 8 columns times 2 channels x 8 columns, which are zipped from a tile and the next.
template <int R>
EDGE_INLINE void multiply_pairs(const int8_t* a, int64_t stride, const int8_t* w, int64_t blocks, i32x16 (&dot)[R][1]) {
  constexpr int kPairs = (R + 1) / 2;
  int32x4_t sum[kPairs][8];  // [pair][two channels]: even row, odd row
  unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA {
    unrolled<8>([&](auto c) EDGE_INLINE_LAMBDA { sum[p][c] = vdupq_n_s32(0); });
  });

  const auto step = [&](auto count, int64_t block) EDGE_INLINE_LAMBDA {  // 1 or 2 blocks
    const int8_t* tile = w + block * kTileBytes;
    int8x16_t pair[kPairs];
    unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA { pair[p] = vld1q_s8(a + 2 * p * stride + 2 * block * kTileDepth); });
    unrolled<count>([&](auto b) EDGE_INLINE_LAMBDA { __builtin_prefetch(tile + b * kTileBytes + kPrefetchBytes); });
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      int8x16_t first, second;
      zip(vld1q_s8(tile + 16 * c), count == 2 ? vld1q_s8(tile + kTileBytes + 16 * c) : vdupq_n_s8(0), first, second);
      unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA {
        dot_pair(sum[p][2 * c], pair[p], first);
        dot_pair(sum[p][2 * c + 1], pair[p], second);
      });
    });
  };
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) step(Index<2>{}, block);
  if (block < blocks) step(Index<1>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      const int64x2_t first = vreinterpretq_s64_s32(sum[r / 2][2 * c]), second = vreinterpretq_s64_s32(sum[r / 2][2 * c + 1]);
      dot[r][0].v[c] = vreinterpretq_s32_s64(r % 2 == 0 ? vzip1q_s64(first, second) : vzip2q_s64(first, second));
    });
  });
}

template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const int8_t* a, int64_t stride, const int8_t* w, int64_t, int64_t blocks, i32x16 (&dot)[R][P],
                          Ahead = {}) {
  // Up to three rows sdot takes as many instructions: it has no zips.
  if constexpr (R > 3) return multiply_pairs<R>(a, stride, w, blocks, dot);
  multiply_rows<R, Unroll>(a, stride, w, blocks, dot);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
