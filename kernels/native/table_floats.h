// Function pointers and argument structs of floats.h.
#pragma once

#include <stdint.h>

namespace edge {

// out[m, n] = x[m] . weight[n]; x and out contiguous.
struct FloatProduct {
  const float* x;         // [M, K]
  int64_t rows;           // M
  const float* weight;    // [N, K]
  int64_t weight_stride;  // from row to row
  int64_t channels;       // N
  int64_t columns;        // K
  float* out;             // [M, N]
};

// Causal grouped attention of the last T of S positions, the scores of a head's queries kAttended at a time.
struct FloatAttention {
  static constexpr int64_t kAttended = 32;
  const float* queries;  // [T, H, D]
  const float* keys;     // [G, S, D]
  const float* values;   // [G, S, D]
  int64_t tokens, heads, kv_heads, positions, dim;
  float scale;
  float* out;  // [T, H, D]

  // Floats that a worker needs beside them: a head's values turned, and its queries, scores, outputs and one row of scores.
  int64_t scratch() const { return positions * dim + 2 * kAttended * dim + kAttended * positions + positions; }
};

struct RowLevels {
  const float* x;  // [T, K]
  int64_t channels, index;
  float* levels;  // [T]
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

struct FloatKernels {
  // The channels begin..end-1 of all rows.
  void (*product)(const FloatProduct& args, int64_t begin, int64_t end);
  // out[i] = exp(x[i]) for i in begin..end-1; `out` may be x.
  void (*exp)(const float* x, float* out, int64_t begin, int64_t end);
  void (*rounding_errors)(const RoundingErrors&, int64_t begin, int64_t end);    // channels begin..end-1
  void (*channel_powers)(const ChannelPowers&);
  void (*column_squares)(const ColumnSquares&);
  void (*quantize_rows)(const QuantizeRows&, int64_t begin, int64_t end);        // rows
  void (*row_levels)(const RowLevels&, int64_t begin, int64_t end);              // rows
  // Heads; `scratch` is the worker's.
  void (*attention)(const FloatAttention&, float* scratch, int64_t begin, int64_t end);
  // out[i] = x[i] of `count` bfloat16 or float16; the largest magnitude, NaN above all.
  float (*widen_bf16)(const uint16_t* x, float* out, int64_t count);
  float (*widen_f16)(const uint16_t* x, float* out, int64_t count);
};

}  // namespace edge
