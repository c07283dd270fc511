// Function pointers and argument structs of floats.h.
#pragma once

#include <stdint.h>

namespace edge {

// out[m, n] = x[m] . weight[n]; all row-major and contiguous.
struct FloatProduct {
  const float* x;       // [M, K]
  int64_t rows;         // M
  const float* weight;  // [N, K]
  int64_t channels;     // N
  int64_t columns;      // K
  float* out;           // [M, N]
};

// What INT8 makes of the values of channels, see kernels/floats.py.
struct RoundingErrors {
  const float* x;   // [K, T], magnitudes
  int64_t tokens;   // T
  float inverse;    // steps per unit
  double* rounded;  // [K]
  double* clipped;  // [K]
  int64_t* over;    // [K]
};

struct ChannelPowers {
  const float* x;  // [T, K]
  int64_t tokens, channels;
  int pairs;       // half of the power
  float* largest;  // [K]
  double* sums;    // [K]
};

struct ColumnSquares {
  const float* x;  // [M, K]
  int64_t rows, columns, row_stride;
  float unit;
  double* sums;  // [K]
};

struct QuantizeRows {
  const float* weight;  // [N, K]
  int64_t columns;      // K
  const int32_t* hot;   // [H], ascending
  int64_t hot_columns;  // H
  float* scale;         // [N]
  int32_t* row_sum;     // [N]
  int8_t* tiles;        // [ceil(N/16), ceil(K/4), 16, 4], zeros
};

struct SoftmaxSums {
  const float* x;  // [M, V]
  int64_t vocabulary;
  float* largest;  // [M]
  float* sums;     // [M]
};

struct DivergenceTerms {
  const float* wanted;        // [M, V]
  const float* wanted_shift;  // [M, 2]
  float* found;               // [M, V], becomes the terms
  const float* found_shift;   // [M, 2]
  int64_t vocabulary;
};

struct FloatKernels {
  // The channels begin..end-1 of all rows.
  void (*product)(const FloatProduct& args, int64_t begin, int64_t end);
  // out[i] = exp(x[i]) for i in begin..end-1; `out` may be x.
  void (*exp)(const float* x, float* out, int64_t begin, int64_t end);
  void (*rounding_errors)(const RoundingErrors&, int64_t begin, int64_t end);    // channels begin..end-1
  void (*channel_powers)(const ChannelPowers&);
  void (*column_squares)(const ColumnSquares&);
  void (*quantize_rows)(const QuantizeRows&, int64_t begin, int64_t end);        // rows
  void (*softmax_sums)(const SoftmaxSums&, int64_t begin, int64_t end);          // rows
  void (*divergence_terms)(const DivergenceTerms&, int64_t begin, int64_t end);  // rows
};

}  // namespace edge
