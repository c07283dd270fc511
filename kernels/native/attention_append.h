// Keys and values into their pages; see attention.h.
#pragma once

#include "pointwise.h"
#include "table_attention.h"
#include "turn.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kHeadRoom = kMaxHeadDim + kLanes;  // whole vectors are stored

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

}  // namespace EDGE_VARIANT
}  // namespace edge
