// Attention over paged INT8 keys and values, and the write into the pages.
//
// A tile is a few query rows of one sequence times the query heads of one kv head. Keys are handled in segments of 256
// tokens: scores of all tile queries, a softmax per query, then the weighted values. Both products are integer and exact:
// a query is rounded to int16 with a scale of its own, and so are the weights of a query in a segment. |sum| of a segment
// is at most 256 * 2^15 * 2^7 = 2^30, of a head 512 * 32767 * 127 < 2^31. Their order is therefore free, and only the softmax is
// float32.
// Pages lie as the products read them, sixteen lanes of two neighbours each: a head's keys as [D/2][16 tokens][2], its
// values as [8][D][2 tokens]. A query's arithmetic never depends on the other queries of its tile. Segments begin at multiples of
// 256 tokens of a sequence; a window hides the first tokens of a row's first segment, and whole segments before it.
#pragma once

#include <segment.h>

#include "attention_tile.h"

namespace edge {
namespace EDGE_VARIANT {

static void load_queries(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  const TileScratch s = tile_scratch(scratch, tile.rows * group, a.head_dim);
  for (int64_t n = 0; n < tile.rows * group; ++n) {
    const float* source = a.q + (tile.row + n / group) * a.row_stride + (tile.kv_head * group + n % group) * a.head_stride;
    s.q_step[n] = quantize_query(source, a.head_dim, a.softmax_scale, s.q + n * padded);
  }
  prepare_queries(a, s, tile.rows * group);
}

// Query n: `segment` joins the segments before it.
EDGE_INLINE void merge_query(SoftmaxPart left, SoftmaxPart right, int64_t n, int64_t padded) {
  const float top = left.top[n] > right.top[n] ? left.top[n] : right.top[n];
  const f32x16 a = exp2_negative(broadcast(left.top[n] - top)), b = exp2_negative(broadcast(right.top[n] - top));
  float scale_left[kLanes], scale_right[kLanes];
  store(scale_left, a);
  store(scale_right, b);
  left.top[n] = top;
  left.sum[n] = fma_f32(left.sum[n], scale_left[0], right.sum[n] * scale_right[0]);
  for (int64_t d = n * padded; d < (n + 1) * padded; d += kLanes)
    store(left.value + d, fma(load(left.value + d), a, mul(load(right.value + d), b)));
}

__attribute__((noinline)) static void copy_query(SoftmaxPart left, SoftmaxPart right, int64_t n, int64_t padded) {
  left.top[n] = right.top[n];
  left.sum[n] = right.sum[n];
  memcpy(left.value + n * padded, right.value + n * padded, static_cast<size_t>(padded) * sizeof(float));
}

static void merge_tile(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, SoftmaxPart left,
                       SoftmaxPart right) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  for (int64_t r = 0; r < tile.rows; ++r) {
    if (visible(a, tile.row + r, segment).empty()) continue;
    const bool is_first = first_seen(a, tile.row + r) >= segment * kSegment;  // of the segments that the row sees
    for (int64_t n = r * group; n < (r + 1) * group; ++n) {
      if (is_first) copy_query(left, right, n, padded);
      else merge_query(left, right, n, padded);
    }
  }
}

// Query n: the sink, a logit in powers of two whose value is zero, joins all segments.
__attribute__((noinline)) static void join_sink(SoftmaxPart part, int64_t n, float sink, int64_t padded) {
  const float top = part.top[n] > sink ? part.top[n] : sink;
  const f32x16 a = exp2_negative(broadcast(part.top[n] - top));
  float scale[kLanes], weight[kLanes];
  store(scale, a);
  store(weight, exp2_negative(broadcast(sink - top)));
  part.sum[n] = fma_f32(part.sum[n], scale[0], weight[0]);
  for (int64_t d = n * padded; d < (n + 1) * padded; d += kLanes) store(part.value + d, mul(load(part.value + d), a));
}

// out = value / sum; zeros for a row that sees nothing.
static void finish_tile(const AttentionArgs& a, const AttentionTile& tile, SoftmaxPart part) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  for (int64_t n = 0; n < tile.rows * group; ++n) {
    const int64_t row = tile.row + n / group, head = tile.kv_head * group + n % group;
    float* out = a.out + (row * a.q_heads + head) * a.head_dim;
    const bool empty = a.row_position[row] < 0;
    if (a.sinks != nullptr && !empty) join_sink(part, n, a.sinks[head] * kLog2E, padded);
    for (int64_t d = 0; d < a.head_dim; d += kLanes) {
      const f32x16 y = empty ? zero() : div(load(part.value + n * padded + d), broadcast(part.sum[n]));
      const int64_t left = a.head_dim - d;
      if (left < kLanes)
        store_partial(out + d, y, static_cast<int>(left));
      else
        store(out + d, y);
    }
  }
}

static void attend(const AttentionArgs& a, const AttentionTile& tile, const AttentionTile* next, float* scratch) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  const TileScratch s = tile_scratch(scratch, queries, a.head_dim);
  const SoftmaxPart run = attention_part(s.run, queries), part = attention_part(s.part, queries);
  load_queries(a, tile, scratch);
  for (int64_t segment = tile.first; segment < tile.segments; ++segment) {
    const NextSegment then =
        segment + 1 < tile.segments ? NextSegment{&tile, segment + 1} : NextSegment{next, next == nullptr ? 0 : next->first};
    tile_segment(a, tile, segment, then, s, segment == tile.first ? run : part);
    if (segment > tile.first) merge_tile(a, tile, segment, run, part);
  }
  finish_tile(a, tile, run);
}

static void attend_segment(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, NextSegment next,
                           SoftmaxPart part, float* scratch) {
  const TileScratch s = tile_scratch(scratch, tile.rows * (a.q_heads / a.kv_heads), a.head_dim);
  tile_segment(a, tile, segment, next, s, part);
}

static void join_segments(const AttentionArgs& a, const AttentionTile& tile, float* parts, int64_t stride) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  const SoftmaxPart run = attention_part(parts, queries);
  for (int64_t segment = tile.first + 1; segment < tile.segments; ++segment)
    merge_tile(a, tile, segment, run, attention_part(parts + (segment - tile.first) * stride, queries));
  finish_tile(a, tile, run);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
