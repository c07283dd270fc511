// Products with the named neurons of an MLP alone. What activations are zero for adds nothing, so it is not even read; sums are
// whole numbers, so they are those of the whole product in any order. Each instruction set has a unit of this header alone.
#pragma once

#include "table_neurons.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// sums[0..width-1] += q0 * w0 + q1 * w1. Two products of at most 127 * 128 fit in 16 bits.
static void add_pair(int16_t q0, const int8_t* __restrict w0, int16_t q1, const int8_t* __restrict w1, int64_t width,
                     int32_t* __restrict sums) {
  for (int64_t n = 0; n < width; ++n)
    sums[n] += static_cast<int16_t>(static_cast<int16_t>(q0 * w0[n]) + static_cast<int16_t>(q1 * w1[n]));
}

// The same of eight columns, so that sums are read and written once for all of them.
static void add_sweep(const int16_t* q, const int8_t* const* w, int64_t width, int32_t* __restrict sums) {
  const int8_t *__restrict c0 = w[0], *__restrict c1 = w[1], *__restrict c2 = w[2], *__restrict c3 = w[3];
  const int8_t *__restrict c4 = w[4], *__restrict c5 = w[5], *__restrict c6 = w[6], *__restrict c7 = w[7];
  const auto both = [](int16_t a, int8_t b, int16_t c, int8_t d) EDGE_INLINE_LAMBDA {
    return static_cast<int32_t>(static_cast<int16_t>(static_cast<int16_t>(a * b) + static_cast<int16_t>(c * d)));
  };
  for (int64_t n = 0; n < width; ++n) {
    const int32_t first = both(q[0], c0[n], q[1], c1[n]) + both(q[2], c2[n], q[3], c3[n]);
    sums[n] += first + both(q[4], c4[n], q[5], c5[n]) + both(q[6], c6[n], q[7], c7[n]);
  }
}

static void add_columns(const NeuronsArgs& args, int64_t begin, int64_t end, int64_t* active) {
  constexpr int64_t kSweep = 8;  // columns that add_sweep takes
  constexpr int64_t kTogether = 1024;  // neurons whose part of the channels stays in a cache while all rows meet it
  for (int64_t first = 0; first < args.count; first += kTogether) {
    const int64_t last = min_i64(first + kTogether, args.count);
    for (int64_t m = 0; m < args.rows; ++m) {
      const int8_t* q = args.q + m * args.stride;
      int64_t count = 0;
      for (int64_t a = first; a < last; ++a) {
        active[count] = a;
        count += q[args.neurons[a]] != 0;
      }
      int32_t* sums = args.sums + m * args.width + begin;
      const auto column = [&](int64_t i) { return args.held + args.places[active[i]] + begin; };
      const auto value = [&](int64_t i) { return static_cast<int16_t>(q[args.neurons[active[i]]]); };
      int64_t i = 0;
      for (; i + kSweep <= count; i += kSweep) {
        int16_t values[kSweep];
        const int8_t* columns[kSweep];
        for (int64_t j = 0; j < kSweep; ++j) {
          values[j] = value(i + j);
          columns[j] = column(i + j);
        }
        add_sweep(values, columns, end - begin, sums);
      }
      for (; i + 1 < count; i += 2) add_pair(value(i), column(i), value(i + 1), column(i + 1), end - begin, sums);
      if (i < count) add_pair(value(i), column(i), 0, column(i), end - begin, sums);
    }
  }
}

static int32_t dot(const int8_t* __restrict a, const int8_t* __restrict b, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<int16_t>(a[i]) * static_cast<int16_t>(b[i]);
  return sum;
}

static void dot_rows(const NeuronsArgs& args, int64_t columns, int64_t begin, int64_t end) {
  for (int64_t a = begin; a < end; ++a)
    for (int64_t m = 0; m < args.rows; ++m)
      args.sums[m * columns + args.neurons[a]] = dot(args.q + m * args.stride, args.held + args.places[a], args.width);
}

extern const NeuronKernels neuron_table;
const NeuronKernels neuron_table = {add_columns, dot_rows};

}  // namespace EDGE_VARIANT
}  // namespace edge
