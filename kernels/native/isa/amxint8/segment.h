// Products of a segment in tiles; see attention_calls.h.
//
// An int16 is 256 times its high byte plus its low one: two products of bytes, whose sums are joined to the int32 that the product
// of the int16 is. High bytes of queries are signed, everything else of queries and weights is unsigned. All scores are made first,
// then all weights, then all values: tiles sleep after short pauses, and waking them takes long.
#pragma once

#include <quads.h>
#include <tiles.h>

#include "attention_tile.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE SegmentOperands operands_of(const TileScratch& s, int64_t queries, int64_t head_dim) {
  const auto at = (reinterpret_cast<uintptr_t>(s.more) + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
  return SegmentOperands(reinterpret_cast<void*>(at), queries, head_dim);
}

// Of numbers [count], a whole number of 16, and zeros up to `stride`.
EDGE_INLINE void split_row(const int16_t* numbers, int64_t count, int64_t stride, uint8_t* low, uint8_t* high) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) split_bytes(numbers + i, low + i, high + i);
  if (i < count) {
    int16_t last[32] = {};
    memcpy(last, numbers + i, static_cast<size_t>(count - i) * sizeof(int16_t));
    split_bytes(last, low + i, high + i);
    i += 32;
  }
  if (i >= stride) return;
  memset(low + i, 0, static_cast<size_t>(stride - i));
  memset(high + i, 0, static_cast<size_t>(stride - i));
}

// Queries of a tile as bytes.
static void prepare_queries(const AttentionArgs& a, const TileScratch& s, int64_t queries) {
  const SegmentOperands o = operands_of(s, queries, a.head_dim);
  const int64_t padded = attention_padded(a.head_dim);
  for (int64_t n = 0; n < queries; ++n)
    split_row(s.q + n * padded, padded, o.query_stride, o.query[0] + n * o.query_stride, o.query[1] + n * o.query_stride);
}

// Keys of the pages as fours of channels, with zeros behind the last one.
static void keys_to_fours(const TileSegment& t, const SegmentOperands& o) {
  const int64_t dim = t.a.head_dim, page_bytes = kPage * o.query_stride, filled = kPage * (dim / 4 * 4);
  for (int64_t j = t.here.pages.begin; j < t.here.pages.end; ++j) {
    int8_t* to = o.keys + j * page_bytes;
    const int8_t* from = t.here.keys[j];
    for (int64_t at = 0; at < filled; at += kQuadBytes) join_pairs(from + at, from + at + 2 * kPage, to + at);
    int64_t end = filled;
    if (dim % 4 != 0) {
      const int8_t none[2 * kPage] = {};
      join_pairs(from + filled, none, to + filled);
      end += kQuadBytes;
    }
    memset(to + end, 0, static_cast<size_t>(page_bytes - end));
  }
}

// Values of the pages as fours of tokens. Tokens of other pages hold anything: their weights are zero.
static void values_to_fours(const TileSegment& t, const SegmentOperands& o) {
  const int64_t dim = t.a.head_dim, whole = dim / kLanes * kLanes;
  for (int64_t j = t.here.pages.begin; j < t.here.pages.end; ++j)
    for (int64_t four = 0; four < kPage / 4; ++four) {
      const int8_t *first = t.here.values[j] + 4 * four * dim, *second = first + 2 * dim;
      int8_t* to = o.values + (j * kPage / 4 + four) * o.value_stride;
      for (int64_t d = 0; d < whole; d += kLanes) join_pairs(first + 2 * d, second + 2 * d, to + 4 * d);
      if (whole == dim) continue;
      int8_t rest[2][2 * kLanes] = {};
      memcpy(rest[0], first + 2 * whole, static_cast<size_t>(2 * (dim - whole)));
      memcpy(rest[1], second + 2 * whole, static_cast<size_t>(2 * (dim - whole)));
      join_pairs(rest[0], rest[1], to + 4 * whole);
    }
}

// The registers: sums of low and high bytes of one operand and of the next, then low and high bytes, then the operands.
constexpr int kLowTile = 4, kHighTile = 5, kOperandTile = 6;

// sums[P][low, high][16][16]: 16 rows of bytes times P operands, in `steps` of 64.
template <int P, bool Signed>
EDGE_INLINE void multiply_bytes(const uint8_t* low, const uint8_t* high, int64_t stride, const int8_t* const (&operands)[P],
                                int64_t operand_stride, int64_t operand_step, int64_t steps, int32_t* sums) {
  unrolled<2 * P>([&](auto t) EDGE_INLINE_LAMBDA { Tiles::zero<t>(); });
  for (int64_t step = 0; step < steps; ++step) {
    Tiles::load<kLowTile>(low + step * kQuadBytes, stride);
    Tiles::load<kHighTile>(high + step * kQuadBytes, stride);
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      Tiles::load<kOperandTile + p>(operands[p] + step * operand_step, operand_stride);
      Tiles::dot<2 * p, kLowTile, kOperandTile + p>();
      if constexpr (Signed) Tiles::dot_signed<2 * p + 1, kHighTile, kOperandTile + p>();
      else Tiles::dot<2 * p + 1, kHighTile, kOperandTile + p>();
    });
  }
  unrolled<2 * P>([&](auto t) EDGE_INLINE_LAMBDA { Tiles::store<t>(sums + t * 256, kQuadBytes); });
}

// Row r of operand p: what the int16 give.
EDGE_INLINE f32x16 joined_sums(const int32_t* sums, int64_t p, int64_t r) {
  const int32_t* low = sums + 2 * p * 256 + r * kLanes;
  return from_i32(add_i32(shift_left(load_i32(low + 256), 8), load_i32(low)));
}

// Scores of the queries first .. first+rows-1 and P pages from j on: (float(dot) * key_scale) * q_step.
template <int P>
EDGE_INLINE void score_tiles(const TileSegment& t, const SegmentOperands& o, int64_t first, int64_t rows, int64_t j) {
  const int64_t page_bytes = kPage * o.query_stride, at = first * o.query_stride;
  const int8_t* pages[P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { pages[p] = o.keys + (j + p) * page_bytes; });
  multiply_bytes<P, true>(o.query[0] + at, o.query[1] + at, o.query_stride, pages, kQuadBytes, 16 * kQuadBytes,
                          o.query_stride / kQuadBytes, o.sums);
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
    const f32x16 key_scale = from_f16(t.a.k_scales + t.here.slot[j + p]);
    float* scores = t.s.scores + first * kScoreStride + (j + p) * kPage;
    for (int64_t r = 0; r < rows; ++r)
      store(scores + r * kScoreStride, mul(mul(joined_sums(o.sums, p, r), key_scale), broadcast(t.s.q_step[first + r])));
  });
}

static void make_scores(const TileSegment& t, const SegmentOperands& o, int64_t queries) {
  for (int64_t first = 0; first < queries; first += kQueryRows) {
    const int64_t rows = min_i64(kQueryRows, queries - first);
    const Span pages = t.pages_seen(first, rows);
    int64_t j = pages.begin;
    for (; j + 2 <= pages.end; j += 2) score_tiles<2>(t, o, first, rows, j);
    if (j < pages.end) score_tiles<1>(t, o, first, rows, j);
  }
}

// Fours of 64 tokens that hold pages which some of these queries see.
EDGE_INLINE Span steps_seen(const TileSegment& t, int64_t first, int64_t rows) {
  constexpr int64_t kPages = kQuadBytes / kPage;
  const Span pages = t.pages_seen(first, rows);
  return {pages.begin / kPages, ceil_div(pages.end, kPages)};
}

// Weights of the segment's tokens as bytes; zeros for pages that nobody sees.
static void split_weights(const TileSegment& t, const SegmentOperands& o, int64_t queries) {
  const int64_t begin = t.here.pages.begin * kPage, end = t.here.pages.end * kPage;
  for (int64_t n = 0; n < queries; ++n) {
    uint8_t *low = o.weight[0] + n * o.weight_stride, *high = o.weight[1] + n * o.weight_stride;
    memset(low, 0, static_cast<size_t>(begin));
    memset(high, 0, static_cast<size_t>(begin));
    split_row(t.s.weights + n * kWeightStride + begin, end - begin, kSegment - begin, low + begin, high + begin);
  }
}

// P vectors of the values from dim d on: float(sum of weight * value) * weight_step.
template <int P>
EDGE_INLINE void value_tiles(const TileSegment& t, const SegmentOperands& o, int64_t first, int64_t rows, Span steps, int64_t d, float* out) {
  const int64_t at = first * o.weight_stride + steps.begin * kQuadBytes;
  const int8_t* values[P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { values[p] = o.values + steps.begin * 16 * o.value_stride + 4 * (d + p * kLanes); });
  multiply_bytes<P, false>(o.weight[0] + at, o.weight[1] + at, o.weight_stride, values, o.value_stride, 16 * o.value_stride,
                           steps.end - steps.begin, o.sums);
  for (int64_t r = 0; r < rows; ++r)
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      store(out + (first + r) * t.padded + d + p * kLanes, mul(joined_sums(o.sums, p, r), broadcast(t.s.weight_step[first + r])));
    });
}

static void make_values(const TileSegment& t, const SegmentOperands& o, int64_t queries, float* out) {
  for (int64_t first = 0; first < queries; first += kQueryRows) {
    const int64_t rows = min_i64(kQueryRows, queries - first);
    const Span steps = steps_seen(t, first, rows);
    int64_t d = 0;
    for (; d + 2 * kLanes <= t.padded; d += 2 * kLanes) value_tiles<2>(t, o, first, rows, steps, d, out);
    if (d < t.padded) value_tiles<1>(t, o, first, rows, steps, d, out);
  }
}

// One segment for all queries of a tile; a query that sees none of it gets an undefined part, which is never merged.
static void tile_segment(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, NextSegment then, const TileScratch& s,
                         SoftmaxPart part) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  SegmentPages here, next;
  find_pages(a, tile, segment, here);
  find_next(a, then, here, next);
  const TileSegment t = {a, s, attention_padded(a.head_dim), here, next, then.tile == &tile ? nullptr : then.tile};
  const SegmentOperands o = operands_of(s, queries, a.head_dim);
  for (int64_t j = here.pages.begin; j < here.pages.end; ++j) store(s.value_scale + j * kPage, from_f16(a.v_scales + here.slot[j]));
  Tiles::begin();
  keys_to_fours(t, o);
  values_to_fours(t, o);
  make_scores(t, o, queries);
  for (int64_t first = 0; first < queries; first += kBlockQueries)
    weigh_block(t, first, min_i64(kBlockQueries, queries - first), s.scores + first * kScoreStride, part);
  split_weights(t, o, queries);
  make_values(t, o, queries, part.value);
  Tiles::end();
  for (int64_t j = next.pages.begin; j < next.pages.end; ++j) ask_for_scales(t, j);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
