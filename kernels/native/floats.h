// Float products and exponentials for what is computed before a model is INT8. An output of the product is sixteen chains of
// fma over the columns and the fixed tree, whatever the tile it falls in.
#pragma once

#include <sizes.h>

#include "calibration.h"
#include "pointwise.h"
#include "table_floats.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// Of R rows by P channels.

template <int R, int P>
using FloatSums = f32x16[R][P];

// The first `count` columns of R rows and P channels.
template <int R, int P>
EDGE_INLINE void add_columns(const FloatProduct& a, int64_t m, int64_t n, int64_t count, FloatSums<R, P>& sum) {
  const float* x = a.x + m * a.columns;
  const float* weight = a.weight + n * a.weight_stride;
  each_vector(count, [&](int64_t k, int lanes) EDGE_INLINE_LAMBDA {
    f32x16 w[P];
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { w[p] = load_some(weight + p * a.weight_stride + k, lanes); });
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const f32x16 value = load_some(x + r * a.columns + k, lanes);
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = fma(value, w[p], sum[r][p]); });
    });
  });
}

template <int R, int P>
EDGE_INLINE void reduce_sums(const FloatProduct& a, int64_t m, int64_t n, const FloatSums<R, P>& sum) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    float* out = a.out + (m + r) * a.channels + n;
    constexpr int kJoint = P / 4 * 4;
    if constexpr (kJoint == 4) reduce_add_4(sum[r][0], sum[r][1], sum[r][2], sum[r][3], out);
    unrolled<P - kJoint>([&](auto p) EDGE_INLINE_LAMBDA { out[kJoint + p] = reduce_add(sum[r][kJoint + p]); });
  });
}

template <int R, int P>
EDGE_INLINE void clear(FloatSums<R, P>& sum) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = zero(); }); });
}

template <int R, int P>
void float_tile(const FloatProduct& a, int64_t m, int64_t n) {
  FloatSums<R, P> sum;
  clear<R, P>(sum);
  add_columns<R, P>(a, m, n, a.columns, sum);
  reduce_sums<R, P>(a, m, n, sum);
}

// While the rows pass by, the next P channels are fetched, a share with every tile.
template <int P>
void float_rows(const FloatProduct& a, int64_t begin, int64_t end, int64_t n) {
  constexpr int64_t kLine = 64;
  const char* next = reinterpret_cast<const char*>(a.weight + (n + P) * a.weight_stride);
  const int64_t bytes = max_i64(0, min_i64(P, a.channels - n - P)) * a.weight_stride * static_cast<int64_t>(sizeof(float));
  const int64_t share = ceil_div(bytes, max_i64(1, (end - begin) / kFloatRows) * kLine) * kLine;
  int64_t fetched = 0;
  int64_t m = begin;
  for (; m + kFloatRows <= end; m += kFloatRows) {
    for (const int64_t stop = min_i64(bytes, fetched + share); fetched < stop; fetched += kLine)
      __builtin_prefetch(next + fetched, 0, 2);
    float_tile<kFloatRows, P>(a, m, n);
  }
  for (; m < end; ++m) float_tile<1, P>(a, m, n);
}

// Many columns: the weights of a tile would fill a core's L1, and a few rows its L2. A piece of the columns of many rows does
// so instead, with the weights side by side, and the sums of some channels wait for the next piece.
constexpr int64_t kManyColumns = 4000, kPiece = 1024, kWaitingRows = 128, kWaitingChannels = 18;

template <int R, int P>
void waiting_tile(const FloatProduct& a, int64_t m, int64_t n, int64_t begin, const float* weights, float* waiting) {
  const int64_t count = min_i64(kPiece, a.columns - begin);
  FloatSums<R, P> sum;
  if (begin == 0) {
    clear<R, P>(sum);
  } else {
    unrolled<R * P>([&](auto i) EDGE_INLINE_LAMBDA { sum[i / P][i % P] = load(waiting + i * kLanes); });
  }
  add_columns<R, P>({a.x + begin, a.rows, weights, kPiece + kLanes, a.channels, a.columns, a.out}, m, 0, count, sum);
  if (begin + count == a.columns) return reduce_sums<R, P>(a, m, n, sum);
  unrolled<R * P>([&](auto i) EDGE_INLINE_LAMBDA { store(waiting + i * kLanes, sum[i / P][i % P]); });
}

template <int P>
void waiting_rows(const FloatProduct& a, int64_t m, int64_t rows, int64_t n, int64_t begin, float* waiting) {
  float weights[P * (kPiece + kLanes)];
  for (int p = 0; p < P; ++p)
    memcpy(weights + p * (kPiece + kLanes), a.weight + (n + p) * a.weight_stride + begin,
           static_cast<size_t>(min_i64(kPiece, a.columns - begin)) * sizeof(float));
  int64_t r = 0;
  for (; r + kFloatRows <= rows; r += kFloatRows)
    waiting_tile<kFloatRows, P>(a, m + r, n, begin, weights, waiting + r * P * kLanes);
  for (; r < rows; ++r) waiting_tile<1, P>(a, m + r, n, begin, weights, waiting + r * P * kLanes);
}

static void many_columns(const FloatProduct& a, int64_t begin, int64_t end) {
  float waiting[kWaitingRows * kWaitingChannels * kLanes];
  for (int64_t m = 0; m < a.rows; m += kWaitingRows)
    for (int64_t first = begin; first < end; first += kWaitingChannels) {
      const int64_t rows = min_i64(kWaitingRows, a.rows - m), stop = min_i64(end, first + kWaitingChannels);
      for (int64_t k = 0; k < a.columns; k += kPiece) {
        float* room = waiting;
        int64_t n = first;
        for (; n + kFloatChannels <= stop; n += kFloatChannels, room += kFloatChannels * kWaitingRows * kLanes)
          waiting_rows<kFloatChannels>(a, m, rows, n, k, room);
        for (; n < stop; ++n, room += kWaitingRows * kLanes) waiting_rows<1>(a, m, rows, n, k, room);
      }
    }
}

// In blocks of whole tiles of rows that stay in a core's L2 while the channels pass by.
static void float_product(const FloatProduct& a, int64_t begin, int64_t end) {
  if (a.columns > kManyColumns && a.rows >= 2 * kFloatRows) return many_columns(a, begin, end);
  constexpr int64_t kBlockBytes = 512 << 10;
  const int64_t row_bytes = max_i64(1, a.columns) * static_cast<int64_t>(sizeof(float));
  const int64_t block = max_i64(1, kBlockBytes / row_bytes / kFloatRows) * kFloatRows;
  for (int64_t m = 0; m < a.rows; m += block) {
    const int64_t stop = min_i64(a.rows, m + block);
    int64_t n = begin;
    for (; n + kFloatChannels <= end; n += kFloatChannels) float_rows<kFloatChannels>(a, m, stop, n);
    for (; n + 2 <= end; n += 2) float_rows<2>(a, m, stop, n);
    for (; n < end; ++n) float_rows<1>(a, m, stop, n);
  }
}

static void float_exp(const float* x, float* out, int64_t begin, int64_t end) {
  each_vector(end - begin, [&](int64_t i, int n) { store_some(out + begin + i, exp(load_some(x + begin + i, n)), n); });
}

// The first `seen` scores become weights that add up to 1, and the rest of `kept` become 0. They are added in the order of a
// sum over all `positions`, zeros included.
static void attention_weights(float* scores, float scale, int64_t seen, int64_t kept, int64_t positions, float* raised) {
  float largest = -__builtin_inff();
  for (int64_t i = 0; i < seen; ++i) {
    scores[i] *= scale;
    largest = scores[i] > largest ? scores[i] : largest;
  }
  const f32x16 most = broadcast(largest);
  each_vector(seen, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    store_some(raised + i, exp(sub(load_some(scores + i, n), most)), n);
  });
  memset(raised + seen, 0, static_cast<size_t>(positions - seen) * sizeof(float));
  const float total = sum_by_halves<float>(0, positions, [&](int64_t i, int64_t n) { return leaf_sum<float>(raised + i, n); });
  for (int64_t i = 0; i < kept; ++i) scores[i] = raised[i] / total;
}

static void float_attention(const FloatAttention& a, float* scratch, int64_t begin, int64_t end) {
  float* turned = scratch;  // [D, S]
  float* queries = turned + a.dim * a.positions;
  float* outputs = queries + a.kAttended * a.dim;
  float* scores = outputs + a.kAttended * a.dim;
  float* raised = scores + a.kAttended * a.positions;
  const int64_t past = a.positions - a.tokens;
  for (int64_t head = begin; head < end; ++head) {
    const int64_t group = head / (a.heads / a.kv_heads);
    const float* keys = a.keys + group * a.positions * a.dim;
    const float* values = a.values + group * a.positions * a.dim;
    for (int64_t i = 0; i < a.positions; ++i)
      for (int64_t d = 0; d < a.dim; ++d) turned[d * a.positions + i] = values[i * a.dim + d];
    for (int64_t first = 0; first < a.tokens; first += a.kAttended) {
      const int64_t count = min_i64(a.kAttended, a.tokens - first), kept = past + first + count;
      const size_t row_bytes = static_cast<size_t>(a.dim) * sizeof(float);
      for (int64_t m = 0; m < count; ++m)
        memcpy(queries + m * a.dim, a.queries + ((first + m) * a.heads + head) * a.dim, row_bytes);
      float_product({queries, count, keys, a.dim, kept, a.dim, scores}, 0, kept);
      for (int64_t m = 0; m < count; ++m)
        attention_weights(scores + m * kept, a.scale, past + first + m + 1, kept, a.positions, raised);
      float_product({scores, count, turned, a.positions, a.dim, kept, outputs}, 0, a.dim);
      for (int64_t m = 0; m < count; ++m)
        memcpy(a.out + ((first + m) * a.heads + head) * a.dim, outputs + m * a.dim, row_bytes);
    }
  }
}

constexpr FloatKernels float_kernels = {float_product,  float_exp,     rounding_errors, channel_powers, column_squares,
                                        quantize_rows,  row_levels,    float_attention, widen_bf16,     widen_f16};

}  // namespace EDGE_VARIANT
}  // namespace edge
