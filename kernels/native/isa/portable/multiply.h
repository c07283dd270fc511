// The microkernel of the sets whose instructions take one row and one block at a time.
#pragma once

#include "dot_base.h"
#include <dot.h>

namespace edge {
namespace EDGE_VARIANT {

// The microkernel: dot[r][p] = rows a[0..R) x panels w[0..P), whole depth, sums in registers.
// Unroll > 1 keeps that many independent sums per accumulator: for tiles too small to hide the latency otherwise.
//   a: first row, `stride` apart; w: first panel, `panel_bytes` apart; blocks = ceil(K/4).
template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const Int8Dot::Activation* a, int64_t stride, const int8_t* w, int64_t panel_bytes,
                          int64_t blocks, i32x16 (&dot)[R][P], Ahead ahead = {}) {
  constexpr int kColumns = P * Int8Dot::kRegisters;
  Int8Dot::Accumulator sum[Unroll][R][kColumns];
  unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { sum[u][r][c] = Int8Dot::zero(); });
    });
  });

  const auto step = [&](auto u, int64_t block) EDGE_INLINE_LAMBDA {
    Int8Dot::Weights tile[kColumns];
    unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA {
      constexpr int kPanel = c / Int8Dot::kRegisters, kPart = c % Int8Dot::kRegisters;
      tile[c] = Int8Dot::weights(w + kPanel * panel_bytes + block * kTileBytes, kPart);
    });
    if constexpr (P <= 2) {  // of few rows: what comes next in the panels themselves
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
        __builtin_prefetch(w + p * panel_bytes + block * kTileBytes + kPrefetchBytes);
      });
    } else if (ahead.step != 0) __builtin_prefetch(ahead.data + block * ahead.step, 0, 2);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const Int8Dot::Broadcast row = Int8Dot::broadcast(a + r * stride + block * kTileDepth);
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::dot(sum[u][r][c], row, tile[c]); });
    });
  };
  int64_t block = 0;
  for (; block + Unroll <= blocks; block += Unroll)
    unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA { step(u, block + u); });
  for (; block < blocks; ++block) step(Index<0>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<Unroll - 1>([&](auto u) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::add(sum[0][r][c], sum[u + 1][r][c]); });
    });
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      dot[r][p] = Int8Dot::finish(sum[0][r][p * Int8Dot::kRegisters], sum[0][r][(p + 1) * Int8Dot::kRegisters - 1]);
    });
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge
