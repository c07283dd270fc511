// Few rows multiply each group of codes as it is expanded.
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

// As `multiply`, of a panel of codes.
template <int R, int Unroll>
EDGE_INLINE void multiply_expanded(const Int8Dot::Activation* a, int64_t stride, const CodePanel& panel, i32x16 (&dot)[R][1]) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = broadcast_i32(0); });
  for (int64_t group = 0; group < panel.groups; ++group) {
    alignas(64) int8_t tiles[kBlocksPerGroup * kTileBytes];
    panel.expand(group, tiles);
    i32x16 part[R][1];
    multiply<R, 1, Unroll>(Int8Dot::place(const_cast<int8_t*>(a), stride, 0, group * kCodeGroup), stride, tiles, 0,
                           min_i64(kBlocksPerGroup, panel.blocks - group * kBlocksPerGroup), part);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][0] = add_i32(dot[r][0], part[r][0]); });
  }
}

}  // namespace EDGE_VARIANT
}  // namespace edge
