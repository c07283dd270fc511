// A tile of queries at work: its memory, the pages that it sees, and the softmax of a segment; see attention.h.
#pragma once

#include <segment_memory.h>
#include <sizes.h>

#include "pointwise.h"
#include "table_attention.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kSegmentPages = kSegment / kPage;
constexpr int64_t kScoreStride = kSegment + 16;   // a power of two would put the same token's scores into few cache sets
constexpr int64_t kWeightStride = kSegment + 32;
constexpr float kInt16Most = 32767.0f, kSmallestNormal = 0x1p-126f, kLog2E = 0x1.715476p+0f;

// The factor that makes int16 of values up to step * 32767; zeros where the step has no exact enough inverse.
EDGE_INLINE f32x16 inverse_step(float step) { return broadcast(step >= kSmallestNormal ? 1.0f / step : 0.0f); }

struct TileScratch {
  int16_t* q;          // [queries][padded]
  float* q_step;       // [queries]
  float* value_scale;  // [256]
  float* scores;       // [score_rows][kScoreStride]: scores, then weights
  int16_t* weights;    // [queries][kWeightStride]
  float* weight_step;  // [queries]
  float* run;          // a SoftmaxPart: the segments so far
  float* part;         // a SoftmaxPart: the segment at hand
  float* more;         // [segment_floats], of the products
};

static int64_t attention_scratch_floats(int64_t queries, int64_t head_dim) {
  const int64_t padded = attention_padded(head_dim);
  return queries * padded / 2 + kSegment + score_rows(queries) * kScoreStride + queries * (2 + kWeightStride / 2) +
         2 * attention_part_floats(queries, head_dim) + segment_floats(queries, head_dim);
}

EDGE_INLINE TileScratch tile_scratch(float* memory, int64_t queries, int64_t head_dim) {
  TileScratch s;
  s.q = reinterpret_cast<int16_t*>(memory);
  s.value_scale = memory + queries * attention_padded(head_dim) / 2;
  s.scores = s.value_scale + kSegment;
  float* const weights = s.scores + score_rows(queries) * kScoreStride;
  s.weights = reinterpret_cast<int16_t*>(weights);
  s.run = weights + queries * kWeightStride / 2;
  s.part = s.run + attention_part_floats(queries, head_dim);
  s.q_step = s.part + attention_part_floats(queries, head_dim);
  s.weight_step = s.q_step + queries;
  s.more = s.weight_step + queries;
  return s;
}

// One query times the softmax scale (in powers of two) -> q int16[padded] and its step; NaN for a query that is not finite.
EDGE_INLINE float quantize_query(const float* source, int64_t dim, float softmax_scale, int16_t* q) {
  const f32x16 scale = broadcast(softmax_scale * kLog2E);
  f32x16 most = zero(), finite = zero();  // finite: a sum of x*0, NaN when any x is not finite
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const f32x16 x = mul(load_some(source + i, n), scale);
    most = max(most, abs(x));
    finite = fma(x, zero(), finite);
  });
  if (mask_greater(broadcast(1.0f), finite) != (1u << kLanes) - 1) {
    memset(q, 0, static_cast<size_t>(attention_padded(dim)) * sizeof(int16_t));
    return __builtin_nanf("");
  }
  const float step = reduce_max(most) / kInt16Most;
  const f32x16 inverse = inverse_step(step);
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    store_i16(q + i, round_even(mul(mul(load_some(source + i, n), scale), inverse)));
  });
  return step;
}

// Tokens begin..end-1 of a segment, or pages.
struct Span {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// The first token of its sequence that a row sees.
EDGE_INLINE int64_t first_seen(const AttentionArgs& a, int64_t row) {
  return max_i64(0, a.row_position[row] + int64_t{1} - a.window);
}

// Tokens of a segment that a row sees, in 0..256; {0, 0} where it sees none.
EDGE_INLINE Span visible(const AttentionArgs& a, int64_t row, int64_t segment) {
  const int64_t before = segment * kSegment;
  const Span seen = {max_i64(0, first_seen(a, row) - before), min_i64(kSegment, a.row_position[row] + int64_t{1} - before)};
  return seen.empty() ? Span{0, 0} : seen;
}

// Where the keys and values lie that a tile sees of a segment.
struct SegmentPages {
  Span seen[kMaxTileRows];  // tokens of each row
  Span pages;               // from the first to the last that a row sees; {0, 0}: none
  int64_t slot[kSegmentPages];  // of the kv head in the scales
  const int8_t *keys[kSegmentPages], *values[kSegmentPages];
};

// The pages from the first to the last that hold some of these tokens; {0, 0}: none.
EDGE_INLINE Span pages_of(const Span* seen, int64_t rows) {
  Span all = {kSegment, 0};
  for (int64_t r = 0; r < rows; ++r)
    if (!seen[r].empty()) all = {min_i64(all.begin, seen[r].begin), max_i64(all.end, seen[r].end)};
  return all.empty() ? Span{0, 0} : Span{all.begin / kPage, ceil_div(all.end, kPage)};
}

EDGE_INLINE void find_pages(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, SegmentPages& found) {
  const int32_t* table = a.page_table + a.row_sequence[tile.row] * a.max_pages + segment * kSegmentPages;
  for (int64_t r = 0; r < tile.rows; ++r) found.seen[r] = visible(a, tile.row + r, segment);
  found.pages = pages_of(found.seen, tile.rows);
  for (int64_t j = found.pages.begin; j < found.pages.end; ++j) {
    found.slot[j] = (table[j] * a.kv_heads + tile.kv_head) * kPage;
    found.keys[j] = a.k_pages + found.slot[j] * a.head_dim;
    found.values[j] = a.v_pages + found.slot[j] * a.head_dim;
  }
}

// The pages of the segment after `here`; where it has none of a number that `here` has, what is at hand anyway.
EDGE_INLINE void find_next(const AttentionArgs& a, NextSegment next, const SegmentPages& here, SegmentPages& found) {
  found.pages = {0, 0};
  if (next.tile != nullptr) find_pages(a, *next.tile, next.segment, found);
  const auto at_hand = [&](int64_t begin, int64_t end) EDGE_INLINE_LAMBDA {
    for (int64_t j = begin; j < end; ++j) {
      found.slot[j] = here.slot[j];
      found.keys[j] = here.values[j];
    }
  };
  at_hand(here.pages.begin, min_i64(here.pages.end, found.pages.begin));
  at_hand(max_i64(here.pages.begin, found.pages.end), here.pages.end);
}

// A segment at work. While its first queries pass, its values are asked for among the scores, and the next segment's keys
// among the values, 64 bytes at a time: many requests at once would fill the processor's queue and stop it.
struct TileSegment {
  const AttentionArgs& a;
  const TileScratch& s;
  int64_t padded;
  const SegmentPages &here, &next;
  const AttentionTile* then;  // whose queries are loaded after this segment, if they are another tile's

  // By the queries first .. first+count-1.
  Span pages_seen(int64_t first, int64_t count) const {
    const int64_t group = a.q_heads / a.kv_heads, row = first / group;
    return pages_of(here.seen + row, (first + count - 1) / group + 1 - row);
  }

  // What is asked for with the pages of keys, and of values: by later queries what is at hand anyway.
  EDGE_INLINE const int8_t* const* asked_with_keys(int64_t first) const { return first == 0 ? here.values : here.keys; }
  EDGE_INLINE const int8_t* const* asked_with_values(int64_t first) const { return first == 0 ? next.keys : here.values; }
};

EDGE_INLINE void ask_for_scales(const TileSegment& t, int64_t j) {
  __builtin_prefetch(t.a.k_scales + t.next.slot[j]);
  __builtin_prefetch(t.a.v_scales + t.next.slot[j]);
}

// Pages of the next segment that no page of this one stands for.
EDGE_INLINE void ask_for_the_rest(const TileSegment& t) {
  for (int64_t j = t.next.pages.begin; j < t.next.pages.end; ++j) {
    if (j >= t.here.pages.begin && j < t.here.pages.end) continue;
    ask_for_scales(t, j);
    for (int64_t i = 0; i < kPage * t.a.head_dim; i += 64) __builtin_prefetch(t.next.keys[j] + i);
  }
}

// ---- softmax -----------------------------------------------------------------------------------------------

// y[i] -> 2^y[i] for y <= 0, |relative error| < 2e-7; at least 2^-126, NaN kept. y = n + r, |r| <= 1/2; 2^r by a polynomial.
// Operation by operation for all of them: each alone is a chain of waits.
template <int N>
EDGE_INLINE void exp2_negative(f32x16 (&y)[N]) {
  f32x16 n[N], r[N], p[N];
  const auto each = [&](auto&& body) EDGE_INLINE_LAMBDA { unrolled<N>(body); };
  each([&](auto i) EDGE_INLINE_LAMBDA { y[i] = max(broadcast(-126.0f), y[i]); });
  each([&](auto i) EDGE_INLINE_LAMBDA { n[i] = round_even_f32(y[i]); });
  each([&](auto i) EDGE_INLINE_LAMBDA { r[i] = sub(y[i], n[i]); });
  each([&](auto i) EDGE_INLINE_LAMBDA { p[i] = fma(broadcast(0x1.5bba14p-10f), r[i], broadcast(0x1.3cea88p-7f)); });
  each([&](auto i) EDGE_INLINE_LAMBDA { p[i] = fma(p[i], r[i], broadcast(0x1.c6b752p-5f)); });
  each([&](auto i) EDGE_INLINE_LAMBDA { p[i] = fma(p[i], r[i], broadcast(0x1.ebf9bcp-3f)); });
  each([&](auto i) EDGE_INLINE_LAMBDA { p[i] = fma(p[i], r[i], broadcast(0x1.62e42ap-1f)); });
  each([&](auto i) EDGE_INLINE_LAMBDA { p[i] = fma(p[i], r[i], broadcast(1.0f)); });
  each([&](auto i) EDGE_INLINE_LAMBDA { y[i] = float_of_bits(add_i32(bits_of(p[i]), shift_left(round_even(n[i]), 23))); });
}

EDGE_INLINE f32x16 exp2_negative(f32x16 y) {
  f32x16 one[1] = {y};
  exp2_negative(one);
  return one[0];
}

// The start of the vector that this token is in.
EDGE_INLINE int64_t vector_start(int64_t token) { return token & -int64_t{kLanes}; }

// scores[begin..end) -> cap * tanh(score / cap) in powers of two; whole vectors.
__attribute__((noinline)) static void cap_scores(float* scores, Span tokens, float cap) {
  const float most = cap * kLog2E;
  const f32x16 factor = broadcast(most), inverse = broadcast(1.0f / most);
  for (int64_t t = vector_start(tokens.begin); t < tokens.end; t += kLanes)
    store(scores + t, mul(tanh(mul(load(scores + t), inverse)), factor));
}

// The largest of scores[begin..end); beside them, to the ends of their vectors, -inf is written.
EDGE_INLINE float largest_score(float* scores, Span tokens) {
  if (const int64_t over = tokens.end - vector_start(tokens.end)) {
    float* const last = scores + tokens.end - over;
    store(last, first_or(load(last), over, broadcast(-__builtin_inff())));
  }
  const int64_t begin = vector_start(tokens.begin), hidden = tokens.begin - begin;
  if (__builtin_expect(hidden != 0, 0)) store(scores + begin, first_or(broadcast(-__builtin_inff()), hidden, load(scores + begin)));
  f32x16 most = load(scores + begin);
  for (int64_t t = begin + kLanes; t < tokens.end; t += kLanes) most = max(most, load(scores + t));
  return reduce_max(most);
}

// What `exponentials` does to one vector, of which the tokens from number `hidden` to `end` are seen; a stale scale may be
// anything. Gives p.
__attribute__((noinline)) static f32x16 first_exponentials(float* scores, int64_t hidden, int64_t end, float top,
                                                           const float* value_scale) {
  const f32x16 p = first_or(zero(), hidden, exp2_negative(sub(load(scores), broadcast(top))));
  store(scores, mul(p, first_or(zero(), hidden, first_or(load(value_scale), end, zero()))));
  return p;
}

// scores[begin..end) -> p = 2^(score - top) times value_scale, in place; the sum of p, and the largest product / 32767.
EDGE_INLINE void exponentials(float* scores, Span tokens, float top, const float* value_scale, float* sum, float* step) {
  const f32x16 shift = broadcast(top);
  f32x16 total = zero(), most = zero();
  const auto take = [&](int64_t t, f32x16 p, f32x16 scale) EDGE_INLINE_LAMBDA {
    const f32x16 weight = mul(p, scale);
    total = add(total, p);
    most = max(most, weight);
    store(scores + t, weight);
  };
  int64_t t = vector_start(tokens.begin);
  if (__builtin_expect(t != tokens.begin, 0)) {
    total = first_exponentials(scores + t, tokens.begin - t, min_i64(kLanes, tokens.end - t), top, value_scale + t);
    most = max(most, load(scores + t));
    t = min_i64(t + kLanes, tokens.end);
  }
  for (; t + kExpVectors * kLanes <= tokens.end; t += kExpVectors * kLanes) {
    f32x16 p[kExpVectors];
    unrolled<kExpVectors>([&](auto i) EDGE_INLINE_LAMBDA { p[i] = sub(load(scores + t + i * kLanes), shift); });
    exp2_negative(p);
    unrolled<kExpVectors>([&](auto i) EDGE_INLINE_LAMBDA { take(t + i * kLanes, p[i], load(value_scale + t + i * kLanes)); });
  }
  each_vector(tokens.end - t, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {  // a stale scale may be anything
    take(t + i, exp2_negative(sub(load(scores + t + i), shift)), load_some(value_scale + t + i, n));
  });
  *sum = reduce_add(total);
  *step = reduce_max(most) / kInt16Most;
}

// What `exponentials` wrote of the tokens, as int16 of this step, of all tokens of the pages; anything where the step is not
// finite.
EDGE_INLINE void round_weights(const float* products, Span tokens, float step, Span pages, int16_t* weights) {
  const auto clear = [&](int64_t begin, int64_t end) EDGE_INLINE_LAMBDA {
    memset(weights + begin, 0, static_cast<size_t>(end - begin) * sizeof(int16_t));
  };
  const int64_t first = pages.begin * kPage, last = pages.end * kPage;
  if (tokens.empty()) return clear(first, last);
  const int64_t begin = vector_start(tokens.begin), end = vector_start(tokens.end + kLanes - 1);
  const f32x16 inverse = inverse_step(step);
  const auto rounded = [&](int64_t t) EDGE_INLINE_LAMBDA { return round_even(mul(load(products + t), inverse)); };
  if (first < begin) clear(first, begin);
  int64_t t = begin;
  for (; t + 2 * kLanes <= end; t += 2 * kLanes) store_low_i16(weights + t, rounded(t), rounded(t + kLanes));
  if (t < end) store_i16(weights + t, rounded(t));
  clear(end, last);
}

// The query of this number in the tile after this one, and the place of its result.
EDGE_INLINE void ask_for_query(const TileSegment& t, int64_t n) {
  const int64_t group = t.a.q_heads / t.a.kv_heads;
  if (t.then == nullptr || n >= t.then->rows * group) return;
  const int64_t row = t.then->row + n / group, head = t.then->kv_head * group + n % group;
  const float* const q = t.a.q + row * t.a.row_stride + head * t.a.head_stride;
  const float* const out = t.a.out + (row * t.a.q_heads + head) * t.a.head_dim;
  for (int64_t d = 0; d < t.a.head_dim; d += kLanes) {
    __builtin_prefetch(q + d);
    __builtin_prefetch(out + d, 1);
  }
}

// The weights of the queries first .. first+rows-1, at most kBlockQueries, from their scores `block`; step by step for all, so that none waits for
// the end of another's sums. A query that sees nothing has weights of zero, and neither a top nor a sum.
EDGE_INLINE void weigh_block(const TileSegment& t, int64_t first, int64_t rows, float* block, SoftmaxPart part) {
  const int64_t group = t.a.q_heads / t.a.kv_heads;
  Span tokens[kBlockQueries];
  const bool capped = t.a.cap != 0.0f;
  for (int64_t r = 0; r < rows; ++r) {
    tokens[r] = t.here.seen[(first + r) / group];
    if (tokens[r].empty()) continue;
    float* const scores = block + r * kScoreStride;
    if (capped) cap_scores(scores, tokens[r], t.a.cap);
    part.top[first + r] = largest_score(scores, tokens[r]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* const step = t.s.weight_step + first + r;
    *step = 0.0f;
    ask_for_query(t, first + r);
    if (!tokens[r].empty())
      exponentials(block + r * kScoreStride, tokens[r], part.top[first + r], t.s.value_scale, part.sum + first + r, step);
  }
  for (int64_t r = 0; r < rows; ++r)
    round_weights(block + r * kScoreStride, tokens[r], t.s.weight_step[first + r], t.here.pages,
                  t.s.weights + (first + r) * kWeightStride);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
