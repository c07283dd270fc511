// Row-wise float kernels: norms (rows and heads), rotary embedding, gates and activations.
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

// 1 / sqrt(mean((x - middle)^2) + eps)
EDGE_INLINE float inverse_deviation(const float* x, int64_t dim, float middle, float eps) {
  const f32x16 shift = broadcast(middle);
  f32x16 sum = zero();
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const f32x16 a = sub(load_some(x + i, n), shift);
    sum = fma(a, n == kLanes ? a : first_or(a, n, zero()), sum);
  });
  return 1.0f / __builtin_sqrtf(reduce_add(sum) / static_cast<float>(dim) + eps);
}

EDGE_INLINE float mean_of(const float* x, int64_t dim) {
  f32x16 sum = zero();
  each_vector(dim, [&](int64_t i, int n) EDGE_INLINE_LAMBDA { sum = add(sum, load_some(x + i, n)); });
  return reduce_add(sum) / static_cast<float>(dim);
}

// y = (x * r) * gain (+ bias) (+ add); x less its mean first where it is centred.
__attribute__((noinline)) static void norm_row(const NormArgs& a, int64_t m) {
  const float* x = a.x + m * a.row_stride;
  const float *added = a.add == nullptr ? nullptr : a.add + m * a.add_row_stride, middle = a.centred ? mean_of(x, a.dim) : 0.0f;
  const f32x16 shift = broadcast(middle);
  const f32x16 r = broadcast(a.centred ? inverse_deviation(x, a.dim, middle, a.eps) : inverse_rms(x, a.dim, a.eps));
  float* out = a.out + m * a.out_row_stride;
  each_vector(a.dim, [&](int64_t i, int n) {
    f32x16 y = load_some(x + i, n);
    if (a.centred) y = sub(y, shift);
    y = mul(mul(y, r), load_some(a.gain + i, n));
    if (a.bias != nullptr) y = add(y, load_some(a.bias + i, n));
    if (added != nullptr) y = add(y, load_some(added + i, n));
    store_some(out + i, y, n);
  });
}

static void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
  if (a.centred || a.bias != nullptr || a.add != nullptr) {
    for (int64_t m = begin; m < end; ++m) norm_row(a, m);
    return;
  }
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

// g / (1 + exp(-g))
EDGE_INLINE f32x16 silu(f32x16 g) { return div(g, add(broadcast(1.0f), exp(negate(g)))); }
EDGE_INLINE f32x16 swiglu(f32x16 gate, f32x16 up) { return mul(silu(gate), up); }

// g / (1 + exp(-2u)) = g (1 + tanh(u)) / 2, u = sqrt(2 / pi) (g + 0.044715 g^3)
EDGE_INLINE f32x16 gelu_tanh(f32x16 g) {
  const f32x16 slope = fma(mul(g, g), broadcast(-0x1.2444f2p-4f), broadcast(-0x1.988454p+0f));
  return div(g, add(broadcast(1.0f), exp(mul(g, slope))));
}

// g times the normal distribution's integral: its tail by exp and a polynomial in t = 1 / (1 + |g| / sqrt(8)).
EDGE_INLINE f32x16 gelu_erf(f32x16 g) {
  const f32x16 one = broadcast(1.0f);
  const f32x16 t = div(one, fma(abs(g), broadcast(0x1.6a09e6p-2f), one));
  f32x16 p = broadcast(-0x1.e3e492p-5f);
  p = fma(p, t, broadcast(0x1.23679cp-2f));
  p = fma(p, t, broadcast(-0x1.f2e482p-2f));
  p = fma(p, t, broadcast(0x1.1cbd9ep-2f));
  p = fma(p, t, broadcast(-0x1.b43be0p-6f));
  p = fma(p, t, broadcast(0x1.9f1a48p-3f));
  p = fma(p, t, broadcast(0x1.f1e064p-3f));
  p = fma(p, t, broadcast(0x1.2126fep-2f));
  p = fma(p, t, broadcast(0x1.20db44p-2f));
  const f32x16 half = broadcast(0.5f), square = mul(g, g);
  const f32x16 tail = mul(mul(p, t), mul(half, exp(mul(square, negate(half)))));
  return mul(g, select_less(g, zero(), tail, sub(one, tail)));
}

EDGE_INLINE f32x16 relu(f32x16 g) { return max(zero(), g); }

EDGE_INLINE f32x16 clamped_silu(f32x16 gate, f32x16 up, f32x16 limit) {
  const f32x16 g = min(limit, gate), u = max(negate(limit), min(limit, up)), one = broadcast(1.0f);
  return mul(add(u, one), div(g, add(one, exp(mul(g, broadcast(-0x1.b3b646p+0f))))));
}

// body(f) with f(g) of this kind.
template <class Body>
EDGE_INLINE void with_activation(Gate kind, Body&& body) {
  switch (kind.kind) {
    case kGeluTanh: return body([](f32x16 g) EDGE_INLINE_LAMBDA { return gelu_tanh(g); });
    case kGeluErf: return body([](f32x16 g) EDGE_INLINE_LAMBDA { return gelu_erf(g); });
    case kRelu: return body([](f32x16 g) EDGE_INLINE_LAMBDA { return relu(g); });
    case kReluSquared: return body([](f32x16 g) EDGE_INLINE_LAMBDA { return mul(relu(g), relu(g)); });
    default: return body([](f32x16 g) EDGE_INLINE_LAMBDA { return silu(g); });
  }
}

// body(f) with f(gate, up) of this kind.
template <class Body>
EDGE_INLINE void with_gate(Gate gate, Body&& body) {
  if (gate.kind == kClampedSilu) {
    const f32x16 limit = broadcast(gate.limit);
    return body([&](f32x16 g, f32x16 u) EDGE_INLINE_LAMBDA { return clamped_silu(g, u, limit); });
  }
  with_activation(gate, [&](auto f) EDGE_INLINE_LAMBDA {
    body([&](f32x16 g, f32x16 u) EDGE_INLINE_LAMBDA { return mul(f(g), u); });
  });
}

// rows x width of gate and up, each row `stride` from the next, meet in `out`.
__attribute__((noinline)) static void gate_block(Gate gate, const float* gates, const float* ups, int64_t stride, int64_t rows, int64_t width, float* out,
                       int64_t out_stride) {
  with_gate(gate, [&](auto f) EDGE_INLINE_LAMBDA {
    for (int64_t m = 0; m < rows; ++m)
      each_vector(width, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
        const float *g = gates + m * stride + i, *u = ups + m * stride + i;
        store_some(out + m * out_stride + i, f(load_some(g, n), load_some(u, n)), n);
      });
  });
}

static void gate_rows(const GateArgs& a, int64_t begin, int64_t end) {
  const float* first = a.gate_up + begin * 2 * a.width;
  gate_block(a.gate, first, first + a.width, 2 * a.width, end - begin, a.width, a.out + begin * a.width, a.width);
}

static void activate_rows(const ActivateArgs& a, int64_t begin, int64_t end) {
  const auto each = [&](auto f) EDGE_INLINE_LAMBDA {
    each_vector((end - begin) * a.width, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
      const int64_t at = begin * a.width + i;
      store_some(a.out + at, f(load_some(a.x + at, n)), n);
    });
  };
  if (a.kind.kind != kSoftCap) return with_activation(a.kind, each);
  const f32x16 limit = broadcast(a.kind.limit), inverse = broadcast(1.0f / a.kind.limit);
  each([&](f32x16 x) EDGE_INLINE_LAMBDA { return mul(tanh(mul(x, inverse)), limit); });
}

}  // namespace EDGE_VARIANT
}  // namespace edge
