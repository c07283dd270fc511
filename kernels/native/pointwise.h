// Row-wise float kernels: root mean square norm (rows and heads), rotary embedding, SwiGLU.
#pragma once

#include "pool.h"
#include "table_pointwise.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// f(i, n) over 0..count in steps of one vector; n < kLanes only for the last, partial one.
template <class Body>
EDGE_INLINE void each_vector(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}
EDGE_INLINE f32x16 negate(f32x16 a) { return sub(broadcast(-0.0f), a); }
EDGE_INLINE f32x16 load_some(const float* p, int n) { return n == kLanes ? load(p) : load_partial(p, n); }
EDGE_INLINE void store_some(float* p, f32x16 a, int n) {
  if (n == kLanes)
    store(p, a);
  else
    store_partial(p, a, n);
}

// 1 / sqrt(mean(x^2) + eps)
EDGE_INLINE float inverse_rms(const float* x, int64_t dim, float eps) {
  f32x16 sum = zero();
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const f32x16 a = load_some(x + i, n);
    sum = fma(a, a, sum);
  });
  const float mean = reduce_add(sum) / static_cast<float>(dim);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

// y = (x * r) * gain, r = inverse_rms(x)
EDGE_INLINE void norm_head(const float* x, const float* gain, int64_t dim, float eps, float* out) {
  const f32x16 r = broadcast(inverse_rms(x, dim, eps));
  each_vector(dim, [&](int64_t i, int n) {
    store_some(out + i, mul(mul(load_some(x + i, n), r), load_some(gain + i, n)), n);
  });
}

static void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m)
    for (int64_t h = 0; h < a.heads; ++h)
      norm_head(a.x + m * a.row_stride + h * a.head_stride, a.gain, a.dim, a.eps,
                a.out + m * a.out_row_stride + h * a.out_head_stride);
}

static void rope_rows(const RopeArgs& a, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const float* cos = a.cos + a.positions[m] * a.half;
    const float* sin = a.sin + a.positions[m] * a.half;
    for (int64_t h = 0; h < a.heads; ++h) {
      float* first = a.x + m * a.row_stride + h * a.head_stride;
      float* second = first + a.half;
      each_vector(a.half, [&](int64_t i, int n) {
        const f32x16 x1 = load_some(first + i, n), x2 = load_some(second + i, n);
        const f32x16 c = load_some(cos + i, n), s = load_some(sin + i, n);
        store_some(first + i, fma(negate(x2), s, mul(x1, c)), n);
        store_some(second + i, fma(x1, s, mul(x2, c)), n);
      });
    }
  }
}

// silu(gate) * up, silu(g) = g / (1 + exp(-g))
EDGE_INLINE f32x16 swiglu(f32x16 gate, f32x16 up) { return mul(div(gate, add(broadcast(1.0f), exp(negate(gate)))), up); }

static void swiglu_rows(const SwigluArgs& a, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const float* gate = a.gate_up + m * 2 * a.width;
    const float* up = gate + a.width;
    float* out = a.out + m * a.width;
    each_vector(a.width, [&](int64_t i, int n) {
      store_some(out + i, swiglu(load_some(gate + i, n), load_some(up + i, n)), n);
    });
  }
}

}  // namespace EDGE_VARIANT
}  // namespace edge
