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

#include <pairs.h>
#include <sizes.h>

#include "pointwise.h"
#include "pool.h"
#include "table_attention.h"
#include "turn.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kSegmentPages = kSegment / kPage;
constexpr int64_t kScoreStride = kSegment + 16;   // a power of two would put the same token's scores into few cache sets
constexpr int64_t kWeightStride = kSegment + 32;
constexpr int64_t kHeadRoom = kMaxHeadDim + kLanes;  // whole vectors are stored
constexpr float kInt16Most = 32767.0f, kSmallestNormal = 0x1p-126f, kLog2E = 0x1.715476p+0f;

// ---- append ------------------------------------------------------------------------------------------------

// x[dim] of one token and kv head -> q int8[dim] and its float16 scale; zeros, and false, when it is not finite.
EDGE_INLINE bool quantize_head(const float* x, int64_t dim, int8_t* q, uint16_t* scale) {
  f32x16 most = zero(), finite = zero();  // finite: a sum of x*0, NaN when any x is not finite
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const f32x16 a = load_some(x + i, n);
    most = max(most, abs(a));
    finite = fma(a, zero(), finite);
  });
  if (!(reduce_add(finite) == 0.0f)) {
    memset(q, 0, static_cast<size_t>(dim));
    *scale = 0;
    return false;
  }
  const float step = reduce_max(most) / 127.0f;
  uint16_t half[kLanes];
  to_f16(half, broadcast(step < 65504.0f ? step : 65504.0f));
  *scale = half[0];
  float rounded[kLanes];
  store(rounded, from_f16(half));
  const f32x16 inverse = broadcast(rounded[0] > 0.0f ? 1.0f / rounded[0] : 0.0f);
  const f32x16 low = broadcast(-127.0f), high = broadcast(127.0f);
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    store_i8(q + i, round_even(clamp(mul(load_some(x + i, n), inverse), low, high)));
  });
  return true;
}

// Whether the rows m and m+1 are two neighbours that pages keep side by side.
EDGE_INLINE bool are_pair(const int64_t* slots, int64_t m) {
  return slots[m] >= 0 && slots[m] % 2 == 0 && slots[m + 1] == slots[m] + 1;
}

// The integers of N tokens from this one on into their page. Two at once fill what one would write byte by byte.
template <int N>
EDGE_INLINE void place_keys(const int8_t (*q)[kHeadRoom], int64_t dim, int64_t token, int8_t* page) {
  for (int64_t d = 0; d < dim; d += 2)
    unrolled<N>([&](auto i) EDGE_INLINE_LAMBDA { memcpy(page + d * kPage + 2 * (token + i), q[i] + d, 2); });
}

template <int N>
EDGE_INLINE void place_values(const int8_t (*q)[kHeadRoom], int64_t dim, int64_t token, int8_t* page) {
  int8_t* const pairs = page + token / 2 * 2 * dim + token % 2;
  for (int64_t d = 0; d < dim; ++d) unrolled<N>([&](auto i) EDGE_INLINE_LAMBDA { pairs[2 * d + i] = q[i][d]; });
}

// Keys or values of N rows from m on, whose slots follow each other in a page; false when a head is not finite.
template <int N, class Place>
EDGE_INLINE bool append_tokens(const AppendArgs& a, int64_t m, Place&& place) {
  bool finite = true;
  int8_t q[N][kHeadRoom];
  for (int64_t h = 0; h < a.kv_heads; ++h) {
    const int64_t at = (a.slots[m] / kPage * a.kv_heads + h) * kPage, token = a.slots[m] % kPage;
    for (int i = 0; i < N; ++i)
      finite &= quantize_head(a.source + (m + i) * a.row_stride + h * a.head_dim, a.head_dim, q[i], a.scales + at + token + i);
    place(q, a.head_dim, token, a.pages + at * a.head_dim);
  }
  return finite;
}

template <int N>
EDGE_INLINE bool append_rows(const RopeAppendArgs& a, int64_t m) {
  const bool keys = append_tokens<N>(a.k, m, place_keys<N>), values = append_tokens<N>(a.v, m, place_values<N>);
  return keys && values;
}

// The keys of a row less their offset, all heads.
EDGE_INLINE void subtract_offset(float* k, const float* offset, int64_t count) {
  each_vector(count, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    store_some(k + i, sub(load_some(k + i, n), load_some(offset + i, n)), n);
  });
}

// Row m, which another thread may have in its cache.
EDGE_INLINE void ask_for_row(const RopeArgs& a, int64_t m) {
  for (int64_t i = 0; i < a.row_stride; i += kLanes) __builtin_prefetch(a.x + m * a.row_stride + i, 1);
}

EDGE_INLINE void norm_queries_and_keys(const RopeAppendArgs& a, int64_t m) {
  if (a.q_norm.gain != nullptr) norm_rows(a.q_norm, m, m + 1);
  if (a.k_norm.gain != nullptr) norm_rows(a.k_norm, m, m + 1);
}

// What some families do behind the rotation: norms of queries and keys, of values, the factor of the queries at a position.
EDGE_INLINE bool goes_on(const RopeAppendArgs& a) { return a.norm_last || a.v_norm.gain != nullptr || a.q_scale != nullptr; }
__attribute__((noinline)) static void go_on(const RopeAppendArgs& a, int64_t m) {
  if (a.norm_last) norm_queries_and_keys(a, m);
  if (a.v_norm.gain != nullptr) norm_rows(a.v_norm, m, m + 1);
  if (a.q_scale == nullptr) return;
  const f32x16 factor = broadcast(a.q_scale[a.rope.positions[m]]);
  float* const q = a.rope.x + m * a.rope.row_stride;
  each_vector((a.rope.heads - a.k.kv_heads) * a.k.head_dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    store_some(q + i, mul(load_some(q + i, n), factor), n);
  });
}

static bool rope_append_rows(const RopeAppendArgs& a, int64_t begin, int64_t end) {
  bool finite = true;
  const bool more = goes_on(a);
  for (int64_t m = begin; m < end; ++m) {  // row by row, because a row stays in the L1 cache
    if (m + 1 < end) ask_for_row(a.rope, m + 1);
    if (!a.norm_last) norm_queries_and_keys(a, m);
    rope_rows(a.rope, m, m + 1);
    if (more) go_on(a, m);
    subtract_offset(a.k.source + m * a.k.row_stride, a.k_offset, a.k.kv_heads * a.k.head_dim);
    turn_in_place(a.rope.x + m * a.rope.row_stride, a.rope.heads * a.k.head_dim, a.turn);
    if (a.k.slots[m] < 0) continue;
    if (m + 1 < end && are_pair(a.k.slots, m)) continue;  // with the next row
    finite &= m > begin && are_pair(a.k.slots, m - 1) ? append_rows<2>(a, m - 1) : append_rows<1>(a, m);
  }
  return finite;
}

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

// The factor that makes int16 of values up to step * 32767; zeros where the step has no exact enough inverse.
EDGE_INLINE f32x16 inverse_step(float step) { return broadcast(step >= kSmallestNormal ? 1.0f / step : 0.0f); }

// ---- a tile ------------------------------------------------------------------------------------------------

struct TileScratch {
  int16_t* q;          // [queries][padded]
  float* q_step;       // [queries]
  float* value_scale;  // [256]
  float* scores;       // [kBlockQueries][kScoreStride], of a block: scores, then weights
  int16_t* weights;    // [queries][kWeightStride]
  float* weight_step;  // [queries]
  float* run;          // a SoftmaxPart: the segments so far
  float* part;         // a SoftmaxPart: the segment at hand
};

static int64_t attention_scratch_floats(int64_t queries, int64_t head_dim) {
  const int64_t padded = attention_padded(head_dim);
  return queries * padded / 2 + kSegment + kBlockQueries * kScoreStride + queries * (2 + kWeightStride / 2) +
         2 * attention_part_floats(queries, head_dim);
}

EDGE_INLINE TileScratch tile_scratch(float* memory, int64_t queries, int64_t head_dim) {
  TileScratch s;
  s.q = reinterpret_cast<int16_t*>(memory);
  s.value_scale = memory + queries * attention_padded(head_dim) / 2;
  s.scores = s.value_scale + kSegment;
  float* const weights = s.scores + kBlockQueries * kScoreStride;
  s.weights = reinterpret_cast<int16_t*>(weights);
  s.run = weights + queries * kWeightStride / 2;
  s.part = s.run + attention_part_floats(queries, head_dim);
  s.q_step = s.part + attention_part_floats(queries, head_dim);
  s.weight_step = s.q_step + queries;
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

static void load_queries(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  const TileScratch s = tile_scratch(scratch, tile.rows * group, a.head_dim);
  for (int64_t n = 0; n < tile.rows * group; ++n) {
    const float* source = a.q + (tile.row + n / group) * a.row_stride + (tile.kv_head * group + n % group) * a.head_stride;
    s.q_step[n] = quantize_query(source, a.head_dim, a.softmax_scale, s.q + n * padded);
  }
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

// The weights of the queries first .. first+rows-1 from the block's scores; step by step for all, so that none waits for
// the end of another's sums. A query that sees nothing has weights of zero, and neither a top nor a sum.
EDGE_INLINE void weigh_block(const TileSegment& t, int64_t first, int64_t rows, SoftmaxPart part) {
  const int64_t group = t.a.q_heads / t.a.kv_heads;
  Span tokens[kBlockQueries];
  const bool capped = t.a.cap != 0.0f;
  for (int64_t r = 0; r < rows; ++r) {
    tokens[r] = t.here.seen[(first + r) / group];
    if (tokens[r].empty()) continue;
    float* const scores = t.s.scores + r * kScoreStride;
    if (capped) cap_scores(scores, tokens[r], t.a.cap);
    part.top[first + r] = largest_score(scores, tokens[r]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* const step = t.s.weight_step + first + r;
    *step = 0.0f;
    ask_for_query(t, first + r);
    if (!tokens[r].empty())
      exponentials(t.s.scores + r * kScoreStride, tokens[r], part.top[first + r], t.s.value_scale, part.sum + first + r, step);
  }
  for (int64_t r = 0; r < rows; ++r)
    round_weights(t.s.scores + r * kScoreStride, tokens[r], t.s.weight_step[first + r], t.here.pages,
                  t.s.weights + (first + r) * kWeightStride);
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
    weigh_block(t, first, rows, part);
  });
  each_block(queries, [&](int64_t first, int64_t rows) EDGE_INLINE_LAMBDA {
    with_rows<kBlockQueries>(rows, [&](auto r) EDGE_INLINE_LAMBDA {
      value_head<r>(t, first, t.pages_seen(first, rows), part.value);
    });
  });
  ask_for_the_rest(t);
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

constexpr AttentionKernels attention_kernels = {rope_append_rows, attention_scratch_floats, attend, load_queries,
                                                attend_segment, join_segments};

}  // namespace EDGE_VARIANT
}  // namespace edge
