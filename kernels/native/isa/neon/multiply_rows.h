// The microkernel of few rows, by sdot.
#pragma once

#include "dot_base.h"
#include <dot.h>

namespace edge {
namespace EDGE_VARIANT {

// The microkernels of NEON: dot[r][0] = rows a[0..R) x the panel w, whole depth, sums in registers.
//   a: a pair's first row, see PairedActivation::place; w: the panel; blocks = ceil(K/4).
// Two blocks, 8 columns, make a step. An odd last block meets the first half of its 8 columns; the rest is undefined.

// By sdot: a quarter of a tile, 4 channels x 4 columns, times 4 columns of one row. Unroll as in the other `multiply`.
template <int R, int Unroll>
EDGE_INLINE void multiply_rows(const int8_t* a, int64_t stride, const int8_t* w, int64_t blocks, i32x16 (&dot)[R][1]) {
  static_assert(Unroll <= 2, "a step has two blocks");
  constexpr int kPairs = (R + 1) / 2;
  int32x4_t sum[Unroll][R][4];
  unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA { sum[u][r][c] = vdupq_n_s32(0); });
    });
  });

  const auto step = [&](auto count, int64_t block) EDGE_INLINE_LAMBDA {  // 1 or 2 blocks
    int8x16_t pair[kPairs];
    unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA { pair[p] = vld1q_s8(a + 2 * p * stride + 2 * block * kTileDepth); });
    unrolled<count>([&](auto b) EDGE_INLINE_LAMBDA {
      const int8_t* tile = w + (block + b) * kTileBytes;
      __builtin_prefetch(tile + kPrefetchBytes);
      unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
        const int8x16_t weights = vld1q_s8(tile + 16 * c);
        unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
          constexpr int kSum = b % Unroll, kLane = r % 2 * 2 + b;
          Int8Dot::dot<kLane>(sum[kSum][r][c], weights, pair[r / 2]);
        });
      });
    });
  };
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) step(Index<2>{}, block);
  if (block < blocks) step(Index<1>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      dot[r][0].v[c] = Unroll == 1 ? sum[0][r][c] : vaddq_s32(sum[0][r][c], sum[Unroll - 1][r][c]);
    });
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge
