// Attention over paged INT8 keys and values, and the write into the pages.
//
// A tile is a few query rows of one sequence times the query heads of one kv head. Keys are handled in segments of 256
// tokens: scores of all tile queries against each page, a softmax per query, then the weighted values of each page. Keys
// are transposed page by page, so that the 16 virtual lanes of a dot product are 16 registers over tokens and their tree
// is plain additions. Pages turn to float32 in registers, or, for many queries, once per tile in a scratch of one page
// that stays in the L1 cache. A query's arithmetic never depends on the other queries of its tile: a masked key has
// weight +0, and fma(+0, v, o) = o for every o that occurs (o starts at +0).
#pragma once

#include "pool.h"
#include "table_attention.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// Queries per register block of the score and of the value product, vectors of values per block, and whether common head
// sizes have code of their own, without a loop over their chunks.
#if defined(__AVX512F__)
constexpr int kScoreRows = 8, kValueRows = 8, kValueVectors = 2;
constexpr bool kUnrollChunks = true;
#elif defined(__AVX2__)
constexpr int kScoreRows = 4, kValueRows = 4, kValueVectors = 1;
constexpr bool kUnrollChunks = true;
#elif defined(EDGE_NEON)
constexpr int kScoreRows = 4, kValueRows = 4, kValueVectors = 1;
constexpr bool kUnrollChunks = false;  // GCC would take so many loads forward that half of the code is spills
#else
constexpr int kScoreRows = 1, kValueRows = 1, kValueVectors = 1;
constexpr bool kUnrollChunks = true;
#endif
constexpr int kFewQueries = 8;  // up to here a page is turned to float32 as it is used, without a copy

constexpr int64_t kScoreStride = kSegment + 16;  // a power of two would put a page's scores into few cache sets
constexpr int64_t kPrefetchPages = 2;  // how far ahead of its use a page is asked for

// ---- append ------------------------------------------------------------------------------------------------

// One token and kv head: x[dim] -> q int8[dim] and its float16 scale.
EDGE_INLINE bool append_head(const float* x, int64_t dim, int8_t* q, uint16_t* scale) {
  const int tail = static_cast<int>(dim % kLanes);
  const int64_t whole = dim - tail;
  f32x16 most = zero(), finite = zero();  // finite: a sum of x*0, NaN when any x is not finite
  for (int64_t i = 0; i < whole; i += kLanes) {
    most = max(most, abs(load(x + i)));
    finite = fma(load(x + i), zero(), finite);
  }
  if (tail != 0) {
    most = max(most, abs(load_partial(x + whole, tail)));
    finite = fma(load_partial(x + whole, tail), zero(), finite);
  }
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
  for (int64_t i = 0; i < whole; i += kLanes) store_i8(q + i, round_even(clamp(mul(load(x + i), inverse), low, high)));
  if (tail != 0)
    store_i8_partial(q + whole, round_even(clamp(mul(load_partial(x + whole, tail), inverse), low, high)), tail);
  return true;
}

static bool append_rows(const AppendArgs& a, int64_t begin, int64_t end) {
  bool finite = true;
  for (int64_t m = begin; m < end; ++m) {
    if (a.slots[m] < 0) continue;
    const int64_t page = a.slots[m] / kPage, offset = a.slots[m] % kPage;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      const int64_t at = (page * a.kv_heads + h) * kPage + offset;
      finite &= append_head(a.source + m * a.row_stride + h * a.head_stride, a.head_dim, a.pages + at * a.head_dim,
                            a.scales + at);
    }
  }
  return finite;
}

// ---- pages to float32 --------------------------------------------------------------------------------------

// Registers of bytes that interleave inside each 16-byte part.
#if defined(EDGE_NEON)
struct Bytes16 { int8x16_t v; };
EDGE_INLINE Bytes16 unpack_low(Bytes16 a, Bytes16 b) { return {vzip1q_s8(a.v, b.v)}; }
EDGE_INLINE Bytes16 unpack_high(Bytes16 a, Bytes16 b) { return {vzip2q_s8(a.v, b.v)}; }
#elif defined(__AVX2__)
struct Bytes16 { __m128i v; };
struct Bytes32 { __m256i v; };
EDGE_INLINE Bytes16 unpack_low(Bytes16 a, Bytes16 b) { return {_mm_unpacklo_epi8(a.v, b.v)}; }
EDGE_INLINE Bytes16 unpack_high(Bytes16 a, Bytes16 b) { return {_mm_unpackhi_epi8(a.v, b.v)}; }
EDGE_INLINE Bytes32 unpack_low(Bytes32 a, Bytes32 b) { return {_mm256_unpacklo_epi8(a.v, b.v)}; }
EDGE_INLINE Bytes32 unpack_high(Bytes32 a, Bytes32 b) { return {_mm256_unpackhi_epi8(a.v, b.v)}; }
#if defined(__AVX512F__)
struct Bytes64 { __m512i v; };
EDGE_INLINE Bytes64 unpack_low(Bytes64 a, Bytes64 b) { return {_mm512_unpacklo_epi8(a.v, b.v)}; }
EDGE_INLINE Bytes64 unpack_high(Bytes64 a, Bytes64 b) { return {_mm512_unpackhi_epi8(a.v, b.v)}; }
#endif
#endif

#if defined(__AVX2__) || defined(EDGE_NEON)
// Dims first .. first+width-1 of 16 tokens (width: the bytes of a register): rows t and t+8 interleaved, four times.
template <class Bytes>
EDGE_INLINE void transpose_dims(const int8_t* page, int64_t dims, int64_t first, int8_t* out) {
  Bytes rows[16], next[16];
  for (int t = 0; t < 16; ++t) memcpy(&rows[t], page + t * dims + first, sizeof(Bytes));
  for (int round = 0; round < 4; ++round) {
    for (int t = 0; t < 8; ++t) {
      next[2 * t] = unpack_low(rows[t], rows[t + 8]);
      next[2 * t + 1] = unpack_high(rows[t], rows[t + 8]);
    }
    for (int t = 0; t < 16; ++t) rows[t] = next[t];
  }
  // rows[i]: the 16 tokens of dim first + i, of dim first + 16 + i, ...
  for (int i = 0; i < 16; ++i) memcpy(out + i * dims + first, &rows[i], sizeof(Bytes));
}
#endif

// int8 [16 tokens][dims] -> int8 [16 lanes][dims / 16][16 tokens], dims a multiple of 16.
EDGE_INLINE void transpose_page(const int8_t* page, int64_t dims, int8_t* out) {
#if defined(__AVX2__) || defined(EDGE_NEON)
  int64_t d = 0;
#if defined(__AVX512F__)
  for (; d + 64 <= dims; d += 64) transpose_dims<Bytes64>(page, dims, d, out);
#endif
#if defined(__AVX2__)
  for (; d + 32 <= dims; d += 32) transpose_dims<Bytes32>(page, dims, d, out);
#endif
  for (; d < dims; d += 16) transpose_dims<Bytes16>(page, dims, d, out);
#else
  for (int64_t d = 0; d < dims; ++d)
    for (int64_t t = 0; t < kPage; ++t) out[d % kLanes * dims + d / kLanes * kPage + t] = page[t * dims + d];
#endif
}

// One kv head of a page, int8 [16][dim], the rows padded by zeros to whole vectors: in `memory` where that takes a copy.
EDGE_INLINE const int8_t* padded_page(const int8_t* page, int64_t dim, int64_t padded, int8_t* memory) {
  if (dim == padded) return page;
  for (int64_t t = 0; t < kPage; ++t) {
    memcpy(memory + t * padded, page + t * dim, static_cast<size_t>(dim));
    memset(memory + t * padded + dim, 0, static_cast<size_t>(padded - dim));
  }
  return memory;
}

EDGE_INLINE void widen_page(const int8_t* page, int64_t padded, float* out) {
  for (int64_t i = 0; i < kPage * padded; i += kLanes) store(out + i, from_i8(page + i));
}

// A page's numbers as stored, or turned to float32 before because several blocks of queries need them.
EDGE_INLINE f32x16 load_number(const int8_t* p) { return from_i8(p); }
EDGE_INLINE f32x16 load_number(const float* p) { return load(p); }

// Its callers must be inlined too: GCC takes a function that only prefetches for one without effect and drops the call.
EDGE_INLINE void prefetch_page(const int8_t* page, const uint16_t* scales, int64_t dim) {
  __builtin_prefetch(scales);
  for (int64_t i = 0; i < kPage * dim; i += 64) __builtin_prefetch(page + i);
}

// ---- scores ------------------------------------------------------------------------------------------------

// The tree of the lanes lane, lane+STEP, lane+2*STEP, ... of R dot products with 16 tokens: a leaf (STEP 16) is one lane,
// summed over the chunks of 16 dims. C is the number of chunks when known to the compiler, else 0.
template <int R, int C, int STEP, class Number>
EDGE_INLINE void lane_tree(const float* q, const Number* keys, int64_t chunks, int lane, f32x16 (&sums)[R]) {
  if constexpr (STEP == kLanes) {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { sums[r] = zero(); });
    const int64_t count = C > 0 ? C : chunks;
    for (int64_t c = 0; c < count; ++c) {
      const f32x16 k = load_number(keys + (lane * count + c) * kPage);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        sums[r] = fma(broadcast(q[(r * count + c) * kLanes + lane]), k, sums[r]);
      });
    }
  } else {
    f32x16 right[R];
    lane_tree<R, C, 2 * STEP>(q, keys, chunks, lane, sums);
    lane_tree<R, C, 2 * STEP>(q, keys, chunks, lane + STEP, right);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { sums[r] = add(sums[r], right[r]); });
  }
}

// scores[r * kScoreStride + t] = dot(q[r], key t) * key_scale[t] for R queries and one page, keys [lane][chunk][token].
template <int R, int C, class Number>
__attribute__((noinline)) void score_block(const float* q, const Number* keys, int64_t chunks, f32x16 key_scale,
                                           float* scores) {
  f32x16 sums[R];
  lane_tree<R, C, 1>(q, keys, chunks, 0, sums);
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { store(scores + r * kScoreStride, mul(sums[r], key_scale)); });
}

template <int R, class Number>
EDGE_INLINE void score_rows(int64_t rows, const float* q, const Number* keys, int64_t chunks, f32x16 key_scale,
                            float* scores) {
  if constexpr (R > 1) {
    if (rows < R) return score_rows<R - 1>(rows, q, keys, chunks, key_scale, scores);
  }
  if constexpr (kUnrollChunks) {
    if (chunks == 4) return score_block<R, 4>(q, keys, chunks, key_scale, scores);
    if (chunks == 8) return score_block<R, 8>(q, keys, chunks, key_scale, scores);
  }
  score_block<R, 0>(q, keys, chunks, key_scale, scores);
}

// ---- softmax -----------------------------------------------------------------------------------------------

// scores[0..padded) of one query, `tokens` of them valid -> weights p * value_scale, with maximum and sum of p.
EDGE_INLINE void softmax_weights(float* scores, int64_t tokens, int64_t padded, const float* value_scale, float* top,
                                 float* sum) {
  for (int64_t t = tokens; t < padded; ++t) scores[t] = -__builtin_inff();
  f32x16 most = load(scores);
  for (int64_t t = kLanes; t < padded; t += kLanes) most = max(most, load(scores + t));
  *top = reduce_max(most);
  const f32x16 shift = broadcast(*top);
  f32x16 total = zero();
  for (int64_t t = 0; t < padded; t += kLanes) {
    const f32x16 p = exp(sub(load(scores + t), shift));
    total = add(total, p);
    store(scores + t, mul(p, load(value_scale + t)));
  }
  for (int64_t t = tokens; t < padded; ++t) scores[t] = 0.0f;  // a stale scale may be anything
  *sum = reduce_add(total);
}

// ---- values ------------------------------------------------------------------------------------------------

// out[r] += sum over the 16 tokens ascending of weight[r][t] * value[t], R queries, V vectors of the head.
template <int R, int V, class Number>
EDGE_INLINE void value_block(const float* weights, const Number* values, int64_t padded, float* out) {
  f32x16 sums[R][V];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) sums[r][i] = load(out + r * padded + i * kLanes);
  for (int t = 0; t < kPage; ++t) {
    f32x16 value[V];
    for (int i = 0; i < V; ++i) value[i] = load_number(values + t * padded + i * kLanes);
    for (int r = 0; r < R; ++r) {
      const f32x16 weight = broadcast(weights[r * kScoreStride + t]);
      for (int i = 0; i < V; ++i) sums[r][i] = fma(weight, value[i], sums[r][i]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < V; ++i) store(out + r * padded + i * kLanes, sums[r][i]);
}

template <int R, class Number>
__attribute__((noinline)) void value_head(const float* weights, const Number* values, int64_t padded, float* out) {
  int64_t d = 0;
  for (; d + kValueVectors * kLanes <= padded; d += kValueVectors * kLanes)
    value_block<R, kValueVectors>(weights, values + d, padded, out + d);
  if constexpr (kValueVectors > 1) {
    for (; d < padded; d += kLanes) value_block<R, 1>(weights, values + d, padded, out + d);
  }
}

template <int R, class Number>
EDGE_INLINE void value_rows(int64_t rows, const float* weights, const Number* values, int64_t padded, float* out) {
  if constexpr (R > 1) {
    if (rows < R) return value_rows<R - 1>(rows, weights, values, padded, out);
  }
  value_head<R>(weights, values, padded, out);
}

// ---- a tile ------------------------------------------------------------------------------------------------

struct TileScratch {
  float* q;            // [queries][padded]: the queries times the softmax scale
  float* numbers;      // one page of keys or values, float32
  float* value_scale;  // [256]
  float* scores;       // [queries][kScoreStride]: scores, then weights
  float* run;          // a SoftmaxPart: the segments so far
  float* part;         // a SoftmaxPart: the segment at hand
  int8_t* padded;      // one page of keys or values, its rows padded
  int8_t* keys;        // one page of keys, transposed
};

static int64_t attention_scratch_floats(int64_t queries, int64_t head_dim) {
  const int64_t padded = attention_padded(head_dim);
  return queries * padded + kPage * padded + kSegment + queries * kScoreStride +
         2 * attention_part_floats(queries, head_dim) + 2 * kPage * padded / 4;
}

EDGE_INLINE TileScratch tile_scratch(float* memory, int64_t queries, int64_t head_dim) {
  const int64_t padded = attention_padded(head_dim);
  TileScratch s;
  s.q = memory;
  s.numbers = s.q + queries * padded;
  s.value_scale = s.numbers + kPage * padded;
  s.scores = s.value_scale + kSegment;
  s.run = s.scores + queries * kScoreStride;
  s.part = s.run + attention_part_floats(queries, head_dim);
  s.padded = reinterpret_cast<int8_t*>(s.part + attention_part_floats(queries, head_dim));
  s.keys = s.padded + kPage * padded;
  return s;
}

static void load_queries(const AttentionArgs& a, const AttentionTile& tile, float* q) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  const f32x16 scale = broadcast(a.scale);
  for (int64_t n = 0; n < tile.rows * group; ++n) {
    const float* source = a.q + (tile.row + n / group) * a.row_stride + (tile.kv_head * group + n % group) * a.head_stride;
    for (int64_t d = 0; d < padded; d += kLanes) {
      const int64_t left = a.head_dim - d;
      const f32x16 x = left < kLanes ? load_partial(source + d, static_cast<int>(left)) : load(source + d);
      store(q + n * padded + d, mul(x, scale));
    }
  }
}

// Tokens of a segment that a row sees: 0..256.
EDGE_INLINE int64_t visible(const AttentionArgs& a, int64_t row, int64_t segment) {
  return max_i64(0, min_i64(kSegment, a.row_position[row] + int64_t{1} - segment * kSegment));
}

// The same for the rows of the queries begin..end-1, the most of them.
EDGE_INLINE int64_t visible_most(const AttentionArgs& a, const AttentionTile& tile, int64_t begin, int64_t end,
                                 int64_t segment) {
  const int64_t group = a.q_heads / a.kv_heads;
  int64_t most = 0;
  for (int64_t r = begin / group; r <= (end - 1) / group; ++r) most = max_i64(most, visible(a, tile.row + r, segment));
  return most;
}

// A segment at work.
struct TileSegment {
  const AttentionArgs& a;
  const AttentionTile& tile;
  int64_t segment;
  const TileScratch& s;
  int64_t queries, padded;
  int64_t pages;  // that any query sees
  int64_t least;  // tokens that every query sees

  // Offset of page j's kv head in the scales; times the head size, in the pages.
  EDGE_INLINE int64_t slot(int64_t j) const {
    const int32_t* table = a.page_table + a.row_sequence[tile.row] * a.max_pages + segment * (kSegment / kPage);
    return (table[j] * a.kv_heads + tile.kv_head) * kPage;
  }

  // The pages in the order of their use: keys, then values.
  EDGE_INLINE void prefetch(int64_t step) const {
    const bool key = step < pages;
    if (step >= 2 * pages) return;
    const int64_t at = slot(key ? step : step - pages);
    prefetch_page((key ? a.k_pages : a.v_pages) + at * a.head_dim, (key ? a.k_scales : a.v_scales) + at, a.head_dim);
  }

  EDGE_INLINE bool block_sees(int64_t n, int64_t rows, int64_t j) const {
    return j * kPage < least || j * kPage < visible_most(a, tile, n, n + rows, segment);
  }

  template <class Number>
  EDGE_INLINE void score_page(int64_t j, const Number* keys) const {
    const f32x16 key_scale = from_f16(a.k_scales + slot(j));
    for (int64_t n = 0; n < queries; n += kScoreRows) {
      const int64_t rows = min_i64(kScoreRows, queries - n);
      if (block_sees(n, rows, j))
        score_rows<kScoreRows>(rows, s.q + n * padded, keys, padded / kLanes, key_scale,
                               s.scores + n * kScoreStride + j * kPage);
    }
  }

  template <class Number>
  EDGE_INLINE void value_page(int64_t j, const Number* values, float* out) const {
    for (int64_t n = 0; n < queries; n += kValueRows) {
      const int64_t rows = min_i64(kValueRows, queries - n);
      if (block_sees(n, rows, j))
        value_rows<kValueRows>(rows, s.scores + n * kScoreStride + j * kPage, values, padded, out + n * padded);
    }
  }
};

// One segment for all queries of a tile; a query that sees none of it gets an undefined part, which is never merged.
static void tile_segment(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, const TileScratch& s,
                         SoftmaxPart part) {
  const int64_t group = a.q_heads / a.kv_heads, queries = tile.rows * group;
  const int64_t dim = a.head_dim, padded = attention_padded(dim);
  int64_t least = kSegment;
  for (int64_t r = 0; r < tile.rows; ++r) least = min_i64(least, visible(a, tile.row + r, segment));
  const int64_t pages = ceil_div(visible_most(a, tile, 0, queries, segment), kPage);
  const TileSegment work = {a, tile, segment, s, queries, padded, pages, least};

  for (int64_t j = 0; j < pages; ++j) {
    work.prefetch(j + kPrefetchPages);
    transpose_page(padded_page(a.k_pages + work.slot(j) * dim, dim, padded, s.padded), padded, s.keys);
    if (queries <= kFewQueries) {
      work.score_page(j, s.keys);
    } else {
      widen_page(s.keys, padded, s.numbers);
      work.score_page(j, s.numbers);
    }
    store(s.value_scale + j * kPage, from_f16(a.v_scales + work.slot(j)));
  }

  for (int64_t n = 0; n < queries; ++n) {
    const int64_t tokens = visible(a, tile.row + n / group, segment);
    float* scores = s.scores + n * kScoreStride;
    if (tokens > 0)
      softmax_weights(scores, tokens, pages * kPage, s.value_scale, part.top + n, part.sum + n);
    else
      memset(scores, 0, static_cast<size_t>(pages * kPage) * sizeof(float));
  }

  memset(part.value, 0, static_cast<size_t>(queries * padded) * sizeof(float));
  for (int64_t j = 0; j < pages; ++j) {
    work.prefetch(pages + j + kPrefetchPages);
    const int8_t* values = padded_page(a.v_pages + work.slot(j) * dim, dim, padded, s.padded);
    if (queries <= kFewQueries) {
      work.value_page(j, values, part.value);
    } else {
      widen_page(values, padded, s.numbers);
      work.value_page(j, s.numbers, part.value);
    }
  }
}

// Query n: `segment` joins the segments before it.
EDGE_INLINE void merge_query(SoftmaxPart left, SoftmaxPart right, int64_t n, int64_t padded) {
  const float top = left.top[n] > right.top[n] ? left.top[n] : right.top[n];
  const f32x16 a = exp(broadcast(left.top[n] - top)), b = exp(broadcast(right.top[n] - top));
  float scale_left[kLanes], scale_right[kLanes];
  store(scale_left, a);
  store(scale_right, b);
  left.top[n] = top;
  left.sum[n] = fma_f32(left.sum[n], scale_left[0], right.sum[n] * scale_right[0]);
  for (int64_t d = n * padded; d < (n + 1) * padded; d += kLanes)
    store(left.value + d, fma(load(left.value + d), a, mul(load(right.value + d), b)));
}

static void merge_tile(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, SoftmaxPart left,
                       SoftmaxPart right) {
  const int64_t group = a.q_heads / a.kv_heads;
  for (int64_t n = 0; n < tile.rows * group; ++n)
    if (visible(a, tile.row + n / group, segment) > 0) merge_query(left, right, n, attention_padded(a.head_dim));
}

// out = value / sum; zeros for a row that sees nothing.
static void finish_tile(const AttentionArgs& a, const AttentionTile& tile, SoftmaxPart part) {
  const int64_t group = a.q_heads / a.kv_heads, padded = attention_padded(a.head_dim);
  for (int64_t n = 0; n < tile.rows * group; ++n) {
    const int64_t row = tile.row + n / group;
    float* out = a.out + (row * a.q_heads + tile.kv_head * group + n % group) * a.head_dim;
    const bool empty = a.row_position[row] < 0;
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

static void attend(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  const TileScratch s = tile_scratch(scratch, queries, a.head_dim);
  const SoftmaxPart run = attention_part(s.run, queries), part = attention_part(s.part, queries);
  load_queries(a, tile, s.q);
  for (int64_t segment = 0; segment < tile.segments; ++segment) {
    tile_segment(a, tile, segment, s, segment == 0 ? run : part);
    if (segment > 0) merge_tile(a, tile, segment, run, part);
  }
  finish_tile(a, tile, run);
}

static void attend_segment(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, SoftmaxPart part,
                           float* scratch) {
  const TileScratch s = tile_scratch(scratch, tile.rows * (a.q_heads / a.kv_heads), a.head_dim);
  load_queries(a, tile, s.q);
  tile_segment(a, tile, segment, s, part);
}

static void join_segments(const AttentionArgs& a, const AttentionTile& tile, float* parts, int64_t stride) {
  const int64_t queries = tile.rows * (a.q_heads / a.kv_heads);
  const SoftmaxPart run = attention_part(parts, queries);
  for (int64_t segment = 1; segment < tile.segments; ++segment)
    merge_tile(a, tile, segment, run, attention_part(parts + segment * stride, queries));
  finish_tile(a, tile, run);
}

constexpr AttentionKernels attention_kernels = {append_rows, attention_scratch_floats, attend, attend_segment,
                                                join_segments};

}  // namespace EDGE_VARIANT
}  // namespace edge
