// Function pointers and argument structs of pointwise.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

// Heads of rows: element (m, h, i) at data + m * row_stride + h * head_stride + i.
struct NormArgs {
  const float* x;
  int64_t row_stride, head_stride;
  float* out;  // may be x
  int64_t out_row_stride, out_head_stride;
  int64_t heads, dim;
  const float* gain;  // [dim]
  float eps;
};

struct RopeArgs {
  float* x;
  int64_t row_stride, head_stride;
  int64_t heads, half;       // a head has 2 * half values
  const int32_t* positions;  // [M]
  const float *cos, *sin;    // [C, half]
};

struct SwigluArgs {
  const float* gate_up;  // [M, 2 * width]
  float* out;            // [M, width]
  int64_t width;
};

constexpr int64_t kMaxTurn = 128;  // channels of the largest block that is turned

// Blocks of neighbouring channels are turned in place, see turn.h.
struct TurnArgs {
  float* x;  // [M, columns]
  int64_t columns;
  int64_t block;  // a power of two up to kMaxTurn that divides `columns`; 0: none
};

// Each works on the rows begin..end-1.
struct PointwiseKernels {
  void (*norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end);
  void (*swiglu)(const SwigluArgs&, int64_t begin, int64_t end);
  void (*turn)(const TurnArgs&, int64_t begin, int64_t end);
};

}  // namespace edge
