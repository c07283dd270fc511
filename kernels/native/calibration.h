// What import measures on activations and makes of weights, each in one pass; kernels/reference/floats.py defines it. Sums of
// many values are taken in NumPy's order: up to 128 in eight chains, more by halves.
#pragma once

#include "pointwise.h"
#include "table_floats.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kLeaf = 128;

template <class T>
EDGE_INLINE T leaf_sum(const float* x, int64_t n) {
  T total = 0;
  int64_t i = 0;
  if (n >= 8) {
    T chain[8];
    for (int j = 0; j < 8; ++j) chain[j] = x[j];
    for (i = 8; i + 8 <= n; i += 8)
      for (int j = 0; j < 8; ++j) chain[j] += x[i + j];
    total = ((chain[0] + chain[1]) + (chain[2] + chain[3])) + ((chain[4] + chain[5]) + (chain[6] + chain[7]));
  }
  for (; i < n; ++i) total += x[i];
  return total;
}

// leaf(begin, n) -> T for at most kLeaf values.
template <class T, class Leaf>
T sum_by_halves(int64_t begin, int64_t n, const Leaf& leaf) {
  if (n <= kLeaf) return leaf(begin, n);
  const int64_t half = n / 2 - n / 2 % 8;
  const T first = sum_by_halves<T>(begin, half, leaf);
  return first + sum_by_halves<T>(begin + half, n - half, leaf);
}

struct Errors {
  double rounded, clipped;
  int64_t over;
  EDGE_INLINE Errors operator+(const Errors& other) const {
    return {rounded + other.rounded, clipped + other.clipped, over + other.over};
  }
};

static Errors leaf_errors(const float* x, float inverse, int64_t count) {
  float lost[kLeaf], clipped[kLeaf];
  int64_t over = 0;
  const f32x16 limit = broadcast(127.0f), last = broadcast(127.5f);
  each_vector(count, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const f32x16 steps = mul(load_some(x + i, n), broadcast(inverse));
    const f32x16 off = sub(steps, min(round_even_f32(steps), limit));
    const f32x16 squared = mul(off, off);
    store_some(lost + i, squared, n);
    store_some(clipped + i, select_less(last, steps, squared, zero()), n);
    over += __builtin_popcount(mask_greater(steps, last));
  });
  return {leaf_sum<double>(lost, count), over ? leaf_sum<double>(clipped, count) : 0.0, over};
}

static void rounding_errors(const RoundingErrors& a, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    const float* x = a.x + k * a.tokens;
    const Errors found = sum_by_halves<Errors>(0, a.tokens, [&](int64_t i, int64_t n) { return leaf_errors(x + i, a.inverse, n); });
    a.rounded[k] = found.rounded;
    a.clipped[k] = found.clipped;
    a.over[k] = found.over;
  }
}

// Token by token, in blocks of channels whose sums stay in L1.
static void channel_powers(const ChannelPowers& a) {
  constexpr int64_t kBlock = 1024;
  float unit[kBlock];
  double total[kBlock];
  uint32_t peak[kBlock];
  for (int64_t first = 0; first < a.channels; first += kBlock) {
    const int64_t count = min_i64(kBlock, a.channels - first);
    memset(peak, 0, sizeof(peak));
    for (int64_t t = 0; t < a.tokens; ++t) {
      const float* x = a.x + t * a.channels + first;
      for (int64_t k = 0; k < count; ++k) {
        uint32_t bits;
        memcpy(&bits, x + k, 4);
        bits &= 0x7FFFFFFFu;
        peak[k] = bits > peak[k] ? bits : peak[k];
      }
    }
    memcpy(a.largest + first, peak, static_cast<size_t>(count) * 4);
    for (int64_t k = 0; k < count; ++k) {
      unit[k] = a.largest[first + k] > 0.0f ? a.largest[first + k] : 1.0f;
      total[k] = 0.0;
    }
    for (int64_t t = 0; t < a.tokens; ++t) {
      const float* x = a.x + t * a.channels + first;
      for (int64_t k = 0; k < count; ++k) {
        const float share = x[k] / unit[k] * (x[k] / unit[k]);
        float raised = share;
        for (int pair = 1; pair < a.pairs; ++pair) raised = raised * share;
        total[k] += static_cast<double>(raised);
      }
    }
    memcpy(a.sums + first, total, static_cast<size_t>(count) * 8);
  }
}

// Row by row, in blocks of columns whose sums stay in L1.
static void column_squares(const ColumnSquares& a) {
  constexpr int64_t kBlock = 1024;
  double total[kBlock];
  for (int64_t first = 0; first < a.columns; first += kBlock) {
    const int64_t count = min_i64(kBlock, a.columns - first);
    memset(total, 0, sizeof(total));
    for (int64_t row = 0; row < a.rows; ++row) {
      const float* x = a.x + row * a.row_stride + first;
      for (int64_t k = 0; k < count; ++k) {
        const double share = static_cast<double>(x[k] / a.unit);
        total[k] += share * share;
      }
    }
    memcpy(a.sums + first, total, static_cast<size_t>(count) * 8);
  }
}

// f(begin, end) over the stretches of columns between the hot ones.
template <class Body>
EDGE_INLINE void between(const QuantizeRows& a, Body&& body) {
  int64_t begin = 0;
  for (int64_t h = 0; h < a.hot_columns; begin = a.hot[h] + 1, ++h) body(begin, static_cast<int64_t>(a.hot[h]));
  body(begin, a.columns);
}

EDGE_INLINE float largest_magnitude(const QuantizeRows& a, const float* row) {
  uint32_t peak = 0;  // NaN is above infinity, which is above all numbers
  between(a, [&](int64_t begin, int64_t end) EDGE_INLINE_LAMBDA {
    for (int64_t k = begin; k < end; ++k) {
      uint32_t bits;
      memcpy(&bits, row + k, 4);
      bits &= 0x7FFFFFFFu;
      peak = bits > peak ? bits : peak;
    }
  });
  float largest;
  memcpy(&largest, &peak, 4);
  return largest;
}

// A row whose largest value is not finite stays zero and has that scale.
static void quantize_rows(const QuantizeRows& a, int64_t begin, int64_t end) {
  const int64_t blocks = ceil_div(a.columns, kTileDepth);
  const f32x16 low = broadcast(-127.0f), high = broadcast(127.0f);
  for (int64_t row = begin; row < end; ++row) {
    const float* weight = a.weight + row * a.columns;
    int8_t* tile = a.tiles + row / kTileChannels * blocks * kTileBytes + row % kTileChannels * kTileDepth;
    const float scale = largest_magnitude(a, weight) / 127.0f;
    a.scale[row] = scale < 1e-30f ? 1e-30f : scale;
    a.row_sum[row] = 0;
    if (!(scale <= 3.4e38f)) continue;
    const f32x16 step = broadcast(a.scale[row]);
    int32_t sum = 0;
    each_vector(a.columns, [&](int64_t k, int n) EDGE_INLINE_LAMBDA {
      alignas(16) int8_t q[kLanes];
      store_i8(q, round_even(clamp(div(load_some(weight + k, n), step), low, high)));
      for (int i = n; i < kLanes; ++i) q[i] = 0;
      for (int i = 0; i < kLanes; ++i) sum += q[i];
      for (int i = 0; i < kLanes && i < n; i += kTileDepth) memcpy(tile + (k + i) / kTileDepth * kTileBytes, q + i, kTileDepth);
    });
    for (int64_t h = 0; h < a.hot_columns; ++h) {
      int8_t* q = tile + a.hot[h] / kTileDepth * kTileBytes + a.hot[h] % kTileDepth;
      sum -= *q;
      *q = 0;
    }
    a.row_sum[row] = sum;
  }
}

EDGE_INLINE uint32_t magnitude_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits & 0x7FFFFFFFu;
}

EDGE_INLINE float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// The magnitude at `index` of a row in order: its bits from the highest down, each by counting how many are below.
static void row_levels(const RowLevels& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = a.x + row * a.channels;
    uint32_t level = 0;
    for (int bit = 30; bit >= 0; --bit) {
      const uint32_t higher = level | 1u << bit;
      int32_t below = 0;
      for (int64_t k = 0; k < a.channels; ++k) below += magnitude_bits(x[k]) < higher;
      if (below <= a.index) level = higher;
    }
    a.levels[row] = of_bits(level);
  }
}

static float widen_bf16(const uint16_t* x, float* out, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    memcpy(out + i, &bits, 4);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return of_bits(largest);
}

static float widen_f16(const uint16_t* x, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, from_f16(x + i));
  if (i < count) {
    uint16_t last[kLanes] = {};
    memcpy(last, x + i, static_cast<size_t>(count - i) * 2);
    store_some(out + i, from_f16(last), static_cast<int>(count - i));
  }
  uint32_t largest = 0;
  for (int64_t j = 0; j < count; ++j) largest = magnitude_bits(out[j]) > largest ? magnitude_bits(out[j]) : largest;
  return of_bits(largest);
}

}  // namespace EDGE_VARIANT
}  // namespace edge
