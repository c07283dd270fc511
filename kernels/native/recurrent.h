// Mixers with a state of fixed size: the short causal convolution, the gated recurrence, its rates and its gated norm.
//
// A row is computed behind the one before it, one rank-one update of the state a row, in prompts as in answers: so no cut of
// a prompt changes a bit. Columns of a state do not see each other, hence a tile of them stays in the first cache for a run.
// Each instruction set has a unit of this header alone, which CMake writes.
#pragma once

#pragma GCC diagnostic ignored "-Wunused-function"  // of pointwise.h some are used

#include "pointwise.h"
#include "table_recurrent.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// Input `at` of a run, counted from its first row.
EDGE_INLINE const float* input_of(const ConvolutionArgs& a, const Run& run, int64_t at) {
  if (at >= 0) return a.x + (run.begin + at) * a.row_stride;
  return a.tails + run.reads * a.tail_stride + (a.taps - 1 + at) * a.channels;
}

static void convolve_row(const ConvolutionArgs& a, const Run& run, int64_t m) {
  const float* inputs[kMaxTaps];
  for (int64_t j = 0; j < a.taps; ++j) inputs[j] = input_of(a, run, m - run.begin - (a.taps - 1) + j);
  float* out = a.out + m * a.channels;
  each_vector(a.channels, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    f32x16 sum = a.bias == nullptr ? zero() : load_some(a.bias + i, n);
    for (int64_t j = 0; j < a.taps; ++j)
      sum = fma(load_some(a.weight + j * a.channels + i, n), load_some(inputs[j] + i, n), sum);
    store_some(out + i, a.silu ? silu(sum) : sum, n);
  });
}

static void convolve(const ConvolutionArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = 0; r < a.run_count; ++r) {
    const Run& run = a.runs[r];
    const int64_t stop = min_i64(end, run.end);
    for (int64_t m = max_i64(begin, run.begin); m < stop; ++m) convolve_row(a, run, m);
  }
}

static void keep_tails(const ConvolutionArgs& a) {
  const size_t row_bytes = static_cast<size_t>(a.channels) * sizeof(float);
  for (int64_t r = 0; r < a.run_count; ++r) {
    const Run& run = a.runs[r];
    float* tail = a.tails + run.writes * a.tail_stride;
    for (int64_t j = 0; j < a.taps - 1; ++j)
      memmove(tail + j * a.channels, input_of(a, run, run.end - run.begin - (a.taps - 1) + j), row_bytes);
  }
}

// log(1 + e^x) = max(x, 0) + log(1 + t), t = e^-|x|, by 2 atanh(t / (2 + t)) and its series to the 15th power.
EDGE_INLINE f32x16 softplus(f32x16 x) {
  const f32x16 t = exp(negate(abs(x))), s = div(t, add(broadcast(2.0f), t)), square = mul(s, s);
  f32x16 p = broadcast(0x1.111112p-4f);  // 1/15
  p = fma(p, square, broadcast(0x1.3b13b2p-4f));
  p = fma(p, square, broadcast(0x1.745d18p-4f));
  p = fma(p, square, broadcast(0x1.c71c72p-4f));
  p = fma(p, square, broadcast(0x1.24924ap-3f));
  p = fma(p, square, broadcast(0x1.99999ap-3f));
  p = fma(p, square, broadcast(0x1.555556p-2f));
  p = fma(p, square, broadcast(1.0f));
  return add(max(zero(), x), mul(add(s, s), p));
}

EDGE_INLINE f32x16 sigmoid(f32x16 x) { return div(broadcast(1.0f), add(broadcast(1.0f), exp(negate(x)))); }

static void rates(const RatesArgs& a, int64_t begin, int64_t end) {
  const f32x16 low = broadcast(a.low), high = broadcast(a.high);
  for (int64_t m = begin; m < end; ++m)
    each_vector(a.heads, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
      f32x16 step = softplus(add(load_some(a.steps + m * a.step_stride + i, n), load_some(a.bias + i, n)));
      step = min(high, max(low, step));
      store_some(a.decay + m * a.heads + i, exp(mul(step, load_some(a.rate + i, n))), n);
      const f32x16 strength = a.write == nullptr ? step : sigmoid(load_some(a.write + m * a.write_stride + i, n));
      store_some(a.strength + m * a.heads + i, strength, n);
    });
}

// P vectors of columns from `column` on, of one head through all rows of a run.
template <int P>
static void recur_tile(const RecurrenceArgs& a, const Run& run, int64_t head, int64_t column) {
  alignas(64) float tile[kMaxKeys * P * kLanes];
  const int64_t keys = a.key_dim, values = a.value_dim, group = head / (a.heads / a.groups);
  const int64_t place = head * keys * values + column;
  const float* before = a.states + run.reads * a.state_stride + place;
  float* behind = a.states + run.writes * a.state_stride + place;
  const float* k = a.k + run.begin * a.k_row + group * a.k_head;
  f32x16 recalled[P];  // S' k of the row that comes next
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { recalled[p] = zero(); });
  for (int64_t i = 0; i < keys; ++i) {
    const f32x16 key = broadcast(k[i]);
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const f32x16 s = load(before + i * values + p * kLanes);
      store(tile + (i * P + p) * kLanes, s);
      recalled[p] = fma(key, s, recalled[p]);
    });
  }
  for (int64_t m = run.begin; m < run.end; ++m, k += a.k_row) {
    const float* q = a.q + m * a.q_row + group * a.q_head;
    const float* v = a.v + m * a.v_row + head * a.v_head + column;
    const float* next = m + 1 < run.end ? k + a.k_row : k;
    const f32x16 decay = broadcast(a.decay[m * a.heads + head]), strength = broadcast(a.strength[m * a.heads + head]);
    f32x16 u[P], sum[P], ahead[P];
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const f32x16 value = load(v + p * kLanes);
      u[p] = mul(strength, a.corrects ? sub(value, mul(decay, recalled[p])) : value);
      sum[p] = ahead[p] = zero();
    });
    for (int64_t i = 0; i < keys; ++i) {
      const f32x16 key = broadcast(k[i]), query = broadcast(q[i]), next_key = broadcast(next[i]);
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
        float* at = tile + (i * P + p) * kLanes;
        const f32x16 s = fma(key, u[p], mul(load(at), decay));
        store(at, s);
        sum[p] = fma(query, s, sum[p]);
        ahead[p] = fma(next_key, s, ahead[p]);
      });
    }
    float* out = a.out + (m * a.heads + head) * values + column;
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const f32x16 y = a.skip == nullptr ? sum[p] : fma(broadcast(a.skip[head]), load(v + p * kLanes), sum[p]);
      store(out + p * kLanes, y);
      recalled[p] = ahead[p];
    });
  }
  for (int64_t i = 0; i < keys; ++i)
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { store(behind + i * values + p * kLanes, load(tile + (i * P + p) * kLanes)); });
}

static void recur(const RecurrenceArgs& a, int64_t begin, int64_t end) {
  const int64_t tiles = a.tiles();
  for (int64_t at = begin; at < end; ++at) {
    const Run& run = a.runs[at / (a.heads * tiles)];
    const int64_t head = at / tiles % a.heads, column = at % tiles * a.kTile;
    if (a.value_dim - column >= a.kTile)
      recur_tile<RecurrenceArgs::kTile / kLanes>(a, run, head, column);
    else
      recur_tile<1>(a, run, head, column);
  }
}

static void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m)
    for (int64_t first = 0, gain = 0; first < a.width; first += a.group, gain += a.gain_stride) {
      const float *x = a.x + m * a.x_stride + first, *gate = a.gate + m * a.gate_stride + first;
      float* out = a.out + m * a.width + first;
      if (a.gate_first)
        each_vector(a.group, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
          store_some(out + i, mul(load_some(x + i, n), silu(load_some(gate + i, n))), n);
        });
      const float* normed = a.gate_first ? out : x;
      const f32x16 r = broadcast(inverse_rms(normed, a.group, a.eps));
      each_vector(a.group, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
        const f32x16 y = mul(mul(load_some(normed + i, n), r), load_some(a.gain + gain + i, n));
        store_some(out + i, a.gate_first ? y : mul(y, silu(load_some(gate + i, n))), n);
      });
    }
}

static void sigmoid_gate(const SigmoidGateArgs& a, int64_t begin, int64_t end) {
  each_vector((end - begin) * a.width, [&](int64_t i, int n) EDGE_INLINE_LAMBDA {
    const int64_t at = begin * a.width + i;
    store_some(a.out + at, mul(load_some(a.x + at, n), sigmoid(load_some(a.gate + at, n))), n);
  });
}

extern const RecurrentKernels recurrent_table;
const RecurrentKernels recurrent_table = {convolve, keep_tails, rates, recur, gated_norm, sigmoid_gate};

}  // namespace EDGE_VARIANT
}  // namespace edge
