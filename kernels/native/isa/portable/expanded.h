// Few rows multiply each group of codes as it is expanded.
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

// As `multiply`, of a panel of codes.
template <int R, int Unroll>
EDGE_INLINE void multiply_expanded(const Int8Dot::Activation* a, int64_t stride, const CodePanel& panel, i32x16 (&dot)[R][1]) {
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
}

}  // namespace EDGE_VARIANT
}  // namespace edge
