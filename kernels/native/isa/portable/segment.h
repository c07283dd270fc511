// Products of a segment in registers; see attention.h.
#pragma once

#include <pairs.h>

#include "attention_tile.h"

namespace edge {
namespace EDGE_VARIANT {

// ---- int16 x int8 products ---------------------------------------------------------------------------------

// Pairs: 16 x 2 int8 widened to int16; PairFactor: two int16 for all sixteen; sums[i] += x[i][0]*f[0] + x[i][1]*f[1].
// x86 in assembly: GCC loads all factors of a block ahead, or copies the sums around each product, and then spills. See <pairs.h>.

template <int R, int V>
struct BlockSums { i32x16 v[R][V]; };

template <int R, int V>
EDGE_INLINE void clear(BlockSums<R, V>& sums) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA { sums.v[r][i] = zero_sums(); });
  });
}

// sums[r][i] += the pairs load(i, odd, step) times factors[r * stride + 2 * step ..], over the steps, an even number.
template <int R, int V, class Load>
EDGE_INLINE void multiply_block(BlockSums<R, V>& sums, const int16_t* factors, int64_t stride, int64_t steps, Load&& load) {
  for (int64_t pair = 0; pair < steps; pair += 2)
    unrolled<2>([&](auto odd) EDGE_INLINE_LAMBDA {
      const int64_t step = pair + odd;
      Pairs x[V];
      unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA { x[i] = load(i, odd, step); });
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const PairFactor f = load_factor(factors + r * stride + 2 * step);
        unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA { multiply_add(sums.v[r][i], x[i], f); });
      });
    });
}

// body(Index<rows>) for rows in 1..R known only at run time.
template <int R, class Body>
EDGE_INLINE void with_rows(int64_t rows, Body&& body) {
  if constexpr (R > 1) {
    if (rows < R) return with_rows<R - 1>(rows, body);
  }
  body(Index<R>{});
}

// body(first, rows) over the queries in blocks of nearly equal size, as few as registers allow.
template <class Body>
EDGE_INLINE void each_block(int64_t queries, Body&& body) {
  const int64_t blocks = ceil_div(queries, kBlockQueries), rows = ceil_div(queries, blocks);
  for (int64_t n = 0; n < queries; n += rows) body(n, min_i64(rows, queries - n));
}

// What the products make of the queries of a tile: nothing.
EDGE_INLINE void prepare_queries(const AttentionArgs&, const TileScratch&, int64_t) {}

// Scores of R queries, from the first, and the V pages from j on: (float(dot) * key_scale) * q_step.
template <int R, int V>
EDGE_INLINE void score_pages(const TileSegment& t, int64_t first, int64_t j) {
  const int8_t *keys[V], *asked[V];
  f32x16 key_scale[V];
  unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA {
    keys[i] = t.here.keys[j + i];
    key_scale[i] = from_f16(t.a.k_scales + t.here.slot[j + i]);
    asked[i] = t.asked_with_keys(first)[j + i];
  });
  BlockSums<R, V> sums;
  clear(sums);
  const auto load = [&](auto i, auto odd, int64_t step) EDGE_INLINE_LAMBDA {
    if constexpr (odd == 0) __builtin_prefetch(asked[i] + step * 2 * kPage);
    return load_pairs(keys[i] + step * 2 * kPage);
  };
  multiply_block<R, V>(sums, t.s.q + first * t.padded, t.padded, t.a.head_dim / 2, load);
  float* scores = t.s.scores + j * kPage;
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    const f32x16 q_step = broadcast(t.s.q_step[first + r]);
    unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA {
      store(scores + r * kScoreStride + i * kPage, mul(mul(from_i32(sums.v[r][i]), key_scale[i]), q_step));
    });
  });
}

// The scores of R queries and all pages that they see.
template <int R>
__attribute__((noinline)) void score_block(const TileSegment& t, int64_t first, Span pages) {
  int64_t j = pages.begin;
  for (; j + kBlockVectors <= pages.end; j += kBlockVectors) score_pages<R, kBlockVectors>(t, first, j);
  if constexpr (kBlockVectors > 1) {
    for (; j < pages.end; ++j) score_pages<R, 1>(t, first, j);
  }
}

// V vectors of the values from dim d on, for R queries from the first: float(sum of weight * value) * weight_step.
// With `Half` only 8 dims are left.
template <int R, int V, bool Half>
__attribute__((noinline)) void value_block(const TileSegment& t, int64_t first, Span pages, int64_t d, float* out) {
  BlockSums<R, V> sums;
  clear(sums);
  const int16_t* weights = t.s.weights + first * kWeightStride;
  const int64_t dim = t.a.head_dim;
  for (int64_t j = pages.begin; j < pages.end; ++j) {
    const int8_t *values = t.here.values[j] + 2 * d, *asked = t.asked_with_values(first)[j] + kPage * d;
    if (first == 0 && d == 0) ask_for_scales(t, j);
    const auto load = [&](auto i, auto odd, int64_t step) EDGE_INLINE_LAMBDA {
      if constexpr ((odd * V + i) % 2 == 0) __builtin_prefetch(asked + (step * V + i) * 2 * kLanes);
      const int8_t* at = values + 2 * (step * dim + i * kLanes);
      if constexpr (Half)
        return load_half_pairs(at);
      else
        return load_pairs(at);
    };
    multiply_block<R, V>(sums, weights + j * kPage, kWeightStride, kPage / 2, load);
  }
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    const f32x16 step = broadcast(t.s.weight_step[first + r]);
    unrolled<V>([&](auto i) EDGE_INLINE_LAMBDA {
      store(out + (first + r) * t.padded + d + i * kLanes, mul(from_i32(sums.v[r][i]), step));
    });
  });
}

template <int R>
EDGE_INLINE void value_head(const TileSegment& t, int64_t first, Span pages, float* out) {
  const int64_t dim = t.a.head_dim;
  int64_t d = 0;
  for (; d + kBlockVectors * kLanes <= dim; d += kBlockVectors * kLanes)
    value_block<R, kBlockVectors, false>(t, first, pages, d, out);
  if constexpr (kBlockVectors > 1) {
    for (; d + kLanes <= dim; d += kLanes) value_block<R, 1, false>(t, first, pages, d, out);
  }
  if (d < dim) value_block<R, 1, true>(t, first, pages, d, out);
}

// One segment for all queries of a tile; a query that sees none of it gets an undefined part, which is never merged.
static void tile_segment(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, NextSegment then,
                         const TileScratch& s, SoftmaxPart part) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  SegmentPages here, next;
  find_pages(a, tile, segment, here);
  find_next(a, then, here, next);
  const AttentionTile* const after = then.tile == &tile ? nullptr : then.tile;
  const TileSegment t = {a, s, attention_padded(a.head_dim), here, next, after};
  for (int64_t j = t.here.pages.begin; j < t.here.pages.end; ++j) store(s.value_scale + j * kPage, from_f16(a.v_scales + t.here.slot[j]));
  each_block(queries, [&](int64_t first, int64_t rows) EDGE_INLINE_LAMBDA {
    with_rows<kBlockQueries>(rows, [&](auto r) EDGE_INLINE_LAMBDA { score_block<r>(t, first, t.pages_seen(first, rows)); });
    weigh_block(t, first, rows, t.s.scores, part);
  });
  each_block(queries, [&](int64_t first, int64_t rows) EDGE_INLINE_LAMBDA {
    with_rows<kBlockQueries>(rows, [&](auto r) EDGE_INLINE_LAMBDA {
      value_head<r>(t, first, t.pages_seen(first, rows), part.value);
    });
  });
  ask_for_the_rest(t);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
